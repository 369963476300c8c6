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
# Python keeps its bytecode whatever the shell says: tests start hundreds of processes, each of which would compile lsv anew.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
WORKERS := -n 2 --dist loadgroup

PARTS := fast slow onednn isa compilers emulated templates real libraries seeds

.PHONY: serve webui browser test test-all durations test-flaky test-gpu wheels soak fuzz lint install install-dev install-fuzz install-real clean \
  evidence test-newest test-clients $(PARTS:%=test-%) $(PARTS:%=run-%)

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

install-real: $(VENV)/.installed-real

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: | $(BIN)/python
	$(BIN)/python -m pip install -q $(TORCH)
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.torch
	$(BIN)/python -m pip install -q -e .
	@touch $@

# Triton's interpreter, for a torch that brings no Triton of its own.
EXTRAS = dev$(shell $(BIN)/python -c "import importlib.metadata as m, re; \
	print('' if any(re.match('(pytorch-)?triton', one) for one in m.requires('torch') or ()) else ',interpreter')")

$(VENV)/.installed-dev: pyproject.toml tests/constraints.txt $(VENV)/.torch
	$(BIN)/python -m pip install -q -c tests/constraints.txt -e ".[$(EXTRAS)]"
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-fuzz: $(VENV)/.installed-dev
	$(BIN)/python -m pip install -q -c tests/constraints.txt -e ".[$(EXTRAS),fuzz]"
	@touch $@

# References of make test-real: they read GGUF files, and adapters.
$(VENV)/.installed-real: $(VENV)/.installed-dev
	$(BIN)/python -m pip install -q -c tests/constraints.txt -e ".[$(EXTRAS),real]"
	@touch $@

lint: install-dev
	$(BIN)/ruff check core plugins webui tests benchmarks tools examples deploy compat
	$(BIN)/ruff format --check -q core plugins webui tests benchmarks tools examples deploy compat
	$(BIN)/mypy

test: lint
	$(PYTEST) -rs $(WORKERS) --fork -m "not slow and not gpu" tests

# All of it, part by part. Each part can run alone and prints its minutes.
test-all: export PLATFORMS = xpu hpu cuda rocm torch
test-all: lint $(PARTS:%=test-%)

$(PARTS:%=test-%): test-%: install-dev
	@began=$$(date +%s); $(MAKE) --no-print-directory run-$*; code=$$?; \
	echo "test-$*: $$(( ($$(date +%s) - began + 30) / 60 )) minutes"; exit $$code

run-fast:
	$(PYTEST) $(WORKERS) --check-evidence -m "not slow and not gpu" tests

# The full matrices.
SLOW ?= tests
run-slow:
	$(PYTEST) $(WORKERS) -m "slow and not gpu" $(SLOW)

# What a user gets who installs lsv today: a fresh environment without tests/constraints.txt. Prints which dependencies are newer
# than in $(VENV), and runs the fast tests and the slow ones that hold lsv to transformers. TORCH=torch takes the newest torch too.
NEWEST_VENV ?= .venv-newest
NEWEST_SLOW := tests/plugins/models/test_generic_table.py tests/plugins/models/test_rereading.py tests/plugins/doctor/test_models.py
test-newest: install-dev
	$(PYTHON) -m venv --clear $(NEWEST_VENV)
	$(NEWEST_VENV)/bin/python -m pip install -q $(TORCH)
	$(NEWEST_VENV)/bin/python -m pip install -q -e ".[$(EXTRAS)]"
	$(BIN)/python tools/newest.py $(NEWEST_VENV)
	$(MAKE) --no-print-directory run-fast VENV=$(NEWEST_VENV)
	$(MAKE) --no-print-directory run-slow VENV=$(NEWEST_VENV) SLOW="$(NEWEST_SLOW)"

# Plain torch paths with each instruction set that oneDNN multiplies bfloat16 by: none, AVX-512's, and this machine's best.
run-onednn:
	for isa in AVX2 AVX512_CORE_BF16 DEFAULT; do \
	  ONEDNN_MAX_CPU_ISA=$$isa $(PYTEST) $(WORKERS) -m "onednn and not gpu" tests || exit 1; done

# The native kernels with each of these instruction sets, emulated where this machine lacks it.
run-isa:
	for isa in avx2 avx512 amx; do LSV_CPU_ISA=$$isa $(PYTEST) $(WORKERS) tests/plugins/cpu || exit 1; done

