"""Beats in real processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from celery import Celery
from sqlalchemy import func, select

from celery_workflow import Schedules
from celery_workflow.home import Home
from kombu_sqlqueue.options import DatabaseOptions

from ..celery.workers import kill_group
from ..starting import Process, start_celery
from .apps import app_on

__all__ = ["Beats", "Node"]

ROOT = Path(__file__).parents[2]


class Node:
    """A process in a group of its own."""

    def __init__(self, process: Process, log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """kill -9 of it and its children."""
        kill_group(self.process)

    def stop(self) -> int:
        """SIGTERM, as a supervisor would; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class Beats:
    """Any number of beats on one database."""

    def __init__(self, options: DatabaseOptions, directory: Path, *, prepared: bool = True, **conf: Any) -> None:
        self.app: Celery = app_on(options)
        self.home = Home(self.app)
        if prepared:
            self.schedules = Schedules(self.app)
        self.directory = directory
        self.nodes: list[Node] = []
        settings = {"broker_transport_options": {"schema": options.schema, "lease_for": 3}, **conf}
        self.environment = {
            **os.environ,
            "TEST_BROKER_URL": f"sqlqueue+{options.url}",
            "TEST_CONF": json.dumps(settings),
            "TEST_MARKS": str(directory / "marks"),
            "C_FORCE_ROOT": "1",
            "PYTHONPATH": str(ROOT),
        }

    def start(self, *arguments: str, **environment: str) -> Node:
        """A beat, by the name of its entry point."""
        return self.run("beat", "-S", "sqlqueue", "-l", "INFO", "--pidfile=", *arguments, **environment)

    def run(self, *arguments: str, **environment: str) -> Node:
        log = self.directory / f"node{len(self.nodes)}.log"
        process = start_celery(
            "-A",
            "tests.workflow.beat_app",
            *arguments,
            log=log,
            environment=self.environment | environment,
            directory=self.directory,
        )
        self.nodes.append(Node(process, log))
        return self.nodes[-1]

    def marks(self) -> list[str]:
        """What tasks have recorded."""
        path = self.directory / "marks"
        return path.read_text().splitlines() if path.exists() else []

    def fired(self, name: str) -> list[int]:
        """The ticks that fired, in order."""
        return sorted(tick.tick_at for tick in self.schedules.history(name, 100_000) if tick.outcome == "fired")

    def unfired(self) -> list[tuple[str, str | None, int, str | None]]:
        """Ticks that did not fire: what became of them, why, when, and on which node."""
        t = self.home.tables.tick.c
        query = select(t.outcome, t.reason, t.tick_at, t.node).where(t.outcome != "fired").order_by(t.tick_at).limit(20)
        return [tuple(row) for row in self.home.database.statement(lambda tx: tx.execute(query).all())]

    def task_ids(self) -> list[str]:
        """Of all messages."""
        m = self.home.database.tables.message
        return [str(each) for each in self.home.database.statement(lambda tx: tx.scalars(select(m.c.task_id)).all())]

    def ticks(self) -> int:
        """How many ticks were recorded at all."""
        t = self.home.tables.tick
        return int(self.home.database.statement(lambda tx: tx.scalar(select(func.count()).select_from(t))) or 0)

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
        self.app.close()
