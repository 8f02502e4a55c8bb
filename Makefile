# blockdiff: everything a newcomer types. `make help` lists it.
# PYTHON chooses the interpreter of the virtual environment (3.10 to 3.12).

PYTHON ?= python3
MODEL ?= demo/checkpoint
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
SOURCES := backend_src kernels client gateway demo tests scripts perf model_repository

.DEFAULT_GOAL := help
.PHONY: help install demo serve test test-fast test-install lint format train eval perf bench doctor clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt scripts/install_environment.py
	@$(PYTHON) scripts/install_environment.py

install: $(STAMP) ## Make the virtual environment .venv with everything in it

demo: $(STAMP) ## Start the server, send three prompts, print each block as it arrives, stop the server
	@$(BIN)/python -m demo.demo --model $(MODEL)

serve: $(STAMP) ## Serve demo/checkpoint (or MODEL=DIR) in the foreground
	@$(BIN)/blockdiff serve --model $(MODEL) $(ARGS)

test: $(STAMP) ## Run all tests, those against the real server included (about 13 minutes on 2 cores)
	@$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not install" $(ARGS)

test-fast: $(STAMP) ## Run the tests that start no server and take no seconds each
	@$(PYTEST) -n 2 --dist loadfile -m "not server and not chaos and not install and not slow" $(ARGS)

test-install: $(STAMP) ## Try `make demo` on a bare Debian 12 root (needs root and debootstrap; minutes)
	@$(PYTEST) -m install --timeout 3600 -s tests/install $(ARGS)

lint: $(STAMP) ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP) ## Rewrite the sources in the project's style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

train: $(STAMP) ## Train demo/checkpoint from scratch (up to two hours)
	@$(BIN)/python -m demo.train $(ARGS)

eval: $(STAMP) ## Measure accuracy and tokens per forward of the checkpoint
	@$(BIN)/blockdiff eval --model $(MODEL) $(ARGS)

perf: $(STAMP) ## Run perf_analyzer against the demo model at concurrency 1, 4 and 8
	@$(BIN)/python -m perf.perf_analyzer --model $(MODEL) $(ARGS)

bench: $(STAMP) ## Compare the engine with public CPU loops on a small random model (under 3 minutes)
	@$(BIN)/python -m perf.throughput --short $(ARGS)

doctor: $(STAMP) ## Check what this machine needs to serve
	@$(BIN)/blockdiff doctor --model $(MODEL) $(ARGS)

clean: ## Remove the virtual environment and what tools left behind
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
