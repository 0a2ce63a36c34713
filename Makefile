# Two commands matter: `make audit` and `make test`. Each does its own set-up.
# `make test` is what a change must pass. `make test-all` adds what it leaves out: the tests marked `exhaustive`, the other notebooks, and
# all examples of the tests of hypothesis, of which `make test` draws a tenth (profiles in tests/conftest.py).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
AUDIT_OUT ?= audit-report
AUDIT_ARGS ?=
REPRODUCE_ARGS ?=
RELEASE_ARGS ?=
NIGHTLY_ARGS ?=
# The quickest notebook; `make test-all` runs all of them.
QUICK_NOTEBOOKS := notebooks/04_losac_claimed_defence.ipynb
# As many processes as cores: each imports and collects all tests, which takes about 9 s of processor time.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
OTHER_NOTEBOOKS := $(filter-out $(QUICK_NOTEBOOKS),$(sort $(wildcard notebooks/*.ipynb)))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where this is set, every process compiles each module anew: half of the time until the first test of each worker.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup audit flower-demo test test-rest test-notebooks test-kernel test-gpu test-all lint types bench reproduce docs student-notebooks release-check nightly clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(READY)  ## Make .venv with everything (the other targets do this themselves)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "securefed needs Python >= 3.11; run 'make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)'"; exit 1; }
	@echo "Setting up $(VENV) (once; a few minutes on a fresh machine)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

audit: $(READY)  ## Attack every algorithm under every defence on real digits; writes audit-report/audit.html
	$(BIN)/securefed audit --out $(AUDIT_OUT) $(AUDIT_ARGS)

flower-demo: $(READY)  ## One Flower app on this machine, plain and secured, with a SuperNode that dies (some minutes)
	$(BIN)/python -m examples.flower_demo

test: $(READY)  ## What a change must pass: a sample of all combinations, one notebook (about 5 minutes on 2 cores)
	$(PYTEST) -m "not exhaustive" --hypothesis-profile quick --nbmake --nbmake-timeout=300 $(QUICK_NOTEBOOKS) tests

test-rest: $(READY)  ## What `make test` leaves out: the other combinations, slow searches and statistics, more examples
	$(PYTEST) -m "(exhaustive or hypothesis) and not nightly"

test-notebooks: $(READY)  ## The notebooks that `make test` leaves out
	$(PYTEST) --nbmake --nbmake-timeout=300 $(OTHER_NOTEBOOKS)

test-kernel: $(READY)  ## Algorithms, attacks and audits once more, under an OpenBLAS kernel that is not this machine's own
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.other_kernel -n $(WORKERS) --dist worksteal -m "not exhaustive" --hypothesis-profile quick

# Where torch brought no triton of its own (its builds for processors do not), 1 GB is installed beside it.
test-gpu: $(READY)  ## The kernel for graphics cards, on the processor: in triton's interpreter (no card is needed)
	$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/pip install --quiet triton==3.9.0
	TRITON_INTERPRET=1 $(PYTEST) tests/torch/gpu

test-all: test test-rest test-notebooks test-kernel test-gpu  ## Every test and all notebooks (about 25 minutes on 2 cores)

lint: $(READY)  ## Style and common mistakes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## Static types of the installed package
	@rm -rf build && mkdir -p build/types
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --target build/types . 2>/dev/null || $(BIN)/pip install --quiet --no-deps --target build/types .
	cd build/types && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../pyproject.toml -p securefed

bench: $(READY)  ## Benchmarks against the peers (installs pfl-research beside, in .venv-pfl)
	$(BIN)/python -m benchmarks

reproduce: $(READY)  ## The papers' figures beside ours, kept as JSON; `make docs` shows them (REPRODUCE_ARGS=--quick: 5 minutes)
	$(BIN)/python -m benchmarks.ledger $(REPRODUCE_ARGS)

docs: $(READY)  ## The documentation site, without the network; writes build/site/index.html
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -E -a -W --keep-going -q -b html docs build/site
	@echo "build/site/index.html"

student-notebooks: $(READY)  ## The notebooks without their solutions, for students; writes build/student
	$(BIN)/python -m docs.generators.student_copies

release-check: $(READY)  ## Wheel and sdist built twice and compared, the core tried in an empty environment (RELEASE_ARGS=--extras audit,...)
	$(BIN)/python -m tests.release_check $(RELEASE_ARGS)

nightly: $(READY)  ## Fresh schedules, cases, mutants, fuzzers and soaks with kills, for hours, kept as JSON; `make docs` shows them (NIGHTLY_ARGS=--quick: minutes)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[nightly]'
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.nightly $(NIGHTLY_ARGS)

clean:  ## Remove everything the other targets made
	rm -rf docs/generated $(VENV) .venv-pfl build dist *.egg-info $(AUDIT_OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis benchmarks/ledger/quick-results
