"""Sending the task of a tick in the transaction that records the tick."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from celery import Celery, Signature

from kombu_sqlqueue import bulk_publish
from kombu_sqlqueue.process import process_for

from ..errors import ScheduleError
from ..home import Home
from ..publishing import check_reach, within
from .payload import thawed
from .state import Cause, Schedule
from .zones import moment_of

__all__ = ["Letter", "Sender", "task_id_of"]

#: A tick of a schedule, and why it is fired.
Letter = tuple[Schedule, int, Cause]

#: What the ids of tasks are derived from, so that a tick has the same one whoever fires it.
NAMESPACE = uuid.UUID("6b1f4fd4-2f5e-5c1b-8f57-6d2f3f8f7c11")


def task_id_of(schedule: Schedule, tick: int, cause: Cause) -> str:
    """The id of the task of a tick."""
    return str(uuid.uuid5(NAMESPACE, f"{schedule.id} {schedule.created_at} {cause} {tick}"))


class Sender:
    """Sends tasks to the app's broker, as part of transactions of its database."""

    def __init__(self, app: Celery, home: Home) -> None:
        check_reach(home)
        self._home = home
        self._app = app
        self._producer: Any = None

    def prepare(self) -> None:
        """Connect, which must not happen within a transaction. Raises kombu's OperationalError if nobody answers.

        With an outbox nobody but the relay needs the broker.
        """
        if self._home.has_outbox:
            process_for(self._home.options).prepare()
        elif self._producer is None:
            connection = self._app.connection_for_write()
            connection.ensure_connection(max_retries=1, interval_start=0)
            self._producer = self._app.amqp.Producer(connection.default_channel, auto_declare=False)

    def send(self, tx: Any, letters: Sequence[Letter]) -> list[str]:
        """Send the tasks of these ticks as part of the transaction of the connection; the answer is their ids."""
        if not letters:
            return []
        signatures = [self._signature(*letter) for letter in letters]
        try:
            with within(self._home, tx, self._producer and self._producer.connection):
                # A transaction that failed once is over: the whole of it is tried again, by the scheduler.
                bulk_publish(signatures, producer=self._producer, retry=False)
        except BaseException:
            # What was declared meanwhile may be undone.
            self.close()
            raise
        return [signature.options["task_id"] for signature in signatures]

    def close(self) -> None:
        """Give the connection back."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.connection.release()

    def _signature(self, schedule: Schedule, tick: int, cause: Cause) -> Signature:
        definition = schedule.definition
        options: Any = thawed(dict(definition.options))
        headers = options.get("headers") or {}
        if not isinstance(headers, dict):
            raise ScheduleError(f"headers of schedule {definition.name!r} is {headers!r}, but must be a dict")
        marks = {
            "celery_beat_task": True,
            "periodic_task_name": definition.name,
            "periodic_task_tick": moment_of(tick).isoformat(),
        }
        options |= {"headers": {**headers, **marks}, "task_id": task_id_of(schedule, tick, cause)}
        args, kwargs = thawed(list(definition.args)), thawed(dict(definition.kwargs))
        return self._app.signature(definition.task, args, kwargs, options=options)
