# Every target sets up what it needs on a fresh machine, with a GPU or without one.
#
#   make demo       a simulation that crashes its GPU twice and ends with the right picture
#   make test       the suite on the simulated GPU, against the package as installed from the wheel built here
#   make test LONG=yes   with the tests that take longest too, as every change has to pass them
#   make coverage   the same, and a failure where too few branches of the user's side are taken
#   make gpu-test   the same suite on a real NVIDIA GPU; offline, with the packages of $(GPU_PYTHON); fails where no GPU works
#   make sweep      the suite with every case, many random ones, and a new worker for each test; before a release; BACKEND=gpu likewise
#   make soak       hundreds of kills and thousands of launches; BACKEND=gpu for the real device
#   make fuzz       10,000 random kernels: FUZZ_KERNELS for each of four architectures; BACKEND=gpu for the real device
#   make anatomy    where the microseconds of one launch go; needs a GPU
#   make bench-recovery   what a fault costs and what is aimed at, beside CuPy and PyTorch; BACKEND=gpu for the real device
#   make bench-start   where the milliseconds of a start go; `start.py FIGURES.json PICTURE.svg` draws it; BACKEND=gpu for the real device
#   make bench-all  every benchmark once, and one table of all that must hold; BACKEND=gpu for the real device
#   make bench-compare COMMIT=...   another commit and this one in turns, and which rows differ; BACKEND=gpu for the real device
#   make bench-verbs   what each public verb costs its caller in a batch; BACKEND=gpu for the real device
#   make bench      what calls cost, beside cuda.core, CuPy, PyTorch, numba-cuda and the bare driver; BACKEND=gpu for the real device
#   make bench-holding   how long a call holds the event loop, on everything large; BACKEND=gpu for the real device
#   make bench-nvrtc   what compiling costs, cold and from the disk cache; BACKEND=gpu for the real device
#   make bench-blas    products of matrices beside the bare cuBLAS and cuBLASLt, CuPy and PyTorch; BACKEND=gpu for the real device
#   make bench-fft     Fourier transforms and their plans beside the bare cuFFT, CuPy and PyTorch; BACKEND=gpu for the real device
#   make bench-random  random numbers beside the bare cuRAND, CuPy and PyTorch; BACKEND=gpu for the real device
#   make bench-peers   copies between two devices beside the bare driver, and one program that drives both; BACKEND=gpu for real devices
#   make bench-world   collectives of two devices beside plain NCCL, and what the loss of a member costs; BACKEND=gpu for real devices
#   make bench-plain   what a program without trio pays for each verb, beside the awaited one; BACKEND=gpu for the real device
#   make world-faults   every fault of a member at every moment of a world, and hundreds of random kills; BACKEND=gpu for real devices
#   make battery    statistical tests of our own random words, small; BACKEND=gpu for hundreds of millions on the real device
#   make bench-sim     what kernels cost on the simulated GPU, and what is aimed at
#   make picture    the pictures of a recovery in docs/guide/faults and of a training in docs/guide/worlds, from real ones; BACKEND=gpu likewise
#   make gallery   the pictures of docs/gallery, drawn by the examples
#   make lint       ruff, mypy --strict, and pyright: the types of the public interface are complete
#   make structure   the drawing of the folders and the walk of a call in docs/architecture, from the code
#   make registered   the file that lists the libraries and has their properties, from their registrations
#   make plain   the blocking forms of the public classes, from the declarations of the awaited ones
#   make constants   the numbers of the tables' enumerations, for code that must start fast
#   make native     the machine code of the worker's native loop, from its source in tests/support/native
#   make abi        read the vendors' headers anew, downloading them, for the test that holds the tables against them; ABI_ARGS names libraries
#   make dist       the sdist and the wheel of the last commit in dist/, built twice and compared byte by byte
#   make dist-check   installs them alone in a new environment: import, doctor, demo, and a part of the suite from the sdist
#   make changelog  the section Unreleased of CHANGELOG.md from changes/; RELEASE=yes: the section of this version, and no fragments left
#   make release-check   the tag, the version, the citation and the change log agree
#   make docs       the documentation as HTML, in docs/_build/html; a warning is a failure, and so is a link within it to nowhere
#   make docs-links   asks for every page elsewhere that the documentation links to, by the network
#   make worker-coverage   what the suite runs of the worker's side; a report, and half as slow as `make coverage`

