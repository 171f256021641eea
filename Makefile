# Each target does all the set-up it needs: a fresh machine has Python 3.11+, make and the package registries.
PYTHON ?= python3
BIN := .venv/bin
# The .venv is make's own: it keeps compiled modules, whatever the shell wants for others.
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=
# Test files are shared out among processes; each makes its servers, databases and browsers once. One process more than
# cores, for a third of their time they wait for other processes.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(4, (os.cpu_count() or 1) + 1))')
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
HAS_BROWSER := { command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable; } >/dev/null 2>&1
# The pages are looked at with a real Chromium where there is one or apt-get can bring it.
define BRING_BROWSER
@if ! $(HAS_BROWSER) && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; fi
@$(HAS_BROWSER) || echo "No Chromium on the PATH: the browser tests are left out. Install chromium to run them."
endef
# The checks of a change leave out what takes a minute and seldom changes: CI=1.
AND_LONG = $(if $(CI),and not long)
AND_BROWSER = $$($(HAS_BROWSER) || echo "and not browser")

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-all test-gpu test-versions check docs pictures lock bench reproduce faults proto clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: .venv/.demo ## the .venv with what the demo needs, at the versions and hashes of uv.lock; TORCH_INDEX=URL for another torch

.venv/.demo: pyproject.toml uv.lock set_up.py
	$(PYTHON) set_up.py probe server dashboard trainer
	@touch $@

setup-dev: .venv/.dev ## the .venv with all extras and the test tools

.venv/.dev: pyproject.toml uv.lock set_up.py
	$(PYTHON) set_up.py all dev
	@touch $@ .venv/.demo .venv/.docs

demo: setup ## server, dashboard and a training run whose entropy collapses; ARGS="--headless --steps 30"
	$(BIN)/isentrope demo $(ARGS)

test: setup-dev ## the quick suite, minutes
	$(BRING_BROWSER)
	$(PYTEST) -m "not slow and not gpu $(AND_BROWSER)" $(ARGS)

test-all: setup-dev ## everything: the quick suite and what kills, fills, fuzzes and trains; CI=1 leaves out what takes minutes
	$(BRING_BROWSER)
	$(PYTEST) -m "not gpu $(AND_LONG) $(AND_BROWSER)" $(ARGS)

test-gpu: setup-dev ## the kernels on a CUDA or ROCm device; needs a torch built for it: make setup TORCH_INDEX=...
	TRITON_INTERPRET=0 $(BIN)/python -m pytest -m gpu $(ARGS)

# The lowest are those of the direct requirements; the test tools are the newest that go with them.
VERSIONS ?= lowest
WITH ?=
TESTED ?= tests/wire tests/probe/scores tests/probe/statistics tests/probe/methods tests/probe/hold tests/probe/control tests/probe/test_probe.py
# FSDP2 is in torch from 2.6 on.
NEWER = $(if $(filter lowest,$(VERSIONS)),-k 'not as_fsdp_would_give_it')
RESOLUTION = $(if $(filter lowest,$(VERSIONS)),lowest-direct,highest)
test-versions: .venv/.dev ## quick tests of the probe with the lowest versions that pyproject.toml allows; VERSIONS=newest for the newest
	$(BIN)/uv venv --quiet --no-config --clear --python $(PYTHON) build/versions-$(VERSIONS)
	$(BIN)/uv pip install --quiet --no-config --python build/versions-$(VERSIONS) --resolution $(RESOLUTION) --editable ".[probe,server,trainer]"
	$(BIN)/uv pip install --quiet --no-config --python build/versions-$(VERSIONS) --editable ".[$(if $(filter lowest,$(VERSIONS)),,trl,)dev]" $(WITH)
	$(BIN)/uv pip list --quiet --no-config --python build/versions-$(VERSIONS)
	build/versions-$(VERSIONS)/bin/python -m pytest -q -m "not slow and not gpu and not browser" $(NEWER) $(TESTED) $(ARGS)

check: setup-dev docs ## uv.lock is fresh, ruff, mypy --strict, import contracts, architecture tests, the site without a warning
	$(BIN)/uv lock --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/architecture

docs: .venv/.docs ## guides and API reference as a site in site/; not one warning is let through
	$(BIN)/python docs/site_pages.py build/site-pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

.venv/.docs: pyproject.toml uv.lock set_up.py
	$(PYTHON) set_up.py docs
	@touch $@

pictures: setup-dev ## the README's pictures, taken of the recorded run in Chromium
	.venv/bin/python -m tests.pictures

lock: setup-dev ## bring uv.lock up to date with pyproject.toml; ARGS="--upgrade" for newer versions
	$(BIN)/uv lock $(ARGS)

bench: setup-dev ## benchmarks as ratios; results go to tests/benchmarks/RESULTS.md
	$(BIN)/python -m tests.benchmarks $(ARGS)

reproduce: setup-dev ## the papers' figures with verdicts, hours; ARGS="--quick" for minutes, ARGS="--plan" for how long
	$(BIN)/isentrope reproduce --out build/reproduction $(ARGS)

faults: setup-dev ## every fault the delivery must withstand, done to real processes; ARGS="--list", "--planted", "--soak" or names
	$(BIN)/python -m tests.faults $(ARGS)

proto: setup-dev ## regenerate the code of telemetry.proto
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I probe --python_out=probe --grpc_python_out=probe \
	  --mypy_out=probe --mypy_grpc_out=probe isentrope_wire/v1/telemetry.proto

clean: ## remove the .venv
	rm -rf .venv
