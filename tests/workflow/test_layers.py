"""Who may import whom in celery_workflow, and what it may know of kombu_sqlqueue, which knows nothing of it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_workflow
import kombu_sqlqueue

from ..unit.test_layers import modules_after

HOME = Path(celery_workflow.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(HOME).with_suffix("").parts) for path in HOME.rglob("*.py") if "versions" not in path.parts
)

#: Layers with their modules, or the folders that are a layer each. A module that is nowhere is an adapter.
LAYERS = {
    "errors": {"errors"},
    "timing": {
        f"schedules.{name}"
        for name in ("cron", "definition", "planning", "solar", "state", "syncing", "timing", "windows", "zones")
    },
    "engine": {"engine"},
    "building": {"building"},
    "testing": {"inmemory", "inprocess", "pytest_plugin", "testing"},
    "contract": {"schedules.store", "runs.store"},
    "sql": {"sql"},
    "entry": {"__init__", "commands"},
    "cli": {"cli"},
}
#: What each may import: layers of ours, and packages of others besides the standard library.
MAY_IMPORT: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "timing": ({"timing", "errors"}, {"croniter", "ephem"}),
    "engine": ({"engine", "errors"}, set()),
    "building": ({"engine", "errors", "building"}, {"celery", "kombu"}),
    "testing": ({"engine", "errors", "building", "contract", "adapters", "testing"}, {"celery", "kombu", "pytest"}),
    "contract": ({"timing", "engine", "errors", "contract"}, set()),
    "sql": ({"timing", "engine", "errors", "contract", "sql"}, {"sqlalchemy", "alembic", "kombu_sqlqueue"}),
    "adapters": (
        {"timing", "engine", "building", "errors", "contract", "adapters", "sql"},
        {"billiard", "celery", "kombu", "kombu_sqlqueue", "redis", "tzlocal"},
    ),
    "entry": ({"entry", "cli", "adapters"}, {"click"}),
    "cli": ({"timing", "engine", "errors", "contract", "adapters", "cli"}, {"click", "celery", "kombu", "kombu_sqlqueue"}),
}
#: What kombu_sqlqueue offers to packages on the same database.
SHARED = {
    "bulk_publish",
    "errors",
    "grouping",
    "in_transaction",
    "messages",
    "notifier",
    "options",
    "outbox",
    "patience",
    "process",
    "sql.database",
    "sql.dialect",
    "sql.direct",
    "sql.migrate",
    "transactions",
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_layer_may(module: str):
    ours, others = MAY_IMPORT[layer_of(module)]
    for imported in imports_of(HOME, module):
        package, _, inner = imported.partition(".")
        if package == "celery_workflow":
            assert layer_of(inner or "__init__") in ours, f"{module} imports {imported}"
        else:
            assert package in others or package in sys.stdlib_module_names, f"{module} imports {imported}"
        if package == "kombu_sqlqueue":
            assert any(inner == each or inner.startswith(f"{each}.") for each in SHARED), f"{module} imports {imported}"


def test_the_engine_of_workflows_loads_neither_celery_nor_a_database():
    loaded = modules_after(
        "import celery_workflow.engine.machine, celery_workflow.engine.memory, celery_workflow.engine.drawing"
    )

    assert "celery_workflow.engine.maps" in loaded
    assert not {name for name in loaded if name.partition(".")[0] in {"celery", "kombu", "kombu_sqlqueue", "sqlalchemy"}}


def test_kombu_sqlqueue_knows_nothing_of_this_package():
    for path in Path(kombu_sqlqueue.__file__).parent.rglob("*.py"):
        assert "celery_workflow" not in path.read_text(), path


def test_importing_the_package_imports_neither_sqlalchemy_nor_celery():
    loaded = modules_after("import celery_workflow, celery_workflow.commands")

    assert "celery_workflow" in loaded
    assert not loaded & {"sqlalchemy", "celery", "alembic", "celery_workflow.cli"}


@pytest.mark.parametrize("name", celery_workflow.__all__)
def test_public_names_load_on_first_use(name: str):
    assert getattr(celery_workflow, name) is not None


def layer_of(module: str) -> str:
    names = {module, module.partition(".")[0]}
    return next((layer for layer, modules in LAYERS.items() if names & modules), "adapters")


def imports_of(home: Path, module: str) -> Iterator[str]:
    """The full names of all modules that the module imports, at any level."""
    path = home.joinpath(*module.split(".")).with_suffix(".py")
    here = [home.name, *module.split(".")[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (".".join([*base, name]) for name in names)
