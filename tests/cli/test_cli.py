"""The commands: what they print, what they write, and their exit status."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import types
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import attrs
import numpy as np
import pytest
import trio

import atomr_trio
import support
from atomr_cuda import _library
from atomr_trio.__main__ import main
from atomr_trio._cli import cache, choice, doctor, progress, run
from atomr_trio._cli.demo import png, program as demo
from atomr_trio._compiling.compiler import compile_program
from atomr_trio._wire import limits as worker_limits, machine
from support import set_constant

DEVICE = "sim" if not support.ON_GPU else "0"

SAXPY = """
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
template <typename T> __global__ void twice(const T *x, T *y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }
__global__ void plain(float *y) { y[threadIdx.x] = SCALE; }
"""


# -- pictures ----------------------------------------------------------------------------------------------------------


def read_png(data: bytes) -> np.ndarray:
    """A reader of its own, that checks every checksum."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length) == (zlib.crc32(kind + body),)
        chunks[kind] = body
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colours, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, colours, rest) == (8, 2, [0, 0, 0])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def test_a_picture_reads_back_as_it_was_written(tmp_path):
    picture = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    png.write_png(tmp_path / "p.png", picture)
    assert np.array_equal(read_png((tmp_path / "p.png").read_bytes()), picture)


def test_colours_get_lighter_from_low_to_high_and_are_clipped():
    painted = png.colour(np.array([[-5.0, 0.0, 0.5, 1.0, 9.0]]), 0.0, 1.0)[0].astype(int)
    brightness = painted.sum(axis=1)
    assert brightness[0] == brightness[1] < brightness[2] < brightness[3] == brightness[4]


def test_panels_hang_side_by_side_with_a_gap():
    panel = np.zeros((4, 6, 3), np.uint8)
    wall = png.side_by_side([panel, panel], gap=2)
    assert wall.shape == (8, 18, 3)
    assert wall[2:6, 2:8].max() == 0
    assert wall[:, 8:10].min() == 255


# -- progress ----------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_a_line_each_quarter():
    out = io.StringIO()
    bar = progress.Progress("running", 100, out)
    for done in range(1, 101):
        bar.update(done)
    bar.finish()
    lines = out.getvalue().splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"running: step {n} of 100" for n in (25, 50, 75, 100)]


def test_a_terminal_gets_a_bar_that_ends_full_and_notes_above_it():
    out = Terminal()
    bar = progress.Progress("running", 8, out)
    bar.update(1)
    bar.note("something happened")
    bar.update(8)
    bar.finish()
    assert "something happened\n" in out.getvalue()
    assert "━" * 32 in out.getvalue().rpartition("\r")[2]
    assert out.getvalue().endswith("\n")


def test_a_bar_is_drawn_at_most_some_times_a_second(monkeypatch):
    out, times = Terminal(), [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: times[-1])
    bar = progress.Progress("running", 8, out)
    drawn = []
    for done, now in ((1, 101.0), (2, 101.001), (3, 102.0), (4, 102.001), (8, 102.002)):
        times.append(now)
        bar.update(done)
        drawn.append(out.getvalue().rpartition("step ")[2].partition(" ")[0])
    assert drawn == ["1", "1", "3", "3", "8"]


# -- which device ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[("0", (0, "cuda")), ("3", (3, "cuda")), ("sim", (0, "sim")), ("sim:1", (1, "sim"))],
        *[("cuda", (0, "cuda")), ("gpu", (0, "cuda")), ("cuda:2", (2, "cuda")), ("gpu:2", (2, "cuda"))],
    ],
)
def test_a_device_is_written_as_a_number_or_a_backend(text, expected):
    chosen = choice.device_argument(text)
    assert (chosen.index, chosen.backend) == expected


