"""The pytest plugin: what its fixtures give, and how a test whose kernel faults fails alone.

The suites in here are run by a pytest of their own, in a process of its own, on the backend of this run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from atomr_trio import pytest_plugin
from atomr_trio._cli import doctor
from support import ON_GPU, ROOT, child_environment, chosen_backend, coverage_environment, gpu_count, skip_without
from support.programs import programs

pytest_plugins = ["pytester"]

SETTINGS = """
[pytest]
trio_mode = true
filterwarnings = error
addopts = --strict-markers --strict-config --tb=short
"""

HEADER = r'''
import math

import atomr_trio
import numpy as np
import pytest
import trio

SOURCE = r"""
extern "C" __global__ void scale(float *x, float by, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}
extern "C" __global__ void wild(unsigned long long where) { *(volatile int *)where = 1; }
extern "C" __global__ void one_too_many(int *x, int n) { for (int i = 0; i <= n; i++) x[i] = i; }
extern "C" __global__ void misaligned(char *x) { *(volatile float *)(x + 1) = 1.0f; }
extern "C" __global__ void trap(int *x) { x[0] = 77; __trap(); }
extern "C" __global__ void refuse(int n) { assert(n == 42); }
extern "C" __global__ void spin(int *word) { while (*(volatile int *)word == 0) { } }
extern "C" __global__ void say(int n) { printf("said %d\n", n); }
"""
'''

TWENTY = (
    HEADER
    + r"""
