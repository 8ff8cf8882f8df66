# `make demo` and `make test` set everything up on a fresh machine; a second call installs nothing again.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test

demo: $(READY)
	$(BIN)/safda demo

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest  # tiny networks: more threads would only wait for each other

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)
