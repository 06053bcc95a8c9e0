"""All that a worker and its clients ask of a database."""

from __future__ import annotations

from datetime import timedelta

from kombu_sqlqueue.messages import NewMessage, Reason
from kombu_sqlqueue.results import NewResult
from kombu_sqlqueue.revoking import Revocation
from kombu_sqlqueue.routing import Binding, Exchange, Kind, Queue
from kombu_sqlqueue.sql.chords import SQLChordStore
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.messages import SQLMessageStore
from kombu_sqlqueue.sql.results import SQLResultStore
from kombu_sqlqueue.sql.revocations import SQLRevocationStore
from kombu_sqlqueue.sql.routing import SQLRoutingStore
from kombu_sqlqueue.sql.waiters import SQLWaiters

__all__ = ["do_all_work"]

MINUTE = timedelta(minutes=1)


def do_all_work(database: Database) -> None:
    messages, routing, results = SQLMessageStore(database), SQLRoutingStore(database), SQLResultStore(database)
    lessee = messages.enrol("one", lease_for=MINUTE)
    routing.declare_exchange(Exchange("x", Kind.DIRECT))
    routing.declare_queue(Queue("q"))
    routing.bind(Binding("x", "q", "key"))
    routing.consume("q", lessee)
    messages.publish([NewMessage("q", b"x", "{}", priority=priority) for priority in (0, 3, 9)])
    messages.publish([NewMessage("q", b"x", "{}", due_at=1)])
    messages.promote(limit=10)
    first, second, third, fourth = (delivery.lease for delivery in messages.claim(["q"], limit=4, lessee=lessee))
    messages.start([first])
    messages.ack([first])
    messages.release([second])
    messages.nack(third, max_reclaims=5)
    messages.bury(fourth, Reason.REJECTED)
    messages.redrive([fourth.message_id])
    messages.claim_reports(limit=10, lease_for=MINUTE)
    messages.renew(lessee)
    messages.reclaim(max_reclaims=5, limit=10)
    messages.expire(limit=10)
    results.store(NewResult("id", "SUCCESS", b"{}", expires_in=timedelta(0)))
    results.fetch(["id"])
    results.save_group("group", b"{}", expires_in=None)
    results.prune(limit=10)
    chords, revocations = SQLChordStore(database), SQLRevocationStore(database)
    chords.open("chord", header=None, expires_in=None)
    chords.set_size("chord", 1, expires_in=None)
    chords.add("chord")
    chords.finish("chord")
    revocations.revoke([Revocation("id")])
    revocations.revoked()
    revocations.prune(limit=10)
    SQLWaiters(database).arm("me", ["queue:q"], armed_for=MINUTE)
    SQLWaiters(database).prune()
    messages.purge("q")
    messages.resign(lessee)
    routing.delete_queue("q")
    routing.delete_exchange("x")
    routing.sweep(limit=10)