@pytest.mark.parametrize("text", ["", "abacus", "-1", "0:1", "sim:", "sim:x", "gpu:", "0.5"])
def test_anything_else_is_a_usage_error(text, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--device", text])
    assert stop.value.code == 2
    assert "is not a device" in capsys.readouterr().err


async def test_a_device_that_was_asked_for_is_not_replaced():
    wanted = choice.Choice(7, "cuda")
    assert await choice.choose(wanted) == (wanted, None)


async def test_without_a_gpu_the_simulator_is_chosen_and_the_reason_is_told(monkeypatch):
    async def no_gpu(device: choice.Choice) -> str:
        return "no driver here"

    monkeypatch.delenv("ATOMR_TRIO_BACKEND", raising=False)
    monkeypatch.setattr(choice, "what_is_wrong_with", no_gpu)
    assert await choice.choose(None) == (choice.Choice(0, "sim"), "no driver here")


async def test_a_gpu_that_works_is_chosen(monkeypatch):
    async def fine(device: choice.Choice) -> None:
        return None

    monkeypatch.delenv("ATOMR_TRIO_BACKEND", raising=False)
    monkeypatch.setattr(choice, "what_is_wrong_with", fine)
    assert await choice.choose(None) == (choice.Choice(0, "cuda"), None)


@pytest.mark.parametrize(("name", "backend"), [("sim", "sim"), ("cuda", "cuda"), ("gpu", "cuda")])
async def test_the_environment_may_choose(monkeypatch, name, backend):
    monkeypatch.setenv("ATOMR_TRIO_BACKEND", name)
    assert await choice.choose(None) == (choice.Choice(0, backend), None)


async def test_the_environment_may_not_choose_what_there_is_not(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_BACKEND", "abacus")
    with pytest.raises(atomr_trio.InvalidArgument, match=r"ATOMR_TRIO_BACKEND is .*abacus"):
        await choice.choose(None)


async def test_a_device_that_opens_has_nothing_wrong_with_it(backend):
    assert await choice.what_is_wrong_with(choice.Choice(0, backend)) is None


async def test_a_device_that_is_not_there_says_what_is_wrong_in_one_line(backend):
    trouble = await choice.what_is_wrong_with(choice.Choice(99, backend))
    assert trouble
    assert "\n" not in trouble


async def test_a_device_that_does_not_open_in_time_is_not_waited_for(monkeypatch, autojump_clock):
    monkeypatch.setattr(atomr_trio, "open_device", never_open)
    trouble = await choice.what_is_wrong_with(choice.Choice(3, "cuda"))
    assert trouble == f"GPU 3 did not open within {choice._PATIENCE:.0f} s"


@contextlib.asynccontextmanager
async def never_open(index: int, **options: object) -> AsyncIterator[atomr_trio.Device]:
    """In the place of `open_device`: a device that never answers."""
    await trio.sleep_forever()
    raise AssertionError("asleep for ever")
    yield


# -- the demo ----------------------------------------------------------------------------------------------------------


def test_the_demo_ends_identical_in_generation_3(tmp_path, capsys):
    out = tmp_path / "picture.png"
    status = main(["demo", "--device", DEVICE, "--size", "48", "--steps", "24", "--out", str(out)])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert printed.count("ContextLost") == 2
    assert printed.count("recovered in") == 2
    assert "going on from step 12" in printed
    assert "going on from step 16" in printed
    lines = printed.splitlines()
    assert lines[-3:-1] == [
        "identical: after 2 lost contexts, every bit is as without",
        "generation 3: each loss starts the next one",
    ]
    following = "demo --device sim --devices 2" if choice.device_argument(DEVICE).backend == "sim" else "doctor"
    assert lines[-1].startswith(f"next: python -m atomr_trio {following}    ")
    assert lines[0].startswith("What this shows: ")
    captions = "step 4, no fault yet; step 12, after 1 fault; step 24, after 2 faults"
    assert f"picture: {out}; from left to right: {captions}" in lines
    picture = read_png(out.read_bytes())
    side, strip = 48 * (384 // 48), 9 * 2 + 2 * 2
    assert picture.shape == (side + strip + 16, 3 * side + 4 * 8, 3)
    top = 8 + strip
    panels = [picture[top : top + side, 8 + n * (side + 8) : 8 + n * (side + 8) + side] for n in range(3)]
    assert not np.array_equal(panels[0], panels[1])
    assert not np.array_equal(panels[1], panels[2])


@pytest.mark.parametrize("count", [2, 3])
def test_the_demo_on_several_devices_loses_each_and_ends_identical(tmp_path, capsys, count):
    support.skip_without(count)
    out = tmp_path / "picture.png"
    arguments = ["--devices", str(count), "--size", "47", "--steps", "24", "--out", str(out)]
    status = main(["demo", "--device", DEVICE, *arguments])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert printed.count("recovered in") == count
    assert f"on device {count - 1}" in printed
    assert printed.splitlines()[-3:] == [
        f"identical: after {count} lost contexts, every bit is as without",
        "generation 2: each loss starts the next one",
        "next: python -m atomr_trio doctor    what works on this machine, and what is missing",
    ]
    assert read_png(out.read_bytes()).ndim == 3


async def test_the_demo_computes_gray_scott(backend):
    plan = demo.Plan(32, 6)
    result = await demo.undisturbed_run(choice.Choice(0, backend), plan)
    u, v = (field.astype(np.float64) for field in demo.seeded(32))
    for _ in range(plan.steps):
        reaction = u * v * v
        u, v = (
            u + laplace(u) - reaction + 0.029 * (1 - u),
            v + 0.5 * laplace(v) + reaction - (0.029 + 0.057) * v,
        )
    assert np.allclose(result.u, u, atol=1e-5)
    assert np.allclose(result.v, v, atol=1e-5)


def laplace(field: np.ndarray) -> np.ndarray:
    around = sum(
        weight * np.roll(field, (dy, dx), (0, 1))
        for dy in (-1, 0, 1)
        for dx in (-1, 0, 1)
        if (weight := {1: 0.2, 2: 0.05}.get(abs(dx) + abs(dy)))
    )
    return around - field


def test_a_difference_of_one_bit_is_noticed(tmp_path, monkeypatch, capsys):
    async def crashed(device: choice.Choice, plan: demo.Plan) -> demo.Result:
        return demo.Result(field, field, [demo.Panel(step, 0, field) for step in range(3)], 3, 2)

    async def undisturbed(device: choice.Choice, plan: demo.Plan) -> demo.Result:
        return demo.Result(field, np.nextafter(field, np.float32(2)), (), 1)

    field = np.ones((8, 8), np.float32)
    monkeypatch.setattr(demo, "crashing_run", crashed)
    monkeypatch.setattr(demo, "undisturbed_run", undisturbed)
    assert main(["demo", "--device", "sim", "--out", str(tmp_path / "p.png")]) == 1
    printed = capsys.readouterr().out
    assert "DIFFERENT: after 2 lost contexts; please report it" in printed
    assert "next:" not in printed


async def test_a_demo_without_a_gpu_says_why(monkeypatch, capsys):
    async def no_gpu(device: choice.Choice) -> str:
        return "no driver here"

    monkeypatch.delenv("ATOMR_TRIO_BACKEND", raising=False)
    monkeypatch.setattr(choice, "what_is_wrong_with", no_gpu)
    monkeypatch.setattr(demo, "crashing_run", never_crashed)
    with pytest.raises(LookupError):
        await demo.main(argparse.Namespace(device=None, devices=1, size=None, steps=None, out=Path("p.png")))
    first, second = capsys.readouterr().out.splitlines()
    assert first == "using the simulator: no driver here"
    assert second.startswith("What this shows: ")


async def never_crashed(device: choice.Choice, plan: demo.Plan) -> demo.Result:
    """In the place of `crashing_run`: the end of the demo."""
    raise LookupError


async def test_a_rogue_kernel_that_does_no_harm_is_no_demo(dev, monkeypatch):
    simulation = await demo.Simulation.start(dev, demo.Plan(8, 6))
    monkeypatch.setattr(simulation, "go_wild", simulation.advance)
    shown = progress.Progress("running", 6, io.StringIO())
    with pytest.raises(RuntimeError, match="did no harm"):
        await demo.crash_and_recover(dev, simulation.go_wild, simulation.v, 1, shown)


@pytest.mark.parametrize("option", ["--size=0", "--size=7", "--size=-1", "--steps=0", "--steps=2"])
def test_a_demo_too_small_to_show_anything_is_a_usage_error(capsys, monkeypatch, option):
    monkeypatch.setattr(demo, "crashing_run", never_crashed)
    assert main(["demo", "--device", DEVICE, option]) == 2
    name, _, number = option.partition("=")
    assert f"error: {name} is {number}; the demo needs at least" in capsys.readouterr().err


def test_a_demo_whose_picture_has_no_folder_ends_before_it_begins(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "crashing_run", never_crashed)
    assert main(["demo", "--device", DEVICE, "--out", str(tmp_path / "no" / "p.png")]) == 2
    assert f"there is no folder {tmp_path / 'no'}" in capsys.readouterr().err


# -- run ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.cu").write_text(SAXPY)
    np.save("x.npy", np.arange(10, dtype=np.float32))
    np.save("y.npy", np.ones(10, np.float32))
    return tmp_path


def run_kernel(*arguments: str) -> int:
    return main(["run", "k.cu", "--device", DEVICE, "-D", "SCALE=2.5f", *arguments])


def test_run_binds_arguments_in_the_order_of_the_command_line(workplace, capsys):
    order = ("--arg", "2.0f", "--in", "x.npy", "--inout", "y.npy", "--arg", "10")
    assert run_kernel("--kernel", "saxpy", "--grid", "1", "--block", "32", *order) == 0
    assert np.array_equal(np.load("y.npy"), 1 + 2 * np.arange(10, dtype=np.float32))
    assert np.array_equal(np.load("x.npy"), np.arange(10, dtype=np.float32))
    assert "y.npy: float32[10], 1.0 to 19.0" in capsys.readouterr().out


def test_run_writes_new_arrays_and_leaves_inputs_alone(workplace):
    order = ("--arg", "0.5", "--in", "x.npy", "--inout", "z=y.npy", "--arg", "10")
    assert run_kernel("--kernel", "saxpy", "--grid", "1,1", "--block", "32,1,1", *order) == 0
    assert np.array_equal(np.load("z.npy"), 1 + np.arange(10, dtype=np.float32) / 2)
    assert np.array_equal(np.load("y.npy"), np.ones(10, np.float32))


def test_run_takes_templates_and_mangled_names_and_shapes(workplace):
    operands = ("--in", "x.npy", "--out", "t=float32[2,5]")
    assert run_kernel("--kernel", "twice<float>", "--grid", "1", "--block", "10", *operands) == 0
    assert np.array_equal(np.load("t.npy"), 2 * np.arange(10, dtype=np.float32).reshape(2, 5))
    assert run_kernel("--kernel", "plain", "--grid", "1", "--block", "4", "--out", "p.npy=float32[4]") == 0
    assert np.array_equal(np.load("p.npy"), np.full(4, 2.5, np.float32))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--block 32 --in nothing.npy", "cannot read nothing.npy"),
        ("--block 32 --in k.cu", "not a .npy file"),
        ("--block 32 --arg 1", "argument"),
        ("--block 9999 --arg 2.0 --in x.npy --inout y.npy --arg 1", "1024"),
        ("--block 32 --arg 1e300 --in x.npy --inout y.npy --arg 1", "argument"),
    ],
)
def test_run_says_what_is_wrong_with_a_command_line_and_exits_with_2(workplace, capsys, arguments, says):
    assert run_kernel("--kernel", "saxpy", "--grid", "1", *arguments.split()) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--kernel", "saxpy", "--grid", "0", "--block", "1"],
        ["--kernel", "saxpy", "--grid", "1,1,1,1", "--block", "1"],
        ["--kernel", "saxpy", "--grid", "1", "--block", "1", "--out", "y"],
        ["--kernel", "saxpy", "--grid", "1", "--block", "1", "--out", "y=floaty[3]"],
        ["--kernel", "saxpy", "--grid", "1", "--block", "1", "--arg", "three"],
        ["--grid", "1", "--block", "1"],
    ],
)
def test_run_refuses_what_it_cannot_parse(workplace, arguments):
    with pytest.raises(SystemExit) as stop:
        run_kernel(*arguments)
    assert stop.value.code == 2