async def scaled(device, n):
    scale = await device.nvrtc.compile(SOURCE, "scale")
    x = await device.to_device(np.arange(n, dtype=np.float32))
    await scale.launch(-(-n // 128), 128, x, 2.0, n)
    assert device.generation == 1
    np.testing.assert_array_equal(await x.to_host(), 2 * np.arange(n, dtype=np.float32))


@pytest.mark.parametrize("n", [1, 100, 128, 129])
async def test_scale(gpu_device, n):
    await scaled(gpu_device, n)


async def test_overrun(gpu_device):
    overrun = await gpu_device.nvrtc.compile(SOURCE, "one_too_many")
    await overrun.launch(1, 1, gpu_device.empty(1000, np.int32), 1000)


async def test_after_overrun(gpu_device):
    await scaled(gpu_device, 1000)


async def test_misaligned_and_silent(gpu_device):
    misaligned = await gpu_device.nvrtc.compile(SOURCE, "misaligned")
    with pytest.raises(atomr_trio.ContextLost):
        await misaligned.launch(1, 1, gpu_device.zeros(8, np.int8))


async def test_after_misaligned(gpu_device):
    await scaled(gpu_device, 1000)


async def test_trap_and_leave(gpu_device):
    trap = await gpu_device.nvrtc.compile(SOURCE, "trap")
    trap.launch_nowait(1, 1, gpu_device.zeros(1, np.int32))


@pytest.mark.parametrize("n", [10, 20])
async def test_after_trap(gpu_device, n):
    await scaled(gpu_device, n)


async def test_device_assert(gpu_device):
    refuse = await gpu_device.nvrtc.compile(SOURCE, "refuse")
    await refuse.launch(1, 1, 41)


async def test_after_device_assert(gpu_device):
    await scaled(gpu_device, 1000)


async def test_endless(gpu_device):
    spin = await gpu_device.nvrtc.compile(SOURCE, "spin")
    await spin.launch(1, 1, gpu_device.zeros(1, np.int32), hang_timeout=0.5)


async def test_after_endless(gpu_device):
    await scaled(gpu_device, 1000)


@pytest.mark.gpu_faults
async def test_a_fault_that_is_meant(gpu_device):
    wild = await gpu_device.nvrtc.compile(SOURCE, "wild")
    with pytest.raises(atomr_trio.ContextLost) as caught:
        await wild.launch(1, 1, 0x10)
    await gpu_device.wait_generation(after=caught.value.generation)
    assert gpu_device.generation == 2


def test_a_run_of_its_own(gpu_worker_pool):
    async def main():
        pool = gpu_worker_pool
        async with atomr_trio.open_device(pool.index, backend=pool.backend, workers=pool) as device:
            await scaled(device, 500)

    trio.run(main)


async def test_on_device_beside_another(gpu_device, gpu_worker_pool):
    pool = gpu_worker_pool
    async with atomr_trio.open_device(pool.index, backend=pool.backend, workers=pool) as device:
        await scaled(device, 300)
    await scaled(gpu_device, 300)


def test_without_a_device():
    assert math.isqrt(9) == 3


async def test_what_the_device_is_like(gpu_device):
    await gpu_device.restart("the test wants to")
    assert gpu_device.statistics().restarts_left == math.inf
    one, two = gpu_device.empty(10), gpu_device.empty(10)
    assert abs(one.address - two.address) >= 2 << 20
"""
)

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a suite with the plugin, which the source tree has without an entry point."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # other plugins look at it, and may warn
    # With one of these pytest's summary shows every message a second time, and whole.
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)

    def run_suite(source: str, *arguments: str, settings: str = SETTINGS) -> pytest.RunResult:
        for name, value in child_environment(**coverage_environment()).items():
            monkeypatch.setenv(name, value)
        pytester.makefile(".ini", pytest=settings)
        pytester.makepyfile(source)
        backend = f"--gpu-backend={chosen_backend()}"
        return pytester.runpytest_subprocess("-p", "atomr_trio.pytest_plugin", backend, *arguments, timeout=300)

    return run_suite


def failures(result: pytest.RunResult) -> dict[str, str]:
    """The report of each test that failed, by its name."""
    parts = re.split(r"^_{3,} (?:ERROR at \w+ of )?(\S+) _{3,}$", result.stdout.str(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.long
def test_of_twenty_tests_the_five_that_fault_fail_each_with_its_own_words_and_cost_one_process_each(run):
    result = run(TWENTY)
    result.assert_outcomes(passed=15, failed=5)
    told = failures(result)
    assert list(told) == [
        "test_overrun",
        "test_misaligned_and_silent",
        "test_trap_and_leave",
        "test_device_assert",
        "test_endless",
    ]
    overrun, misaligned, trap, refused, endless = told.values()
    assert "ContextLost: an illegal memory access" in overrun
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in overrun
    assert "the test passed, but its device did not" in misaligned
    assert re.search(r"was lost: .*misaligned address.* \(in flight: .*launch of misaligned\)", misaligned)
    assert "the test passed, but its device did not" in trap
    assert re.search(r"was lost: .*launch fail.* \(in flight: .*launch of trap\)", trap)
    assert "CUDA_ERROR_ASSERT (710)" in refused
    assert re.search(r"- Captured gpu output call -+\n.*Assertion `n == 42. failed", refused)
    assert "ContextLost: launch of spin ran longer than hang_timeout=0.5 s" in endless
    for report in told.values():
        assert re.search(r"- Captured gpu faults call -+\ngeneration 1 was lost: ", report)
    # Two processes to begin with, one more for each of six faults, and one for the restart.
    result.stdout.re_match_lines([r"device 0 \(\w+\): 9 started, 19 reused; devices that waited for a start: 1"])


GUIDE = ROOT / "docs" / "guide" / "testing.md"


def suites() -> list[str]:
    """The programs of the guide that are tests, async ones first."""
    return [code for code, _ in programs(GUIDE) if "gpu_device" in code]


def test_the_example_of_the_guide_behaves_as_the_guide_says(run):
    result = run(suites()[0])
    result.assert_outcomes(passed=2, failed=1)
    assert list(failures(result)) == ["test_square[100]"]


@pytest.mark.long
def test_the_example_without_async_behaves_as_the_guide_says_without_pytest_trio_too(run):
    _, example = suites()
    run(example, "-p", "no:trio", settings="[pytest]").assert_outcomes(passed=2)


@pytest.mark.sim_only
@pytest.mark.long
def test_the_project_of_the_guide_is_set_up_as_the_guide_says(pytester, monkeypatch):
    (project,) = re.findall(r"^```toml\n(.*?)^```$", GUIDE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    settings = tomllib.loads(project)
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert settings["project"]["requires-python"] == ours["requires-python"]
    extras = settings["project"]["optional-dependencies"]
    asked = {name for each in extras.values() for name in re.findall(r"atomr-trio\[(\w+)\]", " ".join(each))}
    assert asked == {"cu13", "sim"} <= set(ours["optional-dependencies"])
    assert {"pytest", "pytest-trio"} <= set(extras["test"])

    (conftest,) = [code for code, _ in programs(GUIDE) if "setdefault" in code]
    pytester.makepyprojecttoml(project)
    pytester.makeconftest(conftest)
    pytester.mkdir("tests").joinpath("test_it.py").write_text(
        "async def test_it(gpu_device): assert gpu_device.backend == 'sim'", encoding="utf-8"
    )
    for name, value in child_environment(**coverage_environment()).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ATOMR_TRIO_BACKEND", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    result = pytester.runpytest_subprocess("-p", "atomr_trio.pytest_plugin", timeout=300)
    result.assert_outcomes(passed=1)


@pytest.mark.long
def test_what_a_kernel_prints_stands_in_the_report_of_its_test_and_in_the_log_if_it_is_wanted(run):
    result = run(
        HEADER
        + r"""
import logging

async def say(device, n):
    kernel = await device.nvrtc.compile(SOURCE, "say")
    await kernel.launch(1, 1, n)

async def test_says(gpu_device):
    await say(gpu_device, 1)

async def test_says_and_fails(gpu_device):
    await say(gpu_device, 2)
    raise ZeroDivisionError

async def test_reads_the_log(gpu_device, caplog):
    caplog.set_level(logging.INFO, "atomr_trio.device")
    await say(gpu_device, 3)
    with trio.fail_after(30):
        while "said 3" not in caplog.messages:
            await trio.sleep(0.001)

async def test_does_not_want_the_log(gpu_device, caplog):
    await say(gpu_device, 4)

def test_the_log_is_as_it_was():
    assert not logging.getLogger("atomr_trio.device").isEnabledFor(logging.INFO)
    raise ZeroDivisionError
"""
    )
    result.assert_outcomes(passed=3, failed=2)
    told = failures(result)
    assert list(told) == ["test_says_and_fails", "test_the_log_is_as_it_was"]
    report = told["test_says_and_fails"]
    assert re.search(r"- Captured gpu output call -+\nsaid 2\n", report)
    assert report.count("said 2") == 1
    assert "said" not in told["test_the_log_is_as_it_was"]


@pytest.mark.long
@pytest.mark.parametrize("settings", ["[pytest]", SETTINGS], ids=["without trio_mode", "with trio_mode"])
def test_a_marked_test_gets_a_device_and_one_that_is_not_async_is_told_what_is_missing(run, settings):
    result = run(
        HEADER
        + """
@pytest.mark.trio
async def test_marked(gpu_device):
    assert gpu_device.generation == 1

def test_not_async(gpu_device):
    raise AssertionError("the body must not run")
""",
        settings=settings,
    )
    result.assert_outcomes(passed=1, errors=1)
    assert "gpu_device is for async tests that pytest-trio runs" in failures(result)["test_not_async"]


WRONG_AND_RIGHT = (
    HEADER
    + """
from hypothesis import HealthCheck, given, settings, strategies

few = settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=2, database=None)

@pytest.fixture
def through_a_fixture(gpu_device):
    return gpu_device

@pytest.fixture
async def through_two(through_a_fixture, devices):
    return devices

def test_wrong(gpu_device): raise AssertionError
async def test_right(gpu_device): assert gpu_device.generation == 1
def test_wrong_group(devices): raise AssertionError
async def test_right_group(devices): assert devices[0].generation == 1
def test_wrong_through_a_fixture(through_a_fixture): raise AssertionError
async def test_right_through_a_fixture(through_a_fixture): assert through_a_fixture.generation == 1
def test_wrong_through_two(through_two): raise AssertionError
async def test_right_through_two(through_two): assert through_two[0].generation == 1
def test_wrong_by_request(request): request.getfixturevalue("gpu_device")
@few
@given(strategies.integers())
def test_wrong_property(gpu_device, n): raise AssertionError
@few
@given(strategies.integers())
async def test_right_property(gpu_device, n): assert gpu_device.generation == 1
@pytest.mark.trio
def test_wrong_mark(gpu_device): raise AssertionError

class TestOfAClass:
    @pytest.mark.parametrize("n", [1, 2])
    def test_wrong(self, n, gpu_device): raise AssertionError
    @pytest.mark.parametrize("n", [1, 2])
    async def test_right(self, n, gpu_device): assert gpu_device.generation == 1
    @pytest.mark.usefixtures("devices")
    def test_wrong_by_mark(self): raise AssertionError

@pytest.mark.skip
def test_skipped(gpu_device): raise AssertionError
@pytest.mark.parametrize("gpu_device", [3])
def test_right_parameter(gpu_device): assert gpu_device == 3
async def test_right_at_the_end(gpu_device, devices): assert gpu_device.generation == devices[0].generation
"""
)


@pytest.mark.long
def test_each_test_that_cannot_have_a_device_fails_alone_and_those_after_it_are_right(run):
    result = run(WRONG_AND_RIGHT)
    result.assert_outcomes(passed=9, skipped=1, errors=8, failed=2)
    told = failures(result)
    assert [name for name in told if "wrong" not in name] == []
    marked = told.pop("test_wrong_mark")
    assert "is marked trio but is not async" in marked, "as pytest-trio says"
    for name, report in told.items():
        fixture = "devices" if name in GROUPS else "gpu_device"
        assert f"{fixture} is for async tests that pytest-trio runs" in report, name
        assert "AssertionError" not in report, name


GROUPS = ("test_wrong_group", "TestOfAClass.test_wrong_by_mark")


@pytest.mark.long
def test_a_fixture_of_the_user_hides_that_of_the_plugin_or_has_it_below(run):
    result = run(
        """
import pytest

@pytest.fixture
def gpu_device(): return "the user's"

@pytest.fixture
async def devices(devices): return [device.index for device in devices]

def test_hidden(gpu_device): assert gpu_device == "the user's"
def test_wrong(devices): raise AssertionError
@pytest.mark.gpus(1)
async def test_right(devices): assert devices == [0]
"""
    )
    result.assert_outcomes(passed=2, errors=1)
    assert "devices is for async tests that pytest-trio runs" in failures(result)["test_wrong"]


def test_without_pytest_trio_every_test_is_told_to_install_it(run):
    suite = """
import pytest

@pytest.mark.trio
async def test_marked(gpu_device): raise AssertionError
async def test_not_marked(gpu_device): raise AssertionError
def test_nothing(): pass
"""
    result = run(suite, "-p", "no:trio", settings="[pytest]\nmarkers = trio: of a plugin that is not there")
    result.assert_outcomes(passed=1, errors=2)
    for report in failures(result).values():
        assert "install pytest-trio" in report


@pytest.mark.long
def test_a_hang_ends_by_the_limit_of_the_command_line_also_when_nobody_waits_for_it(run):
    hang_timeout = 5 if ON_GPU else 2  # to load a module may take long where many others work
    result = run(
        HEADER
        + """
async def test_leaves_a_kernel_that_never_ends(gpu_device):
    spin = await gpu_device.nvrtc.compile(SOURCE, "spin")
    spin.launch_nowait(1, 1, gpu_device.zeros(1, np.int32))
""",
        f"--gpu-hang-timeout={hang_timeout}",
    )
    result.assert_outcomes(failed=1)
    words = f"*launch of spin ran longer than hang_timeout={hang_timeout} s (in flight: *launch of spin)"
    result.stdout.fnmatch_lines([words])


@pytest.mark.long
def test_a_failure_that_has_a_fault_behind_it_shows_both(run):
    result = run(
        HEADER
        + """
async def test_reads_what_is_torn(gpu_device):
    trap = await gpu_device.nvrtc.compile(SOURCE, "trap")
    x = gpu_device.zeros(1, np.int32)
    await x.to_host()
    trap.launch_nowait(1, 1, x)
    await gpu_device.wait_generation(after=1)
    await x.to_host()
"""
    )
    result.assert_outcomes(failed=1)
    report = failures(result)["test_reads_what_is_torn"]
    assert "StaleArray: the array is torn" in report
    assert "generation 1 was lost: " in report
    assert "the test passed" not in report


@pytest.mark.long
@pytest.mark.sim_only
def test_the_processes_of_a_distributed_run_are_spread_over_the_devices(run, monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "2")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw3")
    suite = "async def test_index(gpu_device):\n    assert gpu_device.index == 1"
    run(suite, "--gpu-index=auto").assert_outcomes(passed=1)


@pytest.mark.parametrize(("worker", "index"), [("gw0", 0), ("gw1", 1), ("gw2", 0), ("gw11", 1), (None, 0)])
def test_auto_is_the_number_of_the_process_modulo_the_number_of_devices(monkeypatch, worker, index):
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "2")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    if worker is not None:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    assert pytest_plugin._device_index("auto", "sim") == index


def test_the_gpus_are_counted_by_another_process(monkeypatch):
    monkeypatch.setattr(doctor, "ask_libraries", lambda: [{"name": "driver", "devices": 3}, {"name": "nvrtc"}])
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw5")
    assert pytest_plugin._device_index("auto", "cuda") == 2
    assert pytest_plugin._device_index(7, "cuda") == 7
    monkeypatch.setattr(doctor, "ask_libraries", lambda: [{"name": "driver", "missing": "libcuda.so.1"}])
    assert pytest_plugin._device_index("auto", "cuda") == 0, "and opening it says what is missing"


SEVERAL = (
    HEADER
    + r"""
@pytest.mark.gpus(2)
async def test_marked(devices):
    assert [device.index for device in devices] == [0, 1]
    arrays = [await device.to_device(np.arange(3) * device.index) for device in devices]
    assert [(await array.to_host()).tolist() for array in arrays] == [[0, 0, 0], [0, 1, 2]]


async def test_all_of_them(devices):
    assert len(devices) == COUNT
    assert [device.generation for device in devices] == [1] * COUNT


@pytest.mark.gpus(3)
async def test_too_many(devices):
    raise AssertionError("it must not run")


@pytest.mark.gpus(3)
def test_too_many_without_a_fixture():
    raise AssertionError("it must not run")


@pytest.mark.gpus(2)
async def test_faults(devices):
    misaligned = await devices[1].nvrtc.compile(SOURCE, "misaligned")
    with pytest.raises(atomr_trio.ContextLost):
        await misaligned.launch(1, 1, devices[1].zeros(8, np.int8))


@pytest.mark.gpu_faults
@pytest.mark.gpus(2)
async def test_faults_on_purpose(devices):
    await devices[0].restart("to try it")
    misaligned = await devices[1].nvrtc.compile(SOURCE, "misaligned")
    with pytest.raises(atomr_trio.ContextLost):
        await misaligned.launch(1, 1, devices[1].zeros(8, np.int8))


@pytest.mark.gpus(1)
async def test_restarts(devices):
    await devices[0].restart("to try it")
    assert len(devices) == 1


def test_both(gpu_worker_pools):
    async def main():
        async with atomr_trio.open_devices(
            [1, 0], backend=gpu_worker_pools.backend, workers=gpu_worker_pools
        ) as devices:
            assert [device.index for device in devices] == [1, 0]
        assert repr(gpu_worker_pools).startswith("<WorkerPools (")

    trio.run(main)
"""
)


@pytest.mark.long
def test_a_suite_has_the_devices_that_its_marks_name_and_skips_those_with_more_by_name(run, monkeypatch):
    skip_without(2)
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "2")
    count = gpu_count() if ON_GPU else 2
    if count > 2:
        pytest.skip("this machine has more than 2 GPUs")
    result = run(SEVERAL.replace("COUNT", str(count)), "-rs")
    result.assert_outcomes(passed=5, failed=1, skipped=2)
    (report,) = failures(result).values()
    assert re.search(r"device 1: generation 1 was lost: .*misaligned address.* \(in flight: .*launch of mis", report)
    result.stdout.re_match_lines([r"SKIPPED .*: test_too_many needs 3 GPUs, and 2 are there"])
    result.stdout.re_match_lines([r"device 0 of groups: \d started, \d+ reused"])


@pytest.mark.parametrize("arguments", [(), ("2",), (0,), (True,), (1, 2), {"count": 2}], ids=str)
def test_a_mark_that_names_no_number_of_gpus_is_refused(arguments):
    named = arguments if isinstance(arguments, dict) else {}

    class Item:
        nodeid = "test_it.py::test_it"
        config = None

        @staticmethod
        def get_closest_marker(name):
            # A real mark needs the plugin to be installed, not only to be found.
            return SimpleNamespace(args=() if named else arguments, kwargs=named)

    with pytest.raises(pytest.UsageError, match=r"test_it\.py::test_it: the mark gpus takes a number of GPUs"):
        pytest_plugin.pytest_runtest_setup(Item)


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize("first", ["async def test_first(gpu_device): pass", "def test_first(plain_gpu_device): pass"])
def test_without_a_gpu_the_first_test_says_so_and_the_others_start_no_worker(run, monkeypatch, tmp_path, first):
    monkeypatch.setenv("ATOMR_TRIO_CUDA_PATH", str(tmp_path / "libcuda.so.1"))
    others = """
async def test_device(gpu_device): raise AssertionError
async def test_group(devices): raise AssertionError
def test_plain_device(plain_gpu_device): raise AssertionError
def test_plain_group(plain_devices): raise AssertionError
def test_nothing(): pass
"""
    result = run(first + others, "--gpu-backend=gpu")
    outcomes = result.parseoutcomes()
    assert outcomes.pop("passed") == 1
    assert sum(outcomes.values()) == 5
    printed = result.stdout.str()
    assert printed.count("\nthe library 'cuda' was not found") == 1, "with no more than the words of the error"
    assert printed.count("Places looked at:") == 1
    assert printed.count("pytest --gpu-backend=sim") == 1
    assert "open_device(0" not in printed
    assert "Traceback" not in printed
    told = failures(result)
    del told["test_first"]
    assert len(told) == 4
    for report in told.values():
        assert re.match(r"\nno device can be opened: \S+::test_first tells why\n", report)
    result.stdout.re_match_lines([r"device 0 \(cuda\): 2 started, "])


PLAIN = (
    HEADER
    + r"""
def launch(device, name, *arguments):
    device.nvrtc.compile(SOURCE, name).launch_nowait(1, 1, *arguments)


@pytest.fixture
def kept(plain_gpu_device):
    x = plain_gpu_device.to_device(np.arange(5))
    yield x
    assert x.to_host().tolist() == [0, 1, 2, 3, 4], "the device is open as long as this fixture needs it"


def test_scale(plain_gpu_device):
    x = plain_gpu_device.to_device(np.arange(128, dtype=np.float32))
    plain_gpu_device.nvrtc.compile(SOURCE, "scale").launch(1, 128, x, 2.0, 128)
    assert x.to_host().tolist() == [2 * i for i in range(128)]
    assert type(plain_gpu_device) is atomr_trio.plain.Device


def test_overrun(plain_gpu_device):
    overrun = plain_gpu_device.nvrtc.compile(SOURCE, "one_too_many")
    overrun.launch(1, 1, plain_gpu_device.empty(1000, np.int32), 1000)


def test_trap_and_leave(plain_gpu_device):
    launch(plain_gpu_device, "trap", plain_gpu_device.zeros(1, np.int32))


def test_trap_and_leave_with_a_fixture(plain_gpu_device, kept):
    launch(plain_gpu_device, "trap", plain_gpu_device.zeros(1, np.int32))


def test_trap_and_close(plain_gpu_device):
    launch(plain_gpu_device, "trap", plain_gpu_device.zeros(1, np.int32))
    plain_gpu_device.close()


def test_says_and_fails(plain_gpu_device):
    launch(plain_gpu_device, "say", 7)
    raise ZeroDivisionError


@pytest.mark.gpu_faults
def test_a_fault_that_is_meant(plain_gpu_device, kept):
    trap = plain_gpu_device.nvrtc.compile(SOURCE, "trap")
    with pytest.raises(atomr_trio.ContextLost):
        trap.launch(1, 1, plain_gpu_device.zeros(1, np.int32))


@pytest.fixture
def faulty(plain_gpu_device):
    yield
    launch(plain_gpu_device, "trap", plain_gpu_device.zeros(1, np.int32))


def test_a_fixture_that_faults_when_it_ends(faulty):
    pass


def test_what_the_device_is_like(plain_gpu_device):
    assert plain_gpu_device.generation == 1
    plain_gpu_device.restart("the test wants to")
    assert plain_gpu_device.statistics().restarts_left == math.inf
    one, two = plain_gpu_device.empty(10), plain_gpu_device.empty(10)
    assert abs(one.address - two.address) >= 2 << 20


async def test_an_async_test_is_told_what_to_do(plain_gpu_device):
    with pytest.raises(atomr_trio.OutsideRun, match="What to do"):
        plain_gpu_device.to_device(np.arange(4))


async def test_the_same_workers_serve_async_tests(gpu_device):
    assert gpu_device.generation == 1


@pytest.mark.gpus(1)
def test_group(plain_devices):
    (device,) = plain_devices
    assert device.to_device(np.arange(3)).to_host().tolist() == [0, 1, 2]


@pytest.mark.gpus(1)
def test_group_faults(plain_devices):
    launch(plain_devices[0], "trap", plain_devices[0].zeros(1, np.int32))
"""
)


@pytest.mark.long
def test_tests_without_async_have_a_device_with_the_same_checks_and_the_same_workers(run):
    result = run(PLAIN)
    result.assert_outcomes(passed=7, failed=6, errors=1)
    told = failures(result)
    assert list(told) == [
        "test_a_fixture_that_faults_when_it_ends",
        "test_overrun",
        "test_trap_and_leave",
        "test_trap_and_leave_with_a_fixture",
        "test_trap_and_close",
        "test_says_and_fails",
        "test_group_faults",
    ]
    assert "ContextLost: an illegal memory access" in told["test_overrun"]
    assert re.search(r"- Captured gpu faults call -+\ngeneration 1 was lost: ", told["test_overrun"])
    for name in ("test_trap_and_leave", "test_trap_and_leave_with_a_fixture", "test_trap_and_close"):
        assert "the test passed, but its device did not" in told[name], name
        assert re.search(r"was lost: .*launch fail.* \(in flight: .*launch of trap\)", told[name]), name
    assert re.search(r"device 0: generation 1 was lost: .*launch fail", told["test_group_faults"])
    assert "its device did not" in told["test_a_fixture_that_faults_when_it_ends"]
    assert re.search(r"- Captured gpu output call -+\nsaid 7\n", told["test_says_and_fails"])
    # Two processes to begin with, one more for each of six faults, and one for the restart.
    result.stdout.re_match_lines([r"device 0 \(\w+\): 9 started, \d+ reused; devices that waited for a start: 1"])


@pytest.mark.long
@pytest.mark.sim_only
def test_a_device_that_cannot_be_opened_for_another_reason_fails_its_test_alone(run):
    result = run(
        """
import pytest

@pytest.fixture
def full(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuDevicePrimaryCtxRetain:2:1")

def test_wrong(full, plain_gpu_device): raise AssertionError
async def test_wrong_too(full, gpu_device): raise AssertionError
async def test_right(gpu_device): assert gpu_device.generation == 1
def test_right_too(plain_gpu_device): assert plain_gpu_device.generation == 1
"""
    )
    result.assert_outcomes(passed=2, errors=1, failed=1)
    for report in failures(result).values():
        assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in report
        assert "What to do: " in report


@pytest.mark.long
def test_an_interrupt_does_not_wait_for_what_a_test_without_async_has_started(run):
    result = run(
        HEADER
        + """
def test_endless(plain_gpu_device):
    spin = plain_gpu_device.nvrtc.compile(SOURCE, "spin")
    spin.launch_nowait(1, 1, plain_gpu_device.zeros(1, np.int32))
    raise KeyboardInterrupt
""",
        "--gpu-hang-timeout=200",
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert result.duration < 100


def test_a_number_of_simulated_devices_that_is_none_is_refused_by_its_variable(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "many")
    with pytest.raises(pytest.UsageError, match="ATOMR_TRIO_SIM_DEVICES is 'many'"):
        pytest_plugin._device_index("auto", "sim")


def test_an_index_that_cannot_be_is_refused(run):
    assert run("def test_nothing(): pass", "--gpu-index=first").ret == pytest.ExitCode.USAGE_ERROR


def test_loading_the_plugin_imports_nothing_heavy():
    code = "import pytest; print('-- the plugin --', file=__import__('sys').stderr); import atomr_trio.pytest_plugin"
    command = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=60, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line}
    assert "_pytest.fixtures" in imported, "the list is there"
    heavy = {"trio", "numpy", "attr", "attrs", "outcome", "cuda", "atomr_cuda", "atomr_sim"}
    assert {name for name in imported if name.partition(".")[0] in heavy} == set()
    ours = {name for name in imported if name.startswith("atomr_trio")}
    names = {"atomr_trio.libraries", "atomr_trio.libraries.registered"}  # of which the public ones are
    assert ours == {"atomr_trio", "atomr_trio.pytest_plugin", *names}


def test_a_suite_that_asks_for_no_device_does_not_notice_the_plugin(run):
    result = run("def test_nothing(): pass")
    result.assert_outcomes(passed=1)
    assert "gpu" not in result.stdout.str().replace(f"--gpu-backend={chosen_backend()}", "").replace(os.getcwd(), "")
