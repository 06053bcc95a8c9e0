"""Options, parsed once at the edge; inside, everything is already right."""

from __future__ import annotations

import difflib
import hashlib
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Literal
from urllib.parse import urlsplit

from .errors import ConfigurationError
from .other_brokers import FOREIGN_OPTIONS
from .passwords import PasswordSource, password_source

__all__ = ["DatabaseOptions", "Options", "hide_password"]

DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "sqlite": "sqlite",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}

#: Written into these options by Kombu itself; they steer its retries and mean nothing to us.
KOMBU_OPTIONS = frozenset(
    {
        "max_retries",
        "interval_start",
        "interval_step",
        "interval_max",
        "connect_retries_timeout",
        "errback",
        "callback",
        "client_properties",
    }
)

#: Up to the last @: what should have been percent-encoded in a password was perhaps not.
_PASSWORD = re.compile(r"(://[^:/?#@]*):.*@", re.DOTALL)
_BEFORE_HOST = re.compile(r".*@", re.DOTALL)
_PASSWORD_ARGUMENT = re.compile(r"([?&][^=&]*passw[^=&]*=)[^&]*", re.IGNORECASE)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,30}")


def hide_password(url: str) -> str:
    """The URL with three stars for its password, fit for a log, also if it is none that can be used."""
    return _PASSWORD_ARGUMENT.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """Which database and which tables in it: what a broker and a result backend may share."""

    url: str = field(repr=False)
    table_prefix: str = "sqlqueue_"
    schema: str | None = None
    auto_migrate: bool = False
    listen: bool = True
    listen_at: tuple[str, int | None] | None = None
    pool_size: int = 5
    django_alias: str | None = None
    durable_acks: bool = False
    password: PasswordSource | None = field(default=None, repr=False)

    @property
    def origin(self) -> str:
        """What tells these tables from others, without a secret in it."""
        return hashlib.sha256(f"{self.safe_url} {self.schema} {self.table_prefix}".encode()).hexdigest()[:16]

    @property
    def safe_url(self) -> str:
        return hide_password(self.url)


@dataclass(frozen=True, slots=True)
class Options:
    """All options of one broker or result backend URL. Durations are given in seconds."""

    database: DatabaseOptions
    lease_for: timedelta = timedelta(seconds=30)
    max_reclaims: int = 5
    polling_interval: timedelta = timedelta(seconds=1)
    priority_order: Literal["asc", "desc"] = "desc"
    max_message_bytes: int | None = None
    track_started: bool = True
    event_loop: bool = True

    @classmethod
    def parse(cls, url: str, given: Mapping[str, Any], *, setting: str = "broker_transport_options") -> Options:
        """The options of `url` and the transport options `given`, all checked.

        Options of other transports are ignored with one warning that says what replaces them.

        Raises ConfigurationError for a wrong URL, an unknown option or a value out of range; it
        names the `setting`, the option and the way out.
        """
        known = {}
        ignored = []
        for name, value in given.items():
            if name in _PARSERS:
                known[name] = _parse(setting, name, value)
            elif name in FOREIGN_OPTIONS:
                ignored.append(f"{name} ({FOREIGN_OPTIONS[name]})")
            elif name not in KOMBU_OPTIONS:
                raise ConfigurationError(f"{setting} has no option {name!r}{_suggest(name)}")
        if ignored:
            warnings.warn(f"sqlqueue ignores these {setting}: {'; '.join(sorted(ignored))}", stacklevel=2)
        of_database = {name: known.pop(name) for name in _DATABASE_NAMES if name in known}
        return cls(DatabaseOptions(normalise(url), **of_database), **known)


def normalise(url: str) -> str:
    """The URL with the driver we use spelled out. Raises ConfigurationError if it is not ours."""
    url = url.removeprefix("sqlqueue+").removeprefix("sqlqueue-")
    scheme, separator, rest = url.partition("://")
    name, _, driver = scheme.partition("+")
    if not separator or name not in DRIVERS:
        # Without :// nobody can say where a password begins.
        shown = hide_password(url) if separator else _BEFORE_HOST.sub("***@", url)
        raise ConfigurationError(
            f"{shown!r} is not a database URL: write sqlqueue+postgresql://user@host/database or sqlqueue+sqlite:///file.db"
        )
    ours = DRIVERS[name]
    if driver and ours.partition("+")[2] != driver:
        raise ConfigurationError(f"the driver {driver!r} is not supported: write sqlqueue+{name}://, which uses {ours}")
    if name != "sqlite":
        _check_parts(url)
    return f"{ours}://{rest}"


