"""Durable workflows whose steps are ordinary Celery tasks."""
