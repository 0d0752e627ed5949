# make serve    build what is needed and run a server      PORT=6455 DIR=data
# make build    virtualenv in .venv, compiled modules in place      MODULES="storage.blocks.block ..." for some
# make test     all tests, including comparisons with Debian's redis-server      TESTS="tests/unit -k block"
# make bench    the comparison with redis-server      QUICK=1 for about two minutes
# make spark    PySpark into .venv, to read and write streams with Spark
# make lint     ruff, mypy, import-linter
# make asan     the unit tests on modules compiled with AddressSanitizer
# make clean    everything above made, but not the data
#
# PYTHON=/path/to/python3 chooses the Python; otherwise the first that can do the work.

MAKEFLAGS += --no-print-directory
# Packages are installed without bytecode: what is imported is compiled once, and kept.
unexport PYTHONDONTWRITEBYTECODE
SHELL := /bin/bash

PORT ?= 6455
DIR ?= data
TESTS ?=
MODULES ?=

VENV := .venv
BIN := $(VENV)/bin
ROOMS := src/millstream server storage commands pipeline client
SOURCES := $(shell find $(ROOMS) -name '*.pyx' -o -name '*.pxd')

.PHONY: serve build test bench spark lint asan clean need-redis need-test

serve: build
	@! (: </dev/tcp/127.0.0.1/$(PORT)) 2>/dev/null || { \
	    echo "Port $(PORT) is in use; choose another one: make serve PORT=7000" >&2; exit 1; }
	@mkdir -p $(DIR)
	@exec $(BIN)/millstream serve --port $(PORT) --dir $(DIR)

ifeq ($(MODULES),)
build: $(VENV)/compiled
else
build: $(VENV)/installed-package
	$(BIN)/python scripts/compile.py $(MODULES)
endif

test: need-test build $(VENV)/installed-test $(VENV)/installed-oldest-spark $(VENV)/installed-oldest-redis
	$(BIN)/pytest -n 2 --dist worksteal $(TESTS)

bench: need-redis build $(VENV)/installed-bench
	$(BIN)/python -m bench $(if $(filter-out 0,$(QUICK)),--quick)

spark: build $(VENV)/installed-spark
	@scripts/need.sh java >/dev/null || { \
	    echo "Spark needs Java 17 or 21. Debian has it: apt-get install default-jre-headless" >&2; exit 1; }

lint: $(VENV)/installed-package $(VENV)/installed-lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/cython-lint --no-pycodestyle $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

asan: $(VENV)/installed-package $(VENV)/installed-test
	scripts/asan.sh $(TESTS)

clean:
	rm -rf $(VENV) build dist *.egg-info .hypothesis .import_linter_cache
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
	find $(ROOMS) -name '*.c' -delete -o -name '*.so' -delete

need-redis need-test:
	@scripts/need.sh $(@:need-%=%) >/dev/null

$(VENV)/created:
	python=$$(scripts/need.sh build) && "$$python" -m venv --clear $(VENV)
	@touch $@

# What is installed is noted in the virtualenv: a new pyproject.toml installs again only if it asks
# for something else.
$(VENV)/installed-%: pyproject.toml | $(VENV)/created
	$(BIN)/python scripts/install.py $*

$(VENV)/compiled: $(SOURCES) setup.py | $(VENV)/installed-package
	$(BIN)/python scripts/compile.py
	@touch $@
