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

        def record(function, *arguments, setting=0, answer=0):
            written = _write(arguments)
            return HEAD.pack(number[function], setting, written.scalars, written.answers, answer, 0) + written.words

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

        # Nothing is ready before the library has been called in the lane, and no answer without a word for its place.
        assert engine.hot_call(BLAS.call.number, scale, lane) is None
        general(scale)
        assert engine.hot_call(BLAS.call.number, scale, elsewhere) is None
        assert engine.hot_call(BLAS.call.number, by_device, lane) is not None
        general(record("cublasDnrm2_64", 4, room, 1, Answer(), setting=flags(device_scalars=True)))
        answers = record("cublasDnrm2_64", 4, room, 1, Answer(), setting=flags(device_scalars=True), answer=8)
        assert engine.hot_call(BLAS.call.number, answers, lane) is None

        # The handle is set as each of them wants it, whoever came between.
        again, *_ = engine.hot_call(BLAS.call.number, scale, lane)
        tenfold, *_ = engine.hot_call(BLAS.call.number, by_device, lane)
        assert content() == (2, 4, 6, 8)
        for made, expected in ((again, 4), (tenfold, 40), (tenfold, 400), (again, 800), (again, 1600)):
            assert made(0) == 0
            assert content()[0] == expected
        general(by_device)
        assert again(0) == 0 and content()[0] == 32000

        # A refusal comes as a status, and what it means is asked for.
        again, error_of, *_ = engine.hot_call(BLAS.call.number, scale, lane)
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


@pytest.mark.sim_only
def test_a_call_for_native_code_has_its_arguments_and_the_places_of_its_words():
    run_in_process(
        """
        import struct, threading
        from types import SimpleNamespace
        from atomr_trio._calls.verbs import Answer, Scalar, _write
        from atomr_trio._wire.ready import with_holes
        from atomr_trio._wire.records.calls import HEAD, STAGING_AT, WORD
        from atomr_trio._wire.records.memory import OFFSET_MASK
        from atomr_trio.libraries.blas.engine import blas_engine
        from atomr_trio.libraries.blas.records import BLAS, flags

        begin()
        lane = SimpleNamespace(
            index=0, stream=stream(), calling=threading.Lock(), weigh=lambda ticket, entries: None
        )
        raised = []
        host = ctypes.create_string_buffer(64)
        services = SimpleNamespace(give_up=raised.append, staged=lambda place: ctypes.addressof(host) + place)
        engine = blas_engine(services)
        room, verb = allocate(1 << 16), BLAS.call.number

        def record(function, *arguments, setting=0, answer=0):
            written = _write(arguments)
            head = (BLAS.numbers[function], setting, written.scalars, written.answers, answer, 0)
            return HEAD.pack(*head) + written.words

        def native(payload, *places):
            engine.calls[verb](SimpleNamespace(payload=payload, ticket=1), lane)
            return engine.hot_call(verb, with_holes(payload, places), lane, places).native()

        def made(form, *words):
            for target in form.targets:
                assert words[target.word] <= target.most
                ctypes.c_uint64.from_address(target.address).value = words[target.word] + target.base
            kind = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_uint64,) * 24)
            status = kind(form.function)(*form.arguments.view[:24])
            for each in form.then:
                status = status or kind(each.function)(*each.arguments.view[:24])
            driver.cuStreamSynchronize(lane.stream)
            return status

        def content(place):
            return struct.unpack("<2d", read(room + place, 16))

        add = record("cublasDaxpy_64", 2, Scalar.of(1, "float64"), room, 1, room + 256, 1)
        form = native(add, HEAD.size + WORD * 4, HEAD.size + WORD * 6)
        write(room, struct.pack("<2d", 5, 7))
        for factor, place in ((3.0, 512), (-0.5, 1024)):
            (bits,) = struct.unpack("<Q", struct.pack("<d", factor))
            assert made(form, room + place, bits) == 0
            assert content(place) == (factor * 5, factor * 7)
        # A negative step is a word like any other.
        assert made(native(record("cublasDcopy_64", 2, room, 1, room + 2048, -1))) == 0
        assert content(2048) == (7, 5)

        # It is for one setting of the handle.
        setting = ctypes.c_uint64.from_address(form.guard)
        assert setting.value == form.expected == 0
        by_device = record("cublasDaxpy_64", 2, room, room, 1, room + 256, 1, setting=flags(device_scalars=True))
        other = native(by_device)
        assert other.guard == form.guard and other.expected == setting.value == flags(device_scalars=True)

        # What is answered goes to the host by a second call, to a place in the first area.
        dot = record("cublasDdot_64", 2, room, 1, room, 1, Answer(), setting=flags(device_scalars=True), answer=8)
        answered = native(dot, STAGING_AT)
        for place in (16, 40):
            assert made(answered, place) == 0
            assert struct.unpack_from("<d", host, place) == (74,)
        assert [(target.word, target.most) for target in answered.targets] == [(0, OFFSET_MASK)]
        assert answered.then[0].refused(1).function == "cuMemcpyDtoHAsync_v2"
        assert not raised

        # A function that raises ends the worker, since C would go on.
        from atomr_trio._worker.base.pointers import pointer_to

        def fail(*arguments):
            raise RuntimeError("a bug")

        declared = SimpleNamespace(argtypes=(ctypes.c_void_p,), restype=ctypes.c_int, bind=lambda: fail)
        pointer = pointer_to(declared, raised.append)
        stderr, sys.stderr = sys.stderr, open(os.devnull, "w")
        sys.unraisablehook = lambda unraisable: None
        pointer(0)
        sys.stderr = stderr
        assert [str(bug) for bug in raised] == ["a bug"]
        # A structure by value is in no register that native code fills.
        class Pair(ctypes.Structure):
            _fields_ = [("first", ctypes.c_double), ("second", ctypes.c_int)]

        by_value = SimpleNamespace(argtypes=(Pair,), restype=ctypes.c_int, bind=lambda: fail)
        assert pointer_to(by_value, raised.append) is None
        """
    )


