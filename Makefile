# Every target sets up what it needs. `make help` lists them.
SHELL := /bin/sh
VENV := .venv
READY := $(VENV)/.ready
# The tools of the locked environment, and no other versions of them.
export UV_NO_SYNC := 1
RUN := $(VENV)/bin/uv run

.DEFAULT_GOAL := help
.PHONY: help setup demo programs test floor soak fuzz check docs format lock bench clean

help:  ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Create the environment with the locked versions

$(READY): requirements.lock pyproject.toml
	@echo "Setting up $(VENV) ..."
	@if command -v uv >/dev/null 2>&1; then \
	  test -x $(VENV)/bin/python || uv venv --quiet --python '>=3.11' $(VENV); \
	  uv pip sync --quiet --python $(VENV) requirements.lock; \
	else \
	  for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	    $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; \
	  done; \
	  test -n "$$python" || { echo "llm-do needs Python 3.11 or newer; none was found on PATH." >&2; exit 1; }; \
	  test -x $(VENV)/bin/python || $$python -m venv $(VENV) || { \
	    echo "Python cannot create a virtual environment. On Debian: apt-get install python3-venv" >&2; exit 1; }; \
	  $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check "$$(sed -n 's/^\(uv==[^ ]*\).*/\1/p' requirements.lock)"; \
	  $(VENV)/bin/uv pip sync --quiet --python $(VENV) requirements.lock; \
	fi
	@$(VENV)/bin/uv pip install --quiet --python $(VENV) --no-deps -e .
	@touch $@

demo: $(READY)  ## Turn invoices into a checked report, with a model on this machine (no key needed)
	@tools/install-programs libgomp
	@$(VENV)/bin/python examples/invoices/demo.py

programs:  # What the tests need beside Python
	@tools/install-programs bwrap tmux libgomp

# Many tests wait for another process: one more of them than there are cores can run at a time.
test: $(READY) programs  ## Run the tests
	@$(RUN) pytest -n "$$(($$(getconf _NPROCESSORS_ONLN) + 1))" --dist worksteal

# The lowest version of everything that pyproject.toml names, with the locked tools of the tests; the tests of calls.
FLOOR := .venv-floor
FLOOR_TOOLS := dirty-equals fastapi hypothesis inline-snapshot pytest pytest-examples pytest-timeout pytest-xdist uvicorn
FLOOR_TESTS := tests/core/test_calls.py tests/core/test_scopes.py tests/core/test_model_calls.py tests/core/test_limits.py \
  tests/core/test_events.py tests/core/test_keys.py tests/core/test_executor.py tests/soak

$(FLOOR)/.ready: $(READY)
	@test -x $(FLOOR)/bin/python || $(VENV)/bin/uv venv --quiet --python $(VENV)/bin/python $(FLOOR)
	@for tool in $(FLOOR_TOOLS); do grep -o "^$$tool==[^ ;]*" requirements.lock; done >$(FLOOR)/tools.txt
	@lowest="$$(sed -n 's/^ *"pydantic-ai-slim\(>=[0-9.]*\),.*/\1/p' pyproject.toml)"; \
	$(VENV)/bin/uv pip install --quiet --python $(FLOOR) --resolution lowest-direct --only-binary :all: \
	  -r pyproject.toml -r $(FLOOR)/tools.txt "pydantic-ai-slim[mcp,openai]$$lowest"
	@$(VENV)/bin/uv pip install --quiet --python $(FLOOR) --no-deps -e .
	@touch $@

floor: $(FLOOR)/.ready programs  ## Run the tests of calls on the lowest supported versions
	@$(VENV)/bin/uv pip list --python $(FLOOR) --format freeze | grep -E '^(pydantic|anyio|click|genai|jsonschema=|platformdirs|pyyaml|rich|textual|typing)' | tr '\n' ' '; echo
	@$(FLOOR)/bin/python -m pytest -q -n "$$(getconf _NPROCESSORS_ONLN)" $(FLOOR_TESTS)

soak: $(READY)  ## Cancel, time out and limit 10,000 calls at random, and count what is left
	@$(VENV)/bin/python -m tests.soak.storm

fuzz: $(READY) programs  ## Try thousands of hostile inputs (takes long)
	@HYPOTHESIS_PROFILE=fuzz $(RUN) pytest tests/security/fuzz

check: $(READY)  ## Lint, types, layers, spelling
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy llm_do
	@$(RUN) mypy tests/typing_cases.py
	@$(RUN) lint-imports
	@$(RUN) codespell

docs: $(READY)  ## Build the documentation site in site/
	@NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

format: $(READY)  ## Format the code
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .

bench: $(READY)  ## Compare with raw PydanticAI, in one run
	@$(VENV)/bin/python bench/run.py
	@$(VENV)/bin/python bench/calls.py
	@$(VENV)/bin/python bench/project.py
	@$(VENV)/bin/python bench/roots.py
	@$(VENV)/bin/python bench/rules.py
	@$(VENV)/bin/python bench/turns.py
	@$(VENV)/bin/python bench/cli.py
	@$(VENV)/bin/python bench/local.py

lock: $(READY)  ## Pin the newest versions of all dependencies
	@$(VENV)/bin/uv pip compile --quiet --upgrade --universal --generate-hashes --no-header --all-extras --group dev \
	  --python-version 3.11 pyproject.toml -o requirements.lock

clean:  ## Remove the environment and all caches
	rm -rf $(VENV) $(FLOOR) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
