"""A connection to MariaDB or MySQL as we need it: of a good version, and without needless words."""

from __future__ import annotations

import re
import socket
import ssl
import time
from contextlib import suppress
from typing import Any

from pymysql import Connection as Driver
from pymysql import Error, OperationalError
from pymysql.constants import COMMAND, ER, SERVER_STATUS

from ..errors import ConfigurationError
from ..options import DatabaseOptions
from .connecting import login

__all__ = ["Connection", "Connector", "check_version"]

#: The oldest servers that can do what we ask for: both skip locked rows, and MySQL has a collation
#: that is binary and does not take 'q ' for 'q'.
MARIADB = (10, 6)
MYSQL = (8, 0, 17)

#: Not the server's: with others it may cut what is too long for a column.
SQL_MODE = "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION"
#: A session that was idle for longer than this, in seconds, may have been ended by the server.
MAY_BE_DEAD_AFTER = 1.0
#: A transaction of ours whose process was stopped in the middle ends after so many seconds, and its locks with it.
IDLE_IN_TRANSACTION = 10
#: Nobody waits longer for a row than so many seconds at a time, nor for a table.
LOCK_TIMEOUT = 10
MYSQL_SETTINGS = (
    "SET SESSION transaction_isolation = 'READ-COMMITTED', SESSION sql_mode = %(sql_mode)s,"
    " SESSION innodb_lock_wait_timeout = %(lock_timeout)s, SESSION lock_wait_timeout = %(lock_timeout)s"
)
MARIADB_SETTINGS = (
    "SET SESSION tx_isolation = 'READ-COMMITTED', SESSION sql_mode = %(sql_mode)s,"
    " SESSION innodb_lock_wait_timeout = %(lock_timeout)s, SESSION lock_wait_timeout = %(lock_timeout)s,"
    " SESSION idle_transaction_timeout = %(idle_in_transaction)s"
)
SETTINGS = {"sql_mode": SQL_MODE, "lock_timeout": LOCK_TIMEOUT, "idle_in_transaction": IDLE_IN_TRANSACTION}
#: A server that is gone is noticed within a minute: probe after so many seconds, so often, so many times.
KEEPALIVE = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 50_000))


class Connection(Driver):
    """It commits each statement by itself until it is told to begin a transaction."""

    is_mariadb = True
    max_packet = 0
    _locked: str | None = None
    #: Of all connections that are to verify nothing.
    _unverified: ssl.SSLContext | None = None
    _used_at = 0.0

    def prepare(self, safe_url: str) -> None:
        """Make the session what we expect. Raises ConfigurationError for a server that is too old."""
        ((version, self.max_packet),) = self._ask("SELECT VERSION(), @@max_allowed_packet")
        self.is_mariadb = check_version(version, safe_url)
        self._ask(MARIADB_SETTINGS if self.is_mariadb else MYSQL_SETTINGS, SETTINGS)
        self._keep_alive()

    def lives(self) -> bool:
        """Whether the server still knows us; asked only if we were idle for long enough that it may not."""
        if time.monotonic() - self._used_at < MAY_BE_DEAD_AFTER:
            return True
        try:
            self.ping()
        except Error:
            return False
        return True

    def lock(self, name: str, wait: float) -> bool:
        """Take a lock until the end of the transaction; False if others kept it for `wait` seconds."""
        ((taken,),) = self._ask("SELECT GET_LOCK(%s, %s)", (name, wait))
        self._locked = name if taken else None
        return bool(taken)

    def commit(self) -> None:
        self._end(super().commit)

    def rollback(self) -> None:
        self._end(super().rollback)

    def _end(self, end: Any) -> None:
        # Where no transaction is open, SQLAlchemy asks for its end all the same.
        if self.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
            end()
        if self._locked is not None:
            name, self._locked = self._locked, None
            self._ask("SELECT RELEASE_LOCK(%s)", (name,))

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        """As PyMySQL does, which reads the system's certificates for each connection, also where it will look at none."""
        if sslp:
            return super()._create_ssl_ctx(sslp)  # type: ignore[no-any-return]
        if Connection._unverified is None:
            Connection._unverified = super()._create_ssl_ctx(sslp)
        return Connection._unverified

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        self._used_at = time.monotonic()
        if command == COMMAND.COM_QUERY and self.max_packet and len(sql) >= self.max_packet:
            # The server would hang up in the middle of it: the line would seem to be broken.
            raise OperationalError(
                ER.NET_PACKET_TOO_LARGE,
                f"a statement of {len(sql)} bytes is more than the server takes:"
                f" raise its max_allowed_packet, which is {self.max_packet}",
            )
        super()._execute_command(command, sql)

    def _ask(self, sql: str, values: tuple[Any, ...] | dict[str, Any] | None = None) -> Any:
        with self.cursor() as cursor:
            cursor.execute(sql, values)
            return cursor.fetchall()

    def _keep_alive(self) -> None:
        for name, value in KEEPALIVE:
            # Not every system has them, and a socket file has none.
            with suppress(AttributeError, OSError):
                self._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Connector:
    """Opens the connections of one engine."""

    def __init__(self, options: DatabaseOptions) -> None:
        self._options = options

    def connect(self, dialect: object, record: object, arguments: list[Any], parameters: dict[str, Any]) -> Connection:
        """Handles SQLAlchemy's event ``do_connect``."""
        connection = Connection(
            *arguments, **{"connect_timeout": 10, **parameters, **login(self._options), "autocommit": True}
        )
        try:
            connection.prepare(self._options.safe_url)
        except BaseException:
            connection.close()
            raise
        return connection


def check_version(version: str, safe_url: str) -> bool:
    """Whether a server of this version is MariaDB. Raises ConfigurationError if it is too old; it says which is needed."""
    if "tidb" in version.lower():
        raise ConfigurationError(f"{safe_url}: TiDB ({version}) does not skip locked rows: use MariaDB, MySQL or PostgreSQL")
    is_mariadb = "mariadb" in version.lower()
    name, least = ("MariaDB", MARIADB) if is_mariadb else ("MySQL", MYSQL)
    # Old drivers took MariaDB for something older than 10, so some servers say 5.5.5- first.
    numbers = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)(?:\.(\d+))?", version)
    found = tuple(int(number or 999) for number in numbers.groups()) if numbers else ()
    if found < least:
        needed = ".".join(map(str, least))
        raise ConfigurationError(f"{safe_url}: this is {name} {version}, but {name} {needed} or later is needed")
    return is_mariadb
