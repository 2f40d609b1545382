# Everything is set up by the targets themselves: a fresh clone needs Python 3.10+ and, for the fast kernels, a C++ compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAGE := .ci/stage
PINS := PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_BUILD_CONSTRAINT=$(CURDIR)/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1
SOURCES := $(shell find ramet radix kernels runtime frontend_lang -name '*.py' -o -name '*.cpp' -o -name '*.hpp') pyproject.toml CMakeLists.txt constraints.txt
# Without a compiler the C++ kernels cannot be built: the reference kernels need torch instead.
# The official client is what the README goes on with; with its packages the demo has its forty documents.
EXTRAS := $(shell command -v c++ >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 && echo '[openai]' || echo '[torch,openai]')

.PHONY: demo test test-slow lint types imports unit dev clean

demo: $(VENV)/.installed
	@$(STAGE) model $(BIN)/ramet pull default
	@$(BIN)/ramet demo

test: $(VENV)/.test-installed
	@$(STAGE) model $(BIN)/ramet pull default
	@$(MAKE) --no-print-directory lint types imports unit

unit: $(VENV)/.test-installed
	$(BIN)/pytest -q -m "not slow"

test-slow: $(VENV)/.test-installed
	$(BIN)/pytest -q -m slow

lint: $(VENV)/.test-installed
	@$(STAGE) "lint and format" sh -c '$(BIN)/ruff check . && $(BIN)/ruff format --check .'

types: $(VENV)/.test-installed .build/src/ramet
	@for v in 3.10 3.13; do $(STAGE) "types, Python $$v" env MYPYPATH=.build/src $(BIN)/mypy --python-version $$v -p ramet || exit 1; done

imports: $(VENV)/.test-installed .build/src/ramet
	@cd .build/src && PYTHONPATH=. ../../$(STAGE) "import order" ../../$(BIN)/lint-imports --config ../../pyproject.toml --no-cache

# The package as it will be installed, for tools that want one tree.
.build/src/ramet: $(wildcard ramet/*)
	@rm -rf .build/src && mkdir -p $@
	@for entry in ramet/*; do ln -s ../../../$$entry $@/; done
	@for folder in radix kernels runtime frontend_lang; do ln -s ../../../$$folder $@/$$folder; done

$(VENV)/bin/python:
	@$(STAGE) "virtual environment" $(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(SOURCES) | $(VENV)/bin/python
	@$(STAGE) "install and compile" env $(PINS) $(BIN)/pip install -q '.$(EXTRAS)'
	@touch $@

$(VENV)/.test-installed: $(SOURCES) | $(VENV)/bin/python
	@$(STAGE) "install, compile, test tools" env $(PINS) $(BIN)/pip install -q torch '.[test]'
	@touch $@ $(VENV)/.installed

dev: $(VENV)/bin/python
	@$(STAGE) "editable install" env $(PINS) $(BIN)/pip install -q -e '.[test]'

clean:
	rm -rf $(VENV) .build build dist
