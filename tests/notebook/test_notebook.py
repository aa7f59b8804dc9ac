"""A notebook with a real kernel: the example is run, cells are interrupted, and no kernel leaves a worker."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from typing import Any

import pytest

from support import ON_GPU, ROOT, child_environment, chosen_backend

if ON_GPU:  # which has the packages that its machine has
    pytest.importorskip("ipykernel")
    pytest.importorskip("nbclient")

import nbformat
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

EXAMPLE = ROOT / "examples" / "notebook.ipynb"
SECONDS = 60
"""The longest that anything here waits."""

OPEN = """
import threading, time
import numpy as np, atomr_trio
from atomr_trio import testing

dev = atomr_trio.start(0)
spin = dev.nvrtc.compile('extern "C" __global__ void spin(volatile int *x) { while (*x == 0); }', "spin")
word, x = dev.zeros(1, np.int32), dev.to_device(np.arange(3))

def tell_when_it_spins():
    while not any(lane.unfinished for lane in dev.statistics().lanes):
        time.sleep(0.001)
    print("here", flush=True)
"""
"""A thread tells, because an interrupt within `print` in the main one can leave locks of ipykernel locked for ever."""
TELL = "threading.Thread(target=tell_when_it_spins).start()"


class Kernel:
    """A kernel of Jupyter, and one client of it."""

    def __init__(self) -> None:
        self.manager = KernelManager()
        self.manager.start_kernel()
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)

    def run(self, code: str, interrupt_at: str = "") -> tuple[str, dict[str, str], str]:
        """Run a cell: what it printed, what it shows, and the name of its error.

        It is interrupted when it prints `interrupt_at`.
        """
        request = self.client.execute(code)
        printed, shown, error = "", {}, ""
        while True:
            message = self.client.get_iopub_msg(timeout=SECONDS)
            content = message["content"]
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "stream":
                printed += content["text"]
                if interrupt_at and interrupt_at in content["text"]:
                    self.manager.interrupt_kernel()
            elif message["msg_type"] == "execute_result":
                shown = content["data"]
            elif message["msg_type"] == "error":
                error = content["ename"]
            elif content.get("execution_state") == "idle":
                return printed, shown, error

    def open(self) -> None:
        """Open a device in the kernel."""
        assert self.run(OPEN)[2] == ""

    def worker(self) -> int:
        """A descriptor of the worker of the device, which is readable when that has ended."""
        return os.pidfd_open(int(self.run("print(testing.worker_pid(dev))")[0]))

    def restart_at_once(self) -> None:
        self.manager.restart_kernel(now=True)
        self.client.wait_for_ready(timeout=SECONDS)

    def end(self) -> None:
        if self.manager.has_kernel:
            self.client.stop_channels()
            self.manager.shutdown_kernel(now=False)


@pytest.fixture(scope="module", autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Jupyter writes where the tests may, and the cells open the device of this run."""
    home = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(home / name.lower()))
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        patch.setenv("ATOMR_TRIO_BACKEND", chosen_backend())
        patch.setenv("PYTHONPATH", child_environment()["PYTHONPATH"])
        patch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        yield


@pytest.fixture(scope="module")
def kernel(folders: None) -> Iterator[Kernel]:
    made = Kernel()
    try:
        made.open()
        yield made
    finally:
        made.end()


def has_ended(worker: int) -> bool:
    """Whether a process ends soon; its descriptor is closed."""
    try:
        return bool(select.select([worker], [], [], SECONDS)[0])
    finally:
        os.close(worker)


def outputs(notebook: Any) -> list[dict[str, str]]:
    """What the cells of a notebook show or print, by its kind."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [
        {
            kind: str(value)
            for output in cell.outputs
            for kind, value in (output.get("data") or {str(output.get("name")): output.get("text", "")}).items()
        }
        for cell in code
    ]


def test_the_example_runs_as_it_is_committed_and_shows_tables_and_a_picture():
    notebook = nbformat.read(EXAMPLE, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=SECONDS).execute()
    device, array, values, fault, again, awaited, picture, closed = outputs(notebook)
    assert "<caption" in device["text/html"]
    assert "running" in device["text/html"]
    assert "(1000,)" in array["text/html"]
    assert values["text/plain"] == "([0.0, 2.0, 4.0], 1998.0)"
    assert fault["text/plain"] == "(2, 1998.0)"
    assert "illegal" in fault["stdout"]
    assert again["text/plain"] == "(2, 3996.0)"
    assert awaited["text/plain"] == "1998000.0"
    assert picture["text/html"].startswith("<img ")
    assert picture["text/plain"].startswith("device 0: ")
    assert "closed" in closed["text/html"]


@pytest.mark.parametrize(
    ("cell", "error"),
    [
        (f"{TELL}\nspin.launch(1, 1, word)", "KeyboardInterrupt"),
        (f"{TELL}\nawait dev.in_asyncio(spin.launch, 1, 1, word)", "CancelledError"),
    ],
    ids=["blocking", "awaited"],
)
def test_an_interrupt_ends_the_wait_of_a_cell_and_the_device_lives(kernel, cell, error):
    _, before, _ = kernel.run("dev.generation")
    assert kernel.run(cell, interrupt_at="here")[2] == error
    _, after, problem = kernel.run("dev.generation, dev.state.value")
    assert (after["text/plain"], problem) == (f"({before['text/plain']}, 'running')", "")
    _, values, problem = kernel.run("dev.restart('the kernel spins') and x.tolist()")
    assert (values["text/plain"], problem) == ("[0, 1, 2]", "")


@pytest.mark.long
def test_a_kernel_that_is_killed_or_shut_down_leaves_no_worker(kernel):
    """The last one: a kernel that is asked to restart ends as one that is shut down does."""
    worker = kernel.worker()
    kernel.restart_at_once()
    assert has_ended(worker)
    assert kernel.run("dev")[2] == "NameError"
    kernel.open()
    worker = kernel.worker()
    kernel.end()
    assert has_ended(worker)
