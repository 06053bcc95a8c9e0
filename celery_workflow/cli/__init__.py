"""What the ``celery workflow`` commands do. `celery_workflow.commands` says how they are typed."""
