"""NCCL's table: its families, its configuration by version, its errors, and the real library where it is installed.

No GPU is needed. Widths and numbers are held against the headers in ``bindings/test_abi.py``.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from ctypes import Structure, c_int, c_size_t, c_uint, c_void_p

import pytest

from abi.conformance import read_facts
from atomr_cuda import Library, SymbolMissing, nccl
from support import child_environment

FACTS = read_facts("nccl")
UNSET = -(1 << 31)


def test_every_collective_takes_two_places_a_count_and_a_type_first_and_a_communicator_and_a_stream_last():
    names = {"AllReduce", "ReduceScatter", "Reduce", "Broadcast", "AllGather", "AlltoAll", "Gather", "Scatter"}
    between = {}
    for name in names:
        kinds = nccl.library.functions[f"nccl{name}"].argtypes
        assert kinds[:4] == (c_void_p, c_void_p, c_size_t, c_int)
        assert kinds[-2:] == (c_void_p, c_void_p)
        between[name] = len(kinds) - 6
    assert {name for name, more in between.items() if more == 0} == {"AllGather", "AlltoAll"}
    assert {name for name, more in between.items() if more == 2} == {"Reduce"}, "an operation and a root"


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: facts.generation)
def test_a_configuration_has_the_layout_of_a_header_and_nothing_is_set_in_it(facts):
    """A library that is newer than the header by a patch takes the same."""
    header = facts.structures["ncclConfig_t"]
    config = nccl.new_config(facts.version[0] * 10000 + facts.version[1] * 100 + 99)
    assert (config.size, config.magic) == (header["size"], 0xCAFEBEEF)
    assert config.version // 100 == facts.version[0] * 100 + facts.version[1]
    settings = {name: getattr(config, name) for name in header["fields"] if name not in ("size", "magic", "version")}
    assert {name for name, value in settings.items() if value not in (UNSET, None)} == set()
    assert {name for name, value in settings.items() if value is None} <= {"netName", "commName"}


def test_a_version_between_two_headers_gets_the_older_layout():
    sizes = {facts.generation: facts.structures["ncclConfig_t"]["size"] for facts in FACTS}
    assert nccl.new_config(22705).size == sizes["cu12"]
    assert nccl.new_config(22809).size == nccl.new_config(23107).size == sizes["cu13-2.28"]
    assert nccl.new_config(99999).size == sizes["cu13"]


def test_a_version_before_the_oldest_header_is_refused():
    with pytest.raises(ValueError, match=r"NCCL 2\.20\.5 is older than 2\.21\.5, the oldest one"):
        nccl.new_config(22005)


def test_the_larger_layouts_begin_with_the_smaller_ones():
    class Begin(Structure):
        _fields_ = [("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int)]

    config = nccl.new_config(22809)
    config.blocking = 0
    begin = Begin.from_buffer_copy(bytes(config)[: ctypes.sizeof(Begin)])
    assert (begin.size, begin.magic, begin.version, begin.blocking) == (config.size, 0xCAFEBEEF, 22809, 0)


def test_an_id_of_all_bytes_is_kept_whole():
    words = bytes(range(128))
    assert bytes(nccl.ncclUniqueId.from_buffer_copy(words).internal) == words


def test_every_status_is_described_by_its_own_name_and_another_text():
    described = [nccl.describe_status(status) for status in nccl.ncclResult_t]
    assert [name for name, _ in described] == [status.name for status in nccl.ncclResult_t]
    assert len({text for _, text in described}) == len(described)


def test_an_error_has_the_name_of_its_status_and_says_what_it_means():
    error = nccl.library.error(nccl.ncclResult_t.ncclRemoteError, "ncclAllReduce")
    assert str(error) == "ncclAllReduce: ncclRemoteError (6): another rank has failed or is gone"
    assert error.library == "nccl"


def test_a_status_that_is_not_in_the_header_has_a_name_too():
    assert str(nccl.library.error(99, "ncclNew")) == "ncclNew: ncclUnknownResult (99): unknown status"


def test_a_function_that_an_older_library_lacks_is_told_with_the_version_that_has_it():
    older = Library("older", sonames=("libc.so.6",), extra="nccl-cu13", describe=nccl.describe_status)
    revoke = older("ncclCommRevoke", c_void_p, c_int, since=nccl.ncclCommRevoke.since)
    with pytest.raises(SymbolMissing, match=r"no function ncclCommRevoke: it needs version 2\.28 or newer"):
        revoke(None, 0)


REAL = """
from ctypes import byref, c_int, string_at
from atomr_cuda import LibraryMissing, SymbolMissing, nccl

try:
    nccl.library.load()
except LibraryMissing:
    raise SystemExit(77)

number = c_int()
nccl.ncclGetVersion(byref(number))
version = number.value
config = nccl.new_config(version)

# Every function is there under its symbol; what is newer is said to be.
for function in nccl.library:
    if function.since is None or function.since <= (version // 10000, version % 10000 // 100):
        function.bind()
    else:
        try:
            function.bind()
        except SymbolMissing as missing:
            assert "it needs version {}.{} or newer".format(*function.since) in str(missing), missing
        else:
            raise AssertionError(function)

# Texts, and what is refused without a GPU: a communicator that is none, and a group that has not begun.
assert string_at(nccl.ncclGetErrorString(0)) == b"no error"
assert string_at(nccl.ncclGetErrorString(4)).startswith(b"invalid argument")
assert nccl.ncclCommCount.status(None, byref(number)) == 4
assert nccl.ncclCommAbort.status(None) == 0
assert nccl.ncclCommDestroy.status(None) == 0
assert nccl.ncclAllReduce.status(None, None, 0, 7, 0, None, None) == 4
ended = nccl.ncclGroupEnd.status()
assert ended == 5, ended
nccl.ncclGroupStart()
nccl.ncclGroupStart()
nccl.ncclGroupEnd()
nccl.ncclGroupEnd()
"""
"""A process of its own, in which nothing stands in the library's place; 77 when the library is not installed."""


def test_the_library_is_what_the_table_says():
    command = [sys.executable, "-c", REAL]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("NCCL is not installed")
    assert (done.returncode, done.stderr) == (0, "")