def test_run_reads_its_files_before_it_looks_for_a_device(workplace, capsys):
    (workplace / "k.cu").unlink()
    assert run_kernel("--kernel", "saxpy", "--grid", "1", "--block", "1") == 2
    assert "cannot read k.cu: No such file" in capsys.readouterr().err
    (workplace / "k.cu").write_bytes(b"\xff\xfe")
    assert run_kernel("--kernel", "saxpy", "--grid", "1", "--block", "1") == 2
    assert "cannot read k.cu: 'utf-8' codec" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        (["--inout", "no/r=x.npy"], "cannot write no/r.npy: there is no folder no"),
        (["--out", "no/r=float32[4]"], "cannot write no/r.npy: there is no folder no"),
        (["--out", "folder=float32[4]"], "cannot write folder.npy: it is a folder"),
        (["--out", "r=float32[4]", "--inout", "r=x.npy"], "two results would be written to r.npy"),
    ],
)
def test_run_finds_before_the_kernel_runs_that_a_result_cannot_be_written(
    workplace, monkeypatch, capsys, outputs, says
):
    (workplace / "folder.npy").mkdir()
    monkeypatch.setattr(run, "launch", None)
    assert run_kernel("--kernel", "saxpy", "--grid", "1", "--block", "4", *outputs) == 2
    assert says in capsys.readouterr().err
    assert not (workplace / "r.npy").exists()


def test_run_makes_arrays_of_bfloat16_and_says_how_to_read_them(workplace, capsys):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    halves = 'extern "C" __global__ void halves(void *x) { ((unsigned short *)x)[threadIdx.x] = 0x3F00 + threadIdx.x; }'
    (workplace / "k.cu").write_text(halves)
    assert run_kernel("--kernel", "halves", "--grid", "1", "--block", "2", "--out", "my q = bfloat16 [2]") == 0
    result = np.load("my q.npy").view(ml_dtypes.bfloat16)
    assert result.astype(float).tolist() == [0.5, 0.50390625]
    assert "np.load(...).view(ml_dtypes.bfloat16)" in capsys.readouterr().out


def test_run_without_a_gpu_says_why_it_simulates(workplace, monkeypatch, capsys):
    async def simulated(device: choice.Choice) -> tuple[choice.Choice, str]:
        return choice.device_argument(DEVICE), "no driver here"

    monkeypatch.setattr(run, "choose", simulated)
    assert run_kernel("--kernel", "plain", "--grid", "1", "--block", "4", "--out", "p=float32[4]") == 0
    assert capsys.readouterr().out.startswith("using the simulator: no driver here\n")


