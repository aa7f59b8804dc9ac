"""`python -m atomr_trio`: doctor, demo, run, check and cache. This file parses; the commands live in _cli."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import logging
import signal
import sys
from collections.abc import Iterator, Sequence

_COMMANDS = {
    "doctor": "say what was found on this machine, what is missing, and whether each device works",
    "demo": "a simulation that crashes its GPU twice and ends with the right picture",
    "run": "run a kernel of a CUDA file on .npy arrays",
    "check": "run a program, a test suite or a CUDA file on the simulator and tell what its kernels do wrong",
    "cache": "look after the kernels that were compiled before",
}
USAGE_ERROR, FAILURE, INTERRUPTED = 2, 1, 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m atomr_trio", description="A CUDA runtime that you can crash.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{" + ",".join(_COMMANDS) + "}")
    for name, summary in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        module = importlib.import_module(f"atomr_trio._cli.{name}")
        module.add_arguments(command)
        command.set_defaults(main=module.main)
    return parser


@contextlib.contextmanager
def _what_kernels_print() -> Iterator[None]:
    """Show what kernels print and assert, but not lost generations: the commands report those themselves."""
    device, supervision = logging.getLogger("atomr_trio.device"), logging.getLogger("atomr_trio.supervision")
    printer = logging.StreamHandler()
    device.addHandler(printer)
    previous = device.level, supervision.disabled
    device.setLevel(logging.INFO)
    supervision.disabled = True
    try:
        yield
    finally:
        device.removeHandler(printer)
        device.setLevel(previous[0])
        supervision.disabled = previous[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 for success, 1 for a failure, 2 for wrong usage."""
    import trio

    import atomr_trio
    from atomr_trio._wire.machine import IN_PYTHON

    arguments = _parser().parse_args(argv)
    if sys.platform != "linux" and arguments.command != "doctor":
        print(
            f"error: {arguments.command} needs Linux, and this is {sys.platform}; on Windows, use WSL2", file=sys.stderr
        )
        return FAILURE
    # An ignored SIGCHLD is inherited from the parent, and would make the system drop the exit status of our children.
    if sys.platform == "linux":
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        with _what_kernels_print():
            status: int = trio.run(functools.partial(arguments.main, arguments))
        return status
    except (atomr_trio.DeviceError, OSError) as error:
        print(f"error: {error}".replace(IN_PYTHON, "--device sim"), file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return FAILURE


if __name__ == "__main__":
    sys.exit(main())
