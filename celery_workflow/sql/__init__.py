"""Schedules in a SQL database: the one place that knows SQL."""
