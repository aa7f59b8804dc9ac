"""`python -m atomr_trio check`: a Python program, or a kernel of a CUDA file, on the simulator with its checks on.

A program runs in its own process. Its environment switches on the checks of every device that it opens, in its children
too. The findings of their workers stay in a folder, and are printed at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import attrs
import trio

import atomr_trio
from atomr_trio import Check, Finding, kept_findings
from atomr_trio._cli import run
from atomr_trio._cli.choice import Choice, device_argument
from atomr_trio._wire.checking import expected_lines

EVERY: tuple[Check, ...] = tuple(word for word in get_args(Check) if word != "all")
CUDA_SUFFIX = ".cu"
FOUND = 1
NOTHING_CHECKED = USAGE_ERROR = 2
_PROGRAM = "python -m atomr_trio check"
_NOT_SUPPORTED = 801
_ECHO = re.compile(rf"atomr simulated GPU: .*: (?:{'|'.join(EVERY)}): ")


def checks(text: str) -> tuple[Check, ...]:
    """Read `races`, `races,bounds` or `all`."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in (*EVERY, "all"):
            raise argparse.ArgumentTypeError(f"{word!r} is not a check; the checks are {', '.join(EVERY)}, and all")
    return tuple(check for check in EVERY if check in words or "all" in words)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    only = "[--only CHECK[,CHECK]]"
    parser.usage = (
        f"{_PROGRAM} {only} script.py [argument ...]\n"
        f"       {_PROGRAM} {only} -m module [argument ...]\n"
        f"       {_PROGRAM} {only} file.cu [--kernel NAME and what else `run` takes, its --device a simulated one]"
    )
    parser.add_argument(
        "--only",
        type=checks,
        default=EVERY,
        metavar="CHECK[,CHECK]",
        help=f"of {', '.join(EVERY)}, or all, the default",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, such as pytest")
    parser.add_argument("program", help="a Python program, a module after -m, or a CUDA C++ source")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what it is given")


async def main(arguments: argparse.Namespace) -> int:
    """Run it and print the findings; return 1 when there are any, else its own exit status.

    Return 2 for a program that ends well and has opened no device: nothing was checked.
    """
    if not arguments.module and arguments.program.endswith(CUDA_SUFFIX):
        return await check_file(arguments)
    return await check_program(arguments)


# --- the output -------------------------------------------------------------------------------------------------------


def report(findings: Sequence[Finding], opened: bool = True, status: int = 0, expected: Sequence[Finding] = ()) -> None:
    """Print what was found as compilers print errors, once for each place, and the summary.

    The `expected` ones come first, and are marked so.
    """
    places: list[list[Finding]] = []
    for kind, mark in ((expected, " [expected: its test is marked gpu_faults]"), (findings, "")):
        alike = _alike(kind)
        for first, *others in alike:
            print("\n".join(lines_of(first, 1 + len(others), mark)), file=sys.stderr)
        places.append([first for first, *_ in alike])
    print(summary(places[1], opened, status, places[0]), file=sys.stderr)


def _alike(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Return the findings of each place together."""
    alike: defaultdict[object, list[Finding]] = defaultdict(list)
    for finding in findings:
        other = None if finding.other is None else finding.other.place
        alike[finding.check, finding.kernel, finding.place, other].append(finding)
    return list(alike.values())


def lines_of(finding: Finding, times: int, mark: str = "") -> Iterator[str]:
    """Return a finding, with a `mark`, and below it the thread, the array, and the other side of it."""
    yield str(finding) + (f" [found {times} times]" if times > 1 else "") + mark
    yield f"    by {_thread(finding.thread, finding.block)}kernel {finding.kernel}"
    if finding.array is not None:
        yield f"    in {finding.array}" + ("" if finding.index is None else f", at index {_joined(finding.index)}")
    other = finding.other
    if other is not None:
        yield f"{other.place}: note: the other side, {other.what}"
        yield f"    by {_thread(other.thread, other.block)}the same kernel"


def _thread(thread: tuple[int, ...] | None, block: tuple[int, ...] | None) -> str:
    return "".join(f"{name} ({_joined(at)}) of " for name, at in (("thread", thread), ("block", block)) if at)


def _joined(index: int | tuple[int, ...]) -> str:
    return str(index) if isinstance(index, int) else ", ".join(map(str, index))


def summary(findings: Sequence[Finding], opened: bool = True, status: int = 0, expected: Sequence[Finding] = ()) -> str:
    """Return the number of places with findings of each check, and say if no device was opened or the program failed.

    `status` is the program's exit status; `expected` findings are counted by themselves.
    """
    if findings:
        text = _counted(findings, "finding")
    else:
        text = "nothing found" if opened else "nothing was checked, since the program opened no device"
    text += f"; {_counted(expected, 'expected finding')}" if expected else ""
    return f"check: {text}" + (f"; the program failed, with exit status {status}" if status else "")


def _counted(findings: Sequence[Finding], what: str) -> str:
    counts = Counter(finding.label for finding in findings)
    listed = ", ".join(f"{count} {label}" for label, count in counts.items())
    return f"{len(findings)} {what}{'' if len(findings) == 1 else 's'} ({listed})"


# --- programs ---------------------------------------------------------------------------------------------------------


async def check_program(arguments: argparse.Namespace) -> int:
    """Run a Python program with its own arguments; its output is not changed."""
    if not arguments.module:
        problem = what_hinders_running(Path(arguments.program))
        if problem is not None:
            print(f"error: {problem}", file=sys.stderr)
            return USAGE_ERROR
    command = [sys.executable, *(["-m"] if arguments.module else []), arguments.program, *arguments.arguments]
    with tempfile.TemporaryDirectory(prefix="atomr-trio-findings-") as folder:
        variables = {
            "ATOMR_TRIO_BACKEND": "sim",
            "ATOMR_TRIO_CHECK": ",".join(arguments.only),
            "ATOMR_TRIO_CHECK_KEEP": folder,
        }
        status = await exit_status(command, variables)
        findings, expected = without_expected(kept_findings(folder), expected_lines(Path(folder)))
        opened = bool(os.listdir(folder))
    report(findings, opened, status, expected)
    if findings:
        return FOUND
    return status if status or opened else NOTHING_CHECKED


def without_expected(
    findings: Sequence[Finding], expected: Sequence[Mapping[str, Any]]
) -> tuple[list[Finding], list[Finding]]:
    """Return which of the findings were not expected, and which were, by what the program has noted."""
    noted = Counter(map(_identity, expected))
    others: list[Finding] = []
    meant: list[Finding] = []
    for finding in findings:
        identity = _identity(attrs.asdict(finding))
        (meant if noted[identity] > 0 else others).append(finding)
        noted[identity] -= 1
    return others, meant


def _identity(facts: Mapping[str, Any]) -> str:
    """Return a finding as text, without the folders of its files: they depend on the working directory."""
    other = facts["other"]
    named = {"file": os.path.basename(facts["file"] or "")}
    there = other and {**other, "file": os.path.basename(other["file"] or "")}
    return json.dumps({**facts, **named, "other": there}, sort_keys=True)


def what_hinders_running(program: Path) -> str | None:
    """Say why Python could not run a file, a folder or an archive, or None."""
    if not program.exists():
        return f"cannot read {program}: there is no such file; a module is run by -m {program}"
    if program.is_dir() and not (program / "__main__.py").exists():
        return f"cannot run {program}: it is a folder without a __main__.py"
    return None if os.access(program, os.R_OK) else f"cannot read {program}: permission denied"


async def exit_status(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a program, which gets Ctrl-C, until it ends; return its exit status as a shell gives it."""
    before = signal.signal(signal.SIGINT, lambda *_: None)  # the program does not inherit this, unlike SIG_IGN
    try:
        process = await trio.lowlevel.open_process(command, env={**os.environ, **variables})
        status = await process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status


# --- CUDA files -------------------------------------------------------------------------------------------------------


async def check_file(arguments: argparse.Namespace) -> int:
    """Launch a kernel as `run` does, or only compile and load the kernels of a file."""
    parser = argparse.ArgumentParser(prog=_PROGRAM)
    run.add_launch_arguments(parser, required=False)
    parser.add_argument("--device", type=device_argument, metavar="sim", help="a simulated device; default: sim")
    wanted = parser.parse_args([arguments.program, *arguments.arguments])
    choice = wanted.device or Choice(0, "sim")
    if choice.backend != "sim":
        parser.error(f"the simulator alone can check, and --device names {choice}: leave it out, or write --device sim")
    missing = [name for name in ("kernel", "grid", "block") if getattr(wanted, name) is None]
    if missing and (len(missing) < 3 or wanted.operands):
        parser.error(f"a launch needs --{missing[0]} too")
    try:
        source, arrays = run.read_source(wanted.file), run.read_arrays(wanted.operands or ())
        run.check_outputs(wanted.operands or ())
        options = run.compile_options(wanted, bundled_headers=True)
        with without_echo():
            async with atomr_trio.open_device(choice.index, backend="sim", check=arguments.only) as dev:
                if missing:
                    return await load(dev, wanted.file, source, options)
                await run.launch(dev, wanted, source, options, arrays)
    except (run.BadCommandLine, atomr_trio.InvalidArgument) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except atomr_trio.ContextLost as lost:
        if not lost.findings:
            raise
        report(lost.findings)
        return FOUND
    report(())
    return 0


@contextlib.contextmanager
def without_echo() -> Iterator[None]:
    """Keep the worker's messages about findings out of the log: they are printed in full."""

    def wanted(record: logging.LogRecord) -> bool:
        return not _ECHO.match(record.getMessage())

    logger = logging.getLogger("atomr_trio.device")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


async def load(dev: atomr_trio.Device, file: Path, source: str, options: atomr_trio.NvrtcOptions) -> int:
    """Compile and load a whole file, and report what the simulator cannot run of it."""
    try:
        program = await dev.nvrtc.compile_program(source, options)
    except atomr_trio.CommandFailed as refused:
        if refused.status != _NOT_SUPPORTED:
            raise
        print(f"{file}: refused by the simulator: {refused.message}", file=sys.stderr)
        return FOUND
    print(f"{file}: compiled and loaded: {', '.join(program) or 'no kernels'}")
    return 0
