"""Calls that the worker has made ready, to be made again and again straight from the ring."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from atomr_trio import CommandFailed
from atomr_trio._wire.protocol import INLINE_LIMIT
from support.rogue import gated
from support.sim_process import run_in_process

N = 64


@pytest.fixture
async def x(dev):
    return await dev.to_device(np.arange(N, dtype=np.float64))


@pytest.mark.sim_only
def test_what_a_call_made_ready_does():
    run_in_process(
        """
        import struct, threading
        from types import SimpleNamespace
        import atomr_sim
        from atomr_trio._calls.verbs import Scalar, _write, Answer
        from atomr_trio.libraries.blas.records import BLAS, flags
        from atomr_trio._wire.records.calls import HEAD
        from atomr_trio.libraries.blas.engine import blas_engine

        begin()
        def lane_of(index):
            weighed = lambda ticket, entries: None
            return SimpleNamespace(index=index, stream=stream(), calling=threading.Lock(), weigh=weighed)

        lane, elsewhere = lane_of(0), lane_of(1)
        engine = blas_engine(SimpleNamespace())
        room = allocate(1 << 16)
        number = {name: BLAS.numbers[name] for name in BLAS.functions}

        def record(function, *arguments, setting=0):
            written = _write(arguments)
            return HEAD.pack(number[function], setting, written.scalars, written.answers, 0, 0) + written.words

        def general(payload):
            engine.calls[BLAS.call.number](SimpleNamespace(payload=payload, ticket=1), lane)

        def content():
            driver.cuStreamSynchronize(lane.stream)
            return struct.unpack("<4d", read(room, 32))

        two = Scalar.of(2, "float64")
        scale = record("cublasDscal_64", 4, two, room, 1)
        by_device = record("cublasDscal_64", 4, room + 64, room, 1, setting=flags(device_scalars=True))
        write(room, struct.pack("<4d", 1, 2, 3, 4))
        write(room + 64, struct.pack("<d", 10))

        # Nothing is ready before the library has been called in the lane, and nothing that answers ever is.
        assert engine.hot_call(BLAS.call.number, scale, lane) is None
        general(scale)
        assert engine.hot_call(BLAS.call.number, scale, elsewhere) is None
        assert engine.hot_call(BLAS.call.number, by_device, lane) is not None
        general(record("cublasDnrm2_64", 4, room, 1, Answer(), setting=flags(device_scalars=True)))
        answers = record("cublasDnrm2_64", 4, room, 1, Answer(), setting=flags(device_scalars=True))
        assert engine.hot_call(BLAS.call.number, answers, lane) is None

        # The handle is set as each of them wants it, whoever came between.
        again, _ = engine.hot_call(BLAS.call.number, scale, lane)
        tenfold, _ = engine.hot_call(BLAS.call.number, by_device, lane)
        assert content() == (2, 4, 6, 8)
        for made, expected in ((again, 4), (tenfold, 40), (tenfold, 400), (again, 800), (again, 1600)):
            assert made(0) == 0
            assert content()[0] == expected
        general(by_device)
        assert again(0) == 0 and content()[0] == 32000

        # A refusal comes as a status, and what it means is asked for.
        again, error_of = engine.hot_call(BLAS.call.number, scale, lane)
        atomr_sim.inject("cublasDscal_64:7:1")
        status = again(0)
        assert status == 7 and error_of(status).function == "cublasDscal_v2_64"
        # So does a handle that could not be set; the next call sets it anew.
        assert tenfold(0) == 0
        atomr_sim.inject("cublasSetPointerMode:1:1")
        status = again(0)
        assert status != 0 and error_of(status).function == "cublasSetPointerMode_v2", error_of(status)
        before = content()[0]
        assert again(0) == 0 and content()[0] == 2 * before
        """
    )


async def test_calls_alternate_with_others_of_their_lane(dev, x):
    """Scalars of the host and of the device, kernels of the memory actor, and a product, in one order all along."""
    half, y, ones = dev.full((), 0.5), dev.zeros(N), dev.full(N, 1.0)
    a, out = dev.full((8, 8), 0.5, np.float32), dev.zeros((8, 8), np.float32)
    expected = np.zeros(N)
    async with dev.batch() as batch:
        for number in range(40):
            batch.blas.axpy(x, y, 2.0)
            batch.blas.scal(y, half)
            batch.blas.gemm(a, a, out=out, compute="tf32" if number % 3 else None)
            batch.blas.axpy(ones, y)
            expected = (expected + 2 * np.arange(N)) / 2 + 1
            if number % 7 == 6:
                batch.fill(y, 0)
                expected[:] = 0
    np.testing.assert_allclose(await y.to_host(), expected, rtol=1e-14)
    assert (await out.to_host() == 2).all()


async def test_a_lane_that_was_closed_leaves_no_call_behind(dev, x):
    y = dev.zeros(N)
    for rounds in range(1, 4):
        async with dev.lane() as lane:
            for _ in range(3):
                async with dev.batch(lane=lane) as batch:
                    for _ in range(5):
                        batch.blas.axpy(x, y)
        assert (await y.to_host() == 15 * rounds * np.arange(N)).all()


async def test_calls_of_many_tasks_at_once(dev, x):
    y = dev.zeros(N)

    async def add():
        for _ in range(20):
            await dev.blas.axpy(x, y)

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(add)
    assert (await y.to_host() == 160 * np.arange(N)).all()


async def test_repeated_calls_that_have_no_room_in_the_stream(dev, x):
    """The lane's thread makes them, and the workspace that they had may be another by the time of their turn."""
    short, long = dev.full(65_536, 1, np.complex64), dev.full(131_072, 1, np.complex64)
    results = [dev.zeros(each.shape, np.complex64) for each in (short, long)]
    y = dev.zeros(N)
    await dev.fft.fft(short, out=results[0])
    await dev.fft.fft(short, out=results[0])
    await dev.blas.axpy(x, y)
    async with gated(dev) as gate, dev.batch() as batch:
        for number in range(INLINE_LIMIT + 100):
            batch.blas.axpy(x, y)
            if number == INLINE_LIMIT:
                batch.fft.fft(long, out=results[1])
            if number > INLINE_LIMIT and number % 30 == 0:
                batch.fft.fft(short, out=results[0])
        await gate.open()
    assert (await y.to_host() == (INLINE_LIMIT + 101) * np.arange(N)).all()
    for each, result in zip((short, long), results, strict=True):
        expected = np.zeros(each.shape, np.complex64)
        expected[0] = each.size
        np.testing.assert_allclose(await result.to_host(), expected, atol=1e-3)


@pytest.mark.sim_only
async def test_a_call_that_is_refused_fails_alone(open_test_device, monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cublasDaxpy_64:7:11")
    async with open_test_device() as dev:
        x, y = await dev.to_device(np.arange(N, dtype=np.float64)), dev.zeros(N)

        async def add_in_batch():
            async with dev.batch() as batch:
                for _ in range(20):
                    batch.blas.axpy(x, y)

        with pytest.raises(CommandFailed) as failed:
            await add_in_batch()
        assert (failed.value.library, failed.value.status, failed.value.operation) == ("cublas", 7, "blas.axpy")
        assert (await y.to_host() == 19 * np.arange(N)).all()
        await dev.blas.axpy(x, y)
        assert (await y.to_host() == 20 * np.arange(N)).all()
