"""How a library is found, loaded and declared. The C library and the mathematics library serve as test objects."""

from __future__ import annotations

import ctypes
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from atomr_cuda import CudaError, Library, LibraryMissing, SymbolMissing, _library
from support import set_constant
from support.limits import full_table


def describe(status: int) -> tuple[str, str]:
    return f"STATUS_{status}", f"text of {status}"


def c_library(name: str = "testc", **options) -> Library:
    return Library(name, **{"sonames": ("libc.so.6",), "describe": describe, "extra": "cu13", **options})


def path_of_libm() -> str:
    library = Library("testm", sonames=("libm.so.6",), describe=describe)
    library.load()
    assert library.path is not None
    return library.path


def test_declaring_loads_nothing():
    library = c_library(sonames=("libdoes-not-exist.so",))
    library("abs", ctypes.c_int)
    assert library.path is None
    assert set(library.functions) == {"abs"}


def test_what_a_library_opens_later_is_loaded_from_its_own_folder(tmp_path, monkeypatch):
    """Libraries of some wheels have no path of their own to search."""
    for name in ("libmain.so", "libpart.so.1", "libpart.so.1.2", "libbad.so.1", "libunrelated.so.1"):
        shutil.copy(path_of_libm(), tmp_path / name)
    (tmp_path / "libpart.so.3").write_bytes(b"no library")
    monkeypatch.setenv("ATOMR_TRIO_TESTPARTS_PATH", str(tmp_path / "libmain.so"))
    library = Library("testparts", sonames=("libmain.so",), describe=describe, companions="libpart.so.*")
    library.load()
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = {os.path.basename(line.split()[-1]) for line in lines if str(tmp_path) in line}
    assert mapped == {"libmain.so", "libpart.so.1", "libpart.so.1.2"}


@pytest.mark.parametrize("override", [None, "/nowhere/libtestgone.so"])
def test_without_a_descriptor_a_library_is_not_said_to_be_missing_and_is_found_later(monkeypatch, override):
    library = Library("testgone", sonames=("libtestgone.so",), describe=describe)
    if override is not None:
        monkeypatch.setenv(library.override_variable, override)
    with full_table(), pytest.raises(OSError, match="Too many open files"):
        library.load()
    with pytest.raises(LibraryMissing):
        library.load()


def test_a_status_of_zero_is_success_and_any_other_raises():
    library = c_library()
    absolute = library("abs", ctypes.c_int)
    absolute(0)
    with pytest.raises(CudaError) as caught:
        absolute(-7)
    error = caught.value
    assert (error.status, error.name, error.text) == (7, "STATUS_7", "text of 7")
    assert (error.library, error.function) == ("testc", "abs")
    assert str(error) == "abs: STATUS_7 (7): text of 7"
    assert absolute.status(-7) == 7


