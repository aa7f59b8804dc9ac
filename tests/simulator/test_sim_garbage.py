"""Texts that are damaged, hostile or enormous: each is refused by a `LoadError`, or it is a module.

Real modules come from the compiler.  They are cut off, and changed in one place each, in all the ways that a list of
damages has; what is random is the same in every run.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from atomr_sim.engine.memory import AddressSpace
from atomr_sim.engine.simt import LoadedModule
from atomr_sim.ptx import text as ptx
from kernels.case import FOLDER
from support import SWEEP
from support.nvrtc import compile_ptx
from support.sim import Machine
from support.sim_process import run_in_process

pytestmark = pytest.mark.sim_only

MODULES = ("say.cu", "fast.cu", "half.cu")
"""Of the corpus: with calls and strings, with float functions, and with halves."""
HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"


@functools.cache
def module(name: str) -> str:
    return compile_ptx((FOLDER / name).read_text(encoding="utf-8"), "compute_80")


def refused(text: str) -> ptx.LoadError | None:
    """Why the text is no module; None if it is one. Whatever else goes wrong is the test's failure."""
    try:
        loaded = LoadedModule(text, AddressSpace())
    except ptx.LoadError as error:
        return error
    loaded.unload()
    return None


# --- damages ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_is_cut_off_is_refused_wherever_that_is(name: str) -> None:
    whole = module(name)
    last = whole.rindex("}")
    for end in range(0, last, 97):
        error = refused(whole[:end])
        assert error is not None or whole[:end].count("{") == whole[:end].count("}"), end
    assert refused(whole) is None


_LINE = re.compile(r"^\t(@\S+ )?([a-z][\w.:]*)\s*(.*);$")
_STRANGERS = ("%rd1", "[%rd1]", "5", "{%r1, %r2}", "%r1|%p1")
_MODIFIERS = ("f32", "u64", "pred", "f16x2", "v4", "cc", "nothing")

Damage = Callable[[str, list[str]], Iterator[tuple[str, list[str]]]]


def _operands_missing(opcode: str, operands: list[str]) -> Iterator[tuple[str, list[str]]]:
    yield from ((opcode, operands[:count]) for count in range(len(operands)))
    yield opcode, operands[1:]


def _operands_too_many(opcode: str, operands: list[str]) -> Iterator[tuple[str, list[str]]]:
    yield opcode, operands + operands[-1:]
    yield opcode, operands[:1] + operands


def _operands_of_another_sort(opcode: str, operands: list[str]) -> Iterator[tuple[str, list[str]]]:
    yield opcode, operands[::-1]
    for at in range(len(operands)):
        for stranger in _STRANGERS:
            yield opcode, [*operands[:at], stranger, *operands[at + 1 :]]


def _modifiers_changed(opcode: str, operands: list[str]) -> Iterator[tuple[str, list[str]]]:
    parts = opcode.split(".")
    for at in range(len(parts)):
        yield ".".join(parts[:at] + parts[at + 1 :]), operands
        yield ".".join(parts[: at + 1] + parts[at:]), operands
    yield from ((".".join([*parts[:-1], modifier]), operands) for modifier in _MODIFIERS)


DAMAGES: tuple[Damage, ...] = (_operands_missing, _operands_too_many, _operands_of_another_sort, _modifiers_changed)


def damaged(text: str, damage: Damage) -> Iterator[str]:
    """The text with one instruction changed: the first of each spelling, in every way there is."""
    lines = text.split("\n")
    seen: set[str] = set()
    for at, line in enumerate(lines):
        found = _LINE.match(line)
        if not found or found[2] in seen:
            continue
        seen.add(found[2])
        for opcode, operands in damage(found[2], ptx.split(found[3])):
            changed = f"\t{found[1] or ''}{opcode} {', '.join(operands)};"
            yield "\n".join([*lines[:at], changed, *lines[at + 1 :]])


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.long
def test_an_instruction_of_the_wrong_form_is_refused_or_has_a_meaning(damage: Damage) -> None:
    errors = [refused(text) for text in damaged(module("say.cu"), damage)]
    found = [error for error in errors if error]
    assert len(found) > len(errors) / 3
    assert all("line " in str(error) for error in found)
    assert all(re.search(r"\(in (kernel|function) \w+\)$", str(error)) for error in found)


