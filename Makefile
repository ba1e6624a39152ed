# Everything happens in .venv. Stamp files in it remember what is installed, so a second run installs nothing.
PYTHON ?= python3
TORCH  := 2.13.0

VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check
MADE    := $(VENV)/.made
PACKAGE := $(VENV)/.package
CHECKER := $(VENV)/.check-group
WITH_TORCH := $(VENV)/.torch-$(TORCH)
PROGRAMS   := $(VENV)/.programs
# Files stay whole and in order: the real jobs are in one file, start early and have one worker to themselves.
PYTEST  := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The tests start hundreds of processes: without bytecode, each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check quick lint docs accuracy frameworks screenshots bench clean
.NOTPARALLEL:  # two pips must not write into one environment

help:
	@echo "make demo    simulate a hung 64-rank job in ./demo and diagnose it"
	@echo "make test    everything: lint, types, all tests, real torch jobs included"
	@echo "make check   lint, types and the quick tests, none of which needs torch"
	@echo "make quick   the quick tests alone"
	@echo "make docs    regenerate what is generated in docs/, README.md and CONTRIBUTING.md"
	@echo "make accuracy   count right and wrong verdicts on simulated and real jobs, in docs/accuracy.md (some minutes)"
	@echo "make frameworks   train with Lightning, transformers, accelerate and ignite under rankscope record (some minutes)"
	@echo "make screenshots   take the pictures in docs/images again (needs chromium)"
	@echo "make fuzz    try 100,000 hostile inputs over all formats (over an hour)"
	@echo "make bench   measure against torchfrtrace, Holistic Trace Analysis, tlparse and Chakra on this machine (over an hour)"
	@echo "make clean   remove the environment and all caches"

demo: $(PACKAGE)
	$(BIN)/rankscope demo -o ./demo --force

# torch comes first, so that nothing else can pull in another version of it.
test: $(WITH_TORCH) $(PROGRAMS) lint
	$(PYTEST)

check: lint quick

quick: $(CHECKER)
	$(PYTEST) -n 4 -m "not e2e and not slow"  # many of them wait for a process: four keep two cores busy

lint: $(CHECKER)
	$(BIN)/ruff check .
	MYPY_NUM_WORKERS=2 $(BIN)/mypy --strict

docs: $(PACKAGE)
	$(BIN)/python tools/make_docs.py

accuracy: $(WITH_TORCH) $(CHECKER)
	$(BIN)/python tools/make_accuracy.py
	$(BIN)/python tools/make_late_accuracy.py
	$(BIN)/python tools/make_log_accuracy.py
	$(BIN)/python tools/make_ending_accuracy.py

# They have an environment of their own, which sees this one's torch and packages and must not replace them.
FRAMEWORKS := .venv-frameworks
WITH_FRAMEWORKS := $(FRAMEWORKS)/.frameworks
frameworks: $(WITH_FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pytest -n 0 tests/frameworks

$(WITH_FRAMEWORKS): $(WITH_TORCH) $(CHECKER)
	$(BIN)/python -m venv $(FRAMEWORKS)
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')')" \
	  > "$$($(FRAMEWORKS)/bin/python -c 'import site; print(site.getsitepackages()[0])')/above.pth"
	echo "torch==$$($(BIN)/python -c 'import torch; print(torch.__version__)')" > $(FRAMEWORKS)/constraints.txt
	$(FRAMEWORKS)/bin/python -m pip --disable-pip-version-check install --quiet -c $(FRAMEWORKS)/constraints.txt \
	  lightning transformers accelerate pytorch-ignite
	@touch $@

fuzz: $(CHECKER)
	$(BIN)/python tests/fuzz/run.py -n 100000 --write

screenshots: $(CHECKER) $(PROGRAMS)
	$(BIN)/python tools/make_screenshots.py

bench: $(WITH_TORCH) $(PACKAGE)
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/flight_recorder.py
	$(BIN)/python bench/kineto.py
	$(BIN)/python bench/kineto_ranks.py
	$(BIN)/python bench/compile_log.py
	$(BIN)/python bench/execution_trace.py
	$(BIN)/python bench/collect.py
	$(BIN)/python bench/report.py

clean:
	rm -rf $(VENV) .venv-frameworks build dist demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE):
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade "pip>=25.1"  # the first that reads dependency groups
	@touch $@

$(WITH_TORCH): | $(MADE)
	$(PIP) install torch==$(TORCH)
	@touch $@

# A browser for the pages, a compiler for what torch.compile writes: the tests that need them are skipped without.
$(PROGRAMS): | $(MADE)
	@for program in chromium g++; do \
	  command -v $$program >/dev/null && continue; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -qq && apt-get install -y -qq $$program; \
	  else echo "$$program is not installed: the tests that need it will be skipped"; fi; \
	done
	@touch $@

$(PACKAGE): pyproject.toml | $(MADE)
	$(PIP) install --quiet --editable .
	@touch $@

$(CHECKER): pyproject.toml $(PACKAGE)
	$(PIP) install --quiet --group check
	@touch $@
