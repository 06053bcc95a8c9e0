"""MariaDB ends sessions that are idle for long: nobody notices."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from sqlalchemy.engine import make_url

from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from .workers import Site, eventually

DATABASES = ("mariadb",)
#: Seconds after which the server hangs up, and for how long nobody says anything.
WAIT_TIMEOUT = 2
IDLE = 5


def test_a_worker_whose_sessions_are_ended_goes_on(
    make_site: Callable[..., Site], database_options: DatabaseOptions, tmp_path
):
    """Idle, in a task that takes longer, and when it is stopped with messages to give back."""
    url = make_url(database_options.url).update_query_dict({"init_command": f"SET SESSION wait_timeout={WAIT_TIMEOUT}"})
    options = dataclasses.replace(database_options, url=url.render_as_string(hide_password=False))
    make_site()  # which wipes the tables at the end
    site = Site(options, tmp_path, options={"lease_for": 30, "polling_interval": 10})
    try:
        worker = site.worker()
        assert site.send("echo", "first").get(timeout=60) == "first"
        time.sleep(IDLE)
        long = site.send("sleep_late", "long", IDLE)
        eventually(lambda: site.marks("begin long"))
        for number in range(3):
            site.send("sleep_late", f"behind {number}", 0)
        worker.stop()

        assert long.get(timeout=60) == "long"
        assert site.counts().leased == 0
        assert "gone away" not in worker.text
        assert "Traceback" not in worker.text
    finally:
        site.close()
        process_for(options).close()
