# All that is needed is make and Python 3.11 or later; the rest goes into $(VENV).
PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
BENCH_ARGS ?= all
# Most tests wait for workers rather than compute: more of them at a time than there are cores.
TEST_PROCESSES ?= 6
# The harness of the upstream suites is no part of this project; their plugins stay out of our own environment.
PEER_SUITES ?= ../shared/peer-suites
PEER_VENV ?= .venv-peer
PEER_ARGS ?=

BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet
PARTS = setup.cfg pyproject.toml

.DEFAULT_GOAL := help
.PHONY: help demo test quick soak bench peer-suites run-peer-suites lint format types check clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

demo: $(VENV)/demo.stamp ## Run a real worker on SQLite and watch what happens
	@$(BIN)/python examples/demo

test: $(VENV)/dev.stamp ## Run the tests on SQLite, on PostgreSQL and, where one answers, on MariaDB
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --max-worker-restart 0 $(PYTEST_ARGS)

quick: $(VENV)/dev.stamp ## Run the tests that need no database server and no worker
	@$(BIN)/python -m pytest tests/unit $(PYTEST_ARGS)

soak: $(VENV)/dev.stamp ## Kill, stop and cut off workers for half an hour and account for every task
	@$(BIN)/python -m pytest -m soak -s --no-header $(PYTEST_ARGS) tests/soak

peer-suites: ## Run Kombu's and Celery's own suites on our databases; takes half an hour
	@test -f $(PEER_SUITES)/run_kombu_suite.py -a -f $(PEER_SUITES)/run_celery_suite.py || { \
	echo "There is no harness for the upstream suites at $(PEER_SUITES); it is no part of this project."; \
	echo "Say where it is: make peer-suites PEER_SUITES=<folder>"; exit 2; }
	@$(MAKE) --no-print-directory VENV=$(PEER_VENV) PEER_SUITES=$(PEER_SUITES) PEER_ARGS='$(PEER_ARGS)' run-peer-suites

run-peer-suites: $(VENV)/peer.stamp
	@$(BIN)/python -m tests.upstream $(PEER_SUITES) $(PEER_ARGS)

bench: $(VENV)/bench.stamp ## Measure us beside Redis, RabbitMQ and others; BENCH_ARGS="consume --quick" for less
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

lint: $(VENV)/dev.stamp ## Check style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(VENV)/dev.stamp ## Put the code in shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(VENV)/dev.stamp ## Check the types
	@$(BIN)/mypy

check: lint types quick ## Everything that is quick

clean: ## Remove the environments and what was left behind
	rm -rf $(VENV) $(PEER_VENV) demo demo-* peer-results benchmarks/out

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

$(VENV)/peer.stamp: $(BIN)/pip $(PARTS)
	@echo "installing the project with what the upstream suites need"
	@$(PIP) --editable '.[postgresql,mysql,peer]'
	@touch $@

$(VENV)/bench.stamp: $(BIN)/pip $(PARTS)
	@echo "installing the project with those it is measured beside"
	@$(PIP) --editable '.[postgresql,mysql,bench]'
	@touch $@
