"""URLs and options: what is right is parsed, what is wrong is named with the way out."""

from __future__ import annotations

import re
import warnings
from datetime import timedelta
from pathlib import Path

import kombu.transport
import pytest

from kombu_sqlqueue.errors import ConfigurationError
from kombu_sqlqueue.options import _PARSERS, KOMBU_OPTIONS, DatabaseOptions, Options, hide_password, normalise
from kombu_sqlqueue.other_brokers import FOREIGN_OPTIONS

URL = "sqlqueue+postgresql://user@host/database"


@pytest.mark.parametrize(
    ("url", "ours"),
    [
        ("sqlqueue+postgresql://u:p@h:5432/db?sslmode=require", "postgresql+psycopg://u:p@h:5432/db?sslmode=require"),
        ("sqlqueue+postgres://u@h/db", "postgresql+psycopg://u@h/db"),
        ("sqlqueue-postgresql://u@h/db", "postgresql+psycopg://u@h/db"),
        ("postgresql+psycopg://u@h/db", "postgresql+psycopg://u@h/db"),
        ("sqlqueue+postgresql://u:%40%2F@h/db", "postgresql+psycopg://u:%40%2F@h/db"),
        ("sqlqueue+postgresql:///db?host=a&host=b", "postgresql+psycopg:///db?host=a&host=b"),
        ("sqlqueue+sqlite:///file.db", "sqlite:///file.db"),
        ("sqlqueue+sqlite:////var/file.db", "sqlite:////var/file.db"),
        ("sqlqueue+sqlite://", "sqlite://"),
        ("sqlqueue+mysql://u@h/db", "mysql+pymysql://u@h/db"),
        ("sqlqueue+mariadb://u@h/db", "mariadb+pymysql://u@h/db"),
    ],
)
def test_the_driver_is_chosen_for_you(url: str, ours: str):
    assert normalise(url) == ours


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlqueue://", "is not a database URL: write sqlqueue"),
        ("sqlqueue+oracle://u@h/db", "is not a database URL"),
        ("sqlqueue+postgresql", "is not a database URL"),
        ("postgres:secret@h/db", "'\\*\\*\\*@h/db' is not a database URL"),
        ("sqlqueue+postgresql:/u:secret@h/db", "'\\*\\*\\*@h/db' is not a database URL"),
        ("sqlqueue+postgresql://u:secret@[h/db", "cannot be taken apart"),
        ("sqlqueue+postgresql+psycopg2://u@h/db", "the driver 'psycopg2' is not supported"),
        ("sqlqueue+postgresql://u@h", "names no database"),
        ("sqlqueue+postgresql://u@h:port/db", "the port must be a number"),
        ("sqlqueue+postgresql://u:se@cret@h/db", "%40 stands for @"),
        ("sqlqueue+postgresql://u:se/cret@h/db", "%2F for /"),
        ("sqlqueue+postgresql://u:se?cret@h/db", r"%3F for \?"),
    ],
)
def test_a_wrong_url_is_told_what_is_wrong_with_it(url: str, said: str):
    with pytest.raises(ConfigurationError, match=said) as raised:
        normalise(url)

    assert "cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:secret@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u@h:5432/db", "postgresql://u@h:5432/db"),
        ("postgresql://:secret@h/db", "postgresql://:***@h/db"),
        ("postgresql://u:s/e@c:r?et@h/db", "postgresql://u:***@h/db"),
        ("postgresql:///db?user=u&password=secret&host=h", "postgresql:///db?user=u&password=***&host=h"),
        ("postgresql://h/db?sslpassword=secret", "postgresql://h/db?sslpassword=***"),
        ("sqlite:///file.db", "sqlite:///file.db"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str):
    assert hide_password(url) == shown


def test_a_repr_shows_no_password():
    assert "secret" not in repr(Options.parse("sqlqueue+postgresql://u:secret@h/db", {}))


def test_options_are_taken_over():
    given = {
        "lease_for": 10,
        "max_reclaims": 2,
        "table_prefix": "my_",
        "schema": "jobs",
        "polling_interval": timedelta(seconds=2),
    }
    options = Options.parse(URL, given)

    assert (options.lease_for, options.max_reclaims) == (timedelta(seconds=10), 2)
    assert options.polling_interval == timedelta(seconds=2)
    assert options.database == DatabaseOptions("postgresql+psycopg://user@host/database", table_prefix="my_", schema="jobs")


@pytest.mark.parametrize(
    ("near", "ours"), [("lease_fro", "lease_for"), ("tableprefix", "table_prefix"), ("reclaims", "max_reclaims")]
)
def test_a_near_miss_is_refused_with_the_right_name(near: str, ours: str):
    with pytest.raises(ConfigurationError, match=f"broker_transport_options has no option '{near}': did you mean '{ours}'"):
        Options.parse(URL, {near: 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_for", 0.5),
        ("lease_for", "thirty"),
        ("max_reclaims", -1),
        ("max_reclaims", True),
        ("pool_size", 0),
        ("polling_interval", 0),
        ("priority_order", "up"),
        ("table_prefix", "no-dash"),
        ("table_prefix", "x" * 40),
        ("schema", "a.b"),
        ("auto_migrate", "yes"),
        ("max_message_bytes", 0),
    ],
)
def test_a_wrong_value_is_named_with_what_it_must_be(name: str, value: object):
    with pytest.raises(ConfigurationError, match=rf"\['{name}'\] is .*, but must be "):
        Options.parse(URL, {name: value})


def test_options_of_other_transports_are_ignored_with_one_warning():
    with pytest.warns(UserWarning, match="visibility_timeout .*leases are renewed") as told:
        Options.parse(URL, {"visibility_timeout": 3600, "fanout_prefix": True, "lease_for": 5})

    assert len(told) == 1
    assert "fanout_prefix" in str(told[0].message)


def test_each_option_of_kombus_own_transports_is_known():
    """Whatever a deployment may carry from another broker, its workers start."""
    sources = [path.read_text() for path in Path(kombu.transport.__file__).parent.rglob("*.py")]
    named = set()
    for source in sources:
        named.update(re.findall(r"""transport_options(?:\.get\(|\.pop\(|\[)\s*['"]([\w-]+)['"]""", source))
        for listed in re.findall(r"from_transport_options = .*?\n\n", source, re.DOTALL):
            named.update(re.findall(r"'(\w[\w-]+)'", listed))
    assert {"visibility_timeout", "priority_steps", "predefined_queues", "retry_total", "sep"} <= named

    assert named - FOREIGN_OPTIONS.keys() - KOMBU_OPTIONS - _PARSERS.keys() == set()


def test_what_kombu_writes_there_is_accepted_silently():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Options.parse(URL, {"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 1})


def test_no_option_is_both_ours_and_foreign():
    for name in FOREIGN_OPTIONS:
        with pytest.warns(UserWarning, match=name):
            Options.parse(URL, {name: 1})
