"""What the processes of one visit must know; it travels in one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .marks import Marks

__all__ = ["Setting"]

VARIABLE = "SQLQUEUE_BENCH_SETTING"
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Setting:
    engine: str
    queue: str
    directory: str
    #: Celery's two URLs; the other engines have one database and read `broker`.
    broker: str
    backend: str | None = None
    #: More settings of the Celery app.
    conf: dict[str, Any] = field(default_factory=dict)

    @property
    def marks(self) -> Marks:
        return Marks(Path(self.directory))

    def report_ready(self) -> None:
        """This process is a worker that takes tasks from now on."""
        Path(self.directory, f"{os.getpid()}.ready").touch()

    def environment(self) -> dict[str, str]:
        given = {VARIABLE: json.dumps(asdict(self)), "PYTHONPATH": str(ROOT), "C_FORCE_ROOT": "1"}
        return os.environ | given

    @classmethod
    def of_this_process(cls) -> Setting:
        return cls(**json.loads(os.environ[VARIABLE]))
