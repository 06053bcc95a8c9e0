"""Which servers are good enough, and what their errors mean."""

from __future__ import annotations

import pytest
from pymysql.err import InterfaceError, OperationalError
from sqlalchemy.exc import DBAPIError

from kombu_sqlqueue.errors import ConfigurationError
from kombu_sqlqueue.sql.dialect import Trouble
from kombu_sqlqueue.sql.mysql import MySQL
from kombu_sqlqueue.sql.mysql_connecting import check_version


@pytest.mark.parametrize(
    "version",
    ["10.6.0-MariaDB", "10.11.19-MariaDB-0+deb12u1", "5.5.5-10.6.12-MariaDB-log", "11.8.2-MariaDB", "12.0.1-MariaDB"],
)
def test_mariadb_is_good_from_10_6_on(version: str):
    assert check_version(version, "url")


@pytest.mark.parametrize(
    "version", ["8.0.17", "8.0.43-0ubuntu0.24.04.1", "8.4.6", "9.1.0-commercial", "8.0.mysql_aurora.3.04.0"]
)
def test_mysql_is_good_from_8_0_17_on(version: str):
    assert not check_version(version, "url")


@pytest.mark.parametrize(
    ("version", "needed"),
    [
        ("10.5.29-MariaDB", "MariaDB 10.6 or later"),
        ("5.5.5-10.3.39-MariaDB-0ubuntu0.20.04.2", "MariaDB 10.6 or later"),
        ("5.7.44", "MySQL 8.0.17 or later"),
        ("8.0.0-dmr", "MySQL 8.0.17 or later"),
        ("8.0.16", "MySQL 8.0.17 or later"),
        ("something else", "MySQL 8.0.17 or later"),
    ],
)
def test_an_older_server_is_refused_with_what_was_found_and_what_is_needed(version: str, needed: str):
    with pytest.raises(ConfigurationError) as caught:
        check_version(version, "mysql://host/db")
    assert version in str(caught.value)
    assert needed in str(caught.value)
    assert "mysql://host/db" in str(caught.value)


def test_tidb_is_refused_though_it_says_8_0():
    with pytest.raises(ConfigurationError, match="TiDB"):
        check_version("8.0.11-TiDB-v8.5.0", "url")


@pytest.mark.parametrize(
    ("number", "trouble"),
    [
        (1062, Trouble.CONFLICT),
        (1213, Trouble.RETRY),
        (1205, Trouble.RETRY),
        (2006, Trouble.UNAVAILABLE),
        (2013, Trouble.UNAVAILABLE),
        (1927, Trouble.UNAVAILABLE),
        (4031, Trouble.UNAVAILABLE),
        (1114, Trouble.UNAVAILABLE),
        (1290, Trouble.UNAVAILABLE),
        (1836, Trouble.UNAVAILABLE),
        (1146, Trouble.SCHEMA),
        (1142, Trouble.DENIED),
        (1044, Trouble.DENIED),
        (1045, Trouble.UNAVAILABLE),
        (1153, Trouble.TOO_BIG),
        (1406, Trouble.TOO_BIG),
        (1064, Trouble.OTHER),
    ],
)
def test_an_error_means(number: int, trouble: Trouble):
    assert MySQL().classify(DBAPIError("statement", {}, OperationalError(number, "words"))) is trouble


def test_a_connection_that_the_driver_closed_is_gone():
    assert MySQL().classify(DBAPIError("statement", {}, InterfaceError(0, ""))) is Trouble.UNAVAILABLE


def test_an_error_without_a_number_is_no_trouble_we_know():
    assert MySQL().classify(DBAPIError("statement", {}, OperationalError("words"))) is Trouble.OTHER