def test_run_shows_the_compilers_words_and_exits_with_1(workplace, capsys):
    (workplace / "k.cu").write_text("__global__ void broken() { retrun; }")
    assert run_kernel("--kernel", "broken", "--grid", "1", "--block", "1") == 1
    assert "retrun" in capsys.readouterr().err


def test_run_reports_a_fault_and_exits_with_1(workplace, capsys):
    wild = ("--arg", "2.0", "--in", "x.npy", "--arg", "0xBAD0", "--arg", "10")
    assert run_kernel("--kernel", "saxpy", "--grid", "1", "--block", "32", *wild) == 1
    assert "700" in capsys.readouterr().err


def test_run_shows_what_the_kernel_prints(workplace, capsys):
    (workplace / "k.cu").write_text('extern "C" __global__ void hello() { printf("hello from %d\\n", threadIdx.x); }')
    assert run_kernel("--kernel", "hello", "--grid", "1", "--block", "2") == 0
    assert "hello from 0\nhello from 1\n" in capsys.readouterr().err


def test_run_knows_no_kernel_that_is_not_there(workplace, capsys):
    assert run_kernel("--kernel", "nope", "--grid", "1", "--block", "2") == 1
    assert "nope" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "number"),
    [("3", 3), ("-7", -7), ("0x10", 16), ("5u", 5), ("7ULL", 7), ("2.5f", 2.5), ("1e-3", 1e-3), ("3f", 3.0)],
)
def test_numbers_are_read_as_c_writes_them(text, number):
    read = run.number_operand(text).number
    assert read == number
    assert type(read) is type(number)


# -- check -------------------------------------------------------------------------------------------------------------

REVERSED = """
extern "C" __global__ void reversed(const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[n - i] = x[i];  // one past the end
}
"""
OVERRUN = next(number for number, line in enumerate(REVERSED.splitlines(), 1) if "one past" in line)

PROGRAM = f"""
import subprocess, sys, numpy as np, trio, atomr_trio

async def main(count):
    async with atomr_trio.open_device() as dev:
        x, y = await dev.to_device(np.ones(4, np.float32)), dev.zeros(4, np.float32)
        options = atomr_trio.NvrtcOptions(name="reversed.cu")
        kernel = await dev.nvrtc.compile({REVERSED!r}, "reversed", options)
        for _ in range(count):
            generation = dev.generation
            try:
                await kernel.launch(1, 4, atomr_trio.read_only(x), y, 4)
            except atomr_trio.ContextLost:
                await dev.wait_generation(after=generation)
            y = dev.zeros(4, np.float32)

what, *rest = sys.argv[1:]
print("the program was given", what, *rest)
if what == "parent":
    sys.exit(subprocess.run([sys.executable, __file__, "fault", *rest]).returncode)
if what in ("fault", "right"):
    trio.run(main, int(rest[0]) if what == "fault" else 0)
sys.exit(int(rest[-1]))
"""


def check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What the command prints, from a process of its own: the streams of a program go past pytest's."""
    command = [sys.executable, "-m", "atomr_trio", "check", *arguments]
    # A module is looked for in the current folder, as Python does unless it is told not to.
    environment = {name: value for name, value in support.child_environment().items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def programs(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "reversed.cu").write_text(REVERSED)
    np.save(tmp_path / "x.npy", np.ones(4, np.float32))
    return tmp_path


@pytest.mark.sim_only
@pytest.mark.parametrize(
    "arguments",
    [
        ["program.py", "fault"],
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in (["program.py", "parent"], ["-m", "program", "fault"])
        ),
    ],
)
def test_check_tells_what_the_kernels_of_a_program_and_its_children_do_wrong(programs, arguments):
    answer = check(programs, *arguments, "1", "0")
    assert answer.returncode == 1, answer.stderr
    assert f"the program was given {arguments[-1]} 1 0\n" in answer.stdout
    *_, finding, who, where, summary = answer.stderr.splitlines()
    assert finding.startswith(f"reversed.cu:{OVERRUN}: bounds: write of 4 bytes outside of array float32[4]")
    assert who == "    by thread (0, 0, 0) of block (0, 0, 0) of kernel reversed"
    assert "program.py:6, at index 4" in where
    assert summary == "check: 1 finding (1 bounds)"


@pytest.mark.sim_only
@pytest.mark.long
def test_check_tells_the_same_thing_once(programs):
    answer = check(programs, "program.py", "fault", "2", "0")
    assert answer.returncode == 1
    assert answer.stderr.count(f"\nreversed.cu:{OVERRUN}: bounds:") == 1
    assert "[found 2 times]" in answer.stderr


@pytest.mark.long
@pytest.mark.sim_only
def test_check_ends_as_its_program_does_when_nothing_is_found(programs):
    answer = check(programs, "--only", "barriers", "program.py", "none", "--only", "7")
    says = "check: nothing was checked, since the program opened no device"
    assert (answer.returncode, answer.stderr) == (7, f"{says}; the program failed, with exit status 7\n")
    assert answer.stdout == "the program was given none --only 7\n"
    answer = check(programs, "program.py", "none", "0")
    assert (answer.returncode, answer.stderr) == (2, f"{says}\n"), "else a misspelt path of a test suite would pass"


@pytest.mark.long
@pytest.mark.sim_only
def test_check_tells_a_program_that_fails_from_one_that_is_not_there(programs, capsys):
    answer = check(programs, "--only", "all", "program.py", "right", "3")
    assert (answer.returncode, answer.stderr) == (3, "check: nothing found; the program failed, with exit status 3\n")
    assert main(["check", str(programs / "absent.py")]) == 2
    assert main(["check", str(programs)]) == 2
    absent, folder = capsys.readouterr().err.splitlines()
    assert absent.startswith(f"error: cannot read {programs / 'absent.py'}: there is no such file")
    assert folder == f"error: cannot run {programs}: it is a folder without a __main__.py"


