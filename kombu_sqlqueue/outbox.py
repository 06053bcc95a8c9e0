"""Tasks for another broker that are sent in a transaction of the app's own database.

They become messages of an outbox there, with the transaction or not at all, and a relay
(``celery sqlqueue relay``) passes them on. The outbox is where the setting ``sqlqueue_outbox`` says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from celery import Celery
from kombu import Connection, Exchange, Producer, Queue
from kombu.exceptions import EncodeError

from . import grouping
from .batching import current_batch
from .envelope import OWNER
from .errors import ConfigurationError, MessageTooBigError, TransactionNotSupportedError
from .letters import Letter, described
from .messages import NewMessage
from .options import Options
from .process import Process, process_for
from .retrying import is_retry
from .transactions import current

__all__ = ["install", "outbox_options"]

SETTING = "sqlqueue_outbox"
OPTIONS_SETTING = "sqlqueue_outbox_options"


def outbox_options(app: Celery) -> Options | None:
    """Where the app has its outbox; None if it has none. Raises ConfigurationError for wrong settings."""
    url = app.conf.get(SETTING)
    if not url:
        return None
    given = _dict(app.conf.get(OPTIONS_SETTING))
    try:
        return _parsed(str(url), tuple(sorted(given.items())))
    except TypeError:
        # One of them cannot be what it should be: let the parser say which.
        return Options.parse(str(url), given, setting=OPTIONS_SETTING)


def install() -> None:
    """Let apps with another broker send to their outbox within `in_transaction`. Safe to call twice."""
    acquire = Celery.producer_or_acquire
    if hasattr(acquire, "__wrapped__"):
        return
    # Groups are stored in one statement, as with a broker of ours.
    grouping.install()

    @functools.wraps(acquire)
    def producer_or_acquire(self: Celery, producer: Any = None) -> AbstractContextManager[Any]:
        ours = None
        if current() is not None and not isinstance(producer, OutboxProducer):
            ours = _outbox_producer(self, producer, lambda: acquire(self, producer))
        acquired: AbstractContextManager[Any] = ours or acquire(self, producer)
        return acquired

    Celery.producer_or_acquire = Celery.default_producer = producer_or_acquire


class OutboxProducer(Producer):
    """Kombu's producer, but what it publishes becomes a message of the outbox."""

    def __init__(
        self,
        process: Process,
        connection: Connection,
        *,
        max_bytes: int | None,
        direct: Callable[[], AbstractContextManager[Producer]],
    ) -> None:
        """`direct` acquires a producer for what does not wait for the transaction."""
        self._to = connection
        self._direct = direct
        self._declares: list[Exchange | Queue] = []
        super().__init__(_OutboxChannel(process, self._declares, max_bytes), auto_declare=False)

    @property
    def connection(self) -> Connection:
        """The broker that it is for; nobody connects to it."""
        return self._to

    def publish(self, body: Any, *args: Any, **kwargs: Any) -> Any:
        """As Kombu's, but never repeated: a transaction that has failed once is over.

        The running task's own ``retry()`` goes to the broker at once: it leaves the task by an exception, which
        rolls most transactions back, and the task would be lost with it.
        """
        fields = kwargs.get("headers") or (body if isinstance(body, dict) else {})
        if OWNER not in fields and is_retry(fields.get("id"), fields.get("retries")):
            with self._direct() as producer:
                return producer.publish(body, *args, **kwargs)
        self._declares.clear()
        return super().publish(body, *args, **{**kwargs, "retry": False})

    def maybe_declare(self, entity: Any, retry: bool = False, **retry_policy: Any) -> None:
        """Take down what the relay is to declare."""
        self._declares.append(entity)

    def revive(self, channel: Any) -> None:
        """Nothing that could be lost was connected."""
        if isinstance(channel, _OutboxChannel):
            super().revive(channel)


