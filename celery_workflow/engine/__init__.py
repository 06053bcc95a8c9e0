"""The heart of workflows: what becomes of a run, whoever stores it. Pure: no Celery, no database."""
