# `make demo` and `make test` need Python >= 3.10 and make, nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: venv demo test test-fast check-docs docs lint torture perf clean

venv: .venv/installed

# torch by pip, which honours a machine's own choice of build (CPU or CUDA); everything else by uv, which is faster.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv torch
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev,fast]'
	touch $@

demo: venv
	$(BIN)/scorelens demo

# Two workers of one thread each are faster than one of two. test-fast leaves out whole commands and slow tests.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
test: venv
	$(PYTEST) -m 'not docs'

test-fast: venv
	$(PYTEST) -m 'not (docs or e2e or distributed or browser or slow)'

# Committed pages, rows and networks: run it after `python -m tools.pages`.
check-docs: venv
	$(PYTEST) -m docs

# The site, in site/. A dead link or anchor is an error.
docs: venv .venv/docs-installed
	$(BIN)/python -m tools.site site

.venv/docs-installed: .venv/installed
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[docs]'
	touch $@

lint: venv
	$(BIN)/ruff check .
	$(BIN)/mypy

# The campaign of faults: hours. Interrupted, it resumes; rm -r build/torture starts again.
torture: venv
	$(BIN)/python -m tools.torture

perf: venv
	$(BIN)/python -m perf.foundation
	$(BIN)/python -m perf.performance

clean:
	rm -rf .venv runs build site src/*.egg-info