# The native kernels as each C++ compiler here builds them: g++, clang++, and those that have their version in their name.
run-compilers:
	for compiler in $$($(BIN)/python -c "import os; from lsv_base.processes.building import find_compilers as found; \
	  print(*{os.path.realpath(one): one for one in reversed(found())}.values())"); do \
	  LSV_CPU_COMPILER=$$compiler $(PYTEST) $(WORKERS) tests/plugins/cpu || exit 1; done

# The end-to-end tests on every emulated platform, but those that choose their platforms themselves; their whole matrices run on
# the CPU alone, which emulates the instruction sets that this machine lacks. Warming up hundreds of shapes has tests of its own.
EMULATED := LSV_EMULATE=1 LSV_HPU_SKIP_WARMUP=1
END_TO_END := tests/e2e --ignore tests/e2e/test_platforms.py --ignore tests/e2e/test_beams.py
run-emulated:
	for name in xpu hpu cuda rocm torch cpu; do LSV_PLATFORM=$$name $(EMULATED) $(PYTEST) $(WORKERS) \
	  -m "not slow and not gpu" $(END_TO_END) || exit 1; done

# Published models, tokenizers and chat templates, as tools/published/published/packages.tsv names them: fetched once.
PUBLISHED := build/published
provide = PYTHONPATH=tools/published $(BIN)/python -m published.packages $(PUBLISHED)

# Which parsers are chosen for published templates, and whether these read back what the templates write.
run-templates:
	$(provide) templates
	$(BIN)/python tools/templates.py $(PUBLISHED)/templates

# Published weights, tokenizers and templates against transformers and PEFT, whose answers tests/real/golden keeps.
# RENEW_GOLDEN=1 asks them again. Each run takes the next emulated platform, make test-all takes all.
RENEW_GOLDEN ?=
PLATFORMS ?=
run-real: install-real
	$(provide)
	PYTHONPATH=tools/published $(BIN)/python -m published.models $(PUBLISHED)
	$(if $(RENEW_GOLDEN),PYTHONPATH=tools/published $(BIN)/python -m published.golden $(PUBLISHED))
	LSV_TEST_REAL=$(CURDIR)/$(PUBLISHED) LSV_TEST_REAL_PLATFORMS="$(PLATFORMS)" $(PYTEST) -rs $(WORKERS) tests/real

# The clients of examples/clients against lsv-demo, with their packages from the index; those for Node if npm is there.
# LlamaIndex and Instructor need an older openai than the others, so they have an environment of their own.
CLIENTS := build/clients
INSTALLED_CLIENTS = $(addprefix $(CLIENTS)/,openai-3/.installed openai-2/.installed \
  $(if $(shell command -v npm 2>/dev/null),node_modules/.installed))
test-clients: install-dev $(INSTALLED_CLIENTS)
	LSV_TEST_CLIENTS=$(CURDIR)/$(CLIENTS) $(PYTEST) -vv -rs -m "not slow and not gpu" -k client tests/e2e/test_examples.py

$(CLIENTS)/node_modules/.installed: examples/clients/package.json
	mkdir -p $(CLIENTS)
	cp $< $(CLIENTS)
	npm install --prefix $(CLIENTS) --no-audit --no-fund
	@touch $@

$(CLIENTS)/%/.installed: examples/clients/requirements-%.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install -q -r $<
	@touch $@

# Libraries written for vLLM, with their packages from the index, and the examples of vLLM's own sources: on lsv, through
# compat/vllm. Their environment has the packages of $(VENV), torch among them, and adds what the libraries need.
LIBRARIES := build/libraries
VLLM      := 0.6.6
provide_vllm = $(LIBRARIES)/env/bin/python -m pip install -q --no-build-isolation --no-deps --force-reinstall ./compat/vllm
run-libraries: $(LIBRARIES)/.installed $(LIBRARIES)/vllm-$(VLLM)
	$(provide_vllm)
	LSV_TEST_LIBRARIES=$(CURDIR)/$(LIBRARIES) $(PYTEST) -rs $(WORKERS) tests/compat/test_libraries.py tests/compat/test_examples.py

