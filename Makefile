# Two commands a newcomer needs: `make serve` and `make test`. Both work on a clean clone with python3 and a C++ compiler.
#
# TORCH says what pip installs first. A CPU-only machine outside a prepared environment wants PyTorch's CPU wheels:
#   make serve TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   ?= .venv
PORT   ?= 8000
MODEL  ?=

BIN := $(VENV)/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: serve webui browser test test-all test-isa test-emulated test-gpu soak fuzz lint install install-dev install-fuzz clean

serve: install
	$(BIN)/lsv serve $(MODEL) --port $(PORT)

# The same with the web page, on http://127.0.0.1:7860.
webui: install
	$(BIN)/python -m pip install -q -e ".[webui]"
	$(BIN)/lsv serve $(MODEL) --port $(PORT) --webui

# What the browser tests need: playwright, which drives browsers, and the system's Chromium. Without it they are skipped.
browser: install-dev
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then echo "that is the browser"; \
	else echo "installing Debian's chromium with apt-get"; SUDO=$$(test $$(id -u) = 0 || echo sudo); \
	$$SUDO apt-get update -q && $$SUDO apt-get install -q -y --no-install-recommends chromium; fi

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

install-fuzz: $(VENV)/.installed-fuzz

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: | $(BIN)/python
	$(BIN)/python -m pip install -q $(TORCH)
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.torch
	$(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.torch
	$(BIN)/python -m pip install -q -e ".[dev]"
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-fuzz: $(VENV)/.installed-dev
	$(BIN)/python -m pip install -q -e ".[dev,fuzz]"
	@touch $@

lint: install-dev
	$(BIN)/ruff check core plugins webui tests benchmarks tools
	$(BIN)/ruff format --check -q core plugins webui tests benchmarks tools
	$(BIN)/mypy

test: lint
	$(PYTEST) -rs -n 2 --dist loadgroup -m "not slow and not gpu" tests

test-all: lint test-isa test-emulated
	$(PYTEST) -n 2 --dist loadgroup -m "not gpu" tests

# The native kernels with each instruction set this machine has, and with AMX tiles (emulated where there are none).
test-isa: install-dev
	for isa in avx2 avx512 amx; do LSV_CPU_ISA=$$isa $(PYTEST) -n 2 --dist loadgroup tests/plugins/cpu || exit 1; done

# The end-to-end tests on every platform that has an emulation. Warming up hundreds of shapes has tests of its own.
EMULATED := LSV_EMULATE=1 LSV_HPU_SKIP_WARMUP=1
test-emulated: install-dev
	for name in xpu hpu cuda; do LSV_PLATFORM=$$name $(EMULATED) $(PYTEST) -n 2 --dist loadgroup tests/e2e || exit 1; done

test-gpu: install-dev
	$(PYTEST) -rs -m gpu tests

# Everything at once on a real server, for SOAK_MINUTES: what is wrong, hung, leaked or grown. SOAK takes more options.
SOAK_MINUTES ?= 10
soak: install-dev
	PYTHONPATH=tools/reliability:tools/demo OMP_NUM_THREADS=1 $(BIN)/python -m trials.soak --minutes $(SOAK_MINUTES) $(SOAK)

# Damaged files and bodies, random requests to all routes, random histories, for FUZZ_MINUTES. FUZZ takes more options.
FUZZ_MINUTES ?= 5
fuzz: install-fuzz
	PYTHONPATH=tools/reliability:tools/demo OMP_NUM_THREADS=1 $(BIN)/python -m trials.fuzz --minutes $(FUZZ_MINUTES) $(FUZZ)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache dist
