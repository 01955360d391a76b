# The commands of a fresh clone. Each sets up .venv when it is missing and does nothing twice:
# the stamp's name is a fingerprint of the two files that say what is installed.
#
#   make demo     train, evaluate, export and report on the embedded world: no GPU, no download
#   make up       Prefect server, worker and MLflow UI in the background (ARGS="--gpu-slots 2")
#   make down     stop them (ARGS=--force: also while flow runs are running)
#   make test     every test (ARGS="-k config" passes arguments to pytest)
#   make lint     ruff, mypy and the import layers
#
# PYTHON names the interpreter to build .venv with: any Python from 3.11 on.

PYTHON ?= python3
BIN := .venv/bin
FINGERPRINT := $(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)
STAMP := .venv/.installed-$(FINGERPRINT)

.PHONY: demo up down test lint setup
.DEFAULT_GOAL := demo

demo: $(STAMP)
	@$(BIN)/atelier demo

up: $(STAMP)
	@$(BIN)/atelier up $(ARGS)

down: $(STAMP)
	@$(BIN)/atelier down $(ARGS)

# Two workers, a file each: most tests wait for processes that import for seconds. In their own
# order, long files first: xdist would begin with those of many tests, and end with one worker idle.
test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(STAMP)

$(STAMP):
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Atelier needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python -a -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@echo 'Installing into .venv: several GB with PyTorch, some minutes the first time.'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@rm -f .venv/.installed-*
	@touch $@