_TOKEN = re.compile(r"[\w$%.]+|\s+|.")


def _mutated(rng: random.Random, tokens: list[str]) -> str:
    """One token lost, doubled, exchanged with another one, or with a character in it that does not belong there."""
    changed = list(tokens)
    at, other = (rng.choice([at for at, token in enumerate(tokens) if not token.isspace()]) for _ in range(2))
    token = changed[at]
    within = rng.randrange(len(token))
    match rng.randrange(4):
        case 0:
            changed[at] = ""
        case 1:
            changed[at] = f"{token} {token}"
        case 2:
            changed[at], changed[other] = changed[other], token
        case _:
            changed[at] = token[:within] + chr(rng.randrange(33, 127)) + token[within + 1 :]
    return "".join(changed)


def test_a_module_with_another_token_somewhere_is_refused_or_is_another_module() -> None:
    rng, tokens = random.Random(8), _TOKEN.findall(module("say.cu"))
    errors = [refused(_mutated(rng, tokens)) for _ in range(400)]
    assert len([error for error in errors if error]) > 200


# --- hostile numbers and nesting --------------------------------------------------------------------------------------


def kernel(body: str) -> str:
    return f"{HEADER}.visible .entry k()\n{{\n.reg .b32 %r<3>;\n{body}\nret;\n}}\n"


DIGITS = "9" * 5000