def _check_parts(url: str) -> None:
    try:
        parts = urlsplit(url)
        readable = parts.netloc.count("@") <= 1 and (parts.port is None or parts.port > 0)
    except ValueError:
        readable = False
    if not readable:
        raise ConfigurationError(
            f"{hide_password(url)!r} cannot be taken apart: the port must be a number, and in a password"
            " %40 stands for @, %2F for /, %3A for :, %3F for ? and %23 for #"
        )
    if not parts.path.strip("/"):
        raise ConfigurationError(f"{hide_password(url)!r} names no database: add /database to the URL")


def _parse(setting: str, name: str, value: Any) -> Any:
    parser, wanted = _PARSERS[name]
    try:
        return parser(value)
    except (TypeError, ValueError) as error:
        shown = "" if name in _SECRET else f"is {hide_password(repr(value))}, but "
        raise ConfigurationError(f"{setting}[{name!r}] {shown}must be {wanted}") from error


def _suggest(name: str) -> str:
    near = difflib.get_close_matches(name, _PARSERS, n=1)
    return f": did you mean {near[0]!r}?" if near else f"; it knows {', '.join(sorted(_PARSERS))}"


def _check(good: bool, value: Any) -> Any:
    if not good:
        raise ValueError(value)
    return value


def _bool(value: Any) -> bool:
    return bool(_check(isinstance(value, bool), value))


def _count(least: int) -> Callable[[Any], int]:
    return lambda value: int(_check(isinstance(value, int) and not isinstance(value, bool) and value >= least, value))


def _seconds(least: float) -> Callable[[Any], timedelta]:
    def parse(value: Any) -> timedelta:
        duration = value if isinstance(value, timedelta) else timedelta(seconds=value)
        return timedelta(seconds=_check(duration.total_seconds() >= least, duration.total_seconds()))

    return parse


def _choice(*choices: str) -> Callable[[Any], str]:
    return lambda value: str(_check(value in choices, value))


def _identifier(value: Any) -> str:
    return str(_check(isinstance(value, str) and _IDENTIFIER.fullmatch(value) is not None, value))


def _address(value: Any) -> tuple[str, int | None]:
    parts = urlsplit(f"//{_check(isinstance(value, str) and not set(value) & set('/?#@'), value)}")
    return str(_check(bool(parts.hostname), parts.hostname)), parts.port


def _optional(parser: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else parser(value)


def _text(value: Any) -> str:
    return str(_check(isinstance(value, str) and bool(value), value))


_IDENTIFIER_TEXT = "a name of letters, digits and underscores, at most 31 long"

#: Each option with what parses it and what to tell who got it wrong.
_PARSERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "table_prefix": (_identifier, _IDENTIFIER_TEXT),
    "schema": (_optional(_identifier), _IDENTIFIER_TEXT),
    "auto_migrate": (_bool, "True or False"),
    "listen": (_bool, "True or False"),
    "listen_at": (_optional(_address), "a host, or host:port"),
    "pool_size": (_count(1), "a whole number, 1 or more"),
    "django_alias": (_optional(_text), "a name in Django's DATABASES, such as 'default', or None"),
    "durable_acks": (_bool, "True or False"),
    "password": (_optional(password_source), "a callable that gives the password, or 'package.module:callable'"),
    "lease_for": (_seconds(1), "seconds, 1 or more"),
    "max_reclaims": (_count(0), "a whole number, 0 or more"),
    "polling_interval": (_seconds(0.01), "seconds, 0.01 or more"),
    "priority_order": (
        _choice("asc", "desc"),
        "'desc' (the higher number first, as AMQP) or 'asc' (the lower first, as Redis)",
    ),
    "max_message_bytes": (_optional(_count(1)), "a whole number of bytes, or None"),
    "track_started": (_bool, "True or False"),
    "event_loop": (_bool, "True or False"),
}

#: What is shown to nobody.
_SECRET = frozenset({"password"})
_DATABASE_NAMES = frozenset(f.name for f in fields(DatabaseOptions)) - {"url"}
