"""${message}"""

from __future__ import annotations

from alembic import context, op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    prefix = context.config.attributes["prefix"]
    schema = context.config.attributes["schema"]
