# All that is needed is make and Python 3.11 or later; the rest goes into $(VENV).
PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
# Most tests wait for workers rather than compute: more of them at a time than there are cores.
TEST_PROCESSES ?= 4

BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet
PARTS = setup.cfg pyproject.toml

.DEFAULT_GOAL := help
.PHONY: help demo test quick lint format types check clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/demo.stamp ## Run a real worker on SQLite and watch what happens
	@$(BIN)/python examples/demo

test: $(VENV)/dev.stamp ## Run the tests on SQLite, on PostgreSQL and, where one answers, on MariaDB
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) $(PYTEST_ARGS)

quick: $(VENV)/dev.stamp ## Run the tests that need no database server and no worker
	@$(BIN)/python -m pytest tests/unit $(PYTEST_ARGS)

lint: $(VENV)/dev.stamp ## Check style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(VENV)/dev.stamp ## Put the code in shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(VENV)/dev.stamp ## Check the types
	@$(BIN)/mypy

check: lint types quick ## Everything that is quick

clean: ## Remove the environment and what the demo left
	rm -rf $(VENV) demo

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "on Debian and Ubuntu this needs: apt install python3-venv"; exit 1; }

$(VENV)/demo.stamp: $(BIN)/pip $(PARTS)
	@echo "installing the project"
	@$(PIP) --editable .
	@touch $@

$(VENV)/dev.stamp: $(BIN)/pip $(PARTS)
	@echo "installing the project with its development tools"
	@$(PIP) --editable '.[postgresql,mysql,dev]'
	@touch $@
