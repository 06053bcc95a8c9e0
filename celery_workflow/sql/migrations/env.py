"""What Alembic runs first; kombu_sqlqueue.sql.migrate hands in a connection."""

from __future__ import annotations

from alembic import context
from sqlalchemy.schema import CreateSchema

given = context.config.attributes

context.configure(
    connection=given["connection"],
    output_buffer=given["script"],
    version_table=given["version_table"],
    version_table_schema=given["schema"],
    transactional_ddl=True,
)

with context.begin_transaction():
    if given["make_schema"]:
        context.execute(CreateSchema(given["schema"]))
    context.run_migrations()
