# make run: the default experiment from nothing; make test, make lint: the checks. Needs Python 3.11 to 3.13.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := run

PYTHON ?= python3
CORES ?= $(shell getconf _NPROCESSORS_ONLN)
VENV := .venv
STAMP := $(VENV)/installed
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: env run test lint config page bench

env: $(STAMP)

# Once, and again only when the lock or the package's own description changes.
$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else \
	    f"cgpfl needs Python 3.11 to 3.13, this is {v[0]}.{v[1]}: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	python -m pip install --disable-pip-version-check --quiet --require-hashes --requirement requirements.lock
	python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	touch $@

run: env
	snakemake --cores $(CORES)

test: env
	python -m pytest --numprocesses logical --maxprocesses 4 --dist loadfile

lint: env
	ruff check .
	mypy
	snakefmt --check Snakefile workflow
	snakemake --lint

# Writes config/config.yaml, config/schema.json and the tables of config/README.md from the types.
config: env
	python -m cgpfl.reference config

# Writes docs/REPRODUCTION.md and docs/CIFAR10.md from their templates and what is in results/paper.
page: env
	python -m cgpfl.page results/paper docs/REPRODUCTION.md
	python -m cgpfl.page results/paper/cifar10-jpeg docs/CIFAR10.md

# Gradient steps per second beside the usual way, where a run's time goes, and how it scales (forty minutes on two cores).
bench: env
	python benchmarks/bench.py
