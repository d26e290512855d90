# Two commands do everything on a fresh machine (Python >= 3.11, git, make):
#   make sweep    install, then measure (or, without a GPU, predict) Nemotron-3-Super
#   make test     install, then lint, type-check and run the whole suite
# What is installed already is not installed again; nothing is fetched then.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

VENV ?= .venv
VENV36 ?= .venv-triton36
MODEL ?= nemotron-super
WORKERS ?= 2
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check

.PHONY: help sweep test lint tests test-gpu install dev compile-36 compiled chromium gallery wheel clean

help:
	@sed -n 's/^#   //p' Makefile

sweep: $(VENV)/.stamp-install
	$(VENV)/bin/perfkit sweep --model $(MODEL)

test: lint tests

lint: $(VENV)/.stamp-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

tests: $(VENV)/.stamp-dev compile-36 chromium
	$(PY) -m pytest -n $(WORKERS) --dist worksteal

# On a machine with a GPU: one process, so that timings do not disturb each other.
test-gpu: $(VENV)/.stamp-dev
	$(PY) -m pytest -m gpu

install: $(VENV)/.stamp-install

dev: $(VENV)/.stamp-dev

# Kernels are compiled with the older Triton too. It lies in an environment of its own, which finds everything else in
# the main one.
compile-36: $(VENV36)/.stamp

# After a change to a kernel or to its configurations: compile what tests look at and ships, see tests/compileparts.py.
compiled: $(VENV)/.stamp-dev compile-36
	$(PY) scripts/compiled_tables.py

# Pages are looked at in a real browser; without one those tests are skipped, and say so.
chromium:
	@bash scripts/ensure-chromium

# Reports of the shipped measurements, and of the paper's models without any, which are predicted.
gallery: $(VENV)/.stamp-install
	$(PY) scripts/gallery.py gallery

wheel: $(VENV)/.stamp-dev
	$(PY) -m build --no-isolation --wheel

clean:
	rm -rf build dist *.egg-info $(VENV) $(VENV36)

$(PY):
	bash scripts/make-venv $(VENV)

$(VENV)/.stamp-install: pyproject.toml constraints.txt | $(PY)
	$(PIP) install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-install
	$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV36)/.stamp: scripts/make-triton36 | $(VENV)/.stamp-install
	bash scripts/make-triton36 $(VENV) $(VENV36)
	@touch $@
