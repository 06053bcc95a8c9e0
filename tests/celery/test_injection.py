"""Whatever a name, an id or an option is made of, it stays what it is: a value, and no part of a statement."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kombu import Exchange, Queue
from sqlalchemy import inspect
from sqlalchemy.engine import make_url

from kombu_sqlqueue.commands import sqlqueue
from kombu_sqlqueue.errors import ConfigurationError, StoreUnavailableError
from kombu_sqlqueue.options import DatabaseOptions, Options
from kombu_sqlqueue.process import process_for
from kombu_sqlqueue.revoking import Revocation
from kombu_sqlqueue.sql.database import Database

from ..databases import wipe

#: What has opened databases, one of each kind.
PAYLOADS = [
    "'; DROP TABLE sqlqueue_message; --",
    "' OR '1'='1",
    '" OR 1=1 --',
    "') OR 1=1 /*",
    "\\'; DELETE FROM sqlqueue_message; --",
    "1; SELECT pg_sleep(5)",
    "%s %(queue)s :queue {0} $1 ?",
    "a%' UNION SELECT 1,2,3 --",
    "`; DROP TABLE sqlqueue_message; #",
    "$$; DROP TABLE sqlqueue_message; $$",
    "x\u0027\u02bc\uff07",
    "q\\",
    "*.#",
    "żółw 🐇",
]
#: Anything that text may be but for what no database stores: NUL, and halves of characters.
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60)

few = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))


def each_payload(test):
    for payload in PAYLOADS:
        test = example(payload)(test)
    return few(given(NAMES)(test))


@pytest.fixture(scope="module")
def app(databases: dict[str, DatabaseOptions], database_name: str) -> Iterator[Celery]:
    options = databases[database_name]
    app = Celery("injected", broker=f"sqlqueue+{options.url}", backend=f"sqlqueue+{options.url}", set_as_current=False)
    app.conf.update(broker_transport_options={"schema": options.schema}, accept_content=["json"], result_extended=True)
    yield app
    app.close()
    wipe(process_for(options).database)
    process_for(options).close()


@pytest.fixture(scope="module")
def database(app: Celery) -> Database:
    return process_for(app.connection_for_write().transport.options.database).database


@pytest.fixture(scope="module")
def tables(database: Database) -> list[str]:
    return tables_of(database)


def tables_of(database: Database) -> list[str]:
    return sorted(inspect(database.engine).get_table_names(schema=database.options.schema))


@each_payload
def test_names_and_headers_of_a_message_come_back_as_they_were(
    app: Celery, database: Database, tables: list[str], text: str
):
    """Queue, exchange, routing key, consumer tag, task name, task id, group id, stamps, arguments."""
    queue = Queue(text, Exchange(text, type="topic"), routing_key=text)
    sent = {"exchange": text, "routing_key": text, "headers": {text: text}, "group_id": text, "stamps": {text: [text]}}
    received = []
    with app.connection_for_write() as connection:
        queue(connection).declare()
        app.send_task(text, (text,), {text: text}, task_id=text, exchange=queue.exchange, routing_key=text,
                      headers={text: text}, group_id=text, root_id=text, reply_to=text, declare=[queue])  # fmt: skip
        with connection.Consumer(queue, callbacks=[lambda *each: received.append(each)], tag_prefix=text):
            while not received:
                connection.drain_events(timeout=30)
        [(body, message)] = received
        message.ack()
        queue(connection).purge()
        queue(connection).delete()
    headers = message.headers

    assert body[:2] == [[text], {text: text}]
    assert (headers["task"], headers["id"], headers["group"], headers["root_id"]) == (text, text, text, text)
    assert headers[text] == sent["headers"][text] or text in ("task", "id", "group", "lang")
    assert (message.delivery_info["exchange"], message.delivery_info["routing_key"]) == (text, text)
    assert tables_of(database) == tables


@each_payload
def test_results_and_groups_of_any_id_come_back_as_they_were(app: Celery, database: Database, tables: list[str], text: str):
    """Stored, read, forgotten; and nothing of another id."""
    app.backend.store_result("another", "untouched", "SUCCESS")
    app.backend.store_result(text, {text: text}, "SUCCESS")
    group = app.GroupResult(text, [app.AsyncResult(text)])
    group.save()

    assert app.AsyncResult(text).get(timeout=5) == {text: text}
    assert app.GroupResult.restore(text).get(timeout=5) == [{text: text}]
    group.delete()
    app.AsyncResult(text).forget()
    assert app.AsyncResult(text).state == "PENDING"
    assert app.AsyncResult("another").result == "untouched"
    assert tables_of(database) == tables


@each_payload
def test_a_revoke_reaches_what_it_names_and_nothing_else(app: Celery, database: Database, tables: list[str], text: str):
    """By id, and by stamp."""
    app.control.revoke(text)
    app.control.revoke_by_stamped_headers({text: [text]})
    remembered = process_for(database.options).revocations.revoked()

    assert Revocation(text) in remembered
    assert text in [json.loads(each.value) for each in remembered if each.stamp == text]
    assert tables_of(database) == tables


@each_payload
def test_an_option_that_is_no_name_is_refused(text: str):
    """The prefix and the schema of the tables are names: anything else is refused before it is used."""
    for option in ("table_prefix", "schema"):
        if not (text.isascii() and text.replace("_", "a").isalnum() and not text[0].isdigit() and len(text) < 32):
            with pytest.raises(ConfigurationError, match=option):
                Options.parse("sqlqueue+sqlite://", {option: text})


@pytest.mark.parametrize("priority", ["0; DROP TABLE sqlqueue_message", "1 OR 1=1", [1], {"a": 1}])
def test_a_priority_that_is_no_number_counts_as_none(app: Celery, database: Database, tables: list[str], priority: object):
    app.send_task("t", priority=priority, queue="priorities", retry=False)
    with app.connection_for_write() as connection:
        message = connection.default_channel.basic_get("priorities", no_ack=True)

    assert message is not None
    assert tables_of(database) == tables


@pytest.mark.parametrize("payload", PAYLOADS)
def test_commands_take_what_they_are_given_for_a_value(app: Celery, database: Database, tables: list[str], payload: str):
    """A queue that is none has nothing dead; ids that are no numbers are refused."""
    app.send_task("t", queue="bystander", retry=False)
    for command in (["dead", "-Q", payload], ["redrive", "-Q", payload]):
        done = CliRunner().invoke(sqlqueue, command, obj=SimpleNamespace(app=app))
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(sqlqueue, ["redrive", "--", payload], obj=SimpleNamespace(app=app))
    assert done.exit_code == 2
    assert process_for(database.options).messages.purge(payload) == 0

    assert process_for(database.options).messages.purge("bystander") == 1
    assert tables_of(database) == tables


def test_a_database_whose_name_is_a_statement_is_looked_for_and_not_found(database: Database):
    if database.dialect.name == "sqlite":
        pytest.skip("there it is the name of a file")
    url = make_url(database.options.url).set(database="x'; DROP TABLE sqlqueue_message; --")
    stranger = Database(DatabaseOptions(url.render_as_string(hide_password=False)))
    with pytest.raises((StoreUnavailableError, ConfigurationError)):
        stranger.ping()
    stranger.dispose()
