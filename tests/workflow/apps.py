"""An app on a database under test, its tables made, and emptied at the end."""

from __future__ import annotations

from celery import Celery
from sqlalchemy import delete

from celery_workflow.home import Home
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.sql.migrate import upgrade

from ..databases import wipe

__all__ = ["app_on", "prepare", "wipe_all"]


def app_on(options: DatabaseOptions) -> Celery:
    app = Celery("proj", broker=f"sqlqueue+{options.url}", backend=f"sqlqueue+{options.url}", set_as_current=False)
    app.conf.broker_transport_options = {"schema": options.schema}
    app.conf.result_backend_transport_options = {"schema": options.schema}
    return app


def prepare(app: Celery) -> None:
    home = Home(app)
    upgrade(home.database, home.line)


def wipe_all(app: Celery) -> None:
    home = Home(app)
    wipe(home.database)
    tables = home.tables
    home.database.run(
        lambda tx: [tx.execute(delete(table)) for table in tables.metadata.tables.values() if table is not tables.release]
    )