@pytest.mark.sim_only
def test_check_tells_by_which_signal_a_program_ended_as_a_shell_does(tmp_path):
    (tmp_path / "killed.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert check(tmp_path, "killed.py").returncode == 128 + 9


@pytest.mark.sim_only
def test_check_leaves_ctrl_c_to_its_program(tmp_path):
    program = "import os, signal, sys; os.kill(os.getppid(), signal.SIGINT); sys.exit(5)"
    (tmp_path / "patient.py").write_text(program)
    answer = check(tmp_path, "patient.py")
    assert answer.returncode == 5
    assert answer.stderr.endswith("; the program failed, with exit status 5\n")


@pytest.mark.long
@pytest.mark.sim_only
def test_check_runs_a_test_suite(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["atomr_trio.pytest_plugin"]\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    (tmp_path / "test_it.py").write_text(
        "import numpy as np\n"
        f"SOURCE = {REVERSED!r}\n"
        "async def test_right(gpu_device):\n"
        "    await launch(gpu_device, 3)\n"
        "async def test_wrong(gpu_device):\n"
        "    await launch(gpu_device, 4)\n"
        "async def launch(dev, n):\n"
        "    x, y = await dev.to_device(np.ones(4, np.float32)), dev.zeros(4, np.float32)\n"
        "    kernel = await dev.nvrtc.compile(SOURCE, 'reversed')\n"
        "    await kernel.launch(1, 4, x, y, n)\n"
    )
    answer = check(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
    assert answer.returncode == 1
    assert "1 failed, 1 passed" in answer.stdout, answer.stdout
    assert f"kernel.cu:{OVERRUN}: bounds:" in answer.stdout
    assert answer.stderr.endswith("check: 1 finding (1 bounds); the program failed, with exit status 1\n")


FAULTS = f"""
import numpy as np, pytest, atomr_trio
SOURCE = {REVERSED!r}

async def launch(dev, n):
    x, y = await dev.to_device(np.ones(4, np.float32)), dev.zeros(4, np.float32)
    kernel = await dev.nvrtc.compile(SOURCE, "reversed", atomr_trio.NvrtcOptions(name="reversed.cu"))
    await kernel.launch(1, 4, x, y, n)

@pytest.mark.gpu_faults
async def test_on_purpose(gpu_device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(atomr_trio.ContextLost):
        await launch(gpu_device, 4)

@pytest.mark.gpu_faults
def test_on_purpose_without_async(plain_gpu_device):
    with pytest.raises(atomr_trio.ContextLost):
        plain_gpu_device.run(launch, plain_gpu_device, 4)

@pytest.mark.gpu_faults
async def test_on_purpose_and_fails(gpu_device):
    await launch(gpu_device, 4)

async def test_wrong(gpu_device):
    with pytest.raises(atomr_trio.ContextLost):
        await launch(gpu_device, 4)
"""


@pytest.fixture
def suite(tmp_path):
    """A folder with a suite of tests that fault on purpose, and two that fail by the same fault."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["atomr_trio.pytest_plugin"]\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    (tmp_path / "test_it.py").write_text(FAULTS)
    return tmp_path


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.mark.sim_only
@pytest.mark.long
def test_check_of_a_test_suite_ends_well_when_its_faults_are_all_meant(suite):
    answer = check(suite, *PYTEST, "-k", "on_purpose and not fails")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "2 passed" in answer.stdout
    first, *_, summary = answer.stderr.splitlines()
    assert first.startswith(f"reversed.cu:{OVERRUN}: bounds: ")
    assert first.endswith(" [found 2 times] [expected: its test is marked gpu_faults]")
    assert summary == "check: nothing found; 1 expected finding (1 bounds)"


@pytest.mark.sim_only
@pytest.mark.parametrize("test", ["test_on_purpose_and_fails", "test_wrong"])
@pytest.mark.long
def test_check_of_a_test_suite_tells_faults_that_are_not_meant_from_the_same_that_are(suite, test):
    answer = check(suite, *PYTEST, f"test_it.py::{test}", "test_it.py::test_on_purpose")
    assert answer.returncode == 1
    assert "1 failed, 1 passed" in answer.stdout, answer.stdout
    places = [line for line in answer.stderr.splitlines() if line.startswith("reversed.cu")]
    assert [line.endswith(" [expected: its test is marked gpu_faults]") for line in places] == [True, False]
    words = "check: 1 finding (1 bounds); 1 expected finding (1 bounds); the program failed, with exit status 1\n"
    assert answer.stderr.endswith(words)


def test_check_refuses_checks_that_there_are_not(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["check", "--only", "bounds,spelling", "program.py"])
    assert stop.value.code == 2
    assert "'spelling' is not a check; the checks are bounds," in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.sim_only
def test_check_launches_a_kernel_as_run_does(programs, monkeypatch, capsys):
    monkeypatch.chdir(programs)
    launched = ("--kernel", "reversed", "--grid", "1", "--block", "4", "--in", "x.npy", "--out", "y=float32[4]")
    assert main(["check", "--only", "bounds", "reversed.cu", *launched, "--arg", "4"]) == 1
    printed = capsys.readouterr().err
    assert f"reversed.cu:{OVERRUN}: bounds: write of 4 bytes outside of array float32[4]" in printed
    assert printed.endswith("check: 1 finding (1 bounds)\n")
    assert printed.count(f"reversed.cu:{OVERRUN}") == 1
    assert main(["check", "reversed.cu", *launched, "--arg", "3"]) == 0
    assert capsys.readouterr().err == "check: nothing found\n"
    assert np.array_equal(np.load("y.npy"), np.ones(4, np.float32))


@pytest.mark.sim_only
def test_check_of_a_fault_that_nothing_has_found_is_that_fault(programs, monkeypatch, capsys):
    monkeypatch.chdir(programs)
    wild = ("--kernel", "reversed", "--grid", "1", "--block", "4", "--in", "x.npy", "--arg", "0xBAD0", "--arg", "3")
    assert main(["check", "--only", "barriers", "reversed.cu", *wild]) == 1
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.sim_only
def test_check_loads_a_file_and_says_what_the_simulator_refuses(programs, monkeypatch, capsys):
    monkeypatch.chdir(programs)
    assert main(["check", "reversed.cu"]) == 0
    assert capsys.readouterr().out == "reversed.cu: compiled and loaded: reversed\n"
    (programs / "sleeper.cu").write_text("#include <cuda_fp16.h>\n__device__ half x;\n")
    assert main(["check", "sleeper.cu"]) == 0
    assert capsys.readouterr().out == "sleeper.cu: compiled and loaded: no kernels\n"
    refused = 'unsigned r; asm volatile ("mov.u32 %0, %%aggr_smem_size;" : "=r"(r)); *x = r;'
    (programs / "refused.cu").write_text(f'extern "C" __global__ void ask(unsigned *x) {{ {refused} }}')
    assert main(["check", "refused.cu"]) == 1
    assert "refused.cu: refused by the simulator: " in capsys.readouterr().err


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "cannot read no.cu"),
        (["--kernel", "k"], "a launch needs --grid too"),
        (["--grid", "1", "--block", "1"], "a launch needs --kernel too"),
        (["--arg", "1"], "a launch needs --kernel too"),
        (["--device", "0"], "the simulator alone can check, and --device names GPU 0"),
        (["--device", "sim"], "cannot read no.cu"),
    ],
)
def test_check_says_what_is_wrong_with_a_command_line_and_exits_with_2(capsys, arguments, says):
    try:
        status = main(["check", "no.cu", *arguments])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert says in capsys.readouterr().err


# -- the doctor --------------------------------------------------------------------------------------------------------


def test_the_doctor_finds_a_device_that_works(capsys):
    assert main(["doctor", "--device", DEVICE]) == 0
    printed = capsys.readouterr().out
    for word in ("python", "nvrtc", "capability", "memory", "compute mode", "self-test    passed"):
        assert word in printed


def test_the_doctor_says_what_is_missing_and_what_mends_it(tmp_path):
    """In a process of its own, since this one may have loaded the library already."""
    environment = support.child_environment(ATOMR_TRIO_NVRTC_PATH=str(tmp_path / "libnvrtc.so"))
    command = [sys.executable, "-m", "atomr_trio", "doctor", "--device", DEVICE]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 1
    printed = answer.stdout
    assert f"ATOMR_TRIO_NVRTC_PATH={tmp_path}" in printed
    assert re.search(r'Install nvrtc: pip install "atomr-trio\[(cu13|sim)\]"', printed)
    assert "self-test    FAILED" in printed


def test_the_doctor_tells_what_machine_it_is_on(monkeypatch, capsys):
    monkeypatch.setattr(doctor.platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(doctor.metadata, "version", not_installed)
    report = doctor.Report()
    doctor.describe_machine(report)
    assert not doctor.is_supported()
    printed = capsys.readouterr().out
    assert "riscv64" in printed
    assert "trio (not installed)" in printed


def not_installed(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def test_the_doctor_outlives_a_library_that_crashes(monkeypatch):
    monkeypatch.setattr(doctor.sys, "executable", shutil.which("false"))
    with pytest.raises(OSError, match="ended with status 1"):
        doctor.ask_libraries()


def test_the_doctor_says_the_same_thing_once(monkeypatch, capsys):
    missing = {"name": "nvrtc", "missing": True, "looked": ["here"], "extra": "cu13", "override": "X"}
    slow = {"name": "cuda", "version": "13.0", "path": "/lib/c.so", "found_by": "the system", "trouble": "it stutters"}
    set_constant(monkeypatch, _library, "GPU_FILES", ("/",))
    report = doctor.Report()
    doctor.describe_libraries(report, [missing, missing, slow])
    assert report.advice == ['Install nvrtc: pip install "atomr-trio[cu13]", or name its file in X.']
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split() == ["cuda", "13.0,", "/lib/c.so,", "found", "by", "the", "system"]
    assert lines[-1].strip() == "it stutters"


@pytest.mark.parametrize(
    ("cards", "container", "says"),
    [
        ([], False, 'No NVIDIA GPU is in this machine; the simulator works here: open_device(0, backend="sim")'),
        (["0000:01:00.0"], False, "no driver: install your distribution's"),
        (["0000:01:00.0"], True, "the container has no driver"),
    ],
)
def test_the_doctor_knows_why_there_is_no_driver(monkeypatch, capsys, cards, container, says):
    machine_without(monkeypatch, cards, container)
    report = doctor.Report()
    doctor.describe_libraries(report, [NO_DRIVER])
    assert says in report.advice[0]
    assert 'open_device(0, backend="sim")' in report.advice[0]


NO_DRIVER = {"name": "cuda", "missing": True, "looked": [], "extra": None, "override": "X"}


def machine_without(monkeypatch, cards: Sequence[str] = (), container: bool = False, scipy: bool = True) -> None:
    """Have this machine look like one with these cards and no driver."""
    monkeypatch.delenv("ATOMR_TRIO_CUDA_PATH", raising=False)
    monkeypatch.setattr(machine, "nvidia_cards", lambda: cards)
    monkeypatch.setattr(machine, "in_container", lambda: container)
    monkeypatch.setattr(machine, "has_scipy", lambda: scipy)
    set_constant(monkeypatch, _library, "GPU_FILES", ())


def test_the_doctor_advises_nothing_that_a_machine_without_a_gpu_has_no_use_for(monkeypatch, capsys):
    machine_without(monkeypatch, scipy=False)
    nvrtc = {"name": "nvrtc", "missing": True, "looked": ["here"], "extra": "sim", "override": "X"}
    cublas = {"name": "cublas", "missing": True, "looked": ["there"], "extra": "cu13", "override": "Y"}
    report = doctor.Report()
    doctor.describe_libraries(report, [NO_DRIVER, nvrtc, cublas])
    install = 'pip install "atomr-trio[sim]"'
    assert report.advice == [
        f"No NVIDIA GPU is in this machine; the simulator works once nvrtc and scipy are installed: {install}, then "
        'open_device(0, backend="sim"), or set ATOMR_TRIO_BACKEND=sim.',
        f"Install nvrtc: {install}, or name its file in X.",
        f"The simulator's linear algebra and Fourier transforms need scipy: {install}.",
    ]
    assert "cublas       not found, and not needed without a GPU" in capsys.readouterr().out


@pytest.mark.parametrize("devices", [1, 2])
def test_the_doctor_advises_what_only_several_gpus_need_where_there_are_several(monkeypatch, capsys, devices):
    set_constant(monkeypatch, _library, "GPU_FILES", ("/",))
    cuda = {"name": "cuda", "version": "13.0", "path": "/lib/c.so", "found_by": "the system", "devices": devices}
    nccl = {"name": "nccl", "missing": True, "looked": ["there"], "extra": "nccl-cu13", "override": "X"}
    report = doctor.Report()
    doctor.describe_libraries(report, [cuda, nccl])
    printed = capsys.readouterr().out
    assert ("nccl         not found, and not needed with one GPU" in printed) == (devices == 1)
    assert ("there" in printed) == (devices == 2)
    advice = 'Install nccl: pip install "atomr-trio[nccl-cu13]", or name its file in X.'
    assert report.advice == ([advice] if devices == 2 else [])


def test_the_doctor_says_what_works_where_the_driver_sees_no_gpu(monkeypatch):
    machine_without(monkeypatch)
    idle = {"name": "cuda", "version": "13.0", "path": "/lib/c.so", "found_by": "the system", "devices": 0}
    report = doctor.Report()
    doctor.describe_libraries(report, [{**idle, "trouble": "cuInit: CUDA_ERROR_NO_DEVICE (100): no device"}])
    [advice] = report.advice
    assert advice.startswith("The driver sees no GPU: check `nvidia-smi` and CUDA_VISIBLE_DEVICES.")
    assert 'open_device(0, backend="sim")' in advice


def test_the_doctor_shows_the_environment_where_it_changes_something(monkeypatch, capsys, tmp_path):
    for name in [name for name in os.environ if name.startswith(("ATOMR_TRIO_", "CUDA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(doctor, "Path", lambda _: tmp_path)
    report = doctor.Report()
    doctor.describe_environment(report)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    doctor.describe_environment(report)
    assert capsys.readouterr().out.split() == ["environment", "CUDA_VISIBLE_DEVICES", "3"]
    assert report.advice == []


def test_the_doctor_shows_the_limits_and_says_which_are_too_low(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", str(tmp_path / "kernels"))
    limits = {
        resource.RLIMIT_NOFILE: (100, 200),
        resource.RLIMIT_AS: (4 << 30, resource.RLIM_INFINITY),
        resource.RLIMIT_FSIZE: (1 << 20, resource.RLIM_INFINITY),
        resource.RLIMIT_NPROC: (50, 50),
        resource.RLIMIT_MEMLOCK: (8 << 20, 8 << 20),
        resource.RLIMIT_CORE: (resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    }
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(worker_limits, "available_memory", lambda: 512 << 20)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=1 << 20, total=1 << 20))
    report = doctor.Report()
    doctor.describe_limits(report, [])
    printed = capsys.readouterr().out
    for words in (
        "100; 200 once a device is opened (RLIMIT_NOFILE)",
        "4 GiB (RLIMIT_AS)",
        "1 MiB (RLIMIT_FSIZE)",
        "50 (RLIMIT_NPROC)",
        "8 MiB (RLIMIT_MEMLOCK)",
        "unlimited (RLIMIT_CORE)",
        "0.5 GiB available",
        f"{tmp_path / 'kernels'}, 0.0 GiB free",
    ):
        assert words in printed
    cases = ("descriptors", "addresses", "file size", "processes", "cores", "memory", "disk")
    assert report.advice == [doctor._ADVICE[case].format(hard=200) for case in cases]
    assert not report.broken


@pytest.mark.parametrize(("mebibytes", "devices"), [(64, 2), (64, 1), (4096, 2)])
def test_the_doctor_advises_more_shared_memory_where_several_gpus_have_little(
    monkeypatch, capsys, tmp_path, mebibytes, devices
):
    usage = types.SimpleNamespace(total=mebibytes << 20, free=mebibytes << 19)
    monkeypatch.setattr(doctor, "_SHARED_FOLDER", tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    report = doctor.Report()
    doctor.describe_shared(report, several=doctor.has_several([{"name": "cuda", "devices": devices}]))
    assert f"{mebibytes / 2048:.1f} GiB free of {mebibytes / 1024:.1f} GiB" in capsys.readouterr().out
    assert bool(report.advice) == (mebibytes == 64 and devices == 2)
    assert all("has 64 MiB in all" in text and "--shm-size" in text for text in report.advice)


def test_the_doctor_finds_nothing_to_do_about_limits_that_are_high(monkeypatch, capsys):
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", "")
    high = {resource.RLIMIT_CORE: (0, 0)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: high.get(which, (resource.RLIM_INFINITY,) * 2))
    monkeypatch.setattr(worker_limits, "available_memory", lambda: 8 << 30)
    report = doctor.Report()
    doctor.describe_limits(report, [])
    assert "kernel cache none on disk" in capsys.readouterr().out
    assert report.advice == []


async def test_the_doctor_says_what_a_gpu_that_forgets_or_admits_one_process_costs(dev, capsys):
    report = doctor.Report()
    doctor.describe_device(report, attrs.evolve(dev.info, name="Toy", durable=False, compute_mode="exclusive-process"))
    assert "NOT durable" in capsys.readouterr().out
    assert [text.partition(",")[0] for text in report.advice] == [
        "Toy cannot export its memory",
        "Toy admits one process",
    ]


async def test_the_doctor_says_which_loop_the_worker_runs_and_why(dev, capsys):
    for reason, line in ((None, "worker's loop native"), ("no ring", "worker's loop Python: no ring")):
        doctor.describe_device(doctor.Report(), attrs.evolve(dev.info, python_loop=reason))
        assert line in " ".join(capsys.readouterr().out.split())


async def test_the_doctor_does_not_wait_for_ever(monkeypatch, capsys, autojump_clock):
    monkeypatch.setattr(atomr_trio, "open_device", never_open)
    report = doctor.Report()
    await doctor.examine(report, choice.Choice(0, "cuda"))
    assert report.broken
    assert f"FAILED: no result within {doctor._SELF_TEST_PATIENCE:.0f} s" in capsys.readouterr().out


@pytest.mark.parametrize(("devices", "simulated"), [(None, 1), ("", 1), ("0", 1), ("many", 1), ("2", 2)])
def test_the_doctor_examines_every_gpu_and_every_simulated_one(monkeypatch, devices, simulated):
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", devices or "")
    if devices is None:
        monkeypatch.delenv("ATOMR_TRIO_SIM_DEVICES")
    libraries = [{"name": "cuda", "devices": 2}, {"name": "nvrtc"}]
    expected = ["GPU 0", "GPU 1", *(f"simulated GPU {index}" for index in range(simulated))]
    assert [str(device) for device in doctor.devices_of(libraries)] == expected


async def test_the_doctor_shows_which_devices_can_access_each_others_memory(dev, capsys):
    def device(index: int, backend: str, *peers: int) -> atomr_trio.DeviceInfo:
        return attrs.evolve(dev.info, index=index, backend=backend, peers=peers)

    devices = [device(0, "cuda", 2), device(2, "cuda", 0), device(11, "cuda"), device(0, "sim")]
    doctor.describe_peers(doctor.Report(), devices)
    assert capsys.readouterr().out.splitlines() == [
        "",
        "direct access to memory of other GPUs",
        "                   0    2   11",
        "  device 0         -  yes   no",
        "  device 2       yes    -   no",
        "  device 11       no   no    -",
    ]


@pytest.mark.sim_only
def test_the_doctor_asks_the_devices_whom_they_can_access(monkeypatch, capsys):
    """The whole command, but for the libraries, and for what a device computes and costs."""

    async def nothing(*_arguments: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "2")
    monkeypatch.setattr(doctor, "ask_libraries", list)
    for part in ("self_test", "describe_standby"):
        monkeypatch.setattr(doctor, part, nothing)
    assert main(["doctor"]) == 0
    assert "  device 1       yes    -\n" in capsys.readouterr().out


def test_the_doctor_warns_of_mps(monkeypatch, capsys, tmp_path):
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    report = doctor.Report()
    doctor.describe_environment(report)
    assert "MPS is on" in report.advice[0]


async def test_a_device_that_computes_wrongly_fails_its_self_test(monkeypatch, capsys, backend):
    wrong = doctor._SELF_TEST_SOURCE.replace("x[i] * x[i]", "x[i] * x[i] + (i == 77)")
    set_constant(monkeypatch, doctor, "_SELF_TEST_SOURCE", wrong)
    report = doctor.Report()
    await doctor.examine(report, choice.Choice(0, backend))
    assert report.broken
    assert "element 77" in capsys.readouterr().out


# -- cache -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """A cache with two compiled sources, where the command looks for it."""
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("ATOMR_TRIO_CACHE_MAX_BYTES", raising=False)
    kernels = atomr_trio.NvrtcCache()
    options = atomr_trio.NvrtcOptions(name_expressions=["twice<float>", "saxpy"], defines={"SCALE": "3"})
    for target in ("compute_80", "sm_90"):
        key = atomr_trio.NvrtcCacheKey.of(SAXPY, options, target, (13, 5), "build")
        kernels.insert(key, compile_program(SAXPY, options, target))
    return kernels


def test_the_cache_is_listed_with_names_targets_and_sizes(kernels, capsys):
    assert main(["cache", "list"]) == 0
    *entries, total = capsys.readouterr().out.splitlines()
    assert sorted(line.split("  ")[:2] for line in entries) == [
        ["twice<float>, saxpy, _Z5plainPf", target] for target in ("compute_80", "sm_90")
    ]
    assert sorted("cubin" in line for line in entries) == [False, True]
    assert all(line.endswith(" s old") for line in entries)
    assert total.startswith("2 entries, ")
    assert total.endswith(" KiB of 1.0 GiB")


def test_the_folder_of_the_cache_is_printed_alone(kernels, capsys):
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out == f"{kernels.directory}\n"


def test_verifying_the_cache_fails_when_an_entry_is_damaged(kernels, capsys):
    assert main(["cache", "verify"]) == 0
    assert capsys.readouterr().out == "all good\n"
    damaged = min(kernels.directory.iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert main(["cache", "verify"]) == 1
    assert capsys.readouterr().out == f"{damaged}: is damaged\n1 bad\n"


def test_verifying_many_files_shows_how_far_it_is(kernels, capsys):
    for number in range(cache._MANY - 2):
        kernels.put_manifest(number.to_bytes(32, "big"), b"text")
    assert main(["cache", "verify"]) == 0
    *lines, result = capsys.readouterr().out.splitlines()
    done = [cache._MANY * quarter // 4 for quarter in (1, 2, 3, 4)]
    assert [line.partition(",")[0] for line in lines] == [f"verifying: file {n} of {cache._MANY}" for n in done]
    assert result == "all good"


def test_the_cache_is_cleared(kernels, capsys):
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == "2 files deleted\n"
    assert list(kernels.directory.iterdir()) == []
    assert main(["cache", "list"]) == 0
    assert capsys.readouterr().out == "0 entries, 0 B of 1.0 GiB\n"


@pytest.mark.parametrize("action", ["list", "path", "verify", "clear"])
def test_a_cache_that_is_switched_off_is_no_failure(monkeypatch, capsys, action):
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", "0")
    assert main(["cache", action]) == 0
    assert capsys.readouterr().out == "there is no cache on disk\n"


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5120.0 GiB")],
)
def test_sizes_are_shown_in_the_unit_that_fits(count, shown):
    assert cache.size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0 s"), (0, "0 s"), (59.9, "59 s"), (60, "1 min"), (7200, "2 h"), (86400 * 400, "400 d")],
)
def test_ages_are_shown_in_the_unit_that_fits(seconds, shown):
    assert cache.age(seconds) == shown


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_a_device_that_is_not_there_is_a_failure_not_a_traceback(tmp_path, capsys):
    missing = "sim:99" if not support.ON_GPU else "99"
    assert main(["demo", "--device", missing, "--out", str(tmp_path / "p.png")]) == 1
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.sim_only
def test_without_a_gpu_a_command_names_its_own_option_for_the_simulator(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ATOMR_TRIO_CUDA_PATH", str(tmp_path / "libcuda.so.1"))
    assert main(["demo", "--device", "gpu", "--out", str(tmp_path / "p.png")]) == 1
    printed = capsys.readouterr().err
    assert "the library 'cuda' was not found" in printed
    assert printed.endswith("--device sim.\n")


def test_ctrl_c_ends_a_command_with_130(monkeypatch):
    async def interrupted(device: choice.Choice | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "choose", interrupted)
    assert main(["demo"]) == 130


def test_without_a_command_the_usage_is_shown(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    assert "doctor" in capsys.readouterr().err
