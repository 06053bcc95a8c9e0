"""How a connection to PostgreSQL is asked for, with a pooler in between or without."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Dialect as Driver
from sqlalchemy.engine import URL, make_url

from ..errors import ConfigurationError
from ..options import DatabaseOptions
from ..passwords import current_password

__all__ = ["Connector", "completed", "login"]

#: What the URL may override. A server that is gone is noticed within a minute.
DEFAULTS = {
    "application_name": "sqlqueue",
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    # Keepalives rest while something that was sent is not confirmed. In milliseconds.
    "tcp_user_timeout": "50000",
}
#: Nobody waits longer for a lock than so many seconds at a time: whoever takes the tables for himself is told of, not waited for.
LOCK_TIMEOUT = 10
#: All we ask for is found by an index. Without this the planner, who sees a queue while it is
#: empty, prepares to read the whole table, and keeps that plan when it is full. (What it thinks of
#: plans without an index is then so high that it would compile them.)
SETTINGS = f"-c enable_seqscan=off -c jit=off -c lock_timeout={LOCK_TIMEOUT}s"
#: What a pooler says that does not pass settings on.
REFUSES_SETTINGS = "unsupported startup parameter"


class Connector:
    """Opens the connections of one engine. What the first one finds out is kept for the others."""

    def __init__(self, options: DatabaseOptions) -> None:
        self._options = options
        self._prepares: dict[str, Any] = _prepare_threshold(make_url(options.url))
        self._settings = True

    def connect(self, driver: Driver, record: object, arguments: list[Any], parameters: dict[str, Any]) -> Any:
        """Handles SQLAlchemy's event ``do_connect``."""
        from psycopg.types.array import ListBinaryDumper

        connection = self._connected(driver, arguments, parameters)
        # As text each quote in an element is looked for and escaped, and an envelope is full of them.
        connection.adapters.register_dumper(list, ListBinaryDumper)
        return connection

    def _connected(self, driver: Driver, arguments: list[Any], parameters: dict[str, Any]) -> Any:
        parameters.update({**self._prepares, **login(self._options)})
        given = parameters.get("options", "")
        if self._settings:
            try:
                return driver.connect(*arguments, **{**parameters, "options": f"{SETTINGS} {given}".strip()})
            except driver.loaded_dbapi.OperationalError as error:
                if REFUSES_SETTINGS not in str(error):
                    raise
        # Who refuses them is a pooler, and may give the next transaction another session: what we
        # prepared would not be there.
        self._settings = False
        parameters.setdefault("prepare_threshold", None)
        return driver.connect(*arguments, **parameters)


def completed(text: str) -> URL:
    """The URL with our defaults for what it does not say itself."""
    url = make_url(text)
    query = {name: value for name, value in url.query.items() if name != "prepare_threshold"}
    defaults = dict(DEFAULTS)
    if isinstance(query.get("host"), tuple):
        # One of several servers takes writes; the others are its standbys.
        defaults["target_session_attrs"] = "read-write"
    if isinstance(password := query.pop("password", None), str):
        # SQLAlchemy hides it where it belongs only.
        url = url.set(password=password)
    return url.set(query={**defaults, **query})


def login(options: DatabaseOptions) -> dict[str, str]:
    """What a driver is given besides what the URL says, at this moment."""
    return {} if options.password is None else {"password": current_password(options.password)}


def _prepare_threshold(url: URL) -> dict[str, Any]:
    """After how many executions a statement is prepared: psycopg takes no text for it."""
    given = url.query.get("prepare_threshold")
    if given is None:
        return {}
    if given == "none":
        return {"prepare_threshold": None}
    if isinstance(given, str) and given.isdecimal():
        return {"prepare_threshold": int(given)}
    raise ConfigurationError(f"prepare_threshold in the URL is {given!r}, but must be a whole number or 'none'")
