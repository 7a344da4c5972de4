# `make demo` and `make test` need Python >= 3.10 and make, nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: venv demo test lint perf clean

venv: .venv/installed

# torch by pip, which honours a machine's own choice of build (CPU or CUDA); everything else by uv, which is faster.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv torch
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: venv
	$(BIN)/scorelens demo

# Two workers of one thread each are faster here than one of two; whoever is done takes over what the other has left.
test: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: venv
	$(BIN)/ruff check .
	$(BIN)/mypy

perf: venv
	$(BIN)/python -m perf.foundation
	$(BIN)/python -m perf.performance

clean:
	rm -rf .venv runs build src/*.egg-info