class _OutboxChannel:
    """The part of a Kombu channel that a producer uses."""

    def __init__(self, process: Process, declares: list[Exchange | Queue], max_bytes: int | None) -> None:
        self._process = process
        self._declares = declares
        self._max_bytes = max_bytes

    @property
    def connection(self) -> Any:
        """Asked for by result backends that declare a queue for each caller, such as ``rpc://``."""
        raise TransactionNotSupportedError(
            "results of this result backend need the broker at once: use another one with an outbox, or ignore_result"
        )

    def prepare_message(
        self,
        body: Any,
        priority: Any = None,
        content_type: Any = None,
        content_encoding: Any = None,
        headers: Any = None,
        properties: Any = None,
    ) -> dict[str, Any]:
        names = ("priority", "content_type", "content_encoding", "headers", "properties")
        return {"body": body} | dict(
            zip(names, (priority, content_type, content_encoding, headers, properties), strict=True)
        )

    def basic_publish(
        self,
        message: dict[str, Any],
        exchange: Any = "",
        routing_key: Any = "",
        mandatory: bool = False,
        immediate: bool = False,
        **kwargs: Any,
    ) -> None:
        """Store it. Raises MessageTooBigError past `max_message_bytes`, EncodeError if it does not fit into JSON."""
        address = {
            "exchange": exchange or "",
            "routing_key": routing_key or "",
            "mandatory": mandatory,
            "immediate": immediate,
        }
        content = {name: value for name, value in message.items() if name != "body"}
        try:
            sealed = Letter(message["body"], content, address, [described(each) for each in self._declares]).seal()
        except (TypeError, ValueError) as error:
            raise EncodeError(f"the message cannot be stored, something in it does not fit into JSON: {error}") from error
        size = len(sealed.body) + len(sealed.envelope)
        if self._max_bytes is not None and size > self._max_bytes:
            raise MessageTooBigError(f"the message has {size} bytes, max_message_bytes allows {self._max_bytes}")
        self._store(sealed)

    def _store(self, sealed: NewMessage) -> None:
        loan, batch = current(), current_batch()
        if loan is not None and sealed.task_id is not None:
            loan.note([sealed.task_id])
        if batch is not None and batch.is_within:
            batch.add(self._process.messages, [sealed])
        else:
            self._process.messages.publish([sealed])


def _outbox_producer(
    app: Celery, producer: Any, direct: Callable[[], AbstractContextManager[Producer]]
) -> AbstractContextManager[OutboxProducer] | None:
    """A producer for the app's outbox, None if its broker takes part in transactions itself."""
    connection = app.pool.connection if producer is None else producer.connection
    if connection.transport.driver_type == "sqlqueue":
        return None
    if connection is not app.pool.connection and connection.as_uri() != app.pool.connection.as_uri():
        raise TransactionNotSupportedError(
            f"a relay passes tasks on to the app's broker, {app.pool.connection.as_uri()}, but this one is sent to"
            f" {connection.as_uri()}: send it outside of in_transaction()"
        )
    options = outbox_options(app)
    if options is None:
        raise TransactionNotSupportedError(
            f"the broker {connection.as_uri()} cannot take part in a transaction of a database, and the app has no"
            f" outbox: set {SETTING} = 'sqlqueue+postgresql://…', the URL of that database, and run `celery sqlqueue relay`"
        )
    process = process_for(options.database)
    if not process.database.in_transaction:
        raise TransactionNotSupportedError(
            f"the transaction given to in_transaction() is not one of the outbox, {options.database.safe_url}, or does"
            f" not find its tables there: {SETTING} must lead to the same database and schema"
        )
    return nullcontext(OutboxProducer(process, connection, max_bytes=options.max_message_bytes, direct=direct))


@functools.lru_cache(maxsize=16)
def _parsed(url: str, given: tuple[tuple[str, Any], ...]) -> Options:
    options = Options.parse(url, dict(given), setting=OPTIONS_SETTING)
    if options.database.django_alias is not None:
        raise ConfigurationError(
            f"{OPTIONS_SETTING} cannot have django_alias, which is for a sqlqueue broker: send to an outbox within"
            " in_transaction(django.db.connection)"
        )
    return options


def _dict(given: Any) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        # Not its value: somebody may have put the URL there.
        raise ConfigurationError(f"{OPTIONS_SETTING} is of type {type(given).__name__}, but must be a dict")
    return given or {}
