# One command per intention; `make help` lists them. CI runs the same ones.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .stamps
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PACKAGES := service_kit ledger_svc index_svc retrieval_svc ingest_svc all_in_one dsearch
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo serve test test-fast test-ledger check format proto proto-baseline bench eval clean

help: ## List the commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMPS)/venv:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or name it with make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11: name a newer one with make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON) ..."
	@$(PYTHON) -m venv $(VENV) || { echo "The venv module does not work: on Debian and Ubuntu install python3-venv"; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/runtime: $(STAMPS)/venv pyproject.toml constraints.txt $(wildcard proto/decisionssearch/*/v1/*.proto) proto/generate_stubs.py
	@echo "Installing the packages (about a minute on the first run) ..."
	@$(PIP) --editable .
	@touch $@

$(STAMPS)/dev: $(STAMPS)/runtime
	@echo "Installing the tools for tests and checks ..."
	@$(PIP) --editable '.[dev]'
	@touch $@

setup: $(STAMPS)/runtime ## Install what the program needs into .venv
setup-dev: $(STAMPS)/dev ## Install what tests and checks need as well

demo: $(STAMPS)/runtime ## Set up everything and show the whole path on sample decisions
	@$(BIN)/dsearch demo

serve: $(STAMPS)/runtime ## Run all four services in one process on the embedded stores
	@$(BIN)/dsearch serve

test: $(STAMPS)/dev ## Set up everything and run all tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

test-fast: $(STAMPS)/dev ## Run the tests that take seconds
	@$(BIN)/python -m pytest -m 'not slow' $(PYTEST_ARGS)

test-ledger: $(STAMPS)/dev ## Run the ledger's contract suite, random histories and crash tests on every store
	@$(BIN)/python -m pytest tests/contract tests/model tests/system -k 'ledger or golden or moving or timeline' $(PYTEST_ARGS)

check: $(STAMPS)/dev ## Lint, types, import rules, contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --config pyproject.toml
	@$(BIN)/buf lint proto
	@$(BIN)/buf format --diff --exit-code proto
	@$(BIN)/buf breaking proto --against proto/baseline.binpb

format: $(STAMPS)/dev ## Format code and contracts
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/buf format -w proto

proto: $(STAMPS)/dev ## Make the Python stubs again
	@$(BIN)/python proto/generate_stubs.py

proto-baseline: $(STAMPS)/dev ## Record the contracts as released: `make check` refuses what would break them
	@$(BIN)/buf build proto --as-file-descriptor-set --exclude-source-info -o proto/baseline.binpb

bench: $(STAMPS)/dev ## Measure speed; writes the table of benchmarks/RESULTS.md
	@$(BIN)/python -m benchmarks.run

eval: $(STAMPS)/runtime ## Evaluate ranking and abstention on DATASET=folder
	@$(BIN)/dsearch eval $(or $(DATASET),../shared/data/peps)

clean: ## Remove everything that the commands above made
	@rm -rf $(VENV) $(STAMPS) .demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find proto -name '*_pb2*' -delete
