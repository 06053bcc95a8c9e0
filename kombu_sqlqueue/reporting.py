"""Tasks that died with their worker: their failure is recorded as if they had raised it."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Any

from celery import signals, states
from celery.app.task import Context
from celery.exceptions import WorkerLostError
from kombu import serialization
from kombu.utils.json import loads

from .errors import SQLQueueError
from .messages import DeadMessage, Reason
from .store import MessageStore

__all__ = ["Reporter"]

logger = logging.getLogger(__name__)

#: Seconds between two looks for dead tasks that nobody announced.
LOOK_EVERY = 30.0
#: Who claims a report and dies leaves it to others after this long.
REPORT_FOR = timedelta(seconds=60)
BATCH = 50


class Reporter:
    """A thread of the worker that records the failure of dead tasks, each exactly as Celery would.

    Recording is at least once; the result backend counts a chord's part once however often told.
    """

    def __init__(self, app: Any, store: MessageStore) -> None:
        self._app = app
        self._store = store
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sqlqueue-reporter", daemon=True)

    def start(self) -> None:
        self._wake.set()
        self._thread.start()

    def wake(self) -> None:
        """Messages have died."""
        self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(LOOK_EVERY)
            self._wake.clear()
            try:
                while not self._stopping and self._report_some():
                    pass
            except SQLQueueError as error:
                logger.warning("could not record the failure of dead tasks, trying again: %s", error)
            except Exception:
                logger.exception("unexpected error while recording the failure of dead tasks")

    def _report_some(self) -> bool:
        dead = self._store.claim_reports(limit=BATCH, lease_for=REPORT_FOR)
        for message in dead:
            try:
                self._report(message)
            except SQLQueueError:
                raise
            except Exception:
                # One that cannot be told of is not to keep the others waiting.
                logger.exception(
                    "the failure of task %s[%s] cannot be recorded, trying again", message.task, message.task_id
                )
                continue
            self._store.reported([message.id])
        return bool(dead)

    def _report(self, message: DeadMessage) -> None:
        error = WorkerLostError(cause_of_death(message))
        logger.error("task %s[%s] is dead: %s", message.task, message.task_id, error)
        task = self._app.tasks.get(message.task)
        backend = task.backend if task is not None else self._app.backend
        request = self._request(message)
        stored = backend.get_task_meta(message.task_id, cache=False)
        if stored["status"] == states.SUCCESS:
            # It ended well and only its worker's last words were lost. A chord may still wait for it.
            if request.chord:
                backend.on_chord_part_return(request, states.SUCCESS, stored["result"])
            return
        backend.mark_as_failure(message.task_id, error, request=request, store_result=not request.ignore_result)
        if task is not None:
            signals.task_failure.send(
                sender=task,
                task_id=message.task_id,
                exception=error,
                args=request.args,
                kwargs=request.kwargs,
                traceback=None,
                einfo=None,
            )

    def _request(self, message: DeadMessage) -> Context:
        """The request its task would have had, as far as the message can be read."""
        envelope = loads(message.envelope)
        properties = {**envelope["properties"], "delivery_tag": f"{message.id}:{message.delivery}"}
        fields = dict(envelope["headers"])
        try:
            fields.update(self._arguments(envelope, message.body))
        except Exception as error:  # noqa: BLE001 - a serializer may raise anything
            logger.warning("the arguments of dead task %s cannot be read: %s", message.task_id, error)
        fields.update(
            id=message.task_id, task=message.task, properties=properties, delivery_info=properties["delivery_info"]
        )
        request = Context(fields)
        if request.ignore_result is None:
            task = self._app.tasks.get(message.task)
            request.ignore_result = bool(task is not None and task.ignore_result)
        return request

    def _arguments(self, envelope: dict[str, Any], body: bytes) -> dict[str, Any]:
        from kombu.compression import decompress

        if compression := envelope["headers"].get("compression"):
            body = decompress(body, compression)
        accept = serialization.prepare_accept_content(self._app.conf.accept_content)
        payload = serialization.loads(body, envelope["content-type"], envelope["content-encoding"], accept=accept)
        if isinstance(payload, dict):  # task protocol 1
            return payload
        args, kwargs, embedded = payload
        return {"args": args, "kwargs": kwargs, **embedded}


def cause_of_death(message: DeadMessage) -> str:
    """Why the task is dead, with the workers that were lost."""
    by = f" ({', '.join(message.holders)})" if message.holders else ""
    if message.reason in (Reason.REJECTED, Reason.UNDECODABLE):
        return f"The worker{by} refused the task's message or cannot decode it."
    if message.reason is Reason.WORKER_LOST:
        return f"The worker{by} died while it ran the task, which was acknowledged early and so may not run again."
    return f"The task was lost with its worker or put back {message.reclaims} times{by} and is not tried again."
