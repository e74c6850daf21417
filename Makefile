# Everything runs inside .venv, made on demand. `make test` is what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-test
NATIVE := $(wildcard native/*)

.PHONY: demo test check bench docs sanitize clean

demo: $(STAMP)
	$(BIN)/shardmill demo

test: check
	CI=true $(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	scripts/system-packages.sh
	$(BIN)/pip install --quiet -c constraints.txt torch torchvision
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test]'
	touch $@

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.loader
	$(BIN)/python -m benchmarks.random_access
	$(BIN)/python -m benchmarks.packing
	$(BIN)/python -m benchmarks.index

$(VENV)/.installed-bench: $(STAMP)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[bench]'
	touch $@

docs: $(STAMP)
	$(BIN)/python -m pytest tests/test_docs.py

sanitize: $(STAMP)
	scripts/sanitize.sh

clean:
	rm -rf build dist $(VENV)
