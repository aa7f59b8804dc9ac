"""Reading PTX: what a module declares, what is refused, and with which status.

The PTX in this file is written by hand; longer texts come from the compiler when the tests run.
"""

from __future__ import annotations

import contextlib

import pytest

from atomr_sim.engine.memory import AddressSpace
from atomr_sim.engine.simt import LoadedModule
from atomr_sim.ptx import text as ptx
from support.nvrtc import compile_ptx

HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"


def kernel(body: str, parameters: str = "", name: str = "k") -> str:
    return f"{HEADER}.visible .entry {name}({parameters})\n{{\n{body}\nret;\n}}\n"


def load(text: str) -> LoadedModule:
    return LoadedModule(text, AddressSpace())


SOURCE = """
__constant__ int table[3] = {1, 2, 3};
__device__ double field[2];
extern "C" __global__ void one(const float* x, float a, int n) { extern __shared__ float s[]; s[0] = a; }
extern "C" __global__ void __launch_bounds__(64, 2) two(char c) { }
"""


@pytest.mark.parametrize("arch", ["compute_75", "compute_80", "compute_90", "compute_100", "compute_120"])
def test_both_dialects_give_the_same_declarations(arch: str) -> None:
    module = ptx.parse(compile_ptx(SOURCE, arch))
    assert module.target.startswith("sm_")
    one, two = module.functions["one"], module.functions["two"]
    assert [(parameter.size, parameter.align) for parameter in one.parameters] == [(8, 8), (4, 4), (4, 4)]
    assert two.limits["maxntid"][0] == 64
    table, field = module.variables["table"], module.variables["field"]
    assert (table.space, table.size, field.space, field.size) == ("const", 12, "global", 16)
    assert module.variables["s"].unsized


def test_ftz_may_stand_behind_the_type() -> None:
    module = ptx.parse(kernel(".reg .f32 %f<2>; rcp.approx.ftz.f32 %f0, %f1; rcp.approx.f32.ftz %f0, %f1;"))
    first, second, *_ = ptx.instructions(module.functions["k"])
    assert first.modifiers == second.modifiers == ("approx", "ftz", "f32")
    assert second.text == "rcp.approx.f32.ftz %f0, %f1"


def test_registers_families_scopes_and_labels() -> None:
    module = ptx.parse(
        kernel(
            """
            .reg .pred %p<2>; .reg .b32 %r<3>, %extra; .reg .b64 %rd1<4>;
            { .reg .b32 t; mov.u32 t, 1; mov.u32 %r1, t; bra DONE; DONE: }
            { .reg .b16 t; mov.u16 t, 2; bra DONE; DONE: }
            mov.u64 %rd13, 5; mov.u32 %extra, 0x10;
            """
        )
    )
    function = module.functions["k"]
    assert {"%r1": 32, "%rd13": 64, "%extra": 32, "t": 32}.items() <= function.registers.items()
    renamed = [name for name, width in function.registers.items() if name.startswith("t#")]
    assert [function.registers[name] for name in renamed] == [16]
    labels = [item.name for item in function.body if isinstance(item, ptx.Label)]
    jumps = [item.operands[0] for item in ptx.instructions(function) if item.opcode == "bra"]
    assert [jump.name for jump in jumps if isinstance(jump, ptx.Symbol)] == labels
    assert len(set(labels)) == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", (0, "int")), ("-7", (-7, "int")), ("0x1F", (31, "int")), ("0XffU", (255, "int")), ("017", (15, "int")),
        ("0b101", (5, "int")), ("0f3F800000", (0x3F800000, "f32")), ("0d3FF0000000000000", (0x3FF0000000000000, "f64")),
        ("1.5", (0x3FF8000000000000, "f64")), ("WARP_SZ", (32, "int")), ("%r1", None), ("name", None),
    ],
)  # fmt: skip
def test_literals(text: str, value: tuple[int, str] | None) -> None:
    found = ptx.literal(text, 1)
    assert (found and (found.bits, found.kind)) == value


@pytest.mark.parametrize("text", ["09", "0f12", "0d1"])
def test_wrong_literals(text: str) -> None:
    with pytest.raises(ptx.PtxError, match=text):
        ptx.literal(text, 1)


def test_operands() -> None:
    assert ptx.split("%r1, [%rd1+4], {%f1, %f2}, (a, b), 0") == ["%r1", "[%rd1+4]", "{%f1, %f2}", "(a, b)", "0"]
    function = ptx.parse(
        kernel(".reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred %p<3>; .reg .f32 %f<3>;"
               "ld.global.v2.f32 {%f1, %f2}, [%rd1+-8]; @!%p1 setp.eq.and.s32 %p1|%p2, %r1, 0, !%p2;"
               "st.shared.u32 [4], %r1;")
    ).functions["k"]  # fmt: skip
    load, compare, store, _ = list(ptx.instructions(function))
    assert load.modifiers == ("global", "v2", "f32")
    assert load.operands[1] == ptx.Address(ptx.Register("%rd1"), -8)
    assert compare.guard == ptx.Register("%p1", True)
    assert compare.operands[0] == ptx.Pair(ptx.Register("%p1"), ptx.Register("%p2"))
    assert compare.operands[3] == ptx.Register("%p2", True)
    assert store.operands[0] == ptx.Address(ptx.Immediate(4), 0)


