"""A million waiting messages, in minutes: one is sent in earnest, its copies go straight to where it lies.

Each copy is a task of its own: it has an id that no other has.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sqlalchemy import create_engine, select, text

from kombu_sqlqueue.messages import NewMessage
from kombu_sqlqueue.options import Options
from kombu_sqlqueue.process import process_for

__all__ = ["Filler", "filler_of"]

#: Sends the message to copy, and tells its id.
Send = Callable[[], str]
#: Gets the app, how many are wanted, and how to send one.
Filler = Callable[[Any, int, Send], None]

BATCH = 1000


def filler_of(broker: str) -> Filler:
    scheme = broker.partition("://")[0].partition("+")[0]
    if scheme not in FILLERS:
        raise NotImplementedError
    return FILLERS[scheme]


def batches(n: int) -> Iterator[list[str]]:
    """The ids of `n` tasks."""
    for done in range(0, n, BATCH):
        yield [str(uuid.uuid4()) for _ in range(min(BATCH, n - done))]


def fill_ours(app: Any, n: int, send: Send) -> None:
    id_ = send()
    options = Options.parse(app.conf.broker_url, app.conf.broker_transport_options)
    process = process_for(options.database)
    m = process.database.tables.message.c
    columns = select(m.queue, m.body, m.envelope, m.due_at, m.task_id, m.task).where(m.task_id == id_)
    sent = NewMessage(**process.database.run(lambda tx: tx.execute(columns).one())._mapping)
    for ids in batches(n):
        process.messages.publish([replace(sent, task_id=new, envelope=sent.envelope.replace(id_, new)) for new in ids])


def fill_redis(app: Any, n: int, send: Send) -> None:
    id_ = send()
    with app.connection_for_write() as connection:
        client = connection.default_channel.client
        queue = app.conf.task_default_queue
        sent = client.lindex(queue, 0).decode()
        # Kombu's Redis transport knows a delivery by the tag that its publisher chose.
        tag = json.loads(sent)["properties"]["delivery_tag"]
        for ids in batches(n):
            client.lpush(queue, *(sent.replace(id_, new).replace(tag, new) for new in ids))


def fill_amqp(app: Any, n: int, send: Send) -> None:
    send()
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        queue = app.conf.task_default_queue
        sent = app.amqp.queues[queue].bind(channel).get(no_ack=True)
        for ids in batches(n):
            for new in ids:
                message = channel.prepare_message(
                    sent.body,
                    content_type=sent.content_type,
                    content_encoding=sent.content_encoding,
                    headers={**sent.headers, "id": new, "root_id": new},
                    properties={"delivery_mode": 2, "correlation_id": new},
                )
                channel.basic_publish(message, exchange="", routing_key=queue)


def fill_sqla(app: Any, n: int, send: Send) -> None:
    id_ = send()
    engine = create_engine(app.conf.broker_url.removeprefix("sqla+"))
    number, value = ("id, ", "nextval('message_id_sequence'), ") if engine.dialect.name == "postgresql" else ("", "")
    insert = text(
        f"INSERT INTO kombu_message ({number}visible, timestamp, payload, version, queue_id)"
        f" SELECT {value}visible, timestamp, :payload, version, queue_id FROM kombu_message WHERE id = :id"
    )
    with engine.connect() as connection:
        row = connection.execute(text("SELECT id, payload FROM kombu_message WHERE visible ORDER BY id DESC LIMIT 1")).one()
        for ids in batches(n):
            connection.execute(insert, [{"id": row.id, "payload": row.payload.replace(id_, new)} for new in ids])
            connection.commit()
    engine.dispose()


FILLERS: dict[str, Filler] = {"sqlqueue": fill_ours, "redis": fill_redis, "amqp": fill_amqp, "sqla": fill_sqla}