PYTHON ?= python3
GPU_PYTHON ?= $(PYTHON)
VENV ?= .venv
BACKEND ?= sim
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
BATTERY_ARGS ?=
ABI_ARGS ?=
COVERAGE ?=
LONG ?=
# One more than there are processors: many tests wait, for a worker or for a time.
JOBS ?= $(shell expr $$(nproc) + 1)
# A file stays in one process: its tests share what they set up. Files are taken in their order: those with few tests
# take longest in places, and would be left for the end.
PARALLEL = --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check
SOURCES := $(CURDIR):$(CURDIR)/bindings
BENCHMARKS := $(CURDIR)/tests/benchmarks
WHEEL = $$(echo $(abspath $(VENV))/wheel/*.whl)
# The folders too, so that a file that is deleted makes a new wheel.
PACKAGED := pyproject.toml README.md LICENSE $(shell find atomr_trio bindings -name __pycache__ -prune -o -print)
# The tests run on the installed package: the current folder is on nobody's path, and tests/repository/test_wheel.py checks that.
# Bytecode is kept, whatever the environment says: to read the tests anew takes ten seconds in each process that runs them.
TEST = PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE= ATOMR_TRIO_TEST_WHEEL="$(WHEEL)" ATOMR_TRIO_TEST_CUDA12="$(abspath $(VENV))/cuda12" \
  ATOMR_TRIO_TEST_BACKEND=$(BACKEND) $(if $(LONG),ATOMR_TRIO_TEST_LONG=1) $(RUN) -m
# The real device needs no environment of ours.
GPU_TEST = PYTHONPATH="$(SOURCES)$${PYTHONPATH:+:$$PYTHONPATH}" ATOMR_TRIO_TEST_BACKEND=gpu $(GPU_PYTHON) -m
FUZZ_KERNELS ?= 2500
FUZZ = ATOMR_TRIO_FUZZ_KERNELS=$(FUZZ_KERNELS)
FUZZED := pytest -s -o faulthandler_timeout=900 tests/simulator/test_sim_fuzz.py
SWEEP := ATOMR_TRIO_TEST_SWEEP=1
WORLD_FAULTS := pytest -m "soak or not soak" -s -o faulthandler_timeout=900 tests/libraries/nccl/test_world_matrix.py tests/libraries/nccl/test_world_stress.py
SOAK := pytest -m soak -s -o faulthandler_timeout=900
# pyright finds the packages by the python of the PATH, and would ask the package index for a newer version of itself.
PYRIGHT := PATH="$(abspath $(VENV)/bin):$$PATH" PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(RUN) -m pyright

# The benchmarks, and the program of each.
BENCHES := bench bench-all bench-compare bench-verbs bench-recovery bench-start bench-holding bench-nvrtc bench-blas bench-fft bench-random bench-peers bench-world bench-plain
bench: PROGRAM := speed.py
bench-all: PROGRAM := bench_all.py
bench-compare: PROGRAM := compare.py
bench-compare: BENCH_OPTIONS = $(if $(COMMIT),--commit "$(COMMIT)")
bench-verbs: PROGRAM := verb_costs.py
bench-recovery: PROGRAM := recovery.py
bench-recovery: SIM_OPTIONS := --gib 0.25 --gib-most 0.1
bench-start: PROGRAM := start.py
bench-holding: PROGRAM := holding.py
bench-nvrtc: PROGRAM := nvrtc.py
bench-blas: PROGRAM := blas.py
bench-fft: PROGRAM := fft.py
bench-random: PROGRAM := random_numbers.py
bench-peers: PROGRAM := peers.py
bench-world: PROGRAM := world.py
bench-plain: PROGRAM := plain_verbs.py
FIGURES ?= bench-all/all.json
PICTURE ?= docs/guide/speed.svg

.PHONY: help demo test coverage worker-coverage gpu-test sweep soak world-faults fuzz $(BENCHES) anatomy battery bench-sim bench-picture picture gallery lint structure registered constants plain native abi docs docs-links dist dist-check changelog release-check clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.demo-ready $(VENV)/.installed
	$(RUN) -P -m atomr_trio demo $(DEMO_ARGS)

test: $(VENV)/.dev-ready $(VENV)/.cuda12-ready $(VENV)/.installed
	$(if $(COVERAGE),$(RUN) -m coverage erase)
	$(if $(COVERAGE),COVERAGE_FILE="$(CURDIR)/.coverage") $(TEST) pytest $(PARALLEL) $(if $(COVERAGE),--cov) $(PYTEST_ARGS)
	$(if $(COVERAGE),$(RUN) -m coverage json --quiet --fail-under=0 -o $(VENV)/coverage.json)
	$(if $(COVERAGE),$(RUN) .ci/branches.py $(VENV)/coverage.json 95)

coverage:
	$(MAKE) test COVERAGE=yes LONG=yes

worker-coverage: $(VENV)/.dev-ready $(VENV)/.installed
	$(RUN) -m coverage erase
	ATOMR_TRIO_TEST_FRESH=1 COVERAGE_RCFILE=tests/worker.coveragerc $(TEST) coverage run -m pytest $(PYTEST_ARGS)
	$(RUN) -m coverage combine --quiet
	$(RUN) -m coverage report --rcfile=tests/worker.coveragerc

gpu-test:
	$(GPU_TEST) pytest $(PYTEST_ARGS)

ifeq ($(BACKEND),gpu)
sweep:
	$(SWEEP) $(GPU_TEST) pytest $(PYTEST_ARGS)
soak:
	$(GPU_TEST) $(SOAK) $(PYTEST_ARGS)
world-faults:
	$(GPU_TEST) $(WORLD_FAULTS) $(PYTEST_ARGS)
fuzz:
	$(FUZZ) $(GPU_TEST) $(FUZZED) $(PYTEST_ARGS)
$(BENCHES):
	PYTHONPATH="$(BENCHMARKS):$(SOURCES)$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) tests/benchmarks/$(PROGRAM) $(BENCH_OPTIONS) $(BENCH_ARGS)
battery:
	PYTHONPATH="$(CURDIR)/tests/battery:$(SOURCES)$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) tests/battery/battery.py --backend cuda $(BATTERY_ARGS)
picture:
	PYTHONPATH="$(SOURCES)$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) docs/recovery.py --backend cuda
	PYTHONPATH="$(SOURCES)$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) docs/training.py
else
sweep: $(VENV)/.dev-ready $(VENV)/.cuda12-ready $(VENV)/.installed
	$(SWEEP) $(TEST) pytest $(PARALLEL) $(PYTEST_ARGS)
soak: $(VENV)/.dev-ready $(VENV)/.installed
	$(TEST) $(SOAK) $(PYTEST_ARGS)
world-faults: $(VENV)/.dev-ready $(VENV)/.installed
	$(TEST) $(WORLD_FAULTS) $(PYTEST_ARGS)
fuzz: $(VENV)/.dev-ready $(VENV)/.installed
	$(FUZZ) $(TEST) $(FUZZED) $(PYTEST_ARGS)
$(BENCHES): $(VENV)/.demo-ready $(VENV)/.installed
	PYTHONPATH="$(BENCHMARKS)" $(RUN) -P tests/benchmarks/$(PROGRAM) --backend sim $(BENCH_OPTIONS) $(SIM_OPTIONS) $(BENCH_ARGS)
battery: $(VENV)/.dev-ready $(VENV)/.installed
	PYTHONPATH="$(CURDIR)/tests/battery" $(RUN) -P tests/battery/battery.py --backend sim $(BATTERY_ARGS)
picture: $(VENV)/.dev-ready $(VENV)/.installed
	$(RUN) -P docs/recovery.py --backend sim
	ATOMR_TRIO_BACKEND=sim ATOMR_TRIO_SIM_DEVICES=2 $(RUN) -P docs/training.py
endif

bench-sim: $(VENV)/.demo-ready $(VENV)/.installed
	PYTHONPATH="$(BENCHMARKS)" $(RUN) -P tests/benchmarks/simulator.py $(BENCH_ARGS)

bench-picture: $(VENV)/.dev-ready
	PYTHONPATH="$(BENCHMARKS)" $(RUN) -P tests/benchmarks/pictures.py $(FIGURES) $(PICTURE) $(BENCH_ARGS)

gallery: $(VENV)/.dev-ready $(VENV)/.installed
	$(RUN) -P examples/heat_equation.py --backend sim --size 96 --steps 800 --picture docs/gallery/heat_equation.png
	$(RUN) -P examples/mandelbrot.py --backend sim --width 480 --most 200 --picture docs/gallery/mandelbrot.png
	$(RUN) -P examples/kmeans.py --backend sim --picture docs/gallery/kmeans.png
	$(RUN) -P examples/spectrogram.py --backend sim --picture docs/gallery/spectrogram.png
	$(RUN) -P examples/nbody.py --backend sim --launches 120 --picture docs/gallery/nbody.png
	$(RUN) -P examples/linear_regression.py --backend sim --picture docs/gallery/linear_regression.png
	$(RUN) -P examples/parameter_sweep.py --backend sim --values 300 --picture docs/gallery/parameter_sweep.png

anatomy:
	PYTHONPATH="$(SOURCES)$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) tests/benchmarks/anatomy.py

lint: $(VENV)/.dev-ready $(VENV)/.installed
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(RUN) -m mypy examples/*.py examples/pytest_project/waves
	MYPYPATH=examples/image_service $(RUN) -m mypy examples/image_service
	$(PYRIGHT) --verifytypes atomr_trio --ignoreexternal
	$(PYRIGHT) --verifytypes atomr_cuda --ignoreexternal
	$(PYRIGHT) --verifytypes atomr_sim --ignoreexternal

structure: $(VENV)/.dev-ready
	PYTHONPATH="$(SOURCES)" $(RUN) -P docs/structure.py

registered: $(VENV)/.dev-ready
	PYTHONPATH="$(SOURCES)" $(RUN) -P tests/support/registered.py
	$(RUN) -m ruff format --quiet atomr_trio/libraries/registered.py

constants: $(VENV)/.dev-ready
	PYTHONPATH="$(SOURCES)" $(RUN) -P tests/support/constants.py

plain: $(VENV)/.dev-ready
	PYTHONPATH="$(SOURCES):$(CURDIR)/tests" $(RUN) -P -m support.plain

native: $(VENV)/.dev-ready
	PYTHONPATH="$(SOURCES):$(CURDIR)/tests" $(RUN) -P -m support.native.make

abi: $(VENV)/.abi-ready $(VENV)/.installed
	PYTHONPATH=$(CURDIR)/tests $(RUN) -P -m abi.extract --downloads $(VENV)/headers $(ABI_ARGS)

docs: $(VENV)/.docs-ready $(VENV)/.installed
	$(RUN) -P -m sphinx -q -W --keep-going -b html docs docs/_build/html

docs-links: $(VENV)/.docs-ready $(VENV)/.installed
	$(RUN) -P -m sphinx -q --keep-going -b linkcheck docs docs/_build/links

dist: $(VENV)/.builder-ready
	.ci/dist $(RUN)

dist-check: dist
	.ci/dist-check $(RUN)

# What was there of the coming release is made anew.
changelog: $(VENV)/.dev-ready
	sed -i '/^## Unreleased$$/,/^## [0-9]/{/^## [0-9]/!d}' CHANGELOG.md
	$(RUN) -m towncrier build $(if $(RELEASE),--yes --version "$$($(RUN) -m hatchling version)",--keep --version Unreleased --date "")

release-check: $(VENV)/.builder-ready
	$(RUN) .ci/release.py $(TAG)

clean:
	rm -rf docs/_build .pytest_cache .mypy_cache .ruff_cache

# --- the environment --------------------------------------------------------------------------------------------------

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "atomr_trio needs Python 3.11 or newer; name one by: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What builds the wheel, kept in the environment so that a change of the sources asks no package index for it.
$(VENV)/.builder-ready: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --quiet 'build>=1.2' \
	  $$($(RUN) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')
	@touch $@

$(VENV)/.wheel-ready: $(PACKAGED) $(VENV)/.builder-ready
	rm -rf $(VENV)/wheel
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir $(VENV)/wheel .
	@touch $@

# A stamp says that the environment holds what pyproject.toml asks for; it is renewed when that file changes.
$(VENV)/.demo-ready: EXTRAS := sim
$(VENV)/.dev-ready: EXTRAS := sim,dev
$(VENV)/.docs-ready: EXTRAS := docs
$(VENV)/.abi-ready: EXTRAS := abi
$(VENV)/.demo-ready $(VENV)/.dev-ready $(VENV)/.docs-ready $(VENV)/.abi-ready: pyproject.toml | $(VENV)/.wheel-ready
	$(PIP) install --quiet "$(WHEEL)[$(EXTRAS)]"
	@touch $@

# The compiler and the linker of CUDA 12, beside those of 13 and out of their way: tests/compiling/test_cuda12.py says where.
$(VENV)/.cuda12-ready: pyproject.toml | $(VENV)/bin/python
	rm -rf $(VENV)/cuda12
	$(PIP) install --quiet --no-deps --target $(VENV)/cuda12 'nvidia-cuda-nvrtc-cu12==12.9.*' 'nvidia-nvjitlink-cu12==12.9.*'
	@touch $@

# pip takes a wheel of the same version for the same wheel, and would leave the older one installed.
$(VENV)/.installed: $(VENV)/.wheel-ready
	$(PIP) install --quiet --no-deps --force-reinstall "$(WHEEL)"
	@touch $@
