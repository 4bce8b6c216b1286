# `make demo` and `make test` do all their own set-up. PYTHON picks the interpreter (>= 3.11).
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
PIP     = $(BIN)/python -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := demo
.PHONY: demo test lint models clean links
.DELETE_ON_ERROR:

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ramify needs Python >= 3.11: set PYTHON=/path/to/python3.11 (found: $$($(PYTHON) --version 2>&1))"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "could not make a virtual environment: install your system's python3-venv package, or set PYTHON="; exit 1; }

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV) (once)"
	@$(PIP) -e '.[examples]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV) for tests (once)"
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.demo

# mypy reads the packages by their import names through links (the folders at the root have shorter ones).
links:
	@rm -rf .dev && mkdir -p .dev/ramify && for f in api/*; do ln -sfn ../../$$f .dev/ramify/; done
	@for p in compiler fork_engine runtime sandboxes serving; do ln -sfn ../../$$p .dev/ramify/$$p; done

demo: $(VENV)/.demo
	@$(BIN)/ramify models pull --quiet
	@$(BIN)/python -m examples.repair $(ARGS)

models: $(VENV)/.demo
	@$(BIN)/ramify models pull

test: $(VENV)/.dev lint
	@$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.dev links
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && PYTHONPATH=.dev $(BIN)/lint-imports

clean:
	rm -rf $(VENV) .dev .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
