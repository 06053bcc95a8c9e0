"""A real Flower in a process of its own, and what it answers."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from ..starting import start_celery
from .workers import Site, eventually, kill_group

__all__ = ["Flower", "bare_url"]

#: Seconds that a page may take. Flower itself waits a second for the workers.
PATIENCE = 60


class Flower:
    """`celery … flower`, started with what users give it: `-A app` or `--broker=URL`."""

    def __init__(self, site: Site, *how: str, directory: Path | None = None) -> None:
        self.site = site
        self.port = _free_port()
        self.log = site.directory / f"flower-{self.port}.log"
        arguments = [*how, "flower", "--address=127.0.0.1", f"--port={self.port}"]
        environment = site.environment | {"FLOWER_UNAUTHENTICATED_API": "true"}
        self.process = start_celery(*arguments, log=self.log, environment=environment, directory=directory or site.directory)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_ready(self) -> Flower:
        """Until a worker's heartbeat has arrived."""
        eventually(self._hears)
        return self

    def get(self, path: str, **arguments: Any) -> Any:
        """What the page says: the value of its JSON, or its text."""
        return self._open(path + (f"?{urlencode(arguments)}" if arguments else ""))

    def post(self, path: str, body: Any = None, **arguments: Any) -> Any:
        """The answer to JSON, or to a form of these arguments."""
        return self._open(path, (urlencode(arguments) if body is None else json.dumps(body)).encode())

    def kill(self) -> None:
        kill_group(self.process)

    def _open(self, path: str, data: bytes | None = None) -> Any:
        try:
            with urlopen(Request(f"http://127.0.0.1:{self.port}{path}", data), timeout=PATIENCE) as response:
                text = response.read().decode()
        except HTTPError as error:
            raise AssertionError(f"{path}: {error} {error.read().decode()}\n{self.text}") from error
        try:
            return json.loads(text)
        except ValueError:
            return text

    def _hears(self) -> bool:
        assert self.process.poll() is None, self.text
        try:
            return "flower_worker_online{" in self.get("/metrics")
        except URLError:
            return False


def bare_url(site: Site) -> str:
    """A broker URL that says all by itself, as there are no transport options besides."""
    url = f"sqlqueue+{site.database.url}"
    if site.database.schema is None:
        return url
    return f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{site.database.schema}"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
