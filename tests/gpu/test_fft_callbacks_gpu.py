"""What transforms with callbacks compute: windows multiplied as the input is read, factors as the result is written."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import CommandFailed, ContextLost, InvalidArgument, NvrtcOptions, writes
from support.fft import assert_near, exact, numbers, result_dtype
from support.fft_callbacks import REALS, scaled, weights, window
from support.rogue import kill_worker

DEADLINE = 120
FACTOR = 0.75

TRANSFORMS: dict[str, tuple[str, tuple[int, ...], str, dict[str, Any]]] = {
    "complex": ("fft", (8, 64), "complex64", {}),
    "complex double": ("fft", (8, 64), "complex128", {}),
    "complex backwards": ("ifft", (8, 60), "complex64", {"norm": "forward"}),
    "a prime": ("fft", (2, 1009), "complex64", {}),
    "long": ("fft", (1 << 17,), "complex64", {}),
    "real": ("rfft", (8, 64), "float32", {}),
    "real double": ("rfft", (3, 100), "float64", {}),
    "to real": ("irfft", (8, 33), "complex64", {"norm": "forward"}),
    "to real double": ("irfft", (8, 33), "complex128", {"norm": "forward"}),
    "an image": ("fft2", (5, 32, 64), "complex64", {}),
    "an image double": ("fft2", (48, 20), "complex128", {}),
    "a real image": ("rfft2", (5, 32, 64), "float32", {}),
    "to a real image": ("irfft2", (5, 32, 33), "complex64", {"norm": "forward"}),
    "a volume": ("fftn", (16, 8, 32), "complex64", {}),
}


def host_of(name: str, shape: tuple[int, ...], dtype: str) -> Any:
    """An input. That of a transform to real numbers is half the spectrum of such numbers."""
    if not name.startswith("i") or name == "ifft":
        return numbers(shape, dtype)
    real = numbers((*shape[:-1], 2 * (shape[-1] - 1)), REALS[dtype])
    return (np.fft.rfft2 if name.endswith("2") else np.fft.rfft)(real).astype(dtype)


@pytest.mark.parametrize("hooks", ["load", "store", "both"])
@pytest.mark.parametrize(("name", "shape", "dtype", "keywords"), TRANSFORMS.values(), ids=TRANSFORMS.keys())
async def test_callbacks_see_each_element_of_the_input_and_the_output(dev, name, shape, dtype, keywords, hooks):
    row = shape[-1]
    host, by = host_of(name, shape, dtype), weights(row, dtype)
    out_dtype = result_dtype(name, dtype)
    given: dict[str, Any] = {}
    seen = host
    if hooks != "store":
        given |= {
            "load": await dev.fft.callback(window(dtype, row), "window"),
            "load_info": await dev.to_device(by),
            "overwrite_x": name.startswith("irfft"),
        }
        seen = host.astype("complex128" if dtype.startswith("complex") else "float64") * by
    expected = exact(name, seen, **keywords)
    if hooks != "load":
        given |= {
            "store": await dev.fft.callback(scaled(out_dtype), "scaled"),
            "store_info": await dev.to_device(np.array([FACTOR], REALS[dtype])),
        }
        expected = expected * FACTOR
    plan = dev.fft.plan(name, shape, dtype, **keywords, **given)
    x = await dev.to_device(host)
    found = await (await plan(x)).to_host()
    assert found.dtype.name == out_dtype
    assert_near(found, expected, max(host.size, 2), bluestein=1009 in shape)
    if not plan.overwrite_x:
        assert ((await x.to_host()) == host).all()


async def test_an_offset_is_that_of_the_array_with_its_gaps(dev):
    whole = numbers((6, 40), "complex64")
    by = weights(40, "complex64")
    load = await dev.fft.callback(window("complex64", 40), "window")
    plan = dev.fft.plan("fft", (6, 32), "complex64", strides=(320, 8), load=load, load_info=await dev.to_device(by))
    x = (await dev.to_device(whole))[:, :32]
    assert_near(await (await plan(x)).to_host(), exact("fft", (whole * by)[:, :32]), 32)
    plan = dev.fft.plan(
        "fft", (32, 6), "complex64", axis=0, strides=(8, 320), load=load, load_info=await dev.to_device(by)
    )
    assert_near(await (await plan(x.T)).to_host(), exact("fft", (whole * by)[:, :32].T, axis=0), 32)


async def test_a_transform_in_place_loads_and_stores(dev):
    host, by = numbers((8, 64), "complex64"), weights(64, "complex64")
    plan = dev.fft.plan(
        *("fft", (8, 64), "complex64"),
        load=await dev.fft.callback(window("complex64", 64), "window"),
        load_info=await dev.to_device(by),
        store=await dev.fft.callback(scaled("complex64", "0.5f"), "scaled"),
    )
    x = await dev.to_device(host)
    assert await plan(x, x) is x
    assert_near(await x.to_host(), exact("fft", host * by) * 0.5, 64)


async def test_what_a_load_leaves_to_be_scaled_is_scaled(dev):
    host, by = numbers((8, 64), "complex64"), weights(64, "complex64")
    load = await dev.fft.callback(window("complex64", 64), "window")
    plan = dev.fft.plan("ifft", (8, 64), "complex64", load=load, load_info=await dev.to_device(by))
    assert_near(await (await plan(await dev.to_device(host))).to_host(), exact("ifft", host * by), 64)


async def test_half_a_spectrum_is_copied_before_a_store_and_lasts(dev):
    host = host_of("irfft2", (5, 32, 33), "complex64")
    store = await dev.fft.callback(scaled("float32", "2.0f"), "scaled")
    plan = dev.fft.plan("irfft2", (5, 32, 33), "complex64", store=store)
    x = await dev.to_device(host)
    assert_near(await (await plan(x)).to_host(), exact("irfft2", host) * 2, 32 * 64)
    assert ((await x.to_host()) == host).all()


async def test_a_plan_keeps_what_its_callbacks_are_given_and_sees_when_it_changes(dev):
    host = numbers((4, 16), "complex64")
    x = await dev.to_device(host)
    info = await dev.to_device(np.ones(16, np.float32))
    load = await dev.fft.callback(window("complex64", 16), "window")
    plan = dev.fft.plan("fft", (4, 16), "complex64", load=load, load_info=info)
    assert_near(await (await plan(x)).to_host(), exact("fft", host), 16)
    by = weights(16, "complex64")
    await info.copy_from(by)
    del info
    gc.collect()
    others = [dev.full(16, 9, "float32") for _ in range(8)]
    for _ in range(3):
        assert_near(await (await plan(x)).to_host(), exact("fft", host * by), 16)
    again = dev.fft.plan("fft", (4, 16), "complex64", load=load, load_info=others[0])
    assert_near(await (await again(x)).to_host(), exact("fft", host * 9), 16)
    others[0].free()
    with pytest.raises(InvalidArgument, match="the array was freed"):
        await again(x)


async def test_a_callback_may_write_what_it_is_given(dev):
    counts = dev.zeros(64, "uint32")
    more = "atomicAdd((unsigned *)info + at % 64, 1u);"
    store = await dev.fft.callback(scaled("complex64", "1.0f", more=more), "scaled")
    plan = dev.fft.plan("fft", (8, 64), "complex64", store=store, store_info=writes(counts))
    host = numbers((8, 64), "complex64")
    for round_ in (1, 2):
        assert_near(await (await plan(await dev.to_device(host))).to_host(), exact("fft", host), 64)
        assert ((await counts.to_host()) == 8 * round_).all()


@pytest.mark.parametrize("standby", [0, 1])
async def test_a_plan_with_callbacks_outlives_a_loss_and_gives_the_same_bits(open_test_device, standby):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=standby) as dev:
            if standby:
                await dev.wait_standby()
            host, by = numbers((8, 64), "float32"), weights(64, "float32")
            load = await dev.fft.callback(window("float32", 64), "window")
            plan = dev.fft.plan("rfft", (8, 64), "float32", load=load, load_info=await dev.to_device(by))
            x = await dev.to_device(host)
            before = await (await plan(x)).to_host()
            assert_near(before, exact("rfft", host.astype(np.float64) * by), 64)
            generation = dev.generation
            kill_worker(dev)
            await dev.wait_generation(after=generation)
            assert ((await (await plan(x)).to_host()) == before).all()


async def test_transforms_with_callbacks_in_batches_and_graphs_and_on_a_lane(dev):
    host, by = numbers((8, 64), "complex64"), weights(64, "complex64")
    info = await dev.to_device(by)
    load = await dev.fft.callback(window("complex64", 64), "window")
    store = await dev.fft.callback(scaled("complex64", "0.5f"), "scaled")
    plan = dev.fft.plan("fft", (8, 64), "complex64", load=load, load_info=info)
    other = dev.fft.plan("fft", (8, 64), "complex64", store=store)
    x, y = await dev.to_device(host), dev.zeros((8, 64), "complex64")
    expected = exact("fft", exact("fft", host * by)) * 0.5
    async with dev.lane() as lane:
        for where in ({}, {"lane": lane}):
            async with dev.batch(**where) as batch:
                result = batch.fft.run(other, batch.fft.run(plan, x))
            assert_near(await result.to_host(), expected, 64 * 64)

    def record(recorder: Any) -> None:
        recorder.fft.run(plan, x, y)
        recorder.fft.run(other, y, y)

    graph = await dev.capture(record)
    for _ in range(2):
        await y.fill(0)
        await graph.launch()
        assert_near(await y.to_host(), expected, 64 * 64)


TABLE = np.random.default_rng(3).uniform(0.5, 2, 40_000).astype(np.float32)


async def test_a_callback_of_a_megabyte_reaches_cufft(dev):
    numbers_ = ",".join(f"{value!r}f" for value in map(float, TABLE))
    source = f"static __device__ const float table[] = {{{numbers_}}};\n"
    source += window("complex64", len(TABLE)).replace("((const float *)info)[at % ROW]", "table[at % ROW]")
    load = await dev.fft.callback(source, "window")
    assert len(load._image) > 96 * 1024
    host = numbers((len(TABLE),), "complex64")
    plan = dev.fft.plan("fft", len(TABLE), "complex64", load=load)
    assert_near(await (await plan(await dev.to_device(host))).to_host(), exact("fft", host * TABLE), len(TABLE))


async def test_a_callback_that_cannot_be_linked_fails_its_call_and_the_device_lives(dev):
    source = "__device__ float missing(float);\n" + scaled("complex64", "missing(2.0f)")
    plan = dev.fft.plan("fft", (8, 64), "complex64", store=await dev.fft.callback(source, "scaled"))
    host = numbers((8, 64), "complex64")
    x, generation = await dev.to_device(host), dev.generation
    for _ in range(2):
        with pytest.raises(CommandFailed, match="cuFFT could not link the callbacks"):
            await plan(x)
    assert_near(await (await dev.fft.fft(x)).to_host(), exact("fft", host), 64)
    whole = source + "__device__ float missing(float x) { return x; }"
    plan = dev.fft.plan("fft", (8, 64), "complex64", store=await dev.fft.callback(whole, "scaled"))
    assert_near(await (await plan(x)).to_host(), exact("fft", host) * 2, 64)
    assert dev.generation == generation


async def test_a_fault_in_a_callback_is_a_loss_as_in_a_kernel(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            host = numbers((8, 64), "complex64")
            x, generation = await dev.to_device(host), dev.generation
            store = await dev.fft.callback(scaled("complex64", "1.0f", more="__trap();"), "scaled")
            plan = dev.fft.plan("fft", (8, 64), "complex64", store=store)
            with pytest.raises(ContextLost):
                await (await plan(x)).to_host()
            await dev.wait_generation(after=generation)
            assert_near(await (await dev.fft.fft(x)).to_host(), exact("fft", host), 64)


async def test_options_of_the_compile_reach_a_callback(dev):
    options = NvrtcOptions(defines={"FACTOR": "3.0f"}, arch="compute_80")
    store = await dev.fft.callback(scaled("complex64", "FACTOR"), "scaled", options)
    host = numbers((8, 64), "complex64")
    found = await dev.fft.plan("fft", (8, 64), "complex64", store=store)(await dev.to_device(host))
    assert_near(await found.to_host(), exact("fft", host) * 3, 64)
