"""The battery of statistical tests: that it runs, that each test passes random words, and that none passes bad ones."""

from __future__ import annotations

import importlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import stats

import support
from support import ROOT, philox

BATTERY = ROOT / "tests" / "battery"
sys.path.append(str(BATTERY))
battery, evidence, word_tests = (importlib.import_module(name) for name in ("battery", "evidence", "word_tests"))

SIZE = 1 << 17


def words(seed: int = 1) -> np.ndarray:
    return np.random.Generator(np.random.PCG64DXSM(seed)).integers(1 << 32, size=SIZE, dtype=np.uint32)


@pytest.mark.sim_only
@pytest.mark.long
def test_the_battery_tells_all_p_values_and_does_not_reject_our_words():
    done = subprocess.run(
        [sys.executable, str(BATTERY / "battery.py"), "--backend", "sim"],
        env=support.child_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *told, verdict, _ = done.stdout.splitlines()
    assert [tuple(line.split("  ")[:2]) for line in (line.strip() for line in told)] == [
        (stream, test) for stream in battery.STREAMS for test in word_tests.TESTS
    ]
    assert verdict.startswith(f"not rejected: the smallest of {len(told)} p-values is ")


@pytest.mark.sim_only
@pytest.mark.long
def test_the_words_can_be_written_for_another_battery(tmp_path):
    command = [sys.executable, str(BATTERY / "battery.py"), "--backend", "sim"]
    done = subprocess.run(
        [*command, "--blocks", "2", "--write", str(tmp_path / "words")],
        env=support.child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    written = np.fromfile(tmp_path / "words", "<u4")
    np.testing.assert_array_equal(written, philox.words(battery.KEY, 0, 2 * battery.PLANS["sim"].size))


@pytest.mark.parametrize("name", list(word_tests.TESTS))
def test_words_of_another_good_generator_pass_also_in_several_blocks(name):
    first, second = (word_tests.TESTS[name](words(seed)) for seed in (1, 2))
    for found in (first, second, first.plus(second)):
        assert 1e-4 < found.p <= 1


def biased() -> np.ndarray:
    """Words with more ones than zeros, by 1 in 16."""
    return words(1) | (words(2) & words(3) & words(4))


def doubled() -> np.ndarray:
    """Words of which each comes twice."""
    return np.repeat(words()[: SIZE // 2], 2)


def upper_halves_doubled() -> np.ndarray:
    """Words whose lower half is the upper half of another one."""
    return words() & 0xFFFF0000 | np.roll(words(), 4) >> 16


def short() -> np.ndarray:
    """Words of 31 bits."""
    return words() >> 1


def coarse() -> np.ndarray:
    """Words whose lowest bit is 0."""
    return words() & 0xFFFFFFFE


def smoothed() -> np.ndarray:
    """Words in which no bit is 1 between ones."""
    found = words()
    return found & ~(found << 1 & found >> 1)


def returning() -> np.ndarray:
    """Blocks of 32 words, the second half of which has the bits that the first does not have."""
    first = words()[: SIZE // 2].reshape(-1, 16)
    return np.concatenate((first, ~first), axis=1).ravel()


def dependent(rows: int, width: int) -> np.ndarray:
    """Matrices whose last row is the sum of the others."""
    found = words().reshape(-1, rows, width)
    found[:, -1] = np.bitwise_xor.reduce(found[:, :-1], axis=1)
    return found.ravel()


def periodic() -> np.ndarray:
    """The same 8 words again and again."""
    return np.tile(words()[:8], SIZE // 8)


def distinct() -> np.ndarray:
    """Numbers in one order of many, of which none comes twice."""
    return np.random.Generator(np.random.PCG64DXSM(1)).permutation(SIZE).astype(np.uint32) * np.uint32(0x9E3779B1)


def waved() -> np.ndarray:
    """Words with a weak sine added."""
    wave = 1 << 27 << np.zeros(SIZE, np.int64)
    return ((words() >> 1) + 2**30 + wave * np.sin(np.arange(SIZE) * 2 * np.pi / 64)).astype(np.uint32)


BAD = {
    "monobit": biased,
    "places": biased,
    "block frequency": biased,
    "weights": doubled,
    "runs": smoothed,
    "longest run": smoothed,
    "lags": doubled,
    "random walk": returning,
    "serial high": doubled,
    "serial low": doubled,
    "serial blocks": periodic,
    "frequencies": coarse,
    "gaps high": short,
    "gaps low": coarse,
    "permutations": doubled,
    "maxima": short,
    "birthdays": periodic,
    "collisions high": doubled,
    "collisions low": distinct,
    "ranks small": lambda: dependent(32, 1),
    "ranks large": lambda: dependent(256, 8),
    "linear complexity": periodic,
    "lowest complexity": periodic,
    "spectral": doubled,
    "periods": waved,
}


@pytest.mark.parametrize("name", list(word_tests.TESTS))
def test_no_test_passes_words_with_the_defect_that_it_looks_for(name):
    assert word_tests.TESTS[name](BAD[name]()).p < 1e-6


@pytest.mark.parametrize("rounds", [3, 4, 5])
def test_philox_of_too_few_rounds_does_not_pass(rounds):
    counter, zero = np.arange(SIZE, dtype=np.uint64), np.zeros(SIZE, np.uint64)
    x, y, z, w = counter >> np.uint64(16), zero, counter & np.uint64(0xFFFF), zero
    low, high, mask, half = battery.KEY & 0xFFFFFFFF, battery.KEY >> 32, np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(rounds):
        one, other = x * np.uint64(0xD2511F53), z * np.uint64(0xCD9E8D57)
        x, y = (other >> half) ^ y ^ np.uint64(low), other & mask
        z, w = (one >> half) ^ w ^ np.uint64(high), one & mask
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    found = np.stack((x, y, z, w), axis=1).ravel().astype(np.uint32)
    assert word_tests.lags(found).p < 1e-6


def test_numbers_that_fit_too_well_have_a_small_p_value_too():
    cells = evidence.Cells(np.full(64, 1000), np.full(64, 1 / 64))
    assert cells.p < 1e-8
    assert evidence.Halves(np.full(64, 500), np.full(64, 1000)).p < 1e-8


def test_cells_of_which_little_is_expected_are_joined_and_one_cell_alone_says_nothing():
    chances = np.array([0.5, 0.3, 0.15, 0.04, 0.01])
    joined = evidence.Cells(np.array([60, 20, 20]), np.array([0.5, 0.3, 0.2]))
    assert evidence.Cells(np.array([60, 20, 10, 8, 2]), chances).p == pytest.approx(joined.p)
    assert evidence.Cells(np.array([5, 3, 2, 0, 0]), chances).p == 1


def test_rare_events_are_judged_on_both_sides():
    assert evidence.Events(100, 100.0).p > 0.9
    assert evidence.Events(50, 100.0).p < 1e-6
    assert evidence.Events(200, 100.0).p < 1e-6


def test_the_exact_chances_sum_to_one():
    for chances in (word_tests._longest_chances(), word_tests._rank_chances(32, 2), word_tests._rank_chances(256, 2)):
        assert chances.sum() == pytest.approx(1)
        assert chances.min() >= 0
    assert word_tests._rank_chances(2, 2) == pytest.approx([6 / 16, 9 / 16, 1 / 16])


def test_the_complexity_is_that_of_the_shortest_register():
    rng = np.random.default_rng(1)
    taps, register = [1, 4, 9], rng.integers(0, 2, 9).tolist()
    while len(register) < 64:
        register.append(sum(register[-tap] for tap in taps) % 2)
    assert word_tests._complexity(np.array(register)) == 9
    assert word_tests._complexity(np.array([0] * 20 + [1])) == 21
    assert word_tests._complexity(np.zeros(20, int)) == 0


async def test_p_values_of_eight_blocks_are_compared_with_the_uniform_distribution(monkeypatch):
    async def stream(_dev, block, size):
        return words(block)[:size]

    monkeypatch.setattr(battery, "STREAMS", {"first": None, "stream": stream})
    monkeypatch.setattr(battery, "TESTS", {name: word_tests.TESTS[name] for name in ("monobit", "runs")})
    with ThreadPoolExecutor() as pool:
        found = await battery.findings_of(None, "stream", battery.Plan(1 << 16, first=0, others=8), pool)
    assert [finding.test for finding in found] == ["monobit", "monobit, of 8 blocks", "runs", "runs, of 8 blocks"]
    blocks = [word_tests.monobit(words(block)[: 1 << 16]) for block in range(8)]
    assert found[1].p == pytest.approx(stats.kstest([block.p for block in blocks], "uniform").pvalue)
    hits = sum(int(block.hits[0]) for block in blocks)
    assert found[0].p == pytest.approx(evidence.Halves(np.array([hits]), np.array([8 << 21])).p)


def test_the_verdict_bounds_the_probability_by_the_number_of_p_values():
    findings = [battery.Finding("stream", str(number), 0.5) for number in range(99)]
    assert battery.bound(findings) == 1
    for p, verdict in ((2e-6, "not rejected"), (0.9e-6, "REJECTED")):
        found = [*findings, battery.Finding("stream", "worst", p)]
        assert battery.bound(found) == pytest.approx(100 * p)
        assert list(battery.lines(found))[-2].startswith(f"{verdict}: the smallest of 100 p-values is {p:.3g} (")