def test_comments_and_line_directives_do_not_count() -> None:
    text = kernel(
        '/* a ; comment { \n */ // ; }\n.loc 1 2 3\n.pragma "nounroll ; }";\n.reg .b32 %r<2>;\nmov.u32 %r1, nothing;'
    )
    with pytest.raises(ptx.PtxError, match="nothing is not declared") as error:
        load(text)
    assert "line 11" in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "", "hello, world", "\x7fELF\x02\x01\x01", ".version x", ".version 8.0\n", ".version 8.0\n.target sm_80\nfoo",
        HEADER + ".entry", HEADER + ".visible .entry k(", HEADER + ".visible .entry k() {", HEADER + ".global .b32 x",
        HEADER + ".global nonsense;", HEADER + '.section "x { }',
        kernel("mov.u32 %r1, 1;"), kernel(".reg .b32 %r<2>; mov.u32 %r2, 1;"), kernel("bra NOWHERE;"),
        kernel(".reg .b32 %r<2>; mov.u32 %r1, !;"), kernel(".reg .b32 %r<2>; add.s32 %r1, 1;"),
        kernel(".reg .b32 %r<2>; ld.global.u32 %r1, %r1;"), kernel(".reg .b64 %rd<2>; ld.global.u32 %rd1, [missing];"),
        kernel(".reg .b32 %r<2>; .reg .b64 %d<2>; add.u64 %d1, %d1, %r1;"), kernel("call missing, ();"), kernel("123;"),
    ],
)  # fmt: skip
def test_what_is_not_ptx_is_refused_as_invalid(text: str) -> None:
    with pytest.raises(ptx.PtxError) as error:
        load(text)
    assert error.value.status == 218


def test_a_module_that_was_cut_off_anywhere_never_does_worse_than_fail() -> None:
    whole = compile_ptx(SOURCE, "compute_80")
    for end in range(0, len(whole), 37):
        with contextlib.suppress(ptx.PtxError):
            load(whole[:end])


def test_ptx_of_a_later_version_is_refused_by_its_own_status() -> None:
    with pytest.raises(ptx.UnsupportedPtxVersion, match=r"99\.1") as error:
        load(".version 99.1\n.target sm_80\n.address_size 64\n")
    assert error.value.status == 222


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (".reg .b32 %r<9>; wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned"),
        (".reg .b32 %r<9>; mapa.shared::cluster.u32 %r1, %r2, 0;", "mapa.shared::cluster.u32"),
        (".reg .b32 %r<9>; mov.u32 %r1, %envreg3;", "%envreg3"),
        (".reg .b32 %r<9>; barrier.cluster.arrive;", "barrier.cluster.arrive"),
        (".reg .b32 %r<9>; cvt.rn.ue8m0x2.f32 %r1, %r2, %r3;", "cvt.rn.ue8m0x2.f32"),
        (".reg .b128 %q<2>;", "b128"),
    ],
)
def test_what_cannot_be_run_is_named_when_the_module_is_loaded(body: str, named: str) -> None:
    with pytest.raises(ptx.UnsupportedPtx) as error:
        load(kernel("\n\n" + body, name="culprit"))
    assert error.value.status == 801
    assert named in str(error.value)
    assert "culprit" in str(error.value)
    assert "line 8" in str(error.value)


def test_a_failed_load_leaves_nothing_accessible() -> None:
    memory = AddressSpace()
    text = HEADER + ".global .b32 x = 5;\n" + kernel("tcgen05.alloc.cta_group;").removeprefix(HEADER)
    with pytest.raises(ptx.UnsupportedPtx):
        LoadedModule(text, memory)
    assert memory._table == ([], [])


def test_initial_values_with_addresses() -> None:
    memory = AddressSpace()
    text = (
        HEADER + ".global .u32 a[3] = {1, 2};\n.global .u64 b[2] = {generic(a)+4, a};\n.global .f32 c = 0f40000000;\n"
    )
    module = LoadedModule(text, memory)
    a = module.globals["a"][0]
    assert memory.view(*module.globals["b"]).view("u8").tolist() == [a + 4, a]
    assert memory.view(*module.globals["a"]).view("u4").tolist() == [1, 2, 0]
    assert memory.view(*module.globals["c"]).view("f4")[0] == 2.0
    with pytest.raises(ptx.PtxError, match="not defined"):
        load(HEADER + ".extern .global .u32 elsewhere;\n")
