"""Publishes of every kind over a line that can be cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from celery import Celery, chord, group
from celery.canvas import Signature
from sqlalchemy.engine import make_url

from kombu_sqlqueue import bulk_publish
from kombu_sqlqueue.messages import NewMessage
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.messages import SQLMessageStore

from ..proxy import Proxy

__all__ = ["KINDS", "MANY", "Line", "by_way_of"]

#: How many messages are sent together.
MANY = 3


def by_way_of(proxy: Proxy, options: DatabaseOptions, **query: str) -> DatabaseOptions:
    """The same database through the proxy."""
    url = make_url(options.url).set(host="127.0.0.1", port=proxy.port).update_query_dict(query)
    return replace(options, url=url.render_as_string(hide_password=False))


@dataclass(frozen=True)
class Line:
    """A producer behind a proxy, and a way to the same tables beside it."""

    options: DatabaseOptions
    app: Celery
    beside: SQLMessageStore
    lessee: int

    def signatures(self, ids: list[str]) -> list[Signature]:
        return [self.app.signature("nothing", options={"task_id": id}) for id in ids]

    def one(self, ids: list[str]) -> None:
        self.app.send_task("nothing", task_id=ids[0])

    def bulk(self, ids: list[str]) -> None:
        bulk_publish(self.signatures(ids))

    def group(self, ids: list[str]) -> None:
        group(self.signatures(ids), app=self.app).apply_async()

    def chord(self, ids: list[str]) -> None:
        chord(self.signatures(ids), app=self.app)(self.app.signature("body"))

    def retry(self, ids: list[str]) -> None:
        """As ``self.retry`` does: the new message replaces one that is claimed."""
        self.beside.publish([new(f"replaced by {ids[0]}", "claimed")])
        (claimed,) = self.beside.claim(["claimed"], limit=1, lessee=self.lessee)
        assert process_for(self.options).messages.publish([new(ids[0], "celery")], replaces=claimed.lease)


def new(task_id: str, queue: str) -> NewMessage:
    return NewMessage(queue=queue, body=b"", envelope="{}", task_id=task_id)


#: Each kind of publish with how many messages it sends.
KINDS: dict[str, tuple[Callable[[Line, list[str]], Any], int]] = {
    "one": (Line.one, 1),
    "retry": (Line.retry, 1),
    "bulk": (Line.bulk, MANY),
    "group": (Line.group, MANY),
    "chord": (Line.chord, MANY),
}
