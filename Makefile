# Two commands are all a fresh machine needs (Python 3.11+, git, make): `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests wait for processes and disks more than they compute: two workers a core.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(2 * (os.cpu_count() or 1))')
# Neighbours stay together, so that what a module starts for all its tests is started once, not once a worker.
DIST := --dist worksteal

.PHONY: run test lint slow agents crash-points mutants bench demo clean

run: $(VENV)/run.stamp
	exec $(BIN)/sendonce serve

demo: $(VENV)/run.stamp
	exec $(BIN)/sendonce demo

test: lint
	$(BIN)/pytest -n $(WORKERS) $(DIST)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --verbose

slow: $(VENV)/dev.stamp
	$(BIN)/pytest -m slow -n $(WORKERS) $(DIST)

agents: $(VENV)/dev.stamp
	$(BIN)/pytest -m agents -n $(WORKERS) $(DIST)

crash-points: $(VENV)/dev.stamp
	$(BIN)/python -m tests.harness.crash_points

mutants: $(VENV)/dev.stamp
	$(BIN)/python -m tests.mutants.run

bench: $(VENV)/dev.stamp
	$(BIN)/python -m tests.bench.run

$(VENV)/run.stamp: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "sendonce needs Python 3.11 or newer; name one with make PYTHON=python3.12 run")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
