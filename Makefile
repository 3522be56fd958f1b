# make test   set everything up and run lint, types and tests
# make demo   set everything up and run the main job on the embedded default
# make test-matrix  backbones and loading with the oldest and the newest transformers and timm
# make docs   the documents and the API reference as a site in build/site; a broken link is an error
# make notebooks  run the notebooks of docs/notebooks and store their outputs
# make bench  the speed ratios of benchmarks/README.md
# make chaos  the long campaign against the program (docs/RELIABILITY.md)
# make browser  Chromium for the tests of the report's page, where there is none
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Tests of what depends on the versions of transformers and timm.
MATRIX_TESTS := tests/backbone tests/reduction/test_progressive.py tests/comparison/test_diagnose.py \
	tests/deploy/test_deploy.py tests/deploy/test_saved.py tests/deploy/test_maps.py tests/deploy/test_whole.py \
	tests/deploy/test_intermediates.py tests/deploy/test_language.py

.PHONY: setup lint types docs browser test test-matrix demo format notebooks bench chaos clean

setup: $(STAMP)

# timm brings torchvision, and one that was not built for the installed torch breaks the import of
# transformers too. So both lie in a folder of their own, which the tests alone look into.
TIMM = --quiet --upgrade --no-deps --target $(@D)/timm

# The constraints pin torch to one version whose CPU build is small; an open range would
# bring several gigabytes of GPU libraries. torch goes first so that nothing else chooses it.
$(STAMP): pyproject.toml constraints/tested.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints/tested.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints/tested.txt --editable ".[dev,docs]"
	$(BIN)/python -m pip install $(TIMM) --constraint constraints/tested.txt timm torchvision
	touch $(STAMP)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# The theme prints news about itself unless it is told not to. Not --quiet: it hides the warnings that --strict counts.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

browser:
	@for name in chromium chromium-browser google-chrome; do \
	  command -v $$name >/dev/null && exit 0; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium >/dev/null; \
	else \
	  echo "No Chromium and no right to install it: tests of the report's page will be skipped."; \
	fi

# Several processes with one thread each are twice as fast as one process with several threads. The campaign of
# tests/chaos runs alone: it kills commands at moments that depend on how long they take. A compiler cannot trace the
# checks of signatures, so the tests of compiled code run without them.
PARALLEL := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

test: lint types docs browser
	$(BIN)/python -m pytest tests/chaos
	$(PARALLEL) -m "not compiles" --ignore tests/chaos
	$(BIN)/python -m pytest -m compiles --jaxtyping-packages=

# One environment for each end of the supported ranges.
test-matrix: .venv-oldest/.installed .venv-newest/.installed
	REDI_CONSTRAINTS=constraints/oldest.txt .venv-oldest/bin/python -m pytest -m "not compiles" $(MATRIX_TESTS)
	REDI_CONSTRAINTS=constraints/newest.txt .venv-newest/bin/python -m pytest -m "not compiles" $(MATRIX_TESTS)

.venv-%/.installed: pyproject.toml constraints/%.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade pip
	$(@D)/bin/python -m pip install --quiet --constraint constraints/$*.txt torch
	$(@D)/bin/python -m pip install --quiet --constraint constraints/$*.txt --editable . pytest pytest-timeout hypothesis beartype
	$(@D)/bin/python -m pip install $(TIMM) --constraint constraints/$*.txt timm torchvision
	touch $@

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: setup
	$(BIN)/redi demo --out runs/demo

notebooks: setup
	OMP_NUM_THREADS=1 $(BIN)/python scripts/run_notebooks.py

bench: setup
	$(BIN)/python benchmarks/library.py
	$(BIN)/python benchmarks/pipeline.py

chaos: setup
	PYTHONPATH=tests HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m chaos.campaign --out chaos.json

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
