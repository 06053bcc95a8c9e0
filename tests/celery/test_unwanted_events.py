"""What events cost that nobody receives. Beside a site with a worker, others would look for routes here, too."""

from __future__ import annotations

import time

from celery import Celery
from sqlalchemy import event

from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from ..databases import wipe


def test_events_that_nobody_wants_cost_nothing(database_options: DatabaseOptions):
    """A thousand of them are no statement each, but a look a second whether anybody listens now."""
    url = f"sqlqueue+{database_options.url}"
    app = Celery(broker=url, set_as_current=False, broker_transport_options={"schema": database_options.schema})
    statements = []
    with app.connection() as connection, app.events.Dispatcher(connection) as dispatcher:
        dispatcher.send("worker-online")
        engine = process_for(database_options).database.engine
        event.listen(engine, "before_cursor_execute", lambda *about: statements.append(about[2]))
        began = time.monotonic()
        for number in range(1000):
            dispatcher.send("task-received", uuid=str(number))
        took = time.monotonic() - began

    # Without notifications somebody looks for new messages meanwhile.
    statements = [each for each in statements if "_message.id >" not in each]
    looks = 1 + int(took)
    # A look is some statements, and on a busy machine one more may come in the same second.
    assert len(statements) <= 10 * looks, statements
    process_for(database_options).close()
    wipe(process_for(database_options).database)
