"""Where an app keeps its schedules: in the broker's database, or in one that is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from celery import Celery

from kombu_sqlqueue.errors import ConfigurationError
from kombu_sqlqueue.options import DatabaseOptions, Options
from kombu_sqlqueue.outbox import outbox_options
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.migrate import Line

from .sql.migrate import line
from .sql.schema import Tables

if TYPE_CHECKING:
    from .sql.schedules import SQLScheduleStore

__all__ = ["Home"]

URL = "workflow_store_url"
OPTIONS = "workflow_store_options"
PREFIX = "workflow_table_prefix"


class Home:
    """The database of an app's schedules. Raises ConfigurationError where none is named or it cannot serve."""

    def __init__(self, app: Celery) -> None:
        broker, outbox = _broker(app), outbox_options(app)
        elsewhere = outbox.database if outbox is not None and broker is None else None
        self.options = _named(app) or broker or elsewhere or _nowhere()
        #: Whether messages of the app's broker are rows of this database.
        self.is_broker = self.options == broker
        #: Whether they are to be, until a relay passes them on to a broker of another kind.
        self.has_outbox = elsewhere is not None
        self.prefix = str(app.conf.get(PREFIX) or "workflow_")

    @property
    def database(self) -> Database:
        """What this process shares for it, also with the broker."""
        return process_for(self.options).database

    @property
    def line(self) -> Line:
        """The migrations of its tables."""
        return line(self.prefix)

    @property
    def tables(self) -> Tables:
        return Tables(self.prefix, self.options.schema)

    def store(self) -> SQLScheduleStore:
        # A worker that runs workflows needs no calendars.
        from .sql.schedules import SQLScheduleStore

        return SQLScheduleStore(self.database, self.tables)


def _named(app: Celery) -> DatabaseOptions | None:
    url = app.conf.get(URL)
    return Options.parse(url, app.conf.get(OPTIONS) or {}, setting=OPTIONS).database if url else None


def _broker(app: Celery) -> DatabaseOptions | None:
    transport = app.connection_for_write().transport
    return transport.options.database if transport.driver_type == "sqlqueue" else None


def _nowhere() -> NoReturn:
    raise ConfigurationError(
        f"the broker is not a sqlqueue one: set sqlqueue_outbox to the URL of a database, and {URL} too if runs and schedules"
        " are to be elsewhere in it; a command needs -A YOUR_APP or --broker URL"
    )
