"""Sending the task of a tick in the transaction that records the tick."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery

from kombu_sqlqueue.errors import ConfigurationError

from .errors import ScheduleError
from .home import Home
from .payload import thawed
from .schedules import Definition
from .state import Cause, Schedule
from .zones import moment_of

__all__ = ["Sender", "task_id_of"]

#: What the ids of tasks are derived from, so that a tick has the same one whoever fires it.
NAMESPACE = uuid.UUID("6b1f4fd4-2f5e-5c1b-8f57-6d2f3f8f7c11")


def task_id_of(schedule: Schedule, tick: int, cause: Cause) -> str:
    """The id of the task of a tick."""
    return str(uuid.uuid5(NAMESPACE, f"{schedule.id} {schedule.created_at} {cause} {tick}"))


class Sender:
    """Sends tasks to the app's broker, as part of transactions of its database."""

    def __init__(self, app: Celery, home: Home) -> None:
        if not home.is_broker:
            raise ConfigurationError(
                "schedules fire into the database that they are stored in, but the broker is another one:"
                " leave workflow_store_url unset, or use a sqlqueue broker on that database"
            )
        self._app = app
        self._home = home
        self._producer: Any = None

    def prepare(self) -> None:
        """Connect, which must not happen within a transaction. Raises kombu's OperationalError if nobody answers."""
        if self._producer is None:
            connection = self._app.connection_for_write()
            connection.ensure_connection(max_retries=1, interval_start=0)
            self._producer = self._app.amqp.Producer(connection.default_channel, auto_declare=False)

    @contextmanager
    def within(self, tx: Any) -> Iterator[None]:
        """What is sent inside is part of the transaction of this connection.

        After an error nothing that was declared meanwhile counts as declared.
        """
        try:
            with self._home.database.joined(tx):
                yield
        except BaseException:
            self.close()
            raise

    def send(self, schedule: Schedule, tick: int, cause: Cause) -> str:
        """Send the task of this tick; the answer is its id."""
        definition = schedule.definition
        options = self._options(definition, tick)
        task_id = options["task_id"] = task_id_of(schedule, tick, cause)
        args, kwargs = thawed(list(definition.args)), thawed(dict(definition.kwargs))
        task = self._app.tasks.get(definition.task)
        if task is not None:
            task.apply_async(args, kwargs, producer=self._producer, **options)
        else:
            self._app.send_task(definition.task, args, kwargs, producer=self._producer, **options)
        return task_id

    def close(self) -> None:
        """Give the connection back."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.connection.release()

    def _options(self, definition: Definition, tick: int) -> dict[str, Any]:
        options: Any = thawed(dict(definition.options))
        headers = options.get("headers") or {}
        if not isinstance(headers, dict):
            raise ScheduleError(f"headers of schedule {definition.name!r} is {headers!r}, but must be a dict")
        marks = {
            "celery_beat_task": True,
            "periodic_task_name": definition.name,
            "periodic_task_tick": moment_of(tick).isoformat(),
        }
        # A transaction that failed once is over: the whole of it is tried again, by the scheduler.
        return {**options, "headers": {**headers, **marks}, "retry": False}
