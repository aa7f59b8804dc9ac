"""References of `codes.cu`: Python's own digests and codes, and the methods spelled out where it has none."""

from __future__ import annotations

import base64 as base64_code
import hashlib
import heapq
import itertools
import zlib

import numpy as np

from .case import Arguments, Check, Family, Given, Result, equals, satisfies

Generator = np.random.Generator

family = Family("codes.cu")


def octets(rng: Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, shape).astype(np.uint8)


@family.case(grid=2, block=56)
def md5(rng: Generator) -> Arguments:
    messages, lengths = octets(rng, 112, 56), (np.arange(112) % 56).astype(np.int32)
    digests = [hashlib.md5(row[:n].tobytes()).digest() for row, n in zip(messages, lengths, strict=True)]
    expected = np.frombuffer(b"".join(digests), np.uint32)
    sines = np.floor(np.abs(np.sin(np.arange(1, 65))) * 2.0**32).astype(np.uint32)
    return Given(messages), Given(lengths), Result(np.zeros(448, np.uint32), equals(expected)), Given(sines)


@family.case(grid=2, block=32)
def sha3(rng: Generator) -> Arguments:
    messages = rng.integers(0, 2**64, (64, 8), dtype=np.uint64)
    expected = np.frombuffer(b"".join(hashlib.sha3_256(row.tobytes()).digest() for row in messages), np.uint64)
    return Given(messages), Result(np.zeros((64, 4), np.uint64), equals(expected))


QUARTERS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
            (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))  # fmt: skip


def chacha20_stream(key: np.ndarray, nonce: np.ndarray, blocks: int) -> np.ndarray:
    """RFC 8439, section 2.3; a row of 16 words for each block, counted from 0."""
    constants = np.frombuffer(b"expand 32-byte k", np.uint32)
    first = np.array([[*constants, *key, counter, *nonce] for counter in range(blocks)], np.uint32).T
    s = first.copy()
    for _ in range(10):
        for a, b, c, d in QUARTERS:
            for to, by, turned, left in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                s[to] += s[by]
                mixed = s[turned] ^ s[to]
                s[turned] = mixed << np.uint32(left) | mixed >> np.uint32(32 - left)
    return (s + first).T


@family.case(grid=2, block=64)
def chacha20(rng: Generator) -> Arguments:
    key, nonce = (rng.integers(0, 2**32, n, dtype=np.uint32) for n in (8, 3))
    text = rng.integers(0, 2**32, (32, 16), dtype=np.uint32)
    expected = text ^ chacha20_stream(key, nonce, 32)
    return Given(key), Given(nonce), Given(text), Result(np.zeros_like(text), equals(expected))


AES_EXAMPLE = bytes.fromhex("000102030405060708090a0b0c0d0e0f 00112233445566778899aabbccddeeff")
AES_ANSWER = bytes.fromhex("69c4e0d86a7b0430d8cdb78070b4c55a")
"""Key and text of FIPS 197, appendix C.1, and what becomes of the text."""


def aes_box() -> np.ndarray:
    """Substitutions, from the powers of 3 in the field of 256 elements."""
    powers = [1]
    for _ in range(254):
        twice = powers[-1] << 1
        powers.append(powers[-1] ^ (twice ^ 0x11B if twice > 255 else twice))
    box = np.full(256, 0x63, np.uint8)
    for exponent, x in enumerate(powers):
        inverse = powers[-exponent % 255]
        turned = [(inverse << by | inverse >> 8 - by) & 255 for by in range(5)]
        box[x] = np.bitwise_xor.reduce(turned) ^ 0x63
    return box


def aes128_of(key: np.ndarray, text: np.ndarray) -> np.ndarray:
    """FIPS 197; columns of a state are the last axis."""
    box = aes_box()
    twice = np.arange(256) << 1
    double = np.where(twice > 255, twice ^ 0x11B, twice).astype(np.uint8)
    words, constant = [*key.reshape(4, 4)], np.uint8(1)
    while len(words) < 44:
        last = words[-1]
        if len(words) % 4 == 0:
            last = box[np.roll(last, -1)] ^ np.array([constant, 0, 0, 0], np.uint8)
            constant = double[constant]
        words.append(words[-4] ^ last)
    keys = np.reshape(words, (11, 4, 4))
    s = text.reshape(-1, 4, 4) ^ keys[0]
    for round_ in range(1, 11):
        rows = [np.roll(box[s[:, :, row]], -row, axis=1) for row in range(4)]
        s = np.stack(rows, axis=2)
        if round_ < 10:
            one, two, three = (np.roll(s, -by, axis=2) for by in (1, 2, 3))
            s = double[s] ^ double[one] ^ one ^ two ^ three
        s = s ^ keys[round_]
    return s.reshape(text.shape)