def test_errors_survive_pickling():
    for error in (
        CudaError(2, "OUT", "of memory", "cuda", "cuMemAlloc_v2"),
        LibraryMissing("nvrtc", "cu13", ("here", "there")),
        SymbolMissing("nvrtc", "cu13", ("/a",), "nvrtcNew", "/a"),
        SymbolMissing("nvrtc", "cu13", ("/a",), "nvrtcNew", "/a", (13, 3)),
        SymbolMissing("nvrtc", "cu13", ("/a",), "NVRTC_NEW", "/a", (13, 3), "variable"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_argument_types_are_always_set():
    library = c_library()
    absolute = library("abs", ctypes.c_int)
    raw = absolute.bind()
    assert tuple(raw.argtypes) == (ctypes.c_int,)
    assert raw.restype is ctypes.c_int
    with pytest.raises(ctypes.ArgumentError):
        absolute("not a number")


def test_a_function_is_bound_once():
    absolute = c_library()("abs", ctypes.c_int)
    assert absolute.bind() is absolute.bind()


def test_a_value_function_returns_its_value_unchecked():
    strerror = c_library().value("strerror", ctypes.c_int, restype=ctypes.c_char_p)
    assert strerror(2) == os.strerror(2).encode()


def test_declaring_twice_is_refused():
    library = c_library()
    library("abs", ctypes.c_int)
    with pytest.raises(ValueError, match="twice"):
        library("abs", ctypes.c_int)


def test_the_path_of_a_library_found_by_the_loader_is_known():
    library = c_library()
    library.load()
    assert library.found_by == "system"
    assert library.path is not None
    assert os.path.isabs(library.path)
    assert os.path.exists(library.path)


def test_the_override_variable_comes_first(monkeypatch):
    libm = path_of_libm()
    monkeypatch.setenv("ATOMR_TRIO_TESTC_PATH", libm)
    library = c_library()
    assert library.load() is library.load()
    assert (library.path, library.found_by) == (libm, "ATOMR_TRIO_TESTC_PATH")


def test_the_override_may_be_a_folder(monkeypatch):
    libm = path_of_libm()
    monkeypatch.setenv("ATOMR_TRIO_TESTC_PATH", os.path.dirname(libm))
    library = c_library(sonames=("libnope.so.9", os.path.basename(libm)))
    library.load()
    assert library.path == libm


def test_a_wrong_override_is_an_error_even_if_the_library_exists_elsewhere(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_TESTC_PATH", "/nowhere/libc.so.6")
    with pytest.raises(LibraryMissing) as caught:
        c_library().load()
    assert len(caught.value.looked) == 1
    assert "ATOMR_TRIO_TESTC_PATH=/nowhere/libc.so.6" in caught.value.looked[0]


def test_a_missing_library_names_the_extra_and_every_place():
    library = c_library(sonames=("libgone.so.1", "libgone.so"), pathfinder_name="gone", known_files=("/opt/gone.so",))
    with pytest.raises(LibraryMissing) as caught:
        library("f").status()
    text = str(caught.value)
    assert isinstance(caught.value, ImportError)
    assert 'pip install "atomr-trio[cu13]"' in text
    for place in ("ATOMR_TRIO_TESTC_PATH: not set", "cuda-pathfinder", "libgone.so.1", "/opt/gone.so"):
        assert place in text


def test_a_library_may_come_with_another_extra_where_there_is_no_gpu(tmp_path, monkeypatch):
    set_constant(monkeypatch, _library, "GPU_FILES", (str(tmp_path / "gpu"),))
    library = c_library(sonames=("libgone.so.1",), extra="cu13", extra_without_gpu="sim")
    with pytest.raises(LibraryMissing, match=r'pip install "atomr-trio\[sim\]"'):
        library.load()
    (tmp_path / "gpu").touch()
    with pytest.raises(LibraryMissing, match=r'pip install "atomr-trio\[cu13\]"'):
        library.load()


def test_a_library_of_the_driver_names_no_extra():
    with pytest.raises(LibraryMissing) as caught:
        c_library(sonames=("libgone.so.1",), extra=None).load()
    assert "comes with the NVIDIA driver" in str(caught.value)
    assert "pip install" not in str(caught.value)


def test_one_missing_function_leaves_the_others_usable():
    library = c_library()
    gone, absolute = library("cuFromTheFuture"), library("abs", ctypes.c_int)
    with pytest.raises(SymbolMissing) as caught:
        gone()
    assert caught.value.function == "cuFromTheFuture"
    assert caught.value.path == library.path
    assert "cuFromTheFuture" in str(caught.value)
    absolute(0)


def test_a_replacement_takes_the_place_of_functions_already_bound():
    library = c_library()
    absolute, divide = library("abs", ctypes.c_int), library("div", ctypes.c_int)
    assert absolute.status(-7) == 7
    library.replace({"abs": lambda value: value + 1}, found_by="a test")
    assert absolute.status(-7) == -6
    assert (library.path, library.found_by, library.replaced) == (None, "a test", True)
    with pytest.raises(SymbolMissing):
        divide()


def test_a_replacement_gets_what_c_gets():
    seen = []

    def give(pointer, address):
        seen.append(address)
        pointer[0] = 41
        return 0

    library = c_library(sonames=("libgone.so",))
    function = library("f", ctypes.POINTER(ctypes.c_int), ctypes.c_void_p)
    library.replace({"f": give})
    answer = ctypes.c_int()
    function(answer, 1 << 40)
    assert (answer.value, seen) == (41, [1 << 40])


def test_a_replacement_for_an_undeclared_function_is_refused():
    with pytest.raises(ValueError, match="cuNothing"):
        c_library().replace({"cuNothing": lambda: 0})


def test_a_variable_is_the_pointer_that_the_library_holds():
    library = c_library()
    name, thing = library.variable("program_invocation_short_name"), library.variable("program_invocation_name")
    assert library.path is None, "declaring loads nothing"
    loaded = ctypes.CDLL("libc.so.6")
    for variable in (name, thing):
        assert variable.value == ctypes.c_void_p.in_dll(loaded, variable.symbol).value is not None
    assert (repr(name), list(library)) == ("<Variable testc.program_invocation_short_name>", [])


def test_a_variable_is_read_each_time():
    library = Library("testm", sonames=("libc.so.6",), describe=describe)
    variable, place = (
        library.variable("program_invocation_short_name"),
        ctypes.c_void_p.in_dll(ctypes.CDLL("libc.so.6"), "program_invocation_short_name"),
    )
    before = variable.value
    try:
        place.value = None
        assert variable.value is None
    finally:
        place.value = before
    assert variable.value == before


def test_a_variable_that_the_library_lacks_is_a_missing_symbol():
    library = c_library()
    gone = library.variable("CU_FROM_THE_FUTURE", since=(99, 1))
    with pytest.raises(SymbolMissing, match=r"has no variable CU_FROM_THE_FUTURE: it needs version 99\.1") as caught:
        _ = gone.value
    assert (caught.value.function, caught.value.path) == ("CU_FROM_THE_FUTURE", library.path)
    with pytest.raises(LibraryMissing, match="was not found"):
        _ = c_library(sonames=("libgone.so.1",)).variable("program_invocation_short_name").value


def test_a_replacement_holds_the_variables_too():
    library = c_library()
    name, gone, null = (library.variable(name) for name in ("program_invocation_short_name", "stdout", "NULL_ONE"))
    assert name.value
    library.replace({"program_invocation_short_name": 1 << 40, "NULL_ONE": 0})
    assert (name.value, null.value) == (1 << 40, None)
    with pytest.raises(SymbolMissing, match="has no variable stdout"):
        _ = gone.value
    library.replace({"program_invocation_short_name": 7})
    assert name.value == 7


@pytest.mark.parametrize("table", [{"abs": 5}, {"program_invocation_short_name": lambda: 0}, {"other": 5}])
def test_a_replacement_of_another_kind_is_refused(table):
    library = c_library()
    library("abs", ctypes.c_int)
    library.variable("program_invocation_short_name")
    with pytest.raises(ValueError, match="declares no function or variable"):
        library.replace(table)
    with pytest.raises(ValueError, match="declared twice"):
        library("program_invocation_short_name")


def test_many_threads_load_once():
    library = c_library()
    absolute = library("abs", ctypes.c_int)
    gate, results = threading.Barrier(8), []

    def call():
        gate.wait()
        results.append((absolute.status(-3), library.load()))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for status, _ in results] == [3] * 8
    assert len({id(handle) for _, handle in results}) == 1


def test_importing_the_tables_imports_no_finder_and_loads_no_cuda_library():
    code = """
import importlib, pkgutil, sys
import atomr_cuda
found = pkgutil.iter_modules(atomr_cuda.__path__, "atomr_cuda.")
modules = [importlib.import_module(each.name) for each in found if not each.ispkg]
libraries = [module.library for module in modules if hasattr(module, "library")]
assert {"cuda", "cublas", "nvrtc"} < {library.name for library in libraries}
assert not [name for name in sys.modules if name.split(".")[0] in ("cuda", "numpy", "trio", "attr")], sys.modules
maps = open("/proc/self/maps").read()
stems = {name.partition(".")[0] for library in libraries for name in library.sonames}
assert not [stem for stem in stems if stem in maps], maps
"""
    subprocess.run([sys.executable, "-c", code], check=True)