$(LIBRARIES)/.installed: tests/compat/libraries.txt $(VENV)/.installed-dev
	$(PYTHON) -m venv --clear $(@D)/env
	packages=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	echo "import site; site.addsitedir('$$packages')" > $$($(@D)/env/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/lsv.pth
	$(@D)/env/bin/python -m pip install -q -r $<
	@touch $@

# pip leaves the sources unpacked, and fails on their metadata, for which vLLM's setup.py wants its own torch.
$(LIBRARIES)/vllm-$(VLLM):
	rm -rf $(LIBRARIES)/unpacked
	mkdir -p $(LIBRARIES)/unpacked
	-TMPDIR=$(CURDIR)/$(LIBRARIES)/unpacked $(BIN)/python -m pip download -q --no-deps --no-build-isolation --no-clean \
	  --no-binary vllm -d $(LIBRARIES)/unpacked vllm==$(VLLM) 2> $(LIBRARIES)/unpacked/log
	mv $(LIBRARIES)/unpacked/pip-download-*/vllm_* $@

# The launch lines and programs of the predecessors' documents, and rows of docs/compatibility.md drawn by the date, or by SEED.
SEED ?= $(shell date +%Y%m%d)
run-seeds: $(LIBRARIES)/.installed $(LIBRARIES)/vllm-$(VLLM)
	$(provide_vllm)
	LSV_TEST_LIBRARIES=$(CURDIR)/$(LIBRARIES) $(BIN)/python tools/seeds.py --seed $(SEED)

# What the tests of each module take, from which their order follows. On an idle machine; the slow ones too with KIND=slow.
KIND ?= not slow
durations: install-dev
	$(PYTEST) $(WORKERS) --renew-durations -m "$(KIND) and not gpu" tests

# What tests of rows start, in tests/evidence.json, and the words that docs/compatibility.md gets from it; the slow ones too with KIND=slow.
evidence: install-dev
	$(PYTEST) $(WORKERS) --renew-evidence -m "row and $(KIND) and not gpu" tests
	$(BIN)/python tools/compatibility.py --write

# On a machine with an accelerator: what starts, what is right, how fast it is, in build/hardware/report.md. Uses the torch
# that $(PYTHON) has and replaces none of it; without network it installs from the folder that make wheels has filled.
GPU_VENV ?= .venv-gpu
WHEELS   ?= wheels
test-gpu: $(GPU_VENV)/.installed
	PYTHONPATH=tools/hardware:benchmarks $(GPU_VENV)/bin/python -m first_run $(FIRST_RUN)

$(GPU_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv --system-site-packages $(GPU_VENV)
	$(PYTHON) -m pip list --format=freeze 2>/dev/null | grep -iE '^(torch|triton|pytorch)' > $(GPU_VENV)/constraints.txt || true
	$(GPU_VENV)/bin/python -m pip install -q -c $(GPU_VENV)/constraints.txt -e . pytest pytest-asyncio pytest-timeout \
	  pytest-xdist hypothesis openai $(if $(wildcard $(WHEELS)),--no-index --find-links $(WHEELS))
	@touch $@

# Wheels for such a machine, without torch; for another Python than this one:
#   make wheels WHEELS_FOR="--python-version 3.12 --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64"
wheels: install-dev
	PYTHONPATH=tools/hardware $(BIN)/python -m first_run.wheels > $(VENV)/wheels.txt
	$(BIN)/python -m pip download -q --no-deps --only-binary=:all: -d $(WHEELS) $(WHEELS_FOR) -r $(VENV)/wheels.txt

# Everything at once on a real server, for SOAK_MINUTES: what is wrong, hung, leaked or grown. SOAK takes more options.
SOAK_MINUTES ?= 10
soak: install-dev
	PYTHONPATH=tools/reliability:tools/demo OMP_NUM_THREADS=1 $(BIN)/python -m trials.soak --minutes $(SOAK_MINUTES) $(SOAK)

# Damaged files and bodies, random requests to all routes, random histories, for FUZZ_MINUTES. FUZZ takes more options.
FUZZ_MINUTES ?= 5
fuzz: install-fuzz
	PYTHONPATH=tools/reliability:tools/demo OMP_NUM_THREADS=1 $(BIN)/python -m trials.fuzz --minutes $(FUZZ_MINUTES) $(FUZZ)

# The fast tests that start processes, FLAKY_RUNS times under load, and a table of those that failed in any run. FLAKY takes
# more options: FLAKY="tests/e2e --load 8".
FLAKY_RUNS ?= 20
test-flaky: install-dev
	PYTHONPATH=tools/reliability:tools/demo OMP_NUM_THREADS=1 $(BIN)/python -m trials.flaky --runs $(FLAKY_RUNS) $(FLAKY)

clean:
	rm -rf $(VENV) $(NEWEST_VENV) $(GPU_VENV) $(WHEELS) $(CLIENTS) .pytest_cache .mypy_cache .ruff_cache dist
