"""Chains of additions, subtractions and products with a carry, in every mix, on the simulator and on a GPU alike.

What is expected is computed with Python's integers: the hardware subtracts by adding, a - b is a + ~b + 1, so the flag
after `sub.cc` says that there was no borrow, and `subc` adds it to a + ~b.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from atomr_trio import read_only

FIRST = ("add.cc", "sub.cc", "mad.lo.cc", "mad.hi.cc")
LATER = ("addc", "subc", "madc.lo", "madc.hi")
CHAINS = list(itertools.product(FIRST, LATER, LATER))
OPERANDS = 9
"""Words of a chain: three instructions of up to three operands."""


def source(bits: int) -> str:
    """A kernel of all chains: each thread has its own words, and writes what each of the three instructions gives."""
    letter, word = ("r", "unsigned int") if bits == 32 else ("l", "unsigned long long")
    statements = []
    for number, (first, second, third) in enumerate(CHAINS):
        lines = []
        for place, opcode in enumerate((first, f"{second}.cc", third)):
            operands = [f"%{3 + 3 * place + each}" for each in range(3 if opcode.startswith("mad") else 2)]
            lines.append(f"{opcode}.u{bits} %{place}, {', '.join(operands)};")
        inputs = ", ".join(f'"{letter}"(w[{each}])' for each in range(OPERANDS))
        outputs = ", ".join(f'"=&{letter}"(r{place})' for place in range(3))
        statements.append(
            f'asm volatile("{" ".join(lines)}" : {outputs} : {inputs});\n'
            + "".join(f"out[({number} * 3 + {place}) * n + i] = r{place};\n" for place in range(3))
        )
    return f"""extern "C" __global__ void chains(const {word} *in, {word} *out, int n) {{
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i >= n) return;
    {word} w[{OPERANDS}], r0, r1, r2;
    for (int k = 0; k < {OPERANDS}; k++) w[k] = in[k * n + i];
    {"".join(statements)}
}}"""


def expected(chain: tuple[str, ...], words: list[int], bits: int) -> list[int]:
    """What the three instructions of a chain give."""
    mask, carry, results = 2**bits - 1, 0, []
    for place, opcode in enumerate(chain):
        a, b, c = words[3 * place : 3 * place + 3]
        name, *parts = opcode.split(".")
        if name.startswith("mad"):
            product = a * b & mask if "lo" in parts else a * b >> bits
            total = product + c
        elif name.startswith("add"):
            total = a + b
        else:
            total = a + (~b & mask)
        total += 1 if name == "sub" else carry if name.endswith("c") else 0
        results.append(total & mask)
        carry = total >> bits
    return results


@pytest.mark.parametrize("bits", [32, 64])
async def test_chains_with_a_carry_are_those_of_the_hardware(dev, bits):
    n, rng = 96, np.random.default_rng(bits)
    dtype = np.dtype(f"u{bits // 8}")
    edges = np.array([0, 1, 2, 2**bits - 1, 2**bits - 2, 2 ** (bits - 1), 2 ** (bits - 1) - 1], dtype)
    words = rng.integers(0, 2**bits - 1, (OPERANDS, n), dtype, endpoint=True)
    words = np.where(rng.random(words.shape) < 0.5, edges[rng.integers(0, edges.size, words.shape)], words)
    out = dev.zeros((len(CHAINS), 3, n), dtype)
    chains = await dev.nvrtc.compile(source(bits), "chains")
    await chains.launch(chains.grid_for(n, 32), 32, read_only(await dev.to_device(words)), out, n)
    wanted = [[expected(chain, column, bits) for column in words.T.tolist()] for chain in CHAINS]
    np.testing.assert_array_equal(await out.to_host(), np.array(wanted, dtype).transpose(0, 2, 1))
