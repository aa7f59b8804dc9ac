"""The program of a worker, which the user's process starts by its path: it has the driver begin before Python imports.

To load the driver, initialise it and make a context takes most of a start, and the driver does it without Python's
lock. So it happens in a thread while the main thread imports the rest of the worker. Nothing is imported here that the
thread does not need: ``-m`` alone would take as long as some of the driver's own steps. For the same reason Python is
started without its ``site``, whose files of settings may take longer than all the rest of Python (40 ms of 50 were
measured); the main thread makes up for it while the driver works.

The thread reports nothing. `Context` makes the same calls again, which then take no time, and raises their errors.
"""

import _signal  # type: ignore[import-not-found]  # `signal` takes ten times as long
import _thread
import os
import resource
import sys
import time
from ctypes import CDLL, POINTER, byref, c_int, c_uint, c_void_p

BEGUN = time.monotonic()
LIBRARIES = ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
"""The names and files of the driver, as in the table of ``atomr_cuda.driver``; a test compares them."""
FEW_DESCRIPTORS = 4096
"""The limit of descriptors while the driver begins. It may start a program, and closes every descriptor that the limit
allows before: with a million of them that took 85 ms."""
CHOSEN_LIBRARY = "ATOMR_TRIO_CUDA_PATH"
"""The variable by which a user names another file. Then nothing happens ahead: that may be anything."""


WITH_SITE = "site"
"""The last argument, unless the user's process was started without its ``site`` too."""


class ContextAhead:
    """The primary context of a device, retained in a thread of its own, if there is a driver that can."""

    def __init__(self, device: int) -> None:
        self.moments: dict[str, float] = {"begun": BEGUN}
        """The ends of its steps, on the clock of `time.monotonic`."""
        self._device = device
        self._retained = False
        self._begun = _thread.allocate_lock()
        self._begun.acquire()
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # the system has no thread left: nothing happens ahead
            self._begun.release()

    def _run(self) -> None:
        try:
            self._retain()
        except Exception:  # whatever is wrong is found and reported when it is done again
            pass
        finally:
            self._begun.release()

    def _retain(self) -> None:
        driver = _driver()
        if driver is None:
            return
        driver.cuInit.argtypes = [c_uint]
        driver.cuDeviceGet.argtypes = [POINTER(c_int), c_int]
        driver.cuDevicePrimaryCtxRetain.argtypes = [POINTER(c_void_p), c_int]
        self.moments["driver loaded"] = time.monotonic()
        found, context = c_int(), c_void_p()
        if driver.cuInit(0) or driver.cuDeviceGet(byref(found), self._device):
            return
        self.moments["driver initialised"] = time.monotonic()
        self._retained = driver.cuDevicePrimaryCtxRetain(byref(context), found) == 0
        self.moments["context made"] = time.monotonic()

    def wait(self) -> bool:
        """Wait for the thread. Returns whether it has retained the context, which must be released once more then."""
        with self._begun:
            return self._retained


def _driver() -> CDLL | None:
    for name in LIBRARIES:
        try:
            return CDLL(name)
        except OSError:
            continue
    return None


def _begin(backend: str, device: str) -> ContextAhead | None:
    # The driver may run a program, and wants to know how that ended.
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    if backend != "cuda" or os.environ.get(CHOSEN_LIBRARY):
        return None
    # A driver that finds too few descriptors reports no device, and goes on doing so.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = FEW_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(FEW_DESCRIPTORS, hard)
    if soft != few:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        except (OSError, ValueError):
            return None
    return ContextAhead(int(device))


if __name__ == "__main__":
    _ahead = _begin(*sys.argv[3:5])
    if sys.argv.pop() == WITH_SITE:
        import site

        site.main()
    from atomr_trio._worker import main as _worker

    try:
        _worker.main(sys.argv[1:], _ahead)
    except BaseException as _bug:
        _worker.exit_by(_bug)
