"""From builder functions and canvases of Celery to definitions."""
