# Everything runs in .venv, which `make install` makes from PYTHON.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check -qq install --progress-bar off -c constraints.txt
# Installed already: same requirements, same place. Half made: MAKING is still there.
KEY := $(shell (pwd; cat pyproject.toml constraints.txt) | cksum | cut -d ' ' -f 1)
STAMP := $(VENV)/.installed-$(KEY)
MAKING := $(VENV)/.making
# The tests run on every core; one after another: make test WORKERS=
# Files with one slow test would come last by the number of their tests, and leave a core idle.
WORKERS ?= --numprocesses logical --dist loadfile --no-loadscope-reorder
HEAVY := $(if $(WEIGHBRIDGE_HEAVY_SAMPLE),--heavy-sample $(WEIGHBRIDGE_HEAVY_SAMPLE),--heavy)

.DEFAULT_GOAL := help
.PHONY: help install test test-heavy fuzz demo atlas lint lint-style lint-types lint-docs docs bench constraints clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 13

install: $(STAMP) ## Make .venv and install everything into it, pinned

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Weighbridge needs Python 3.11 or newer, not $$($(PYTHON) -V 2>&1); try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module; install it (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@if [ -e $(MAKING) ] || ! $(RUN) -m pip --version >/dev/null 2>&1; then \
	  echo "making $(VENV) with $$($(PYTHON) -V)"; rm -rf $(VENV); $(PYTHON) -m venv $(VENV); fi
	@touch $(MAKING)
	@start=$$(date +%s); echo "installing (about a gigabyte the first time) ..."; \
	  $(PIP) "$$(grep '^torch==' constraints.txt)" && \
	  $(PIP) --editable '.[dev]' && \
	  $(PIP) --no-deps mlx-audio mlx-embeddings mlx-vlm && \
	  { $(PIP) --editable '.[coreai]' 2>/dev/null || \
	    echo "Core AI has no packages for this machine; what needs them is left out"; } && \
	  echo "installed in $$(( $$(date +%s) - start )) s"
	@rm -f $(MAKING) $(VENV)/.installed-*
	@touch $@

test: install ## Run the tests that a change must pass before it is committed
	$(RUN) -m pytest -q $(WORKERS) -m "not heavy"

test-heavy: install ## Run the tests that take long (WEIGHBRIDGE_HEAVY_SAMPLE=0/24 for some of them)
	$(RUN) -m pytest -q $(WORKERS) -m heavy $(HEAVY)

fuzz: install ## Run 10,000 malformed inputs, each in a child that is watched (FUZZ="--family gguf --count 200" for some)
	$(RUN) benchmarks/fuzz.py $(FUZZ)

demo: install ## Train, convert and check a real model, end to end (DEMO_FLAGS=--quick for a short one)
	$(RUN) examples/demo.py $(DEMO_FLAGS)

lint: lint-style lint-types lint-docs ## Check style, types and the generated documentation

lint-style: install
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check

# mypy wants a folder that is named like the package, and a clone may have any name.
lint-types: install
	@link=$$(mktemp -d) && ln -s "$(CURDIR)" $$link/weighbridge && cd $$link && \
	  "$(CURDIR)/$(RUN)" -m mypy --config-file weighbridge/pyproject.toml --cache-dir "$(CURDIR)/.mypy_cache" weighbridge; \
	  status=$$?; rm -r $$link; exit $$status

lint-docs: install
	$(RUN) docs/generate.py --check

atlas: install ## Convert a tiny model of every type there and back; write docs/atlas.md (TYPES="llama mixtral" for some)
	$(RUN) benchmarks/atlas/run.py $(TYPES)

docs: install ## Write the generated parts of the documentation
	$(RUN) docs/generate.py

bench: install ## Run every benchmark (BENCH=NAME for one); results go to benchmarks/results
	@for script in $(if $(BENCH),benchmarks/$(BENCH).py,$(wildcard benchmarks/[!_]*.py benchmarks/adapters/[!_]*.py)); do \
	  echo "== $$script"; $(RUN) $$script || exit 1; done

constraints: ## Pin what .venv holds now
	$(RUN) -m pip list --format=freeze --exclude-editable | sed 's/+.*//; /^pip==/d' > constraints.txt

clean: ## Remove what was built, .venv included
	rm -rf $(VENV) build dist *.egg-info demo-output .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