HOSTILE = {
    "a version of thousands of digits": f".version {DIGITS}.0\n.target sm_80\n",
    "an extent of thousands of digits": f"{HEADER}.global .b8 x[{DIGITS}];\n",
    "an alignment of thousands of digits": f"{HEADER}.global .align {DIGITS} .b8 x[4];\n",
    "a limit of thousands of digits": f"{HEADER}.entry k() .maxntid {DIGITS} {{ ret; }}",
    "a family of thousands of digits": kernel(f".reg .b32 %q<{DIGITS}>;"),
    "a register of thousands of digits": kernel(f"mov.u32 %r{DIGITS}, 1;"),
    "an immediate of thousands of digits": kernel(f"mov.u32 %r1, {DIGITS};"),
    "an offset of thousands of digits": kernel(f"ld.global.u32 %r1, [%r1+{DIGITS}];"),
    "a name of a million letters": kernel(f"mov.u32 {'a' * 1_000_000}, 1;"),
    "a name of a million digits": kernel(f"mov.u32 %r{'1' * 1_000_000}x, 1;"),
    "brackets in brackets": kernel(f"mov.u32 %r1, {'(' * 100_000}{')' * 100_000};"),
    "braces in braces": kernel("{" * 100_000),
    "comments that begin": kernel("/* " * 1_000_000),
    "parentheses that begin": HEADER + ".entry k" + "(" * 1_000_000,
    "parameters without an end": HEADER + ".entry k(" + ".param .u32 x, " * 100_000,
    "quotes that begin": kernel('.pragma "' + "x;" * 100_000),
    "a section that begins": HEADER + ".section .debug_info " + "{" * 100_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_out_of_all_proportion_is_refused(kind: str) -> None:
    error = refused(HOSTILE[kind])
    assert error is not None
    assert error.status in (ptx.INVALID_PTX, ptx.NOT_SUPPORTED)


# --- much of everything -----------------------------------------------------------------------------------------------


def test_a_kernel_with_four_thousand_registers() -> None:
    """All of them are alive at once, across a barrier."""
    count = 4000
    lines = [f"mad.lo.u32 %r{at}, %r0, {at}, {at * at % 1000};" for at in range(1, count)]
    lines += ["bar.sync 0;", "mov.u32 %s0, 0;"]
    lines += [f"xor.b32 %s0, %s0, %r{at};" for at in range(1, count)]
    text = (
        f"{HEADER}.visible .entry k(.param .u64 out)\n{{\n.reg .b32 %r<{count}>, %s<1>; .reg .b64 %rd<3>;\n"
        + "mov.u32 %r0, %tid.x;\n"
        + "\n".join(lines)
        + "\nld.param.u64 %rd1, [out]; mad.wide.u32 %rd2, %r0, 4, %rd1; st.global.u32 [%rd2], %s0;\nret;\n}\n"
    )
    machine = Machine()
    loaded = LoadedModule(text, machine.memory).functions["k"]
    assert loaded.registers == 255, "no thread of a GPU has more"
    out = machine.zeros(64, np.uint32)
    machine.launch(loaded, 1, 64, out)
    number, thread = np.arange(1, count), np.arange(64)[:, None]
    np.testing.assert_array_equal(out, np.bitwise_xor.reduce(thread * number + number * number % 1000, axis=1))


ENORMOUS = """
    import time
    from pathlib import Path

    def most_memory():  # of this program alone: getrusage tells of the one as well that started it
        (line,) = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM:")]
        return int(line.split()[1]) >> 10

    def attempt(name, text):
        module, began = c_void_p(), time.process_time()
        status = cuModuleLoadData.status(module, text)
        print(name, status, round(time.process_time() - began, 2), most_memory(), sep=",", flush=True)

    begin()
    header, size = b".version 8.0\\n.target sm_80\\n.address_size 64\\n", MEGABYTES << 20

    def filled(start, piece, end=b""):
        return start + piece * ((size - len(start)) // len(piece)) + end

    kernel = header + b".visible .entry k() {\\n.reg .b32 %r<3>;\\n"
    attempt("comments", filled(header, b"// " + b"nothing " * 15 + b"\\n", b".visible .entry k() { ret; }"))
    attempt("statements", filled(kernel, b"add.s32 %r1, %r1, 1;\\n", b"ret; }"))
    attempt("values", filled(header + b".global .b8 x[] = {", b"1,", b"1};"))
    attempt("one token", filled(kernel, b"a"))
    attempt("zeros", bytes(size))
    attempt("noise", bytes(range(1, 256)) * (size // 255))
"""
MEGABYTES = 100 if SWEEP else 20
EXPECTED = {"comments": 0, "statements": 801, "values": 801, "one token": 218, "zeros": 218, "noise": 218}


@pytest.mark.long
def test_many_megabytes_are_read_or_refused_in_seconds_and_in_bounded_memory() -> None:
    lines = [
        line.split(",") for line in run_in_process(ENORMOUS.replace("MEGABYTES", str(MEGABYTES))).stdout.splitlines()
    ]
    assert {name: int(status) for name, status, _, _ in lines} == EXPECTED
    assert max(float(seconds) for _, _, seconds, _ in lines) < 20
    assert max(int(peak) for _, _, _, peak in lines) < 200 + 20 * MEGABYTES, "MiB"


BINARY = """
    begin()
    cubin, module = b"\\x7fELF\\x02\\x01\\x01" + bytes(range(256)) * 64, c_void_p()
    for image in (cubin, b"\\x50\\xed\\x55\\xba" + cubin, b"", b"\\xff\\xfe" * 999, bytes(reversed(range(256)))):
        print(cuModuleLoadData.status(module, image), module.value)
    out = allocate(4)
    kernel = function(load('extern "C" __global__ void one(int *x) { *x = 1; }'), "one")
    on = stream()
    assert launch(kernel, on, c_uint64(out)) == 0
    cuStreamSynchronize(on)
    print(c_int.from_address(out).value)
"""


def test_binaries_are_refused_and_the_device_goes_on() -> None:
    lines = run_in_process(BINARY).stdout.splitlines()
    assert lines == ["209 None", "209 None", "218 None", "218 None", "218 None", "1"]
