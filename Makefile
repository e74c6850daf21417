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

clean:
	rm -rf build dist $(VENV)
