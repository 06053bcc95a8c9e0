"""Whether the tables fit this release, and making them fit.

A line of migrations has tables of one prefix, a version table and numbers of its own. Ours is `QUEUE`; another package
on the same database brings another. Schemas are numbered. Start checks, `upgrade` migrates: a server's tables are never altered by a
worker unless its options allow that. An older schema is refused, a newer one is fine while it
still gets on with clients as old as this one.
"""

from __future__ import annotations

import enum
import io
import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, func, inspect, select

from ..errors import SchemaError
from .database import Database

__all__ = ["HEAD", "QUEUE", "Fit", "Line", "Standing", "check", "current", "ensure", "require", "script", "upgrade"]

#: The schema this release is made for: the number of the last migration.
HEAD = "0001"

#: How long to wait for someone else who is migrating just now.
LOCK_WAIT = timedelta(minutes=1)

#: Alembic keeps what it works on in module globals.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True)
class Line:
    """A line of migrations: where they are, the last of them, and the command that runs them.

    Its tables begin with `prefix`, or with that of the database's options.
    """

    head: str
    migrations: Path
    command: str
    prefix: str | None = None

    def named(self, database: Database, name: str) -> str:
        return f"{self.prefix or database.options.table_prefix}{name}"


#: The tables of this package.
QUEUE = Line(HEAD, Path(__file__).with_name("migrations"), "sqlqueue")


class Fit(enum.StrEnum):
    """How the tables of a database stand to this release."""

    CURRENT = "current"
    MISSING = "missing"
    OLDER = "older"
    NEWER = "newer"
    """Made by a newer release, which says that this one may still use them."""
    TOO_NEW = "too new"


@dataclass(frozen=True, slots=True)
class Standing:
    """What was found in a database: its schema, None for no tables, and the oldest one its clients may be made for."""

    found: str | None
    min_client: str | None = None
    head: str = HEAD

    @property
    def fit(self) -> Fit:
        if self.found is None:
            return Fit.MISSING
        if self.found == self.head:
            return Fit.CURRENT
        if int(self.found) < int(self.head):
            return Fit.OLDER
        return Fit.NEWER if int(self.min_client or self.found) <= int(self.head) else Fit.TOO_NEW

    @property
    def behind(self) -> bool:
        return self.fit in (Fit.MISSING, Fit.OLDER)

    @property
    def usable(self) -> bool:
        return self.fit in (Fit.CURRENT, Fit.NEWER)

    def __str__(self) -> str:
        match self.fit:
            case Fit.MISSING:
                return f"the tables are missing (this release needs schema {self.head})"
            case Fit.TOO_NEW:
                return f"the tables are at schema {self.found}, too new for this release, which knows {self.head}"
            case Fit.NEWER:
                return f"the tables are at schema {self.found}, newer than this release, which knows {self.head}, but fit for it"
            case Fit.OLDER:
                return f"the tables are at schema {self.found}, this release needs {self.head}"
        return f"the tables are at schema {self.head}, as this release needs"


def check(database: Database, line: Line = QUEUE) -> Standing:
    """How the tables stand to this release. Raises StoreUnavailableError if the database is away."""
    return database.statement(lambda connection: _standing(database, connection, line))


def current(database: Database, line: Line = QUEUE) -> str | None:
    """The number of the schema, None if there are no tables."""
    return check(database, line).found


def ensure(database: Database, line: Line = QUEUE) -> None:
    """See that the tables fit this release; make them fit where the options, or a file of our own, allow it.

    Raises SchemaError if they do not; it names the command to run.
    """
    standing = check(database, line)
    if standing.behind and (database.options.auto_migrate or database.dialect.migrates_itself):
        upgrade(database, line)
    else:
        _require(database, standing, line)


def require(database: Database, line: Line = QUEUE) -> None:
    """See that the tables fit this release. Raises SchemaError if they do not; it names the command to run."""
    _require(database, check(database, line), line)


def upgrade(database: Database, line: Line = QUEUE) -> None:
    """Bring the tables to this release's schema; do nothing if they are there or beyond.

    Any number of processes may call this at once. One transaction: it is done whole or not at all.
    """
    database.run(lambda tx: _upgrade(database, tx, line))


def script(database: Database, line: Line = QUEUE) -> str:
    """The SQL that `upgrade` would run now, for those who run it by other means; empty if none."""
    return database.statement(lambda connection: _script(database, connection, line))


def _upgrade(database: Database, tx: Connection, line: Line) -> None:
    database.dialect.migration_lock(tx, wait=LOCK_WAIT)
    if _standing(database, tx, line).behind:
        _alembic(database, tx, line, line.head)


def _script(database: Database, connection: Connection, line: Line) -> str:
    output = io.StringIO()
    standing = _standing(database, connection, line)
    if standing.behind:
        _alembic(database, connection, line, f"{standing.found or 'base'}:{line.head}", script=output)
    return output.getvalue()


def _alembic(
    database: Database, connection: Connection, line: Line, revisions: str, *, script: io.StringIO | None = None
) -> None:
    """Run the migrations on the connection, or only write them to `script`."""
    # Imported only here: few processes ever migrate, and all that use the queue import this module.
    from alembic import command
    from alembic.config import Config

    schema = database.options.schema
    config = Config()
    config.set_main_option("script_location", str(line.migrations).replace("%", "%%"))
    config.attributes.update(
        connection=connection,
        prefix=line.named(database, ""),
        schema=schema,
        # IF NOT EXISTS would ask for the right to create schemas even where there is nothing to do.
        make_schema=schema is not None and not inspect(connection).has_schema(schema),
        version_table=_version(database, line).name,
        script=script,
    )
    with _one_at_a_time:
        command.upgrade(config, revisions, sql=script is not None)


def _standing(database: Database, connection: Connection, line: Line) -> Standing:
    version = _version(database, line)
    if not inspect(connection).has_table(version.name, schema=version.schema):
        return Standing(None, head=line.head)
    found: str | None = connection.scalar(select(func.max(version.c.version_num)))
    if found is None or int(found) <= int(line.head):
        return Standing(found, head=line.head)
    release = _table(database, line, "release", Column("min_client", Integer))
    min_client = connection.scalar(select(func.max(release.c.min_client)))
    return Standing(found, None if min_client is None else f"{min_client:04}", head=line.head)


def _version(database: Database, line: Line) -> Table:
    """Alembic's own table, which it makes and writes."""
    return _table(database, line, "version", Column("version_num", String(32)))


def _table(database: Database, line: Line, name: str, column: Column[Any]) -> Table:
    return Table(line.named(database, name), MetaData(schema=database.options.schema), column)


def _require(database: Database, standing: Standing, line: Line) -> None:
    if standing.usable:
        return
    if standing.fit is Fit.TOO_NEW:
        way_out = "install a newer kombu-sqlqueue"
    else:
        way_out = (
            f"run `celery -A YOUR_APP {line.command} migrate`, or `celery --broker URL {line.command} migrate`,"
            " as a role that may create tables"
        )
    raise SchemaError(f"{database.options.safe_url}: {standing}: {way_out}")
