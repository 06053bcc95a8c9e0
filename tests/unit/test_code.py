"""What no module of the package does: run what it is given, or build a statement out of text."""

from __future__ import annotations

import ast
import base64
import os
import pickle
from pathlib import Path

import pytest

import kombu_sqlqueue
from kombu_sqlqueue.pidbox import PICKLE, command_in

HOME = Path(kombu_sqlqueue.__file__).parent
FILES = sorted(HOME.rglob("*.py"))

#: What turns data into code.
DANGEROUS_CALLS = frozenset({"eval", "exec", "compile", "__import__", "system", "popen"})
DANGEROUS_MODULES = frozenset({"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "subprocess", "pty"})
#: Of one module, which reads what this process itself is about to send, and lets nothing be called.
MAY_READ_PICKLES = frozenset({"pickle"})
#: What takes a statement as text, and how much of SQLAlchemy's own that is.
TAKES_TEXT = frozenset({"text", "literal_column", "exec_driver_sql", "execute", "SQL", "_ask"})


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def calls(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def is_put_together(node: ast.expr) -> bool:
    """Whether it is text made here of other text. What is compiled, bound or named elsewhere is not."""
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(part, ast.FormattedValue) and not is_constant(part.value) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        return any(isinstance(side, ast.JoinedStr) or is_text(side) for side in (node.left, node.right))
    return isinstance(node, ast.Call) and called(node) in ("format", "format_map", "join") and is_text(node.func)


def is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return is_text(node.value)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id.isupper()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOME)))
def test_data_never_becomes_code(path: Path):
    """No pickle, no eval, no shell, no YAML."""
    assert not imports(path) & DANGEROUS_MODULES - (MAY_READ_PICKLES if path.name == "pidbox.py" else set())
    for call in calls(path):
        # A regular expression and a statement are compiled too, by a method of theirs.
        assert called(call) not in DANGEROUS_CALLS or (called(call) == "compile" and isinstance(call.func, ast.Attribute))
        assert not any(keyword.arg == "shell" for keyword in call.keywords)


class Trap:
    """Whoever unpickles it makes a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._directory),)


def test_a_pickle_among_remote_commands_calls_nothing(tmp_path: Path):
    trap = pickle.dumps({"method": "revoke", "arguments": Trap(tmp_path / "trapped")})
    message = {"body": base64.b64encode(trap).decode(), "content-type": PICKLE, "content-encoding": "binary"}
    message["properties"] = {"body_encoding": "base64"}

    assert command_in("celery.pidbox", {**message, "body": trap}) is None
    assert command_in("celery.pidbox", message) is None
    assert not (tmp_path / "trapped").exists()
    pickle.loads(trap)
    assert (tmp_path / "trapped").exists()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOME)))
def test_no_statement_is_put_together_from_text(path: Path):
    """Values are parameters, and names are quoted by who knows how: SQLAlchemy and the driver."""
    for call in calls(path):
        if called(call) in TAKES_TEXT:
            for argument in call.args[:1]:
                assert not is_put_together(argument), f"{path.name}:{call.lineno}"


@pytest.mark.parametrize(
    "bad",
    [
        'tx.execute(text(f"DELETE FROM {table}"))',
        'text("SELECT " + name)',
        'tx.exec_driver_sql("SELECT %s" % name)',
        'sql.SQL("LISTEN {}".format(channel))',
    ],
)
def test_such_a_statement_would_be_found(bad: str):
    found = [node for node in ast.walk(ast.parse(bad)) if isinstance(node, ast.Call) and called(node) in TAKES_TEXT]

    assert any(is_put_together(argument) for node in found for argument in node.args)
