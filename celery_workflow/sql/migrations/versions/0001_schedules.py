"""Schedules and their ticks, and the triggers by which a plain UPDATE takes effect."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, SmallInteger, String, column, text

from celery_workflow.sql.migrations.making import NAME, NUMBER, TEXT, create, index, named, quoted, resumes

revision = "0001"
down_revision = None

#: Columns that say when ticks are.
TIMING = (
    "kind",
    "spec",
    "timezone",
    "enabled",
    "paused_at",
    "windows",
    "jitter_for",
    "anchor_at",
    "start_at",
    "end_at",
    "max_runs",
    "dst_repeated",
    "dst_missing",
)


def upgrade() -> None:
    create_schedule()
    create_tick()
    create_triggers()
    release = create("release", Column("min_client", Integer, primary_key=True, autoincrement=False))
    if not resumes() or op.get_bind().scalar(release.select()) is None:
        op.bulk_insert(release, [{"min_client": 1}])


def create_schedule() -> None:
    create(
        "schedule",
        Column("id", NUMBER, primary_key=True, autoincrement=True),
        Column("name", NAME, nullable=False),
        Column("task", NAME, nullable=False),
        Column("args", TEXT),
        Column("kwargs", TEXT),
        Column("options", TEXT),
        Column("kind", String(16), nullable=False),
        Column("spec", NAME, nullable=False),
        Column("timezone", String(64), nullable=False, server_default="UTC"),
        Column("enabled", SmallInteger, nullable=False, server_default="1"),
        Column("paused_at", BigInteger),
        Column("note", NAME),
        Column("windows", TEXT),
        Column("jitter_for", BigInteger, nullable=False, server_default="0"),
        Column("anchor_at", BigInteger),
        Column("start_at", BigInteger),
        Column("end_at", BigInteger),
        Column("max_runs", Integer),
        Column("dst_repeated", String(8), nullable=False, server_default="first"),
        Column("dst_missing", String(8), nullable=False, server_default="shift"),
        Column("misfire", String(16), nullable=False, server_default="fire_once"),
        Column("misfire_grace_for", BigInteger),
        Column("misfire_limit", Integer, nullable=False, server_default="1000"),
        Column("overlap", String(16), nullable=False, server_default="allow"),
        Column("fires_when", NAME),
        Column("origin", NAME, nullable=False, server_default="api"),
        Column("synced", TEXT),
        Column("removed_at", BigInteger),
        Column("created_at", BigInteger),
        Column("next_at", BigInteger),
        Column("due_at", BigInteger, server_default="0"),
        Column("last_at", BigInteger),
        Column("last_fired_at", BigInteger),
        Column("late_for", BigInteger),
        Column("last_task_id", NAME),
        Column("last_message", BigInteger),
        Column("queued_at", BigInteger),
        Column("runs", Integer, nullable=False, server_default="0"),
        Column("finished_at", BigInteger),
        Column("error", TEXT),
        sqlite_autoincrement=True,
        postgresql_with={"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.02"},
    )
    index("schedule", "name", "name", unique=True)
    is_set = column("due_at").is_not(None)
    index("schedule", "due", "due_at", postgresql_where=is_set, sqlite_where=is_set)


def create_tick() -> None:
    create(
        "tick",
        Column("schedule", BigInteger, primary_key=True, autoincrement=False),
        Column("tick_at", BigInteger, primary_key=True, autoincrement=False),
        Column("cause", String(16), primary_key=True),
        Column("outcome", String(16), nullable=False),
        Column("reason", NAME),
        Column("handled_at", BigInteger, nullable=False),
        Column("late_for", BigInteger),
        Column("task_id", NAME),
        Column("node", NAME),
    )
    index("tick", "handled", "handled_at")


def create_triggers() -> None:
    """Who changes when a schedule fires, by whatever means, clears its next tick, and wakes those who listen."""
    {"postgresql": postgresql_trigger, "sqlite": sqlite_trigger, "mysql": mysql_trigger}[op.get_context().dialect.name]()


def postgresql_trigger() -> None:
    old, new = (", ".join(f"{row}.{name}" for name in TIMING) for row in ("OLD", "NEW"))
    function = quoted(named("schedule_changed"))
    op.execute(
        text(f"""
        CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'UPDATE' THEN
                IF ROW({old}) IS NOT DISTINCT FROM ROW({new}) THEN
                    RETURN NEW;
                END IF;
                IF NEW.due_at IS NOT DISTINCT FROM OLD.due_at THEN
                    NEW.due_at = 0;
                END IF;
            END IF;
            PERFORM pg_notify(concat('sqlqueue_', TG_RELID), 'schedules');
            RETURN NEW;
        END $$
        """)
    )
    op.execute(
        text(f"""
        CREATE TRIGGER {named("schedule_changed")} BEFORE INSERT OR UPDATE ON {quoted(named("schedule"))}
        FOR EACH ROW EXECUTE FUNCTION {function}()
        """)
    )


def sqlite_trigger() -> None:
    changed = " OR ".join(f"OLD.{name} IS NOT NEW.{name}" for name in TIMING)
    op.execute(
        text(f"""
        CREATE TRIGGER {quoted(named("schedule_changed"))} AFTER UPDATE OF {", ".join(TIMING)} ON {quoted(named("schedule"))}
        WHEN ({changed}) AND OLD.due_at IS NEW.due_at
        BEGIN
            UPDATE {quoted(named("schedule"))} SET due_at = 0 WHERE id = NEW.id;
        END
        """)
    )


def mysql_trigger() -> None:
    same = " AND ".join(f"OLD.{name} <=> NEW.{name}" for name in TIMING)
    # One that broke off before may have left it.
    op.execute(text(f"DROP TRIGGER IF EXISTS {quoted(named('schedule_changed'))}"))
    op.execute(
        text(f"""
        CREATE TRIGGER {quoted(named("schedule_changed"))} BEFORE UPDATE ON {quoted(named("schedule"))} FOR EACH ROW
        IF NOT ({same}) AND NEW.due_at <=> OLD.due_at THEN
            SET NEW.due_at = 0;
        END IF
        """)
    )