@family.case(grid=2, block=32)
def aes128(rng: Generator) -> Arguments:
    key, text = np.frombuffer(AES_EXAMPLE, np.uint8)[:16], octets(rng, 64, 16)
    text[0] = np.frombuffer(AES_EXAMPLE, np.uint8)[16:]
    expected = aes128_of(key, text)
    assert expected[0].tobytes() == AES_ANSWER
    return Given(key), Given(text), Result(np.zeros_like(text), equals(expected))


@family.case(grid=1, block=128)
def adler32(rng: Generator) -> Arguments:
    data = octets(rng, 5000)
    expected = np.array([zlib.adler32(data.tobytes())], np.uint32)
    return Given(data), data.size, 40, Result(np.zeros(1, np.uint32), equals(expected))


@family.case(grid=2, block=128)
def base64(rng: Generator) -> Arguments:
    data = octets(rng, 500)
    expected = np.frombuffer(base64_code.b64encode(data.tobytes()), np.uint8)
    return Given(data), data.size, Result(np.zeros_like(expected), equals(expected))


def packed_copies(text: bytes) -> bytes:
    """The longest copy within reach, or the next byte as it is."""
    packed, at = bytearray(), 0
    while at < len(text):
        best, back = 0, 0
        for distance in range(1, min(at, 255) + 1):
            pairs = zip(text[at : at + 127], text[at - distance :], strict=False)
            length = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            best, back = max((best, back), (length, distance))
        packed += bytes([128 + best, back]) if best > 2 else bytes([1, text[at]])
        at += best if best > 2 else 1
    return bytes(packed)


@family.case(grid=1, block=16)
def unpack_copies(rng: Generator) -> Arguments:
    texts = rng.choice(np.frombuffer(b"abcd", np.uint8), (16, 96))
    texts[0], texts[1, 40:] = ord("x"), np.resize(texts[1, :7], 56)
    packed = [packed_copies(row.tobytes()) for row in texts]
    assert sum(map(len, packed)) < texts.size
    begins = np.cumsum([0, *map(len, packed)]).astype(np.int32)
    given = np.frombuffer(b"".join(packed), np.uint8)
    return Given(given), Given(begins), Result(np.zeros_like(texts), equals(texts)), 96


def prefix_code(weights: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Huffman's tree as rows of two children, and the path to each symbol."""
    heap: list[tuple[float, int, object]] = [(float(weight), symbol, symbol) for symbol, weight in enumerate(weights)]
    heapq.heapify(heap)
    for order in range(len(weights), 2 * len(weights) - 1):
        (low, _, left), (high, _, right) = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, (low + high, order, (left, right)))
    rows, paths = [], [""] * len(weights)
    waiting = [(heap[0][2], "")]
    numbers = {}
    for node, path in waiting:
        if isinstance(node, tuple):
            numbers[path] = len(numbers)
            waiting += [(child, path + str(side)) for side, child in enumerate(node)]
        else:
            paths[int(str(node))] = path
    named = {path: -symbol for symbol, path in enumerate(paths)} | numbers
    rows = [[named[path + side] for side in "01"] for path in numbers]
    return np.array(rows, np.int32), paths


@family.case(grid=1, block=32)
def unpack_prefix_code(rng: Generator) -> Arguments:
    weights = 0.7 ** np.arange(20)
    nodes, paths = prefix_code(weights)
    symbols = rng.choice(20, (32, 24), p=weights / weights.sum()).astype(np.uint8)
    coded = ["".join(paths[symbol] for symbol in row) for row in symbols]
    begins = np.cumsum([0, *map(len, coded)]).astype(np.int32)
    bits = np.packbits(np.array(list("".join(coded)), np.uint8), bitorder="little")
    words = np.pad(bits, (0, -bits.size % 4)).view(np.uint32)
    return Given(words), Given(begins), Given(nodes), Result(np.zeros_like(symbols), equals(symbols)), 24


@family.case(grid=1, block=256)
def run_lengths(rng: Generator) -> Arguments:
    values, lengths = (np.arange(60) * 7 % 256).astype(np.uint8), rng.integers(1, 7, 60).astype(np.int32)
    x = np.repeat(values, lengths)
    assert x.size <= 256
    return (
        *(Given(x), x.size, Result(np.zeros(60, np.uint8), equals(values))),
        *(Result(np.zeros(60, np.int32), equals(lengths)), Result(np.zeros(1, np.int32), equals([60]))),
    )


def goes_everywhere(side: int) -> Check:
    """Each point of the square once, and every step to a neighbour."""

    def good(places: np.ndarray) -> bool:
        steps = np.abs(np.diff(places, axis=0)).sum(axis=1)
        return len({*map(tuple, places.tolist())}) == side**2 and places.max() == side - 1 and bool((steps == 1).all())

    return satisfies("each point once, by steps to neighbours", good)


@family.case(grid=8, block=128)
def hilbert(rng: Generator) -> Arguments:
    return (Result(np.zeros((1024, 2), np.int32), goes_everywhere(32)),)
