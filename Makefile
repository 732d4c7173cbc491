# Targets for people; each is one or two commands, and what they do is in clrflow/ and pipelines/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3.11 python3.12 python3 python; do $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && echo $$p && break; done)
STAMP := $(VENV)/.installed
# torch's threads spin while they wait: on busy cores one thread a process is often three times cheaper.
export OMP_NUM_THREADS ?= 1

##@ Start

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9_-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(STAMP) ## Create .venv and install everything (once; again when the pins change)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or 3.12 found on PATH, and the pinned packages need one; install it, or run make PYTHON=/path/to/python3.11"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ./stubs/fbgemm-gpu -e '.[all,dev]'
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Run the whole pipeline on MovieLens-100k, then ask the index three questions
	@$(BIN)/clrflow data movielens demo/tables
	@$(BIN)/clrflow run --preset demo --workspace demo/workspace
	@$(BIN)/python -m pipelines.demo_queries demo/workspace

##@ Develop

.PHONY: test
test: lint ## Lint, types, layers and all tests, with small end-to-end runs
	$(BIN)/python -m pytest -m "not slow and not gpu and not gpu_torchrec and not cluster"

.PHONY: test-cluster
test-cluster: $(STAMP) ## Tests on a real cluster: a local one that comes and goes (Linux, root), or the one that KUBECONFIG names
	@tests/cluster/local/cluster test

.PHONY: images
images: ## Build the images for the CPU with docker or, without its daemon, buildah; the local cluster gets them if it is up
	@images/build

.PHONY: lint
lint: $(STAMP) ## Style, format, types and the one-way dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: e2e
e2e: $(STAMP) ## Only the end-to-end run on a small synthetic log
	$(BIN)/python -m pytest -m e2e

.PHONY: bench
bench: $(STAMP) ## Measure retrieval quality beside the baselines (a table and JSON; SIZE=full takes about half an hour)
	$(BIN)/python -m benchmarks.quality --size $(or $(SIZE),small) --json benchmarks/results/quality-$(or $(SIZE),small).json

.PHONY: docs
docs: $(STAMP) ## Write again what is generated: components' parameter tables, the picture of the DAG
	$(BIN)/python -m components.readmes
	$(BIN)/python -m pipelines.picture

.PHONY: clean
clean: ## Remove caches and the demo's results; .venv stays
	rm -rf demo/workspace build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
