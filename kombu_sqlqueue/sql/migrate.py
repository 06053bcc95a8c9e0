"""Whether the tables fit this release, and making them fit.

Schemas are numbered. Start checks, `upgrade` migrates: a server's tables are never altered by a
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

from sqlalchemy import Column, Connection, MetaData, String, Table, func, inspect, select

from ..errors import SchemaError
from .database import Database

__all__ = ["HEAD", "Fit", "Standing", "check", "current", "ensure", "require", "script", "upgrade"]

#: The schema this release is made for: the number of the last migration.
HEAD = "0001"

#: How long to wait for someone else who is migrating just now.
LOCK_WAIT = timedelta(minutes=1)

#: Alembic keeps what it works on in module globals.
_one_at_a_time = threading.Lock()

_MIGRATIONS = Path(__file__).with_name("migrations")


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

    @property
    def fit(self) -> Fit:
        if self.found is None:
            return Fit.MISSING
        if self.found == HEAD:
            return Fit.CURRENT
        if int(self.found) < int(HEAD):
            return Fit.OLDER
        return Fit.NEWER if int(self.min_client or self.found) <= int(HEAD) else Fit.TOO_NEW

    @property
    def behind(self) -> bool:
        return self.fit in (Fit.MISSING, Fit.OLDER)

    @property
    def usable(self) -> bool:
        return self.fit in (Fit.CURRENT, Fit.NEWER)

    def __str__(self) -> str:
        match self.fit:
            case Fit.MISSING:
                return f"the tables are missing (this release needs schema {HEAD})"
            case Fit.TOO_NEW:
                return f"the tables are at schema {self.found}, too new for this release, which knows {HEAD}"
            case Fit.NEWER:
                return f"the tables are at schema {self.found}, newer than this release, which knows {HEAD}, but fit for it"
            case Fit.OLDER:
                return f"the tables are at schema {self.found}, this release needs {HEAD}"
        return f"the tables are at schema {HEAD}, as this release needs"


def check(database: Database) -> Standing:
    """How the tables stand to this release. Raises StoreUnavailableError if the database is away."""
    return database.statement(lambda connection: _standing(database, connection))


def current(database: Database) -> str | None:
    """The number of the schema, None if there are no tables."""
    return check(database).found


def ensure(database: Database) -> None:
    """See that the tables fit this release; make them fit where the options, or a file of our own, allow it.

    Raises SchemaError if they do not; it names the command to run.
    """
    standing = check(database)
    if standing.behind and (database.options.auto_migrate or database.dialect.migrates_itself):
        upgrade(database)
    else:
        _require(database, standing)


def require(database: Database) -> None:
    """See that the tables fit this release. Raises SchemaError if they do not; it names the command to run."""
    _require(database, check(database))


def upgrade(database: Database) -> None:
    """Bring the tables to this release's schema; do nothing if they are there or beyond.

    Any number of processes may call this at once. One transaction: it is done whole or not at all.
    """
    database.run(lambda tx: _upgrade(database, tx))


def script(database: Database) -> str:
    """The SQL that `upgrade` would run now, for those who run it by other means; empty if none."""
    return database.statement(lambda connection: _script(database, connection))


def _upgrade(database: Database, tx: Connection) -> None:
    database.dialect.migration_lock(tx, wait=LOCK_WAIT)
    if _standing(database, tx).behind:
        _alembic(database, tx, HEAD)


def _script(database: Database, connection: Connection) -> str:
    output = io.StringIO()
    standing = _standing(database, connection)
    if standing.behind:
        _alembic(database, connection, f"{standing.found or 'base'}:{HEAD}", script=output)
    return output.getvalue()


def _alembic(database: Database, connection: Connection, revisions: str, *, script: io.StringIO | None = None) -> None:
    """Run the migrations on the connection, or only write them to `script`."""
    # Imported only here: few processes ever migrate, and all that use the queue import this module.
    from alembic import command
    from alembic.config import Config

    schema = database.options.schema
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes.update(
        connection=connection,
        prefix=database.options.table_prefix,
        schema=schema,
        # IF NOT EXISTS would ask for the right to create schemas even where there is nothing to do.
        make_schema=schema is not None and not inspect(connection).has_schema(schema),
        version_table=_version(database).name,
        script=script,
    )
    with _one_at_a_time:
        command.upgrade(config, revisions, sql=script is not None)


def _standing(database: Database, connection: Connection) -> Standing:
    version = _version(database)
    if not inspect(connection).has_table(version.name, schema=version.schema):
        return Standing(None)
    found: str | None = connection.scalar(select(func.max(version.c.version_num)))
    if found is None or int(found) <= int(HEAD):
        return Standing(found)
    min_client = connection.scalar(select(func.max(database.tables.release.c.min_client)))
    return Standing(found, None if min_client is None else f"{min_client:04}")


def _version(database: Database) -> Table:
    """Alembic's own table, which it makes and writes."""
    of = database.options
    return Table(f"{of.table_prefix}version", MetaData(schema=of.schema), Column("version_num", String(32)))


def _require(database: Database, standing: Standing) -> None:
    if standing.usable:
        return
    if standing.fit is Fit.TOO_NEW:
        way_out = "install a newer kombu-sqlqueue"
    else:
        way_out = (
            "run `celery -A YOUR_APP sqlqueue migrate`, or `celery --broker URL sqlqueue migrate`,"
            " as a role that may create tables"
        )
    raise SchemaError(f"{database.options.safe_url}: {standing}: {way_out}")
