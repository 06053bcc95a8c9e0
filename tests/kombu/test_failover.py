"""Several URLs of one broker: the next one is tried when a server does not answer."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from kombu import Connection, Queue
from sqlalchemy.engine import make_url

from kombu_sqlqueue.options import DatabaseOptions

DEAD_PORT = 1


@pytest.fixture
def urls(database_options: DatabaseOptions) -> tuple[str, str]:
    """Of a server that is away, and of the one under test, in the form that Kombu takes apart."""
    url = make_url(database_options.url)
    if url.host is None or url.port is None:
        pytest.skip("no host and port to choose from")
    url = url.set(drivername=f"sqlqueue-{url.get_backend_name()}", query={})
    return tuple(each.render_as_string(hide_password=False) for each in (url.set(port=DEAD_PORT), url))


@pytest.fixture
def failing_over(connect: Callable[..., Connection], urls: tuple[str, str], database_options: DatabaseOptions):
    """A connection to the one that is away first; `connect` cleans up."""
    options = {"schema": database_options.schema}
    with Connection(";".join(urls), transport_options=options) as connection:
        yield connection


def test_the_first_that_answers_is_used(failing_over: Connection, urls: tuple[str, str], connection: Connection, name: str):
    """Messages go where the other URL alone would put them."""
    failing_over.Producer().publish("x", routing_key=name, retry=True)

    assert failing_over.port == urlsplit(urls[1]).port
    assert Queue(name)(connection.channel()).get(no_ack=True).payload == "x"


@pytest.mark.parametrize("ask", ["connect", "channel", "default_channel"])
def test_whatever_needs_a_connection_finds_one(failing_over: Connection, urls: tuple[str, str], ask: str):
    """Connecting is never a step of its own that users must not forget."""
    needed = getattr(failing_over, ask)

    assert needed() if callable(needed) else needed
    assert failing_over.connected
    assert failing_over.port == urlsplit(urls[1]).port


def test_a_server_that_is_read_only_counts_as_away(database_options: DatabaseOptions):
    """So that a standby among the URLs is passed over."""
    url = make_url(database_options.url)
    if url.get_backend_name() != "postgresql":
        pytest.skip("no server of this kind tells")
    read_only = url.update_query_dict({"options": "-c default_transaction_read_only=on"})
    options = {"schema": database_options.schema}

    connection = Connection(f"sqlqueue+{read_only.render_as_string(hide_password=False)}", transport_options=options)

    with pytest.raises(connection.connection_errors, match="the server is read-only, as a standby is"):
        connection.connect()


def test_a_list_of_urls_does_as_well(urls: tuple[str, str], database_options: DatabaseOptions):
    """As Celery gives them to Kombu."""
    with Connection(list(urls), transport_options={"schema": database_options.schema}) as connection:
        connection.ensure_connection(max_retries=2, interval_start=0, interval_step=0)
        assert connection.port == urlsplit(urls[1]).port


def test_a_connection_may_be_switched_by_hand(urls: tuple[str, str], database_options: DatabaseOptions, name: str):
    """What was declared before is declared again where it is then."""
    with Connection(urls[1], transport_options={"schema": database_options.schema}) as connection:
        queue = Queue(name)
        connection.Producer().publish("before", routing_key=name, declare=[queue])
        connection.switch(urls[1])
        connection.Producer().publish("after", routing_key=name, declare=[queue])

        assert len(connection.SimpleQueue(queue)) == 2
