# Everything runs in $(VENV), made on first use. `make` lists the targets.

PYTHON ?= python3
VENV ?= .venv
BACKEND ?= cpu
WORKERS ?= 2
EXTRAS ?= $(BACKEND),demo,bench,web
ORACLE ?= .oracle

BIN := $(VENV)/bin
REQUIREMENTS := $(VENV)/.stamp-requirements
BUILT := $(VENV)/.stamp-built
SOURCES := setup.py $(wildcard mlxcel/_fast/*.pyx mlxcel/_fast/*.pxd mlxcel/hardware/*.c)
COMPILED := $(patsubst mlxcel/_fast/%.pyx,mlxcel._fast.%,$(wildcard mlxcel/_fast/*.pyx))
TYPED := mlxcel $(wildcard benchmarks webapp)
CHECKED := build/checked
SMOKE := benchmarks -m "not demo and not slow" --benchmark-disable

.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-slow test-oracle test-kernels test-checked lint fix typecheck stubs \
	bench bench-smoke bench-baseline bench-compare bench-counters docs clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(BUILT) ## environment in .venv, with the compiled modules (BACKEND=cuda for NVIDIA)

$(REQUIREMENTS): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "mlxcel needs Python 3.11 or later; use make PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

$(BUILT): $(REQUIREMENTS) $(SOURCES)
	MLXCEL_BUILD= $(BIN)/python -m pip install --quiet --no-build-isolation -e '.[$(EXTRAS)]'
	@touch $@

build: $(REQUIREMENTS) ## build the compiled modules in place again
	MLXCEL_BUILD= $(BIN)/python -m pip install --quiet --no-build-isolation -e '.[$(EXTRAS)]'
	@touch $(BUILT)

demo: setup ## run the demo pairing: verdict of the gate, text, acceptance, round cost
	$(BIN)/mlxcel demo

# One BLAS thread for each of the processes: more only wait for each other. What needs torch has a
# target of its own.
test: setup ## run each benchmark once, and the tests in WORKERS processes
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest $(SMOKE)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal \
		--ignore tests/oracle_torch

test-slow: setup ## run the tests that take minutes
	$(BIN)/python -m pytest -m slow

# torch has an environment of its own: results come back as files, by one process
# per family.
$(ORACLE)/.stamp: tests/oracle_torch/requirements.txt
	test -x $(ORACLE)/bin/python || $(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python -m pip install --quiet -r $<
	@touch $@

test-oracle: setup $(ORACLE)/.stamp ## compare with transformers' own models (torch in .oracle)
	ORACLE_PYTHON=$(abspath $(ORACLE))/bin/python OPENBLAS_NUM_THREADS=1 \
		$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile tests/oracle_torch

test-kernels: setup ## compile the CUDA kernels (NVIDIA's compiler into .venv; no GPU needed)
	$(BIN)/python -m pip install --quiet --group kernels
	$(BIN)/python -m pytest tests/models/test_cuda_sources.py

# A copy of the package with checks on; run from its folder, with the checkout last on the path.
test-checked: setup ## run the tests of the compiled modules on a build with all checks on
	rm -rf $(CHECKED)
	MLXCEL_BUILD=checked $(BIN)/python setup.py -q build \
		--build-lib $(CHECKED) --build-temp $(CHECKED)-objects
	cd $(CHECKED) && MLXCEL_BUILD=checked $(abspath $(BIN))/python -m pytest \
		--import-mode=append -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) $(CURDIR)/tests/fast

lint: setup ## ruff and cython-lint
	$(BIN)/ruff check .
	PATH="$(abspath $(BIN)):$$PATH" cython-lint mlxcel

fix: setup ## apply what ruff can repair
	$(BIN)/ruff check --fix .

typecheck: setup ## mypy, strict
	$(BIN)/python -m mypy $(TYPED)

stubs: setup ## compare the stubs of the compiled modules with the modules
	$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml --allowlist tests/contract/stubtest-allowlist.txt $(COMPILED)

bench: setup ## run the benchmarks; their ratios to a reference kernel, and the counters
	$(BIN)/python -m benchmarks.regress run

bench-smoke: setup ## run each benchmark once, without a clock
	$(BIN)/python -m pytest $(SMOKE)

bench-baseline: setup ## measure this host's baseline, at a quiet time (4 minutes)
	$(BIN)/python -m benchmarks.regress baseline

bench-compare: setup ## fail if something has become slower than the baseline
	$(BIN)/python -m benchmarks.regress compare

bench-counters: setup ## count anew what holds for every host
	$(BIN)/python -m benchmarks.regress counters

docs: setup ## write the generated pages again
	$(BIN)/python tools/make_docs.py
	$(BIN)/python tools/make_benchmarks.py

clean: ## remove what was built, but not .venv
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .benchmarks
	rm -f mlxcel/_fast/*.c mlxcel/_fast/*.html mlxcel/_fast/*.so mlxcel/hardware/*.so $(BUILT)
	find mlxcel webapp tests benchmarks tools -name __pycache__ -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## remove .venv and .oracle too
	rm -rf $(VENV) $(ORACLE)
