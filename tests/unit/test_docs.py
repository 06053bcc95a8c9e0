"""The pages say what is so, as far as a test can tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kombu_sqlqueue.options import _PARSERS, Options
from kombu_sqlqueue.sql.schema import Tables

from ..upstream.listed import listed
from ..upstream.suites import SUITES, Suite

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_each_link_leads_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_each_test_that_a_page_names_exists():
    defined = set()
    for path in ROOT.glob("tests/**/*.py"):
        defined.update(re.findall(r"def (test_\w+)", path.read_text()))
    for page in PAGES:
        assert set(re.findall(r"`(test_\w+)`", page.read_text())) <= defined, page.name


def test_each_option_is_documented_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", (ROOT / "docs" / "configuration.md").read_text(), re.MULTILINE))
    assert set(rows) == set(_PARSERS)

    defaults = Options.parse("sqlqueue+sqlite:///x.db", {})
    for name, shown in rows.items():
        given = {} if shown == "None" else {name: {"True": True, "False": False}.get(shown, shown.strip('"'))}
        if shown.isdecimal():
            given = {name: int(shown)}
        assert Options.parse("sqlqueue+sqlite:///x.db", given) == defaults, name


@pytest.mark.parametrize("page", ["operating.md", "security.md"])
def test_each_table_is_documented(page: str):
    text = (ROOT / "docs" / page).read_text()
    for table in Tables("", None).metadata.tables:
        assert f"`{table}`" in text or f"sqlqueue_{table}" in text, table


def test_no_page_names_a_path_of_one_machine():
    for page in PAGES:
        assert not re.search(r"(?<![\w.])/(work|root|home)/\w", page.read_text()), page.name


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.label)
def test_each_upstream_test_that_does_not_pass_has_its_reason(suite: Suite):
    """What passed and what is listed make up the whole suite."""
    page = listed()[suite.of, suite.database]

    assert page.passed + len(page.reasons) == page.total
    assert all(reason.endswith(".") for reason in page.reasons.values())


def test_only_what_is_run_is_counted():
    assert listed().keys() == {(suite.of, suite.database) for suite in SUITES}


def test_each_file_that_a_page_names_exists():
    for page in PAGES:
        for file in re.findall(r"`(tests/[\w/.]+)`", page.read_text()):
            assert (ROOT / file).exists(), file
