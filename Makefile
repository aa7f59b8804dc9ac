# Every target sets up what it needs on a fresh machine, with a GPU or without one.
#
#   make demo       a simulation that crashes its GPU twice and ends with the right picture
#   make test       the whole suite, on the simulated GPU
#   make gpu-test   the same suite on a real NVIDIA GPU; offline, with the packages of $(GPU_PYTHON); fails where no GPU works
#   make soak       hundreds of kills and thousands of launches; BACKEND=gpu for the real device
#   make lint       ruff, mypy --strict, and pyright: the types of the public interface are complete
#   make docs       the documentation as HTML, in docs/_build/html

PYTHON ?= python3
GPU_PYTHON ?= $(PYTHON)
VENV ?= .venv
BACKEND ?= sim
PYTEST_ARGS ?=
DEMO_ARGS ?=

RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check install --quiet
SOURCES := $(CURDIR):$(CURDIR)/bindings
# pyright finds the packages by the python of the PATH, and would ask the package index for a newer version of itself.
PYRIGHT := PATH="$(abspath $(VENV)/bin):$$PATH" PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(RUN) -m pyright

.PHONY: help demo test gpu-test soak lint docs clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.demo-ready
	$(RUN) -m atomr_trio demo $(DEMO_ARGS)

test: $(VENV)/.dev-ready
	ATOMR_TRIO_TEST_BACKEND=sim $(RUN) -m pytest $(PYTEST_ARGS)

gpu-test:
	PYTHONPATH="$(SOURCES)$${PYTHONPATH:+:$$PYTHONPATH}" ATOMR_TRIO_TEST_BACKEND=gpu $(GPU_PYTHON) -m pytest $(PYTEST_ARGS)

# The real device needs no environment of ours, the simulator does.
ifeq ($(BACKEND),gpu)
soak:
	PYTHONPATH="$(SOURCES)$${PYTHONPATH:+:$$PYTHONPATH}" ATOMR_TRIO_TEST_BACKEND=gpu $(GPU_PYTHON) -m pytest -m soak -s -o faulthandler_timeout=900 $(PYTEST_ARGS)
else
soak: $(VENV)/.dev-ready
	ATOMR_TRIO_TEST_BACKEND=$(BACKEND) $(RUN) -m pytest -m soak -s -o faulthandler_timeout=900 $(PYTEST_ARGS)
endif

lint: $(VENV)/.dev-ready
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(PYRIGHT) --verifytypes atomr_trio --ignoreexternal
	$(PYRIGHT) --verifytypes atomr_cuda --ignoreexternal

docs: $(VENV)/.docs-ready
	$(RUN) -m sphinx -W --keep-going -b html docs docs/_build/html

clean:
	rm -rf docs/_build .pytest_cache .mypy_cache .ruff_cache

# A stamp says that the environment holds what pyproject.toml asks for; it is renewed when that file changes.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "atomr_trio needs Python 3.11 or newer; name one by: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo-ready: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e ".[sim]"
	@touch $@

$(VENV)/.dev-ready: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e ".[sim,dev]"
	@touch $@ $(VENV)/.demo-ready

$(VENV)/.docs-ready: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e ".[docs]"
	@touch $@
