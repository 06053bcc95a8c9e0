"""Who may import whom. docs/architecture.md has the picture."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_workflow
import kombu_sqlqueue

HOME = Path(kombu_sqlqueue.__file__).parent
WORKFLOW_HOME = Path(celery_workflow.__file__).parent


def modules_in(home: Path) -> list[str]:
    paths = (path for path in home.rglob("*.py") if "versions" not in path.parts)
    return sorted(".".join(path.relative_to(home).with_suffix("").parts) for path in paths)


MODULES = modules_in(HOME)

#: Layers from left to right, each with its modules. A module that is nowhere is an adapter.
LAYERS = {
    "domain": {"errors", "messages", "options", "other_brokers", "results", "routing", "topics"},
    "contract": {"clock", "notifier", "result_store", "revoking", "routing_store", "store"},
    "entry": {"__init__", "commands", "hooks", "register"},
    "process": {"process", "transactions"},
    "contrib": {"contrib"},
    "cli": {"cli"},
}
#: What each may import: layers of ours, and packages of others besides the standard library.
MAY_IMPORT: dict[str, tuple[set[str], set[str]]] = {
    "domain": ({"domain"}, set()),
    "contract": ({"domain", "contract"}, set()),
    "sql": ({"domain", "contract", "sql"}, {"sqlalchemy", "alembic", "psycopg", "pymysql"}),
    "adapters": ({"domain", "contract", "adapters", "process", "entry"}, {"kombu", "celery", "amqp", "billiard", "vine"}),
    "process": ({"domain", "contract", "sql", "adapters", "contrib"}, set()),
    "contrib": ({"domain", "contract", "sql", "process", "adapters"}, {"celery", "django", "kombu"}),
    "entry": ({"domain", "entry", "cli", "adapters", "contrib", "process"}, {"kombu", "celery", "click"}),
    "cli": ({"domain", "contract", "sql", "adapters", "process"}, {"click"}),
}

#: The same for workflows. A module that is nowhere is an adapter.
WORKFLOW_LAYERS = {
    "domain": {
        "__init__",
        "codec",
        "decision",
        "definition",
        "draft",
        "drawing",
        "ending",
        "engine",
        "errors",
        "events",
        "failures",
        "finishing",
        "invariants",
        "journal",
        "maps",
        "memory",
        "outcomes",
        "policies",
        "records",
        "refs",
        "rerunning",
        "starting",
        "states",
        "stopping",
        "values",
        "waiting",
    },
    "testing": {"inprocess", "pytest_plugin", "testing"},
}
WORKFLOW_MAY_IMPORT: dict[str, tuple[set[str], set[str]]] = {
    "domain": ({"domain"}, set()),
    "adapters": ({"domain", "adapters"}, {"celery", "kombu"}),
    "testing": ({"domain", "adapters", "testing"}, {"celery", "kombu", "pytest"}),
}


@pytest.mark.parametrize("module", modules_in(WORKFLOW_HOME))
def test_a_workflow_module_imports_only_what_its_layer_may(module: str):
    ours, others = WORKFLOW_MAY_IMPORT[workflow_layer_of(module)]
    for imported in imports_of(module, WORKFLOW_HOME):
        package, _, inner = imported.partition(".")
        if package == "celery_workflow":
            assert workflow_layer_of(inner or "__init__") in ours, f"{module} imports {imported}"
        else:
            assert package in others or package in sys.stdlib_module_names, f"{module} imports {imported}"


def test_the_engine_of_workflows_loads_neither_celery_nor_a_database():
    loaded = modules_after("import celery_workflow.engine, celery_workflow.memory, celery_workflow.drawing")

    assert "celery_workflow.maps" in loaded
    assert not {name for name in loaded if name.partition(".")[0] in {"celery", "kombu", "kombu_sqlqueue", "sqlalchemy"}}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_layer_may(module: str):
    ours, others = MAY_IMPORT[layer_of(module)]
    for imported in imports_of(module):
        package, _, inner = imported.partition(".")
        if package == "kombu_sqlqueue":
            assert layer_of(inner or "__init__") in ours, f"{module} imports {imported}"
        else:
            assert package in others or package in sys.stdlib_module_names, f"{module} imports {imported}"


def test_importing_the_package_imports_neither_sqlalchemy_nor_celery():
    """What a process pays for having the package installed stays small."""
    loaded = modules_after("import kombu_sqlqueue, kombu_sqlqueue.register")

    assert "kombu_sqlqueue" in loaded
    assert not loaded & {"sqlalchemy", "celery", "alembic", "kombu.transport.virtual", "kombu_sqlqueue.transport"}


def test_the_command_line_loads_no_sqlalchemy_before_a_command_runs():
    """Every celery command imports the module of our commands."""
    loaded = modules_after("import kombu_sqlqueue.commands")

    assert not loaded & {"sqlalchemy", "alembic", "kombu_sqlqueue.cli"}


def test_a_process_that_only_sends_loads_no_alembic_and_no_worker():
    loaded = modules_after("import kombu_sqlqueue.transport")

    assert not loaded & {"alembic", "celery.worker", "kombu_sqlqueue.worker", "psycopg"}


@pytest.mark.parametrize("name", kombu_sqlqueue.__all__)
def test_public_names_load_on_first_use(name: str):
    assert getattr(kombu_sqlqueue, name) is not None


def layer_of(module: str) -> str:
    head = module.partition(".")[0]
    if head == "sql":
        return "sql"
    return next((layer for layer, modules in LAYERS.items() if head in modules), "adapters")


def workflow_layer_of(module: str) -> str:
    head = module.partition(".")[0]
    return next((layer for layer, modules in WORKFLOW_LAYERS.items() if head in modules), "adapters")


def imports_of(module: str, home: Path = HOME) -> Iterator[str]:
    """The full names of all modules that the module imports, at any level."""
    path = home.joinpath(*module.split(".")).with_suffix(".py")
    here = [home.name, *module.split(".")[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (".".join([*base, name]) for name in names)


def modules_after(code: str) -> set[str]:
    """What a fresh interpreter has loaded after running `code`."""
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
    return set(subprocess.run(command, check=True, text=True, capture_output=True).stdout.split())
