"""What the ``celery sqlqueue`` commands do."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from .errors import ConfigurationError, SQLQueueError
from .messages import DeadMessage, QueueCounts
from .options import DatabaseOptions
from .sql import migrate as migrations
from .sql.admin import SQLAdmin
from .sql.database import Database
from .sql.messages import SQLMessageStore

__all__ = ["check", "dead", "errors", "migrate", "redrive", "relay", "stats"]

#: How many dead messages one transaction makes ready again.
REDRIVE_BATCH = 500


@contextmanager
def errors() -> Iterator[None]:
    """Show our errors as a line, not as a traceback."""
    try:
        yield
    except SQLQueueError as error:
        raise click.ClickException(str(error)) from error


def migrate(app: Any, *, sql: bool) -> None:
    """Bring the tables of the app's broker and result backend to this release."""
    for database in _databases(app):
        if sql:
            click.echo(migrations.script(database), nl=False)
        else:
            migrations.upgrade(database)
            click.echo(_standing(database, migrations.check(database)))


def check(app: Any) -> bool:
    """Whether every database of the app fits this release."""
    fit = True
    for database in _databases(app):
        standing = migrations.check(database)
        click.echo(_standing(database, standing))
        fit = fit and standing.usable
    return fit


def stats(app: Any, *, as_json: bool) -> None:
    """Print how many messages of each queue are where."""
    database = _broker(app)
    oldest = SQLAdmin(database).oldest_ready()
    rows = [_row(counts, oldest) for counts in SQLMessageStore(database).counts()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        _table(rows)
    else:
        click.echo("no messages")


def dead(app: Any, *, queue: str | None, limit: int, as_json: bool) -> None:
    """Print the latest dead messages."""
    rows = [_dead_row(message) for message in SQLAdmin(_broker(app)).dead(queue=queue, limit=limit)]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        _table(rows)
    else:
        click.echo("no dead messages")


def redrive(app: Any, *, ids: Sequence[int], queue: str | None) -> None:
    """Make dead messages ready again and print how many, and of which somebody else has to say that."""
    database = _broker(app)
    store, admin = SQLMessageStore(database), SQLAdmin(database)
    if queue is None:
        redriven = store.redrive(ids)
    else:
        redriven = sum(iter(lambda: store.redrive(admin.dead_ids(queue, limit=REDRIVE_BATCH)), 0))
    click.echo(f"{redriven} messages are ready again")
    for owner in sorted(admin.owners_told(ids=ids, queue=queue)):
        click.echo(f"left alone: what is of run {owner}, which knows of its end: celery workflow retry {owner}", err=True)


def relay(app: Any, *, once: bool, batch: int | None, loglevel: str) -> bool:
    """Pass on what is in the app's outbox; False if it could not be done `once`."""
    from .outbox import outbox_options
    from .relay import BATCH, Relay

    options = outbox_options(app)
    if options is None:
        raise ConfigurationError("the app has no outbox: set sqlqueue_outbox to the URL of its database")
    if _broker_options(app) is not None:
        raise ConfigurationError("the broker is a sqlqueue one: it needs no outbox and no relay")
    app.log.setup(loglevel.upper(), redirect_stdouts=False)
    relay = Relay(app, options, batch=batch or BATCH)
    with _stopped_by_signals(relay.stop):
        return relay.run(once=once)


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGTERM or SIGINT; the second one acts as ever."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def hear(number: int, frame: Any) -> None:
        _restore(before)
        # The thread that was interrupted may hold the locks that are needed.
        threading.Thread(target=stop, daemon=True).start()

    for number in before:
        signal.signal(number, hear)
    try:
        yield
    finally:
        _restore(before)


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _databases(app: Any) -> list[Database]:
    """The databases of the app's broker, result backend and outbox, each once."""
    found = [_broker_options(app), _backend_options(app), _outbox_options(app)]
    databases = [Database(options) for options in dict.fromkeys(found) if options is not None]
    if not databases:
        raise ConfigurationError(
            "neither the broker nor the result backend is a sqlqueue one, and there is no outbox: give -A YOUR_APP or"
            " --broker URL"
        )
    return databases


def _broker(app: Any) -> Database:
    """Where the app's messages are: with a broker of another kind, those of its outbox."""
    options = _broker_options(app) or _outbox_options(app)
    if options is None:
        raise ConfigurationError(
            "the broker is not a sqlqueue one, and there is no outbox: give -A YOUR_APP or --broker URL"
        )
    database = Database(options)
    migrations.require(database)
    return database


def _broker_options(app: Any) -> DatabaseOptions | None:
    transport = app.connection_for_write().transport
    return transport.options.database if transport.driver_type == "sqlqueue" else None


def _backend_options(app: Any) -> DatabaseOptions | None:
    from .backend import SQLBackend

    return app.backend.database_options if isinstance(app.backend, SQLBackend) else None


def _outbox_options(app: Any) -> DatabaseOptions | None:
    from .outbox import outbox_options

    options = outbox_options(app)
    return options.database if options is not None else None


def _standing(database: Database, standing: migrations.Standing) -> str:
    return f"{database.options.safe_url}: {standing}"


def _row(counts: QueueCounts, oldest: dict[str, float]) -> dict[str, object]:
    return asdict(counts) | {"oldest": oldest.get(counts.queue)}


def _dead_row(message: DeadMessage) -> dict[str, object]:
    return {
        "id": message.id,
        "queue": message.queue,
        "task": message.task,
        "task_id": message.task_id,
        "reason": message.reason,
        "died_at": datetime.fromtimestamp(message.died_at / 1_000_000, UTC).isoformat(timespec="seconds"),
        "deliveries": message.delivery,
        "reclaims": message.reclaims,
        "holders": ", ".join(message.holders),
        "owner": message.owner,
    }


def _table(rows: Sequence[dict[str, object]]) -> None:
    """Print the rows in columns under their names."""
    cells = [list(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _text(value: object) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)
