"""Runs a real Celery worker on one SQLite file and shows where everything is.

    python examples/demo

leaves `demo/demo.db` and `demo/worker.log` behind, to look at. Each run begins anew.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
HOME = pathlib.Path("demo")
FILE = HOME / "demo.db"
LOG = HOME / "worker.log"
URL = f"sqlqueue+sqlite:///{FILE.resolve()}"
#: Seconds to wait for any one thing.
PATIENCE = 60


def main():
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    os.environ["DEMO_URL"] = URL
    import tasks

    print(f"The broker and the result backend are one SQLite file: {FILE}")
    print("No server was started. SQLite makes its tables itself, at the first message.")
    waiting = publish_without_a_worker(tasks)
    with worker():
        finish(waiting)
        group_and_chord(tasks)
        retry(tasks)
        eta(tasks)
        own_transaction(tasks)
        schedule(tasks)
        durable_workflow(tasks)
        step("The worker stops")
    look_back()


def publish_without_a_worker(tasks):
    step("Three plain tasks, and no worker yet")
    results = [tasks.add.delay(n, n) for n in (1, 2, 3)]
    say("add.delay() was called three times. Each message is a row:")
    rows("SELECT id, queue, task, position FROM sqlqueue_message ORDER BY position")
    say("A ready row has a position, its place in the queue. The same by command:")
    stats()
    return results


def finish(results):
    step("A worker starts")
    say(f"celery -A tasks worker (its log is in {LOG})")
    say(f"results: {[result.get(timeout=PATIENCE) for result in results]}")
    say("A message is deleted when its task is done; the result is a row of its own:")
    rows("SELECT task_id, state, task FROM sqlqueue_result")


def group_and_chord(tasks):
    from celery import chord, group

    step("A group and a chord")
    many = group(tasks.add.s(n, 1) for n in range(5)).apply_async()
    say(f"group of five:         {many.get(timeout=PATIENCE)}")
    body = chord((tasks.add.s(n, n) for n in range(5)), tasks.total.s()).apply_async()
    say(f"chord, sum of doubles: {body.get(timeout=PATIENCE)}")
    say("The database counts the parts of a chord. No task polls for its end.")


def retry(tasks):
    step("A retry")
    result = tasks.flaky.delay()
    wait_for("SELECT 1 FROM sqlqueue_message WHERE due_at IS NOT NULL")
    say("The task failed and asked to be tried again in a second. Meanwhile it is a delayed row:")
    rows("SELECT id, task, due_at FROM sqlqueue_message WHERE due_at IS NOT NULL")
    say(f"result: {result.get(timeout=PATIENCE)}")


def eta(tasks):
    step("An ETA task")
    due = time.time() + 6
    result = tasks.clock.apply_async(countdown=6)
    say("It is due in six seconds. No worker holds it until then:")
    stats()
    late = result.get(timeout=PATIENCE) - due
    say(f"it began {late * 1000:.0f} ms after it was due")


def own_transaction(tasks):
    import sqlalchemy as sa

    from kombu_sqlqueue import in_transaction

    step("A task in a transaction of one's own")
    engine = sa.create_engine(f"sqlite:///{FILE}")
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders (id INTEGER)"))
    with engine.connect() as connection, in_transaction(connection):
        connection.execute(sa.text("INSERT INTO orders VALUES (1)"))
        tasks.ship.delay(1)
        connection.rollback()
    say("INSERT of order 1, ship.delay(1), rollback: neither is there.")
    with engine.begin() as connection, in_transaction(connection):
        connection.execute(sa.text("INSERT INTO orders VALUES (2)"))
        shipped = tasks.ship.delay(2)
    say(f"INSERT of order 2, ship.delay(2), commit: {shipped.get(timeout=PATIENCE)}")
    engine.dispose()


def schedule(tasks):
    from celery_workflow import Schedules

    step("A schedule, with two beats")
    with beat("one") as first, beat("two"):
        Schedules(tasks.app).create("tick", "tasks.tick", 1, misfire="fire_all")
        say("celery -A tasks beat -S sqlqueue, twice. The schedule is a row, every second; one beat is killed in between:")
        wait_for("SELECT 1 FROM (SELECT count(*) AS ticks FROM workflow_tick WHERE outcome = 'fired') WHERE ticks >= 2")
        first.kill()
        wait_for("SELECT 1 FROM (SELECT count(*) AS ticks FROM workflow_tick WHERE outcome = 'fired') WHERE ticks >= 5")
        Schedules(tasks.app).pause("tick", note="enough for a demo")
    rows(
        "SELECT time(tick_at / 1000000, 'unixepoch') AS tick, outcome, late_for / 1000 AS ms_late, node"
        " FROM workflow_tick ORDER BY tick_at"
    )
    say("Each tick fired once, and none is missing.")


def durable_workflow(tasks):
    step("A workflow that waits for somebody's approval")
    run = tasks.order.options(id="order-7", labels={"customer": "ann"}).start(numbers=[1, 2])
    wait_until(lambda: run.steps()["approved"].status == "awaiting")
    say("Its graph and its steps are rows. Where it is, as text for mermaid.live:")
    for line in run.graph("mermaid").splitlines():
        if "style" not in line:
            say(f"  {line}")
    say(f"progress: {', '.join(f'{count} {state}' for state, count in run.progress().items())}")
    run.signal("approved", {"order": 7})
    say(f"the signal is sent, and the result is: {run.result(timeout=PATIENCE)}")


def look_back():
    say("The worker has ended cleanly. What is left in the file:")
    rows(
        "SELECT (SELECT count(*) FROM sqlqueue_message) AS messages,"
        " (SELECT count(*) FROM sqlqueue_dead) AS dead,"
        " (SELECT count(*) FROM sqlqueue_result) AS results"
    )
    say("Results go after a day, as result_expires says. To look around:")
    celery = pathlib.Path(sys.executable).with_name("celery")
    shown = os.path.relpath(celery) if celery.is_relative_to(pathlib.Path.cwd()) else celery
    say(f"  {shown} --broker sqlqueue+sqlite:///{FILE} sqlqueue stats")
    say(f"  {shown} --broker sqlqueue+sqlite:///{FILE} workflow show order-7")
    say(f"  sqlite3 {FILE} .tables")
    say("More examples are in examples/README.md.")


@contextlib.contextmanager
def worker():
    """A worker in a process of its own, stopped as an operator would stop it."""
    with LOG.open("w") as log:
        process = subprocess.Popen(
            [*CELERY, "-A", "tasks", "worker", "--concurrency", "2", "--loglevel", "INFO"],
            cwd=HERE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        except BaseException:
            print(f"\nSomething went wrong. The worker's log is in {LOG}.", file=sys.stderr)
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


@contextlib.contextmanager
def beat(name):
    """A beat in a process of its own."""
    with (HOME / f"beat-{name}.log").open("w") as log:
        process = subprocess.Popen(
            [*CELERY, "-A", "tasks", "beat", "-S", "sqlqueue"], cwd=HERE, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE)


CELERY = [sys.executable, "-m", "celery"]


def stats():
    done = subprocess.run([*CELERY, "--broker", URL, "sqlqueue", "stats"], check=True, text=True, stdout=subprocess.PIPE)
    for line in done.stdout.splitlines():
        say(f"  {line}")


def rows(query):
    with contextlib.closing(sqlite3.connect(FILE)) as connection:
        found = connection.execute(query)
        lines = [[column[0] for column in found.description], *([str(value) for value in row] for row in found)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        say("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def wait_for(query):
    """Wait until the query finds a row."""
    with contextlib.closing(sqlite3.connect(FILE)) as connection:
        wait_until(lambda: connection.execute(query).fetchone())


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it took too long")
        time.sleep(0.01)


def step(title):
    print(f"\n== {title}")


def say(text):
    print(f"   {text}", flush=True)


if __name__ == "__main__":
    main()
