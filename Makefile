# make test   set everything up and run lint, types and tests
# make demo   set everything up and run the main job on the embedded default
# make bench  the speed ratios of benchmarks/README.md
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup lint types test demo format bench clean

setup: $(STAMP)

# The constraints pin torch to one version whose CPU build is small; an open range would
# bring several gigabytes of GPU libraries. torch goes first so that nothing else chooses it.
$(STAMP): pyproject.toml constraints/tested.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints/tested.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints/tested.txt --editable ".[dev]"
	touch $(STAMP)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

test: lint types
	$(BIN)/python -m pytest

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: setup
	$(BIN)/redi demo --out runs/demo

bench: setup
	$(BIN)/python benchmarks/library.py
	$(BIN)/python benchmarks/pipeline.py

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
