# Everything runs in an environment that these targets make themselves; Python 3.11 is all it takes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FRAMEWORKS := $(VENV)/.frameworks
# A build for the CPU: that with CUDA takes gigabytes.
TORCH ?= torch==2.13.0+cpu
# Libraries that write and read the formats of docs/your-data.md.
FORMATS ?= datasets pylance webdataset h5py zarr array-record pillow soundfile

# Tests start hundreds of interpreters: without compiled files each one compiles all it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-fast test-pythons test-docs test-tools test-long lint types reference docs bench chaos chaos-long \
	world combinations fuzz soak trials scale container-test browser-test clean

help:
	@echo "make demo    generate data, serve it, train from it with two trainers"
	@echo "make test    all tests of the product (minutes), with a short run of chaos; with COLD=1 every"
	@echo "             process of a server starts as those of users do, which takes twice as long"
	@echo "make test-fast  those that start no server"
	@echo "make test-pythons  those under other Pythons that are installed"
	@echo "make test-docs  the code of every page of docs/ (README and quickstart are of make test)"
	@echo "make test-tools  those of chaos, trials, bench, the demo and the examples that train"
	@echo "make test-long  those that take too long for every day, and all generated examples"
	@echo "make chaos   kill, stop and cut servers and trainers for a minute; chaos-long for half an hour"
	@echo "make combinations  feeds, runs and deaths drawn at random for SECONDS=300, compared with a reference"
	@echo "make fuzz    hostile connections, messages and trainers (minutes)"
	@echo "make soak    full speed for SECONDS=300: nothing may grow"
	@echo "make trials  every trial at its full size (an hour; some need root)"
	@echo "make scale   how cost grows with what can grow (minutes)"
	@echo "make container-test  build the images and run them, as far as this machine can"
	@echo "make browser-test  look at the page of a server in a real browser"
	@echo "make docs    the pages of docs/ as a site, in site/"
	@echo "make bench   headrace beside its peers (a quarter of an hour)"
	@echo "make lint types reference clean"

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headrace needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev,demo,tf]'
	touch $@

$(FRAMEWORKS): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[jax]' tf-keras
	$(BIN)/python -m pip install --quiet '$(TORCH)' \
	    && $(BIN)/python -m pip install --quiet --editable '.[lightning,transformers,ray]' torchdata 'ray[train]' \
	    || echo 'no $(TORCH) in the index: tests that need torch are skipped'
	$(BIN)/python -m pip install --quiet $(FORMATS) \
	    || echo 'not all of $(FORMATS) are in the index: the page that needs them is skipped'
	touch $@

demo: $(READY)
	$(BIN)/python examples/demo.py

# Four processes for each core of a machine of two: most of a test is spent in waiting.
test: $(FRAMEWORKS)
	$(BIN)/python -m pytest -q -n 8 --dist worksteal

test-fast: $(READY)
	$(BIN)/python -m pytest -q tests/unit

# The tests of units under other Pythons, those that are installed.
PYTHONS ?= python3.12 python3.13 python3.14
test-pythons:
	for python in $(PYTHONS); do \
	    $$python -c '' 2> /dev/null || { echo "there is no $$python"; continue; }; \
	    $$python -m venv "$(VENV)-$$python" || exit 1; \
	    "$(VENV)-$$python/bin/python" -m pip install --quiet --editable '.[dev]' || exit 1; \
	    "$(VENV)-$$python/bin/python" -m pytest -q -n 2 tests/unit || exit 1; \
	done

test-docs: $(FRAMEWORKS)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'pages and not long'

test-tools: $(FRAMEWORKS)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'tools and not long'

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

# What of docs/commands.md and docs/reference.md is made of options, signatures and docstrings.
reference: $(FRAMEWORKS)
	$(BIN)/python -m tests.contract.commands_page
	$(BIN)/python -m tests.contract.reference_page

# Fails where a link leads nowhere, a page has no place, or something would be loaded from elsewhere.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

# Chromium is Debian's; without root it has to be there.
BROWSER := $(VENV)/.browser
$(BROWSER): $(READY)
	command -v chromium >/dev/null || apt-get install --yes --no-install-recommends chromium \
	    || echo 'no chromium: the tests say so and are skipped'
	$(BIN)/python -m pip install --quiet --editable '.[browser]'
	touch $@

browser-test: $(BROWSER)
	$(BIN)/python -m pytest -q -m browser tests/browser

# Peers that need another environment get one under the temporary directory.
bench: $(FRAMEWORKS)
	$(BIN)/python -m tests.bench

SEED ?= 1
chaos: $(READY)
	$(BIN)/python -m tests.trials faults --seconds 60 --seed "$(SEED)"

# With the starts that make test leaves out (tests/nursery.py).
test-long: export COLD = 1
test-long: $(READY)
	$(BIN)/python -m pytest -q -m long
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --hypothesis-profile=full tests/unit

# Simulated worlds of desks and trainers: SEED is the first of WORLDS.
world: $(READY)
	$(BIN)/python -m tests.world $(or $(WORLDS),10000) $(SEED)

chaos-long: $(READY)
	$(BIN)/python -m tests.trials faults --seconds 1800 --seed "$(SEED)"

# As root, with INSTALL=1 on Debian: installs podman and buildah too.
container-test: $(READY)
	$(BIN)/python -m tests.containers $(if $(INSTALL),--install)

# A tenth of the connections of a trial's full size.
fuzz: $(READY)
	$(BIN)/python -m tests.trials connections hostile messages --scale 0.1 --seed "$(SEED)"

SECONDS ?= 300
# The printed seed draws the same declarations again.
combinations: $(READY)
	$(BIN)/python -m tests.combinations --seconds "$(SECONDS)"

soak: $(READY)
	$(BIN)/python -m tests.trials soak --seconds "$(SECONDS)" --seed "$(SEED)"

trials: $(READY)
	$(BIN)/python -m tests.trials all --seed "$(SEED)" --results trial-results.jsonl

# The figures of Scaling in docs/measurements.md.
scale: $(READY)
	$(BIN)/python -m tests.trials workers servers owners sequences lanes

clean:
	rm -rf $(VENV) build dist site demo-data demo-out trial-results.jsonl .mypy_cache .ruff_cache .hypothesis .import_linter_cache
