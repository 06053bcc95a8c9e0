"""Schedules and workflow runs in a SQL database: the one place that knows SQL."""
