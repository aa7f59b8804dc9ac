"""Plans of transforms: those that users hold, and those that workers make, after losses, on lanes and in standbys."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import ContextLost, FftPlan, InvalidArgument, OutOfDeviceMemory, OutOfHostMemory, RestartPolicy
from atomr_trio._calls import plans
from atomr_trio._calls.known import KnownCalls
from atomr_trio._device.device import core_of
from atomr_trio.libraries.fft import verbs
from atomr_trio.libraries.fft.programs import transform_program
from support import set_constant
from support.blas import submitted
from support.fft import assert_near, exact, numbers
from support.linear import FORMS
from support.rogue import gated, kill_worker

pytestmark = pytest.mark.used_workers

DEADLINE = 60
MIB = 1 << 20
OFTEN = RestartPolicy(intensity=20)


async def lose(dev: Any) -> None:
    generation = dev.generation
    kill_worker(dev)
    await dev.wait_generation(after=generation)


def plans_of(dev: Any, generation: Any = None) -> set[tuple[int, int]]:
    return set((generation or core_of(dev).current).plans)


# --- those of users ---------------------------------------------------------------------------------------------------

PLANS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fft": ("complex64", {}, {"axis": -1}),
    "ifft": ("float32", {"n": 9, "axis": 0, "norm": "ortho"}, {"n": 9, "axis": 0, "norm": "ortho"}),
    "rfft": ("float64", {"n": 5}, {"n": 5}),
    "hfft": ("complex128", {"norm": "forward"}, {"norm": "forward"}),
    "rfft2": ("float32", {"s": (4, 4)}, {"s": (4, 4)}),
    "irfftn": ("complex64", {"axes": (1, 0)}, {"axes": (1, 0)}),
}


@pytest.mark.parametrize("batched", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("kind", PLANS)
async def test_a_plan_is_called_like_a_verb(dev, kind, batched):
    dtype, given, keywords = PLANS[kind]
    plan = dev.fft.plan(kind, (6, 8), dtype, **given)
    for seed in range(2):
        host = numbers((6, 8), dtype, seed)
        x, expected = await dev.to_device(host), exact(kind, host, **keywords)
        assert (plan.kind, plan.shape, plan.dtype, plan.out_shape) == (kind, (6, 8), np.dtype(dtype), expected.shape)
        out = dev.zeros(plan.out_shape, plan.out_dtype)
        for target in (None, out):
            if batched:
                async with dev.batch() as batch:
                    result = batch.fft.run(plan, x, target)
            else:
                result = await plan(x, target)
            assert target is None or result is target
            assert_near(await result.to_host(), expected, 96)


async def test_a_plan_says_what_it_is_and_cannot_be_made_by_hand(dev):
    plan = dev.fft.plan("rfft", 8, "float32")
    assert repr(plan) == "<FftPlan rfft of (8,) float32, to (5,) complex64>"
    assert (plan.strides, plan.out_strides, plan.overwrite_x) == ((4,), (8,), False)
    with pytest.raises(TypeError, match="no public constructor"):
        FftPlan()


async def test_a_plan_has_the_layouts_that_it_is_given(dev):
    plan = dev.fft.plan("fft", (4, 6), "complex64", axis=0, strides=(8, 32), out_strides=(-96, 16))
    host = numbers((6, 4), "complex64")
    out = dev.zeros((4, 12), "complex64")[::-1, ::2]
    assert await plan((await dev.to_device(host)).T, out) is out
    assert_near(await out.to_host(), exact("fft", host.T, axis=0), 4)


@pytest.mark.long
async def test_a_plan_outlives_a_loss_and_gives_the_same_bits(open_test_device):
    async with open_test_device() as dev:
        plan = dev.fft.plan("irfft2", (6, 8), "complex64")
        x = await dev.to_device(numbers((6, 8), "complex64"))
        before = await (await plan(x)).to_host()
        await lose(dev)
        assert ((await (await plan(x)).to_host()) == before).all()


async def test_a_plan_for_other_arrays_is_refused_and_nothing_is_sent(dev, open_test_device):
    plan = dev.fft.plan("rfft", (4, 6), "float32")
    x, out = dev.zeros((4, 6), "float32"), dev.zeros((4, 4), "complex64")
    before = submitted(dev)
    async with open_test_device() as other, dev.batch() as batch:
        for match, arguments in (
            ("the plan is for shape .4, 6. and dtype float32; x has .6, 4., float32", (dev.zeros((6, 4), "float32"),)),
            ("x has .4, 6., float64", (dev.zeros((4, 6), "float64"),)),
            (r"strides of \(24, 4\) bytes; x has \(4, 16\)", (dev.zeros((6, 4), "float32").T,)),
            (r"strides of \(32, 8\) bytes; out has", (x, dev.zeros((4, 4), "complex64").T)),
            ("out has shape .4, 3. and dtype complex64", (x, dev.zeros((4, 3), "complex64"))),
            ("out has shape .4, 4. and dtype complex128", (x, dev.zeros((4, 4), "complex128"))),
            ("belongs to another device", (other.zeros((4, 6), "float32"),)),
            ("out is an array on the device", (x, "out")),
            ("x is an array on the device", (np.zeros((4, 6), np.float32),)),
        ):
            with pytest.raises(InvalidArgument, match=match):
                await plan(*arguments)
            with pytest.raises(InvalidArgument, match=match):
                batch.fft.run(plan, *arguments)
        for wrong in ("rfft", None, plan.kind):
            with pytest.raises(InvalidArgument, match="plan is made by"):
                await dev.fft.run(wrong, x)
        with pytest.raises(InvalidArgument, match="belongs to another device"):
            await other.fft.run(plan, x, out)
    assert submitted(dev) == before


async def test_a_plan_that_cannot_be_is_refused(dev):
    for match, arguments, keywords in (
        ("kind is one of fft, ", ("dct", (4,), "float32"), {}),
        ("kind is one of", (None, (4,), "float32"), {}),
        ("takes real numbers", ("rfft", (4,), "complex64"), {}),
        ("float8_e5m2 is not supported", ("fft", (4,), "float8_e5m2"), {}),
        ("not a numpy dtype", ("fft", (4,), "f3"), {}),
        ("axis 2 is out of range", ("fft", (4, 4), "float32"), {"axis": 2}),
        ("at least 1 point", ("fft", (4, 0), "float32"), {}),
        ("fft has no argument s: give n and axis", ("fft", (4, 4), "float32"), {"s": (4,)}),
        ("fftn has no argument n: give s and axes", ("fftn", (4, 4), "float32"), {"n": 4}),
        ("strides has 1 numbers", ("fft", (4, 4), "float32"), {"strides": (4,)}),
        ("out_strides is a sequence", ("fft", (4, 4), "float32"), {"out_strides": 4}),
        ('norm is "backward"', ("fft", (4, 4), "float32"), {"norm": "both"}),
    ):
        with pytest.raises(InvalidArgument, match=match):
            dev.fft.plan(*arguments, **keywords)


# --- those of workers -------------------------------------------------------------------------------------------------


async def test_equal_transforms_are_one_plan_and_repeated_ones_are_known(open_test_device):
    async with open_test_device() as dev:
        first, second = [await dev.to_device(numbers((4, 6), "float32", seed)) for seed in (0, 1)]
        for array in (first, second, first):
            await dev.fft.rfft(array)
        await dev.fft.rfft(first, n=6, axis=1, norm="backward")
        assert len(plans_of(dev)) == 1
        known = core_of(dev).part(KnownCalls)._calls
        before = len(known)
        await dev.fft.rfft(first)
        assert len(known) == before
        await dev.fft.rfft(first, axis=0)
        assert len(plans_of(dev)) == 2


@pytest.mark.long
async def test_a_thousand_transforms_are_the_first_thing_in_a_batch_before_and_after_a_loss(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=OFTEN) as dev:
            hosts = [numbers((4, 6), "float32"), numbers((4, 5), "complex64"), numbers((3, 131), "float64")]
            arrays = [await dev.to_device(each) for each in hosts]
            bits: set[bytes] = set()
            for _ in range(2):
                async with dev.batch() as batch:
                    results = [
                        verb(each)
                        for _ in range(334)
                        for verb, each in zip((batch.fft.rfft, batch.fft.irfft, batch.fft.ifft2), arrays, strict=True)
                    ]
                found = [await each.to_host() for each in results[-3:]]
                for name, host, each in zip(("rfft", "irfft", "ifft2"), hosts, found, strict=True):
                    assert_near(each, exact(name, host), 400, bluestein=True)
                bits.add(b"".join(each.tobytes() for each in found))
                await lose(dev)
            assert len(bits) == 1


async def test_two_lanes_transform_at_once_with_plans_and_workspaces_of_their_own(open_test_device):
    async with open_test_device() as dev, dev.lane() as lane:
        hosts = [numbers((8, 600), "complex64", seed) for seed in range(2)]
        arrays = [await dev.to_device(each) for each in hosts]
        async with dev.batch() as one, dev.batch(lane=lane) as two:
            results = [
                [batch.fft.fft(array, axis=axis) for axis in (0, 1) * 20]
                for batch, array in zip((one, two), arrays, strict=True)
            ]
        for host, each in zip(hosts, results, strict=True):
            for axis in (0, 1):
                assert_near(await each[axis].to_host(), exact("fft", host, axis=axis), 600)
        assert len({place for place, _ in plans_of(dev)}) == 2


async def test_a_loss_tears_an_input_that_may_be_overwritten_and_no_other(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            lost, read, kept = [await dev.to_device(numbers((4, 6), "complex64", seed)) for seed in range(3)]

            async def transform() -> None:
                async with gated(dev), dev.batch() as batch:
                    batch.fft.irfft(lost, overwrite_x=True)
                    batch.fft.irfft(read)
                    batch.fft.fft(kept, overwrite_x=True)
                    kill_worker(dev)

            with pytest.raises(ContextLost):
                await transform()
            assert [each.state for each in (lost, read, kept)] == ["torn", "ready", "ready"]


async def test_a_standby_has_the_plans_before_it_serves(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1) as dev:
            await dev.wait_standby()
            host = numbers((4, 6), "float32")
            x = await dev.to_device(host)
            before = await (await dev.fft.rfft2(x)).to_host()
            assert_near(before, exact("rfft2", host), 24)
            (standby,) = core_of(dev).current.standbys
            assert plans_of(dev, standby) == plans_of(dev)
            await lose(dev)
            assert ((await (await dev.fft.rfft2(x)).to_host()) == before).all()


async def test_a_plan_that_is_larger_than_a_message_reaches_a_worker_and_its_standby(open_test_device, monkeypatch):
    def large(problem: Any) -> Any:
        return transform_program(problem)._replace(texts={3: "x" * MIB})

    monkeypatch.setattr(verbs, "transform_program", large)
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1) as dev:
            await dev.wait_standby()
            host = numbers((4, 6), "float32")
            x = await dev.to_device(host)
            for _ in range(2):
                assert_near(await (await dev.fft.rfft(x)).to_host(), exact("rfft", host), 6)
                await lose(dev)


async def test_a_plan_that_cannot_be_handed_over_fails_its_call_and_no_other(dev, monkeypatch):
    x = await dev.to_device(numbers((4, 6), "float32"))

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    set_constant(monkeypatch, plans, "MOST_DEFINED", 0)
    with monkeypatch.context() as patch:
        patch.setattr(plans.os, "memfd_create", refuse)
        with pytest.raises(OutOfHostMemory, match="cannot be handed to the worker: no file descriptor is left"):
            await dev.fft.rfft(x)
    assert_near(await (await dev.fft.rfft(x)).to_host(), exact("rfft", numbers((4, 6), "float32")), 6)


async def test_more_transforms_than_plans_are_kept_come_back_silently(open_test_device):
    async with open_test_device(plan_cache=2) as dev:
        for length in [3, 4, 5, 6] * 2:
            host = numbers((2, length), "float32")
            assert_near(await (await dev.fft.fft(await dev.to_device(host))).to_host(), exact("fft", host), length)
        assert len(plans_of(dev)) <= 2


async def test_a_transform_whose_workspace_is_more_than_the_memory_left_is_refused(open_test_device):
    async with open_test_device(memory_limit=128 * MIB) as dev:
        x = dev.zeros((5_242_877,), "complex64")  # a prime, for which cuFFT needs several times its size
        with pytest.raises(OutOfDeviceMemory):
            await dev.fft.fft(x, out=x)
        small = await dev.to_device(numbers((8,), "complex64"))
        assert_near(await (await dev.fft.fft(small)).to_host(), exact("fft", numbers((8,), "complex64")), 8)


async def test_a_known_transform_with_a_new_result_is_made_for_each(dev):
    x = await dev.to_device(numbers((4, 6), "float32"))
    results = [await dev.fft.rfft(x) for _ in range(4)]
    assert len({each.address for each in results}) == 4
    expected = exact("rfft", numbers((4, 6), "float32"))
    for each in results:
        assert_near(await each.to_host(), expected, 6)
