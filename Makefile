# Everything that a checkout needs, set-up included. There must be Python (3.11 or newer, with venv and pip) and make.
#
#   PYTHON       makes the environment                                  make test PYTHON=python3.13 VENV=.venv313
#   VENV         its directory: several can coexist                      make test PYTHON=python3.13 VENV=.venv313
#   PIN_JAX      a JAX version for a new environment, else the newest   make test PIN_JAX=0.10.2 VENV=.venv-oldest
#   WORKERS      processes for the tests                                make test WORKERS=2
#   PYTEST_ARGS  passed on to pytest                                    make test PYTEST_ARGS='-k swish -x'
#   SECONDS SEED how long to compare random programs, and the first seed  make fuzz SECONDS=600 SEED=1000
#   BENCH_ARGS   passed on to the benchmarks                            make bench BENCH_ARGS='--only tracing'
#   GPU_ARGS     passed on to the benchmarks of a GPU                   make gpu PYTHON=... GPU_ARGS='--only tests'

PYTHON ?= python3
VENV ?= .venv
PIN_JAX ?=
WORKERS ?= auto
PYTEST_ARGS ?=
BENCH_ARGS ?=
SECONDS ?= 300
SEED ?= 0
GPU_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
JAX := $(if $(PIN_JAX),"jax==$(PIN_JAX)")
# One empty file for each set of packages that is installed: a second run installs nothing.
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest --numprocesses=$(WORKERS) --maxprocesses=8 --dist=worksteal --durations=10

# The processes of a run share what XLA compiled, and the next run has it: a third of the programs come again in one run.
test test-all parity: export JAX_COMPILATION_CACHE_DIR ?= $(abspath $(VENV))/compiled
test test-all parity: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0
# Each process of the tests would compile fnjax and them anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:  # two pips in one environment harm each other
.PHONY: help demo test test-all parity fuzz operators triton triton-goldens bench gpu lint format docs build clean versions

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP)/demo ## train a digit classifier whose activation, normalisation and quantisation are Functions
	$(BIN)/python examples/digits.py

# An -m in PYTEST_ARGS takes the place of this one.
test: $(STAMP)/test versions ## run the tests, doctests among them: some five minutes on two cores
	$(PYTEST) -m 'not slow and not parity and not triton' $(PYTEST_ARGS)

test-all: $(STAMP)/test versions ## run all of them, also those marked slow (and parity, where PyTorch is installed)
	$(PYTEST) $(PYTEST_ARGS)

parity: $(STAMP)/parity $(STAMP)/test versions ## install PyTorch and run the tests that compare with it
	@$(BIN)/python -c 'import torch; print("PyTorch", torch.__version__)'
	$(PYTEST) -m parity $(PYTEST_ARGS)

fuzz: $(STAMP)/parity $(STAMP)/test versions ## compare random programs with PyTorch, SECONDS long, from SEED
	$(BIN)/python -m tests.torch.traced_check random --seconds $(SECONDS) --seed $(SEED)

operators: $(STAMP)/parity $(STAMP)/test versions ## run all of PyTorch's operator tests in fnjax.torch, and write docs/torch-operators.md
	$(BIN)/python -m benchmarks.torch_operators

triton: ## run the tests that make Triton's interpreter repeat its goldens, in an environment of their own
	@$(MAKE) --no-print-directory VENV=$(VENV)-triton triton-goldens

triton-goldens: $(STAMP)/triton versions
	$(PYTEST) -m triton $(PYTEST_ARGS)

bench: $(STAMP)/parity $(STAMP)/test versions ## measure, and write benchmarks/REPORT.md (on a machine with nothing else to do)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

# Installs nothing: a JAX for CUDA has to fit the machine's driver, so whoever has a GPU has one already.
gpu: ## on a GPU, with a PYTHON that has a CUDA JAX and pytest: test, measure, write benchmarks/GPU.md (10 minutes at most)
	@$(PYTHON) -m benchmarks.gpu $(GPU_ARGS)

lint: $(STAMP)/lint ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)/lint ## format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The variable silences Material's notice about other site generators.
docs: $(STAMP)/docs ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'To read it, with its search: python -m http.server -d site, then http://localhost:8000'

# The wheel is tried away from the checkout, so that nothing but the wheel can be what is imported.
build: $(STAMP)/build ## build wheel and sdist into dist/, check them, and try the wheel in a clean environment
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python -m twine check --strict dist/*
	@set -eu; trial=$$(mktemp -d); trap 'rm -rf "$$trial"' EXIT; \
	$(BIN)/python -m venv "$$trial/venv"; \
	"$$trial/venv/bin/python" -m pip --disable-pip-version-check install --quiet $(JAX) dist/*.whl; \
	cd "$$trial"; \
	venv/bin/python -c 'from fnjax import *; import fnjax, importlib.metadata as m, importlib.resources as r; \
	assert m.version("fnjax") == fnjax.__version__; \
	assert (r.files(fnjax) / "py.typed").is_file(); \
	print("the wheel of fnjax", fnjax.__version__, "imports from", fnjax.__file__)'

clean: ## remove .venv and everything that was built or cached
	rm -rf .venv build dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

versions:
	@$(BIN)/python -c 'import os, sys, jax, jaxlib, numpy; \
	print("Python", sys.version.split()[0], "| JAX", jax.__version__, "| jaxlib", jaxlib.__version__, \
	"| NumPy", numpy.__version__, \
	*("| " + k + "=" + v for k, v in sorted(os.environ.items()) if k.startswith("JAX_")))'

$(STAMP)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	"fnjax needs Python 3.11 or newer and this is " + sys.version.split()[0] + ": run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade 'pip>=25.1'  # the first that knows --group
	@mkdir -p $(STAMP) && touch $@

# A new pyproject.toml may ask for other packages, so each of these looks again when it has changed.
$(STAMP)/demo: pyproject.toml | $(STAMP)/pip
	@echo 'Installing fnjax with what the examples need into $(VENV) (some minutes the first time)'
	$(PIP) $(JAX) --editable '.[examples]'
	@touch $@

$(STAMP)/test: pyproject.toml | $(STAMP)/pip
	@echo 'Installing fnjax with what the tests need into $(VENV) (some minutes the first time)'
	$(PIP) $(JAX) --editable . --group test
	@touch $@

$(STAMP)/lint: pyproject.toml | $(STAMP)/pip
	$(PIP) $(JAX) --editable . --group lint
	@touch $@

$(STAMP)/build: pyproject.toml | $(STAMP)/pip
	$(PIP) --group build
	@touch $@

$(STAMP)/docs: pyproject.toml | $(STAMP)/pip
	$(PIP) --group docs
	@touch $@

# By itself and before everything else: a looser demand would bring another build of PyTorch.
$(STAMP)/parity: pyproject.toml | $(STAMP)/pip
	@echo 'Installing PyTorch into $(VENV) (some minutes the first time)'
	$(PIP) --group parity
	@touch $@

# After PyTorch, whose own Triton is another one, and after the tests' packages, which bring a newer NumPy.
$(STAMP)/triton: pyproject.toml | $(STAMP)/parity $(STAMP)/test
	@echo 'Installing Triton into $(VENV)'
	$(PIP) --group triton
	@touch $@
