"""The history of the tables, run by Alembic. `migrate` is the way in."""
