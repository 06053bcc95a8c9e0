"""A million waiting messages, in minutes: one is sent in earnest, its copies go straight to where they belong.

Each copy is a task of its own: it has an id that no other has. The original goes to a queue that no worker
knows, so that there may be one already.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import create_engine, select, text

from kombu_sqlqueue.messages import NewMessage
from kombu_sqlqueue.options import Options
from kombu_sqlqueue.process import process_for

__all__ = ["fill"]

BATCH = 1000


@dataclass(frozen=True)
class Sample:
    """The one that is copied: which task, where it waits, and where its copies shall."""

    id: str
    queue: str
    to: str

    def copy(self, text: str, id_: str) -> str:
        return text.replace(self.queue, self.to).replace(self.id, id_)


#: Gets the app, the sample, and how many are wanted.
Filler = Callable[[Any, Sample, int], None]


def fill(app: Any, send: Callable[[str], str], n: int) -> None:
    """`send` sends one message to the queue it is given, and tells the task's id."""
    scheme = app.conf.broker_url.partition("://")[0].partition("+")[0]
    if scheme not in FILLERS:
        raise NotImplementedError
    queue = app.conf.task_default_queue
    with app.connection_for_write() as connection:
        app.amqp.queues[queue].bind(connection.default_channel).declare()
    sample = Sample(send(f"{queue}_sample"), f"{queue}_sample", queue)
    FILLERS[scheme](app, sample, n)


def batches(n: int) -> Iterator[list[str]]:
    """The ids of `n` tasks."""
    for done in range(0, n, BATCH):
        yield [str(uuid.uuid4()) for _ in range(min(BATCH, n - done))]


def fill_ours(app: Any, sample: Sample, n: int) -> None:
    options = Options.parse(app.conf.broker_url, app.conf.broker_transport_options)
    process = process_for(options.database)
    m = process.database.tables.message.c
    columns = select(m.queue, m.body, m.envelope, m.due_at, m.task_id, m.task).where(m.task_id == sample.id)
    sent = NewMessage(**process.database.run(lambda tx: tx.execute(columns).one())._mapping)
    for ids in batches(n):
        process.messages.publish(
            [replace(sent, queue=sample.to, task_id=id_, envelope=sample.copy(sent.envelope, id_)) for id_ in ids]
        )


def fill_redis(app: Any, sample: Sample, n: int) -> None:
    with app.connection_for_write() as connection:
        client = connection.default_channel.client
        sent = client.lindex(sample.queue, 0).decode()
        # Kombu's Redis transport knows a delivery by the tag that its publisher chose.
        tag = json.loads(sent)["properties"]["delivery_tag"]
        for ids in batches(n):
            client.lpush(sample.to, *(sample.copy(sent, id_).replace(tag, id_) for id_ in ids))


def fill_amqp(app: Any, sample: Sample, n: int) -> None:
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        sent = app.amqp.queues[sample.queue].bind(channel).get(no_ack=True)
        channel.queue_delete(sample.queue)
        channel.exchange_delete(sample.queue)
        for ids in batches(n):
            for id_ in ids:
                message = channel.prepare_message(
                    sent.body,
                    content_type=sent.content_type,
                    content_encoding=sent.content_encoding,
                    headers={**sent.headers, "id": id_, "root_id": id_},
                    properties={"delivery_mode": 2, "correlation_id": id_},
                )
                channel.basic_publish(message, exchange="", routing_key=sample.to)


def fill_sqla(app: Any, sample: Sample, n: int) -> None:
    engine = create_engine(app.conf.broker_url.removeprefix("sqla+"))
    number, value = ("id, ", "nextval('message_id_sequence'), ") if engine.dialect.name == "postgresql" else ("", "")
    find = text("SELECT id, payload FROM kombu_message WHERE payload LIKE :pattern")
    insert = text(
        f"INSERT INTO kombu_message ({number}visible, timestamp, payload, version, queue_id)"
        f" SELECT {value}visible, timestamp, :payload, version, (SELECT id FROM kombu_queue WHERE name = :queue)"
        " FROM kombu_message WHERE id = :id"
    )
    with engine.connect() as connection:
        row = connection.execute(find, {"pattern": f"%{sample.id}%"}).one()
        for ids in batches(n):
            values = [{"id": row.id, "queue": sample.to, "payload": sample.copy(row.payload, id_)} for id_ in ids]
            connection.execute(insert, values)
            connection.commit()
    engine.dispose()


FILLERS: dict[str, Filler] = {"sqlqueue": fill_ours, "redis": fill_redis, "amqp": fill_amqp, "sqla": fill_sqla}
