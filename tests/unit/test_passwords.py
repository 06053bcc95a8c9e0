"""A password that is asked for at each connect: from a callable, or from where one can be imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kombu_sqlqueue.errors import ConfigurationError, StoreUnavailableError
from kombu_sqlqueue.options import DatabaseOptions, Options
from kombu_sqlqueue.passwords import current_password

URL = "sqlqueue+postgresql://user@host/database"


@pytest.fixture
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that gives passwords."""
    (tmp_path / "vault_of_test.py").write_text("def token():\n    return 'hunter2'\n\nnothing = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "vault_of_test"
    sys.modules.pop("vault_of_test", None)


def test_it_is_what_the_callable_gives_now():
    answers = iter(["first", "second"])
    source = lambda: next(answers)

    assert [current_password(source), current_password(source)] == ["first", "second"]


def test_it_may_be_named_where_settings_are_text(vault: str):
    assert current_password(f"{vault}:token") == "hunter2"


@pytest.mark.parametrize("value", ["hunter2", "", 7, "hunter2:", "a b:c"])
def test_a_value_that_is_no_callable_is_refused_and_not_shown(value: object):
    """Most likely it is the password itself."""
    with pytest.raises(ConfigurationError, match=r"\['password'\] must be a callable") as raised:
        Options.parse(URL, {"password": value})

    assert "hunter2" not in str(raised.value)


def test_a_password_that_looks_like_a_place_to_import_from_is_not_shown():
    with pytest.raises(ConfigurationError, match="no such module") as raised:
        current_password("hunter2:secret")

    assert "hunter2" not in str(raised.value)


def test_a_name_that_is_no_callable_is_told(vault: str):
    with pytest.raises(ConfigurationError, match="what it names is no callable"):
        current_password(f"{vault}:nothing")


def test_a_callable_that_fails_may_succeed_later():
    """What it asks may be away for a moment: Celery tries again."""
    with pytest.raises(StoreUnavailableError, match="failed: TimeoutError"):
        current_password(_too_late)


def test_a_callable_that_gives_no_text_is_told():
    with pytest.raises(ConfigurationError, match="gave NoneType, not str"):
        current_password(lambda: None)  # type: ignore[arg-type, return-value]


def test_options_with_the_same_callable_are_the_same_database():
    """A process has one pool for them, and shows nothing of the callable."""
    first, second = (Options.parse(URL, {"password": _too_late}).database for _ in range(2))

    assert {first: "one"}[second] == "one"
    assert first != DatabaseOptions(first.url)
    assert "_too_late" not in repr(first)


def _too_late() -> str:
    raise TimeoutError


@pytest.mark.parametrize(
    "given",
    [{"listen_at": "postgresql://app:s3cret@host/database"}, {"password": "os:s3cret"}, {"password": "s3cret"}],
    ids=["in an address", "that looks like a path", "as it is"],
)
def test_a_password_in_the_wrong_option_is_not_shown(given: dict[str, str]):
    def use() -> None:
        current_password(Options.parse(URL, given).database.password)  # type: ignore[arg-type]

    with pytest.raises(ConfigurationError) as refused:
        use()
    assert "s3cret" not in str(refused.value)
