import time
from celery import chord
from tests.celery.test_chords import *
def test_threads(canvas_site):
    canvas_site.worker("-P","threads","-c16")
    t=Tasks(canvas_site)
    b=time.time()
    rs=[chord([t("echo",i) for i in range(3)], t("total")).apply_async() for _ in range(60)]
    print("sent", time.time()-b)
    b=time.time()
    assert [r.get(timeout=100) for r in rs]==[3]*60
    print("took", time.time()-b)
