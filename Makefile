# Everything happens in .venv inside this folder; nothing outside it is changed.
#   make PYTHON=python3.13 test      another Python
#   make VENV=.venv-other test       another folder for the environment
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
# For the lanes of .ci/run: an extra that is left out, and a file of pins.
WITHOUT ?=
CONSTRAINT ?=

python := $(VENV)/bin/python
# `file` means the default above: then an environment that already works is kept,
# whatever `python3` has become in the meantime.
chosen := $(if $(filter file,$(origin PYTHON)),,--python-name $(PYTHON))
setup := $(PYTHON) tools/environment.py --venv $(VENV) --goal "$(MAKECMDGOALS)" \
	$(chosen) $(if $(WITHOUT),--without $(WITHOUT)) \
	$(if $(CONSTRAINT),--constraint $(CONSTRAINT))
# The examples of one document share their names, so a file stays in one worker.
TESTS ?= tests README.md docs src
tests := -n $(WORKERS) --dist loadfile -m "not types and not site" $(TESTS)
SITE_URL ?= http://127.0.0.1:8000/

.PHONY: help demo test test-gpu check lint types cov docs docs-serve bench \
	bench-quick package clean
.DEFAULT_GOAL := help

help: ## this list
	@echo "purestate: make TARGET"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' Makefile

demo: ## see it work: a jitted method with state, then two small training runs
	@$(setup) demo
	$(python) docs/examples/box.py
	$(python) docs/examples/train_digits.py
	$(python) docs/examples/vae_humanoid.py --short

test: ## the tests and every example of the documentation
	@$(setup) test
	$(python) -m pytest $(tests) $(ARGS)

check: lint types cov ## all that a change must pass

lint: ## ruff: style and format
	@$(setup) check
	$(python) -m ruff check
	$(python) -m ruff format --check

types: ## mypy, pyright, ty and pyrefly on the documentation and on examples; on src
	@$(setup) check
	$(python) -m pytest -n $(WORKERS) -m types \
		tests/test_typing.py tests/test_typing_pages.py $(ARGS)

cov: ## the tests again, with coverage by branches
	@$(setup) check
	$(python) -m pytest tests/test_cost.py $(ARGS)
	$(python) -m coverage erase
	$(python) -m coverage run -m pytest $(tests) $(ARGS)
	$(python) -m coverage combine --quiet
	$(python) -m coverage report

# With the Python that is there, which has JAX for its accelerator; nothing is installed.
test-gpu: ## laws, donation and host functions on the GPU of this machine
	PYTHONPATH="$(CURDIR)/src" JAX_PLATFORMS= $(PYTHON) -m pytest \
		-p purestate_pytest --confcutdir=tests --purestate-backends=cpu,gpu \
		tests/testing/test_laws.py tests/testing/test_mutants.py \
		tests/transforms/test_donation.py tests/transforms/test_donation_lost.py \
		tests/host/test_laws.py tests/host/test_calls.py tests/host/test_results.py \
		tests/host/test_batches.py tests/host/test_grad.py $(ARGS)

docs: ## the site, built strictly into out/site, then looked at by a browser
	@$(setup) docs
	@$(python) tools/browser.py
	NO_MKDOCS_2_WARNING=1 SITE_URL=$(SITE_URL) $(python) -m mkdocs build --quiet --strict
	$(python) -m pytest -m site tests/test_site.py $(ARGS)

docs-serve: ## the site on this machine, built again when a page changes
	@$(setup) docs
	NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs serve

bench: ## speed, against others; writes docs/benchmarks.md
	@$(setup) bench
	$(python) -m benchmarks $(ARGS)

bench-quick: ## the same in a minute, roughly; writes to out/
	@$(setup) bench
	$(python) -m benchmarks --quick $(ARGS)

package: ## wheel and sdist in dist/, tried as those would who install them
	@$(setup) package
	$(python) tools/package.py $(ARGS)

clean: ## remove environments, caches and outputs
	rm -rf .venv .venv-newest .venv-lowest .venv-docs .venv-package out build dist htmlcov .coverage \
		.coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
