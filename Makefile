# Each target does all the set-up it needs: a fresh machine has Python 3.11+, make and the package registries.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Installed before anything that asks for torch, so that the resolver keeps this build. On a machine without a GPU
# and with PyPI's CUDA build as the default, point TORCH_INDEX at a CPU index:
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
ARGS ?=
HAS_BROWSER := { command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable; } >/dev/null 2>&1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-gpu check bench faults proto clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(VENV)/.installed ## the .venv alone, pinned by constraints.txt

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Isentrope needs Python 3.11 or newer, this is " + sys.version.split()[0] + ". Set PYTHON=python3.11.")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all,dev]"
	touch $@

demo: setup ## server, dashboard and a training run whose entropy collapses; ARGS="--headless --steps 30"
	$(BIN)/isentrope demo $(ARGS)

test: setup ## the test suite; the pages are looked at with a real Chromium where there is one or apt-get can bring it
	@if ! $(HAS_BROWSER) && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; fi
	@if $(HAS_BROWSER); then marks="not slow and not gpu"; else marks="not slow and not gpu and not browser"; \
	  echo "No Chromium on the PATH: the browser tests are left out. Install chromium to run them."; fi; \
	set -x; $(BIN)/python -m pytest -m "$$marks" $(ARGS)

test-slow: setup ## the suites that take minutes: figures of the reference run
	$(BIN)/python -m pytest -m "slow and not gpu" $(ARGS)

test-gpu: setup ## the kernels on a CUDA or ROCm device; needs a torch built for it: make setup TORCH_INDEX=...
	TRITON_INTERPRET=0 $(BIN)/python -m pytest -m gpu $(ARGS)

check: setup ## ruff, mypy --strict, import contracts, architecture tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/architecture

bench: setup ## benchmarks as ratios; results go to tests/benchmarks/RESULTS.md
	$(BIN)/python -m tests.benchmarks $(ARGS)

faults: setup ## every fault the delivery must withstand, done to real processes; ARGS="--list", "--planted" or names
	$(BIN)/python -m tests.faults $(ARGS)

proto: setup ## regenerate the code of telemetry.proto
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I probe --python_out=probe --grpc_python_out=probe \
	  --mypy_out=probe --mypy_grpc_out=probe isentrope_wire/v1/telemetry.proto

clean: ## remove the .venv
	rm -rf $(VENV)
