"""Where an app keeps its schedules: in the broker's database, or in one that is named."""

from __future__ import annotations

from typing import Any

from celery import Celery

from kombu_sqlqueue.errors import ConfigurationError
from kombu_sqlqueue.options import DatabaseOptions, Options
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.sql.database import Database
from kombu_sqlqueue.sql.migrate import Line

from .sql.migrate import line
from .sql.schedules import SQLScheduleStore
from .sql.schema import Tables

__all__ = ["Home"]

URL = "workflow_store_url"
OPTIONS = "workflow_store_options"
PREFIX = "workflow_table_prefix"


class Home:
    """The database of an app's schedules. Raises ConfigurationError where none is named or it cannot serve."""

    def __init__(self, app: Celery) -> None:
        self.options, self.is_broker = _options(app)
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
        return SQLScheduleStore(self.database, self.tables)


def _options(app: Celery) -> tuple[DatabaseOptions, bool]:
    broker = _broker(app)
    url = app.conf.get(URL)
    if not url:
        if broker is None:
            raise ConfigurationError(f"the broker is not a sqlqueue one: name the database of the schedules, {URL} = URL")
        return broker, True
    given: dict[str, Any] = app.conf.get(OPTIONS) or {}
    options = Options.parse(url, given, setting=OPTIONS).database
    return options, options == broker


def _broker(app: Celery) -> DatabaseOptions | None:
    transport = app.connection_for_write().transport
    return transport.options.database if transport.driver_type == "sqlqueue" else None
