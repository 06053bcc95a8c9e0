"""Fills a database with django-celery-beat's own tables and a task of each kind: run in a process of its own."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import django
from django.conf import settings


def fill(database: dict[str, str]) -> None:
    settings.configure(
        DATABASES={"default": database},
        INSTALLED_APPS=["django_celery_beat"],
        USE_TZ=True,
        CELERY_TIMEZONE="UTC",
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    )
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from django_celery_beat import models

    def task(name: str, **fields: Any) -> None:
        models.PeriodicTask.objects.create(name=name, task="tasks.do", **fields)

    cron = models.CrontabSchedule.objects.create(minute="30", hour="9", day_of_week="1-5", timezone="Europe/Vienna")
    every = models.IntervalSchedule.objects.create(every=10, period="minutes")
    sun = models.SolarSchedule.objects.create(event="sunset", latitude="48.2", longitude="16.4")
    once = models.ClockedSchedule.objects.create(clocked_time=datetime(2030, 1, 1, 12, tzinfo=UTC))
    task("cron", crontab=cron, args="[1]", kwargs='{"x": 2}', queue="slow", priority=3, headers='{"tenant": "x"}')
    task("interval", interval=every, enabled=False, expire_seconds=60)
    task("solar", solar=sun, start_time=datetime(2026, 6, 1, tzinfo=UTC), expires=datetime(2027, 6, 1, tzinfo=UTC))
    task("clocked", clocked=once, one_off=True)


if __name__ == "__main__":
    fill({"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]})
