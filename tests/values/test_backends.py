"""The names of the backends: which are accepted, and what a device says of its own."""

from __future__ import annotations

import pytest

import atomr_trio
from atomr_trio._values.backends import chosen_backend
from atomr_trio.testing import WorkerPool
from support import open_test_device

VARIABLE = "ATOMR_TRIO_BACKEND"


@pytest.mark.parametrize(
    ("argument", "variable", "expected"),
    [
        *[(None, "", "cuda"), (None, "sim", "sim"), (None, "gpu", "cuda"), (None, "cuda", "cuda")],
        *[("gpu", "sim", "cuda"), ("cuda", "sim", "cuda"), ("sim", "gpu", "sim"), ("sim", "abacus", "sim")],
    ],
)
def test_the_argument_comes_before_the_environment_and_gpu_is_another_name_of_cuda(
    monkeypatch, argument, variable, expected
):
    monkeypatch.setenv(VARIABLE, variable)
    assert chosen_backend(argument) == expected
    with WorkerPool(0, argument, spares=0) as pool:
        assert pool.backend == expected
    assert chosen_backend(pool.backend) == expected


@pytest.mark.parametrize("name", ["GPU", "", "nvidia", 1])
async def test_another_name_is_refused_and_the_error_says_which_there_are(monkeypatch, name):
    monkeypatch.delenv(VARIABLE, raising=False)
    says = r'backend is "cuda" \(or "gpu", which means the same\) or "sim", not ' + repr(name)
    with pytest.raises(atomr_trio.InvalidArgument, match=says):
        async with open_test_device(backend=name):
            raise AssertionError("the body must not run")
    with pytest.raises(atomr_trio.InvalidArgument, match=says):
        WorkerPool(0, name)


async def test_another_name_in_the_environment_is_refused_by_the_name_of_the_variable(monkeypatch):
    monkeypatch.setenv(VARIABLE, "abacus")
    with pytest.raises(atomr_trio.InvalidArgument, match=f"the environment variable {VARIABLE} is .*, not 'abacus'"):
        async with open_test_device(backend=None):
            raise AssertionError("the body must not run")


async def test_a_device_that_was_asked_for_as_gpu_says_cuda(backend):
    named = {"cuda": "gpu", "sim": "sim"}[backend]
    with WorkerPool(0, named, spares=0) as pool:
        async with open_test_device(backend=named, workers=pool) as dev:
            assert (dev.backend, dev.info.backend) == (backend, backend)


def test_a_pool_gives_workers_to_either_name():
    with WorkerPool(0, "cuda", spares=0) as pool:
        worker = pool.take("gpu", 0)
        assert worker.backend == "cuda"
        pool.give_back(worker)
        with pytest.raises(atomr_trio.InvalidArgument, match=r"no worker for device 0 \(sim\)"):
            pool.take("sim", 0)
