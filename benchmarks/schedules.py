"""`python -m benchmarks.schedules URL`: a beat with a hundred thousand schedules, of which a thousand are due in one second.

URL is that of a sqlqueue broker with a database that is empty and stays full: take one of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta
from statistics import median, quantiles

import click
import psutil
from celery import Celery
from sqlalchemy import select

from celery_workflow import Definition, Schedules
from celery_workflow.home import Home
from celery_workflow.schedules.zones import moment_of
from kombu_sqlqueue.sql.migrate import upgrade

SECOND = 1_000_000


@click.command()
@click.argument("url")
@click.option("--schedules", "count", default=100_000, show_default=True, help="How many schedules there are besides.")
@click.option("--burst", default=1000, show_default=True, help="How many are due in the same second.")
@click.option("--beats", default=1, show_default=True, help="How many beats run.")
@click.option("--burst-in", default=15.0, show_default=True, help="So many seconds after the start they are due.")
@click.option("--idle-for", default=10.0, show_default=True, help="For so many seconds idle beats are watched.")
def main(url: str, count: int, burst: int, beats: int, burst_in: float, idle_for: float) -> None:
    """Measure and print."""
    app = Celery("bench", broker=url, backend="disabled://")
    home = Home(app)
    upgrade(home.database)
    upgrade(home.database, home.line)
    schedules = Schedules(app)
    began = time.monotonic()
    schedules.create_many([_yearly(number) for number in range(count)])
    click.echo(f"created {count} schedules in {time.monotonic() - began:.1f} s")

    schedules.create("probe", "bench.none", 0.5)
    due_at = moment_of(home.store().now()) + timedelta(seconds=burst_in)
    started = home.store().now()
    processes = [_beat(url) for _ in range(beats)]
    try:
        _measure_start(home, schedules, started)
        schedules.create_many([_once(number, due_at.isoformat()) for number in range(burst)])
        _measure_burst(home, burst)
        schedules.delete("probe")
        _measure_idle(processes, idle_for)
    finally:
        for process in processes:
            process.terminate()
            process.wait(30)


def _yearly(number: int) -> Definition:
    spec = f"{number % 60} {number // 60 % 24} 1 1 *"
    return Definition(name=f"yearly {number}", task="bench.none", kind="crontab", spec=spec, timezone="Europe/Vienna")


def _once(number: int, moment: str) -> Definition:
    return Definition(name=f"once {number}", task="bench.none", kind="clocked", spec=moment)


def _beat(url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "celery", "--broker", url, "beat", "-S", "sqlqueue", "--pidfile=", "-l", "WARNING"]
    return subprocess.Popen(command, env=os.environ | {"C_FORCE_ROOT": "1"})


def _measure_start(home: Home, schedules: Schedules, started: int) -> None:
    while not (fired := schedules.history("probe", 1)):
        time.sleep(0.02)
    click.echo(f"first fire {(fired[0].handled_at - started) / SECOND:.2f} s after the start of the process")


def _measure_burst(home: Home, burst: int) -> None:
    tables = home.tables
    query = select(tables.tick.c.late_for).join(tables.schedule, tables.schedule.c.id == tables.tick.c.schedule)
    query = query.where(tables.schedule.c.name.like("once %"), tables.tick.c.outcome == "fired")
    late: list[int] = []
    while len(late) < burst:
        time.sleep(0.1)
        late = list(home.database.statement(lambda tx: tx.scalars(query).all()))
    # Beginning with the transaction that fires it; the last commits a few milliseconds later.
    ninety_ninth = quantiles(late, n=100)[98] if burst > 1 else late[0]
    found = (f"{median(late) / SECOND:.3f}", f"{ninety_ninth / SECOND:.3f}", f"{max(late) / SECOND:.3f}")
    click.echo(
        f"{burst} due at one moment: late by {found[0]} s in the middle, {found[1]} s at the 99th, {found[2]} s at most"
    )


def _measure_idle(processes: list[subprocess.Popen[bytes]], idle_for: float) -> None:
    observed = [psutil.Process(process.pid) for process in processes]
    time.sleep(2)
    before = [sum(each.cpu_times()[:2]) for each in observed]
    time.sleep(idle_for)
    with suppress(psutil.NoSuchProcess):
        used = [sum(each.cpu_times()[:2]) - past for each, past in zip(observed, before, strict=True)]
        click.echo(
            f"idle: {max(used) / idle_for:.2%} of a core a beat, {max(e.memory_info().rss for e in observed) >> 20} MiB"
        )


if __name__ == "__main__":
    main()
