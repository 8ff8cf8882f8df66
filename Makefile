# `make demo` and `make test` set everything up on a fresh machine; a second call installs nothing again.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

# What tells in a minute or two whether versions go together; run from a checkout, on the wheel as it is installed.
QUICK := tests/test_saf.py tests/test_recipe.py tests/test_pseudo_labels.py tests/test_propagation.py tests/test_choice.py \
	tests/test_methods.py tests/test_data.py tests/test_oracle.py tests/test_theory.py tests/test_tampering.py tests/test_report_page.py

.PHONY: demo test test-wheel test-lowest

demo: $(READY)
	$(BIN)/safda demo

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal  # tiny networks: more threads would only wait

# The wheel, without extras, in an environment of its own: with the newest versions, and with the lowest ones declared.
test-wheel: CONSTRAINTS = constraints.txt
test-lowest: CONSTRAINTS = build/lowest.txt
test-wheel test-lowest:
	mkdir -p build && $(PYTHON) -m tests.lowest > build/lowest.txt
	rm -rf build/$@ && $(PYTHON) -m venv build/$@
	build/$@/bin/python -m pip wheel --quiet --no-deps --wheel-dir build/$@/wheel .
	build/$@/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) build/$@/wheel/*.whl pytest hypothesis
	OMP_NUM_THREADS=1 build/$@/bin/python -m pytest $(QUICK)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)
