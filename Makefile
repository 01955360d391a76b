# The commands of a fresh clone. Each sets up .venv when it is missing and does nothing twice:
# the stamp's name is a fingerprint of the two files that say what is installed.
#
#   make demo     train, evaluate, export and report on the embedded world: no GPU, no download
#   make up       Prefect server, worker and MLflow UI in the background (ARGS="--gpu-slots 2")
#   make down     stop them (ARGS=--force: also while flow runs are running)
#   make judge-demo   the embedded judge served by a real vLLM: scores a grid of pictures
#   make test     every test but the slow ones (ARGS="-k config" passes arguments to pytest)
#   make test-slow   whole runs that are killed, resumed, cancelled and shared out, platforms, DVC
#   make test-vllm   the tests that need a real vLLM, in its own environment (some GB)
#   make lint     ruff, mypy and the import layers
#
# PYTHON names the interpreter to build .venv with: any Python from 3.11 on.

PYTHON ?= python3
BIN := .venv/bin
FINGERPRINT := $(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)
STAMP := .venv/.installed-$(FINGERPRINT)

.PHONY: demo judge-demo up down test test-slow test-vllm lint setup
.DEFAULT_GOAL := demo

demo: $(STAMP)
	@$(BIN)/atelier demo

judge-demo: $(STAMP)
	@$(BIN)/atelier judge demo

up: $(STAMP)
	@$(BIN)/atelier up $(ARGS)

down: $(STAMP)
	@$(BIN)/atelier down $(ARGS)

# Two workers, a file each: most tests wait for processes that import for seconds. In their own
# order, long files first: xdist would begin with those of many tests, and end with one worker idle.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

test: $(STAMP)
	$(PYTEST) -m 'not slow' $(ARGS)

test-slow: $(STAMP)
	$(PYTEST) -m slow $(ARGS)

# One worker: each test starts a vLLM, which takes both cores of a small machine.
test-vllm: $(STAMP)
	$(BIN)/atelier environments create vllm --cpu
	$(BIN)/python -m pytest tests/vllm $(ARGS)

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
	$(BIN)/python -m flows.local_platform.databases
	@rm -f .venv/.installed-*
	@touch $@
