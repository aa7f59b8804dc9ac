"""Verbs of several calls as one command: what crosses, what is repeated, and what a failure in the middle leaves."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from atomr_trio import (
    CommandFailed,
    Device,
    DeviceError,
    NotFiniteError,
    NotPositiveDefiniteError,
    SingularMatrixError,
    StaleArray,
)
from atomr_trio._calls import known_sequences
from atomr_trio._calls.known_sequences import KnownSequences
from atomr_trio._calls.sequences import SequenceRequest
from atomr_trio._device.device import core_of
from atomr_trio._generation.requests import Series
from atomr_trio._wire.protocol import Role
from atomr_trio._wire.records.sequences import Content, Hole, Step, pack_words, unpack_words
from atomr_trio.testing import ReturnStatus, inject
from support import set_constant

N = 5
NOT_SUPPORTED = 9

SINGLE: dict[str, tuple[str, ...]] = {
    "solve": ("a", "b"),
    "inv": ("a",),
    "cholesky": ("p",),
    "qr": ("a",),
    "lstsq": ("a", "b"),
    "eigh": ("p",),
    "eigvalsh": ("p",),
    "svd": ("a",),
    "getrf": ("a",),
    "potrf": ("p",),
    "geqrf": ("a",),
    "gels": ("a", "b"),
    "syevd": ("p",),
    "gesvd": ("a",),
    "det": ("a",),
    "slogdet": ("a",),
}
"""Verbs of one matrix, with their operands."""


def numbers(seed: int = 1, dtype: str = "float64") -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((N, N)) + N * np.eye(N)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal((N, N))
    return {"a": a.astype(dtype), "b": a[0].astype(dtype), "p": (a @ a.conj().T).astype(dtype)}


async def on_host(result: Any) -> list[Any]:
    each = result if isinstance(result, tuple) else (result,)
    return [one if one is None or isinstance(one, np.ndarray) else await one.to_host() for one in each]


def submitted(dev: Device) -> int:
    return sum(lane.submitted for lane in dev.statistics().lanes)


# --- what crosses -----------------------------------------------------------------------------------------------------

steps = st.builds(
    lambda engine, verb, payload, holes: Step(
        engine, verb, payload, tuple(Hole(at % (len(payload) - 7), word, more) for at, word, more in holes)
    ),
    st.integers(0, 255),
    st.integers(0, 63),
    st.binary(min_size=8, max_size=200),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 65535), st.integers(0, 2**32 - 1)), max_size=6),
)


@given(st.lists(steps, max_size=8))
def test_a_sequence_is_read_as_it_was_written(found: list[Step]) -> None:
    content = Content(found)
    data = content.encode()
    assert Content.read(data) == content
    for wrong in (data + b"\0", data[:-1]):
        with pytest.raises(ValueError, match=r"sequence|payload"):
            Content.read(wrong)


def test_a_hole_outside_of_its_payload_is_refused() -> None:
    with pytest.raises(ValueError, match="too short"):
        Content.read(Content([Step(1, 1, bytes(12), (Hole(8, 0, 0),))]).encode())


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_words_are_read_as_they_were_written(words: list[int]) -> None:
    assert unpack_words(b"head" + pack_words(words), 4) == tuple(words)


# --- one command ------------------------------------------------------------------------------------------------------


async def test_a_verb_of_one_matrix_is_one_command_in_both_forms(dev: Device) -> None:
    for dtype in ("float32", "complex128"):
        arrays = {name: await dev.to_device(each) for name, each in numbers(dtype=dtype).items()}
        for verb, names in SINGLE.items():
            operands = [arrays[name] for name in names]
            await getattr(dev.solver, verb)(*operands)
            before = submitted(dev)
            await getattr(dev.solver, verb)(*operands)
            assert submitted(dev) == before + 1, (verb, dtype)
            async with dev.batch() as batch:
                getattr(batch.solver, verb)(*operands)
                assert submitted(dev) == before + 2, (verb, dtype)


async def test_a_repetition_reads_what_its_arrays_hold_now(dev: Device) -> None:
    first, second = numbers(1), numbers(2)
    arrays = {name: await dev.to_device(each) for name, each in first.items()}
    for verb, names in SINGLE.items():
        operands = [arrays[name] for name in names]
        results = []
        for given_now in (first, second, first):
            for name in names:
                await arrays[name].copy_from(given_now[name])
            results.append(await getattr(dev.solver, verb)(*operands))
        hosts = [await on_host(each) for each in results]
        one, other, third = ([None if each is None else each.tobytes() for each in found] for found in hosts)
        assert one == third != other, verb
        fresh = [await dev.to_device(second[name]) for name in names]
        for one, other in zip(hosts[1], await on_host(await getattr(dev.solver, verb)(*fresh)), strict=True):
            assert one is other is None or one.tobytes() == other.tobytes(), verb


async def test_repetitions_in_flight_do_not_share_what_lies_between_their_calls(dev: Device) -> None:
    arrays = {name: await dev.to_device(each) for name, each in numbers().items()}
    await dev.solver.solve(arrays["a"], arrays["b"])
    async with dev.batch() as batch:
        results = []
        for seed in range(1, 9):
            batch.copy_from(arrays["a"], numbers(seed)["a"])
            results.append(batch.solver.solve(arrays["a"], arrays["b"]))
    for seed, result in enumerate(results, 1):
        expected = np.linalg.solve(numbers(seed)["a"], numbers()["b"])
        np.testing.assert_allclose(await result.to_host(), expected)


async def test_repetitions_in_flight_tell_their_answers_apart(dev: Device) -> None:
    array = await dev.to_device(numbers()["a"])
    found: list[Any] = []
    async with dev.batch() as batch:
        for seed in range(1, 9):
            batch.copy_from(array, numbers(seed)["a"])
            found.append((batch.solver.det(array), batch.solver.slogdet(array)))
    for seed, (det, (sign, logarithm)) in enumerate(found, 1):
        np.testing.assert_allclose(det, np.linalg.det(numbers(seed)["a"]))
        np.testing.assert_allclose((sign, logarithm), np.linalg.slogdet(numbers(seed)["a"]))
    await array.copy_from(numbers(3)["a"])
    np.testing.assert_allclose(await dev.solver.det(array), np.linalg.det(numbers(3)["a"]))
    np.testing.assert_allclose(found[0][0], np.linalg.det(numbers(1)["a"]))


async def test_other_arrays_of_the_same_layout_are_not_planned_again(
    dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[object] = []
    outgoing = known_sequences.Outgoing
    monkeypatch.setattr(known_sequences, "Outgoing", lambda *given: planned.append(given) or outgoing(*given))
    for verb, names in SINGLE.items():
        for batched in (False, True):
            expected, found = [], []
            for seed in range(1, 4):
                arrays = [await dev.to_device(numbers(seed)[name]) for name in names]
                planned.clear()
                if batched:
                    async with dev.batch() as batch:
                        result = getattr(batch.solver, verb)(*arrays)
                else:
                    result = await getattr(dev.solver, verb)(*arrays)
                calls = [request for requests, _ in planned for request in requests]
                assert seed == 1 or all(isinstance(each, SequenceRequest) for each in calls), verb
                found.append(await on_host(result))
                first = dev.solver._planner()
                again = getattr(type(first), verb).plan(first, *arrays)
                await first._ask_all()
                expected.append(await on_host(again))
            for one, other in zip(found, expected, strict=True):
                for each, right in zip(one, other, strict=True):
                    assert (each is None and right is None) or each.tobytes() == right.tobytes(), verb


async def test_what_lies_in_another_way_is_planned_by_itself(dev: Device) -> None:
    """Transposed, in a larger array, two of one memory, or of another order; and with other options."""
    given = numbers()
    wide = await dev.to_device(np.pad(given["a"], 2))
    both = await dev.to_device(np.stack([given["a"], given["p"]]))
    for _ in range(2):
        for array, right in (
            (await dev.to_device(given["a"]), given["a"]),
            ((await dev.to_device(given["a"])).T, given["a"].T),
            (wide[2:-2, 2:-2], given["a"]),
            (await dev.to_device(given["p"][:3, :3].copy()), given["p"][:3, :3]),
        ):
            np.testing.assert_allclose(await (await dev.solver.inv(array)).to_host(), np.linalg.inv(right))
        for lower in (True, False):
            array = await dev.to_device(np.tril(given["p"]) if lower else np.triu(given["p"]))
            values = await (await dev.solver.eigvalsh(array, lower=lower)).to_host()
            np.testing.assert_allclose(values, np.linalg.eigvalsh(given["p"]))
        for first, second in ((0, 1), (1, 0)):
            found = await (await dev.solver.solve(both[first], both[second])).to_host()
            a, b = (given["a"], given["p"])[:: 1 if first == 0 else -1]
            np.testing.assert_allclose(found, np.linalg.solve(a, b))


async def test_a_known_verb_keeps_no_array_alive(dev: Device) -> None:
    arrays = {name: await dev.to_device(each) for name, each in numbers().items()}
    for verb, names in SINGLE.items():
        operands = [arrays[name] for name in names]
        used = []
        for _ in range(4):
            await getattr(dev.solver, verb)(*operands)
            used.append(dev.statistics().memory.in_use)
        assert used[0] == used[-1], verb


async def test_the_oldest_known_verb_is_forgotten(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    set_constant(monkeypatch, known_sequences, "_MOST_KNOWN", 2)
    known = core_of(dev).part(KnownSequences)
    arrays = [await dev.to_device(numbers(seed)["p"]) for seed in range(4)]
    for array in arrays:
        await dev.solver.cholesky(array)
    assert len(known._known) == 2


@pytest.mark.long
async def test_a_repetition_goes_on_after_a_loss(dev: Device) -> None:
    arrays = {name: await dev.to_device(each) for name, each in numbers().items()}
    expected = np.linalg.solve(numbers()["a"], numbers()["b"])
    for _ in range(3):
        np.testing.assert_allclose(await (await dev.solver.solve(arrays["a"], arrays["b"])).to_host(), expected)
        await dev.restart("to see the same in the next generation")


# --- errors -----------------------------------------------------------------------------------------------------------


async def test_a_repetition_raises_what_the_first_call_raises(dev: Device) -> None:
    nothing = np.zeros((N, N))
    bad = numbers()["p"]
    bad[2, 1] = np.nan
    for verb, matrix, error in (
        ("inv", nothing, SingularMatrixError),
        ("cholesky", -np.eye(N), NotPositiveDefiniteError),
        ("eigh", bad, NotFiniteError),
        ("potrf", bad, NotFiniteError),
    ):
        array = await dev.to_device(numbers()["p"])
        await getattr(dev.solver, verb)(array)
        await array.copy_from(matrix)
        found = []
        for other in (array, await dev.to_device(matrix)):
            with pytest.raises(error) as caught:
                await getattr(dev.solver, verb)(other)
            found.append((str(caught.value), caught.value.operation))
            async with dev.batch() as batch:
                getattr(batch.solver, verb)(other)
                with pytest.raises(error) as caught:
                    await batch.flush()
            found.append((str(caught.value), caught.value.operation))
        assert len(set(found)) == 1, found
        await array.copy_from(numbers()["p"])
        await getattr(dev.solver, verb)(array)


async def test_answers_that_are_those_of_last_time_and_others_are_told_apart(dev: Device) -> None:
    """What passed is not judged again, and whatever differs from it is, awaited and in a batch."""
    good = numbers()["p"]
    contents = {"good": good, "bad": good - 10 * N * np.eye(N), "nan": np.where(np.eye(N), np.nan, good)}
    p, out = await dev.to_device(good), dev.empty((N, N))
    for name in ("good", "good", "good", "bad", "bad", "good", "nan", "nan", "bad", "good", "nan", "good"):
        await p.copy_from(contents[name])
        expects = pytest.raises(NotPositiveDefiniteError) if name == "bad" else contextlib.nullcontext()
        for _ in range(2):
            with expects:
                await dev.solver.cholesky(p, out=out)
            with expects:
                async with dev.batch() as batch:
                    batch.solver.cholesky(p, out=out)
        if name != "bad":
            assert np.allclose(await out.to_host(), np.linalg.cholesky(contents[name]), equal_nan=True)


@pytest.mark.sim_only
async def test_a_call_that_is_refused_in_the_middle_is_named_and_what_stands_behind_it_is_not_made(dev: Device) -> None:
    arrays = {name: await dev.to_device(each) for name, each in numbers().items()}
    await dev.solver.solve(arrays["a"], arrays["b"])
    inject(dev, "cusolverDnXgetrs", ReturnStatus(NOT_SUPPORTED), times=2)
    for _ in range(2):
        with pytest.raises(CommandFailed) as caught:
            await dev.solver.solve(arrays["a"], arrays["b"])
        assert (caught.value.operation, caught.value.status) == ("solver.getrs", NOT_SUPPORTED)
    np.testing.assert_allclose(
        await (await dev.solver.solve(arrays["a"], arrays["b"])).to_host(),
        np.linalg.solve(numbers()["a"], numbers()["b"]),
    )


@pytest.mark.sim_only
async def test_an_array_that_a_refused_call_leaves_half_written_is_torn(dev: Device) -> None:
    """The factor lies in `out` already when the second kernel is refused; without one before it nothing is torn."""
    a, out = await dev.to_device(numbers()["p"]), dev.zeros((N, N), np.float64)
    await dev.solver.cholesky(a, out=out)
    inject(dev, "cusolverDnXpotrf", ReturnStatus(NOT_SUPPORTED))
    with pytest.raises(DeviceError):
        await dev.solver.cholesky(a, out=out)
    with pytest.raises(StaleArray, match="did not finish"):
        await out.to_host()
    await dev.solver.cholesky(a, out=out)
    np.testing.assert_allclose(await out.to_host(), np.linalg.cholesky(numbers()["p"]))


async def test_awaited_an_out_stays_unchanged_when_the_matrix_is_refused(dev: Device) -> None:
    """Also if a batch has made the same call before, which may write to it."""
    good = numbers()
    a, b = await dev.to_device(good["a"]), await dev.to_device(good["b"])
    outs = {
        "solve": [dev.empty(N), dev.empty(2 * N)[::2]],
        "inv": [dev.empty((N, N)), dev.empty((N, N)).T, dev.empty((N, 2 * N))[:, ::2]],
        "lstsq": [dev.empty(N)],
    }
    for verb, out in [(verb, out) for verb, each in outs.items() for out in each]:
        operands = (a,) if verb == "inv" else (a, b)
        await a.copy_from(good["a"])
        async with dev.batch() as batch:
            getattr(batch.solver, verb)(*operands, out=out)
        for _ in range(2):
            await out.fill(7)
            assert await getattr(dev.solver, verb)(*operands, out=out) is out
            assert not (await out.to_host() == 7).any(), verb
        await a.fill(0)
        for _ in range(2):
            await out.fill(7)
            with pytest.raises(SingularMatrixError):
                await getattr(dev.solver, verb)(*operands, out=out)
            assert (await out.to_host() == 7).all(), (verb, out.strides)
        await a.copy_from(np.where(np.eye(N) > 0, np.nan, good["a"]))
        if verb != "lstsq":
            await getattr(dev.solver, verb)(*operands, out=out)
            assert np.isnan(await out.to_host()).all(), (verb, out.strides)


async def test_with_an_out_solve_and_inv_are_one_command(dev: Device) -> None:
    a, b = await dev.to_device(numbers()["a"]), await dev.to_device(numbers()["b"])
    for verb, operands, out in (("solve", (a, b), dev.empty(N)), ("inv", (a,), dev.empty((N, N)))):
        await getattr(dev.solver, verb)(*operands, out=out)
        before = submitted(dev)
        await getattr(dev.solver, verb)(*operands, out=out)
        assert submitted(dev) == before + 1, verb


async def test_a_torn_out_is_made_whole_by_a_repetition(dev: Device) -> None:
    a, b, out = await dev.to_device(numbers()["a"]), await dev.to_device(numbers()["b"]), dev.empty(N)
    for _ in range(2):
        for _ in range(2):
            await dev.solver.solve(a, b, out=out)
        out._block.fast = 0
        out._block.tear("as if a write had not finished")
        await dev.solver.solve(a, b, out=out)
        np.testing.assert_allclose(await out.to_host(), np.linalg.solve(numbers()["a"], numbers()["b"]))


async def test_verbs_of_many_lanes_have_sequences_of_their_own(dev: Device) -> None:
    arrays = {name: await dev.to_device(each) for name, each in numbers().items()}
    expected = np.linalg.solve(numbers()["a"], numbers()["b"])
    for _ in itertools.repeat(None, 2):
        async with dev.lane() as lane, dev.batch(lane=lane) as batch:
            results = [batch.solver.solve(arrays["a"], arrays["b"]) for _ in range(3)]
            await batch.flush()
        for result in results:
            np.testing.assert_allclose(await result.to_host(), expected)


def weight(request: Any) -> int:
    """Of how many calls, copies and fills a command is made."""
    if isinstance(request, SequenceRequest):
        return len(request.sequence.operations)
    return request.left if isinstance(request, Series) else len(getattr(request, "parts", (1,)))


async def test_what_is_not_sent_yet_of_a_verb_is_known_at_every_moment(dev: Device) -> None:
    """A caller that is cancelled then leaves no array half written that nobody knows of."""
    matrices = await dev.to_device(np.broadcast_to(np.eye(8, dtype=np.float32), (300, 8, 8)))
    sides = await dev.to_device(np.ones((300, 8, 1), np.float32))
    for verb, arrays in {"inv": (matrices,), "det": (matrices,), "qr": (matrices,), "lstsq": (matrices, sides)}.items():
        for most in (1, 5, 32):
            planner = dev.solver._planner()
            getattr(type(planner), verb).plan(planner, *arrays)
            planned = list(planner._requests)
            whole, written = sum(map(weight, planned)), blocks_written(planned)
            outgoing = planner._outgoing()
            while outgoing.more:
                assert len(outgoing.take(most)) <= most
                assert sum(map(weight, outgoing.all())) == whole
                assert blocks_written(outgoing.all()) == written
            assert outgoing.all() == outgoing.made


def blocks_written(requests: Sequence[Any]) -> set[object]:
    return {block for request in requests for block, role in request.operands if role is not Role.READ}