@pytest.mark.sim_only
def test_a_call_made_ready_takes_the_words_that_come_with_it():
    run_in_process(
        """
        import struct, threading
        from types import SimpleNamespace
        from atomr_trio._calls.verbs import Scalar, _write, Answer
        from atomr_trio._wire.ready import filled, with_holes
        from atomr_trio.libraries.blas.records import BLAS, flags
        from atomr_trio._wire.records.calls import HEAD, STAGING_AT, WORD
        from atomr_trio.libraries.blas.engine import blas_engine

        begin()
        host = ctypes.create_string_buffer(64)
        base = ctypes.addressof(host)
        weighed = lambda ticket, entries: None
        lane = SimpleNamespace(index=0, stream=stream(), calling=threading.Lock(), weigh=weighed)
        areas = {0: base}
        engine = blas_engine(SimpleNamespace(staged=lambda place: areas[0] + place))
        room = allocate(1 << 16)
        verb = BLAS.call.number

        def record(function, *arguments, setting=0, answer=0):
            written = _write(arguments)
            head = (BLAS.numbers[function], setting, written.scalars, written.answers, answer, 0)
            return HEAD.pack(*head) + written.words

        def general(payload):
            engine.calls[verb](SimpleNamespace(payload=payload, ticket=1), lane)

        def content(place, count=2):
            driver.cuStreamSynchronize(lane.stream)
            return struct.unpack(f"<{count}d", read(place, 8 * count))

        def ready(payload, *places):
            return engine.hot_call(verb, with_holes(payload, places), lane, places)

        def bits(number):
            return struct.unpack("<Q", struct.pack("<d", number))[0]

        # An address: the result of a sum is written to whatever place comes with the call.
        argument = lambda index: HEAD.size + WORD * index
        one = Scalar.of(1, "float64")
        add = record("cublasDaxpy_64", 2, one, room, 1, room + 256, 1)
        general(add)
        again, *_ = ready(add, argument(4))
        write(room, struct.pack("<2d", 5, 7))
        for place in (512, 1024, 512):
            before = content(room + place)
            assert again((room + place,)) == 0
            assert content(room + place) == (before[0] + 5, before[1] + 7)
        # Two addresses, given in another order than their places.
        both, *_ = ready(add, argument(4), argument(2))
        assert both((room + 2048, room + 512)) == 0
        assert content(room + 2048) == content(room + 512) == (10, 14)

        # A number that the function reads from the host.
        scalars = HEAD.size + WORD * 6
        scaled, *_ = ready(add, scalars, argument(4))
        for factor in (3.0, -0.5):
            before = content(room + 4096)
            assert scaled((bits(factor), room + 4096)) == 0
            assert content(room + 4096) == (before[0] + factor * 5, before[1] + factor * 7)
        # What was made ready before has its own number.
        assert again((room + 8192,)) == 0 and content(room + 8192) == (5, 7)

        # The place of an answer on the host.
        dot = record("cublasDdot_64", 2, room, 1, room, 1, Answer(), setting=flags(device_scalars=True), answer=8)
        assert ready(dot, STAGING_AT) is None
        general(dot)
        answered, error_of, *_ = ready(dot, STAGING_AT)
        for place in (16, 40):
            assert answered((place,)) == 0
            content(room)
            assert struct.unpack_from("<d", host, place) == (74,)
        # A place that is no place fails the call, and the next is made.
        areas.clear()
        status = answered((8,))
        assert status != 0 and isinstance(error_of(status), KeyError)
        areas[0] = base
        assert answered((8,)) == 0

        # No word may change what decides how the record is read.
        for place in (0, 2, 4, 8, 12):
            assert ready(add, place) is None
        assert ready(add, argument(0) + 4) is None
        assert ready(add, argument(1)) is None, "the offset of a scalar"
        assert ready(dot, STAGING_AT, argument(5)) is None, "the offset of an answer"
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
