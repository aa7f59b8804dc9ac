"""The first worker of a program: started before the modules that open a device are imported."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence

import pytest

from support import child_environment

pytestmark = pytest.mark.program_starts

PROLOGUE = """
import os, sys
import trio
import atomr_trio
from atomr_trio._generation.process import WorkerProcess

started = []
begin = WorkerProcess._start

def noted(self, *arguments):
    begin(self, *arguments)
    started.append(self.pid)
    print("started, opening imported:", "atomr_trio._device.lifetime" in sys.modules, flush=True)

WorkerProcess._start = noted

def children():
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return "no child left"
    return "a child is left"
"""


def lines_of(body: str, backend: str, **variables: str) -> list[str]:
    """Run a program in a fresh process, with `open_device` on a backend; what it has printed."""
    code = PROLOGUE + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**child_environment(), "ATOMR_TRIO_BACKEND": backend, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def lines_of_each(bodies: Sequence[str], backend: str, **variables: str) -> list[list[str]]:
    """Run each body in a process of its own, a fork of one that has imported what they need; what each has printed."""
    program = f"""
    for body in {list(map(textwrap.dedent, bodies))!r}:
        pid = os.fork()
        if pid == 0:
            exec(body)
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0, body
        print("and the next:", flush=True)
    """
    printed = "\n".join(lines_of(program, backend, **variables)).split("and the next:")
    return [part.split("\n")[1 if at else 0 : -1] for at, part in enumerate(printed[:-1])]


AHEAD = "started, opening imported: False"
LATER = "started, opening imported: True"


def test_a_worker_is_started_before_the_modules_that_open_it_are_imported_and_serves(backend):
    body = """
    async def main():
        for _ in range(2):
            async with atomr_trio.open_device() as dev:
                print(dev.info.name != "", dev._core.current.process.pid == started[-1])
    trio.run(main)
    print(children())
    """
    assert lines_of(body, backend) == [AHEAD, "True True", LATER, "True True", "no child left"]


def test_a_worker_that_was_started_for_wrong_options_is_ended(backend):
    body = """
    async def main():
        try:
            async with atomr_trio.open_device(standby=-1):
                print("opened")
        except atomr_trio.InvalidArgument as error:
            print(error.message)
        print(children())
    trio.run(main)
    """
    assert lines_of(body, backend) == [AHEAD, "standby is an int from 0 to 4, not -1", "no child left"]


def test_a_worker_that_was_started_for_a_caller_who_is_cancelled_is_ended(backend):
    body = """
    async def main():
        with trio.CancelScope() as scope:
            WorkerProcess._start = lambda self, *arguments: (noted(self, *arguments), scope.cancel())
            async with atomr_trio.open_device():
                print("opened")
        print(scope.cancelled_caught, children())
    trio.run(main)
    """
    assert lines_of(body, backend) == [AHEAD, "True no child left"]


def test_what_the_first_start_could_not_do_is_reported_by_the_second(backend):
    body = """
    def refused(self, *arguments):
        print("refused")
        raise OSError("there is no room")
    WorkerProcess._start = refused

    async def main():
        try:
            async with atomr_trio.open_device():
                print("opened")
        except atomr_trio.DeviceFailed as error:
            print("there is no room" in error.message)
    trio.run(main)
    """
    assert lines_of(body, backend) == ["refused", "refused", "True"]


@pytest.mark.sim_only
def test_the_workers_of_a_group_are_started_before_the_modules_that_open_them_are_imported_and_serve():
    body = """
    async def main():
        async with atomr_trio.open_devices([1, 0]) as devices:
            print([dev._core.current.process.pid for dev in devices] == started)
    trio.run(main)
    print(children())
    """
    assert lines_of(body, "sim", ATOMR_TRIO_SIM_DEVICES="2") == [AHEAD, AHEAD, "True", "no child left"]


WRONG_GROUPS = ("[0, 1], strategy='none'", "[0, 0]", "[0, 99]", "[0, True]", "['GPU-x', 0]", "5")
"""What is wrong with the first is known after the workers were started."""


@pytest.mark.long
@pytest.mark.sim_only
def test_workers_that_were_started_for_a_wrong_group_are_ended():
    body = """
    async def main():
        try:
            async with atomr_trio.open_devices({}):
                print("opened")
        except atomr_trio.InvalidArgument:
            print("refused")
        print(children())
    trio.run(main)
    """
    told = lines_of_each([body.format(each) for each in WRONG_GROUPS], "sim", ATOMR_TRIO_SIM_DEVICES="2")
    refused = ["refused", "no child left"]
    assert dict(zip(WRONG_GROUPS, told, strict=True)) == {
        each: [AHEAD, AHEAD, *refused] if "strategy" in each else refused for each in WRONG_GROUPS
    }


@pytest.mark.sim_only
@pytest.mark.parametrize("options", ["check='bounds'", "backend='sim', check='races'", "workers=pool"])
def test_a_device_whose_worker_is_made_in_another_way_starts_none_ahead(options):
    body = f"""
    from atomr_trio.testing import WorkerPool
    async def main():
        with WorkerPool(backend="sim", spares=0) as pool:
            async with atomr_trio.open_device({options}) as dev:
                print(len(started))
    trio.run(main)
    """
    lines = lines_of(body, "sim")
    assert lines[-1] == "1"
    assert AHEAD not in lines


@pytest.mark.sim_only
def test_a_program_whose_environment_names_checks_starts_none_ahead():
    body = """
    async def main():
        async with atomr_trio.open_device():
            print(len(started))
    trio.run(main)
    """
    assert lines_of(body, "sim", ATOMR_TRIO_CHECK="bounds") == [LATER, "1"]


WRONG_ARGUMENTS = ("'0'", "-1", "14", "True", "0, backend='cpu'")


@pytest.mark.long
def test_no_worker_is_started_for_an_argument_that_is_wrong(backend):
    body = """
    async def main():
        try:
            async with atomr_trio.open_device({}):
                print("opened")
        except atomr_trio.InvalidArgument:
            print(len(started))
    trio.run(main)
    """
    told = lines_of_each([body.format(each) for each in WRONG_ARGUMENTS], backend)
    assert dict(zip(WRONG_ARGUMENTS, told, strict=True)) == {each: ["0"] for each in WRONG_ARGUMENTS}
