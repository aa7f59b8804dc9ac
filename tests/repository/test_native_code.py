"""The code of the native loop is the one that its source makes, and code that could not run is refused."""

from __future__ import annotations

import base64
import ctypes
import errno
import hashlib
import importlib.util
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Callable

import pytest

from atomr_trio._wire.protocol import PAGE_BYTES
from atomr_trio._worker import native, native_code, native_layout
from atomr_trio._worker.base.shared_words import CLOCK_GETTIME, LOOP_WORDS, PAGE_ADDRESS, SCHED_YIELD, Words
from support import child_environment
from support.native import make

needs_llvmlite = pytest.mark.skipif(importlib.util.find_spec("llvmlite") is None, reason="llvmlite is not installed")
CODE = base64.b64decode(native_code.CODE)
HEAD = 'attributes #0 = { nounwind "no-jump-tables"="true" }\n!llvm.module.flags = !{!0}\n'
FLAG = '!0 = !{i32 8, !"cf-protection-branch", i32 1}\n'
GOOD = "define i64 @run(ptr %state) #0 {\n  ret i64 1\n}\n"
EXTERNAL = (
    "declare i64 @other(i64) nounwind\ndefine i64 @run(i64 %x) #0 {\n  %y = call i64 @other(i64 %x)\n  ret i64 %y\n}\n"
)
CONSTANT = """
@numbers = internal constant [4 x i64] [i64 7, i64 1, i64 9, i64 4]
define i64 @run(i64 %x) #0 {
  %place = getelementptr [4 x i64], ptr @numbers, i64 0, i64 %x
  %y = load i64, ptr %place
  ret i64 %y
}
"""
FLOATING = """
define i64 @run(i64 %x) #0 {
  %y = uitofp i64 %x to double
  %z = fmul double %y, 0x3FB999999999999A
  %n = fptoui double %z to i64
  ret i64 %n
}
"""
CASES = "".join(f"i64 {number}, label %case.{number}\n" for number in range(12))
BLOCKS = "".join(
    f"case.{number}:\n  store volatile i64 {number * number}, ptr %p\n  br label %end\n" for number in range(12)
)
SWITCH = f"""
define i64 @run(i64 %x, ptr %p) #0 {{
  switch i64 %x, label %end [ {CASES} ]
{BLOCKS}
end:
  ret i64 0
}}
"""
VARIABLE = """
@count = internal global i64 0
define i64 @run(i64 %x) #0 {
  store volatile i64 %x, ptr @count
  ret i64 %x
}
"""
TWO = GOOD + "define i64 @second(ptr %state) #0 {\n  ret i64 2\n}\n"
RENAMED = GOOD.replace("@run", "@walk")
COMPUTED = """
define i64 @run(ptr %where) #0 {
  %there = musttail call i64 %where(ptr %where)
  ret i64 %there
}
"""


def translated(source: str, *, head: str = HEAD + FLAG) -> make.Translated:
    return make.translate(source + head)


@needs_llvmlite
def test_the_code_is_the_one_that_its_source_makes():
    """Another version of the generator makes other bytes, so the pinned one is needed."""
    code = make.checked(make.translate(make.expand(make.SOURCE.read_text(encoding="utf-8"))))
    assert make.text_of(code, make.generator()) == make.TARGET.read_text(encoding="utf-8"), "run `make native`"


@needs_llvmlite
def test_code_that_needs_nothing_passes_the_checks():
    assert make.checked(translated(GOOD)).startswith(b"\xf3\x0f\x1e\xfa")


@needs_llvmlite
@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (EXTERNAL, "relocations"),
        (CONSTANT, "relocations|data of its own"),
        (FLOATING, "relocations|data of its own"),
        (VARIABLE, "relocations|data of its own"),
        (TWO, "is not the function run alone"),
        (RENAMED, "is not the function run alone"),
        (COMPUTED, "indirect jump"),
    ],
    ids=["external", "constant", "floating", "variable", "two", "renamed", "computed"],
)
def test_code_that_would_need_more_is_refused(source, complaint):
    with pytest.raises(make.CheckFailed, match=complaint):
        make.checked(translated(source))


@needs_llvmlite
def test_a_switch_becomes_no_jump_table():
    make.checked(translated(SWITCH))
    with pytest.raises(make.CheckFailed, match=r"relocations|data of its own|indirect jump"):
        make.checked(translated(SWITCH, head=HEAD.replace('"no-jump-tables"="true"', "") + FLAG))


@needs_llvmlite
def test_code_without_the_mark_for_indirect_calls_is_refused():
    with pytest.raises(make.CheckFailed, match="mark of an indirect call"):
        make.checked(translated(GOOD, head=HEAD.replace("!llvm.module.flags = !{!0}\n", "")))


@needs_llvmlite
@pytest.mark.parametrize("check", ["relocations", "data", "undefined"])
def test_each_check_of_the_sections_stands_alone(check, monkeypatch):
    """One source breaks several at once; each is seen although the others look away."""
    kinds = {
        "relocations": (CONSTANT, "relocations"),
        "data": (CONSTANT, "data of its own"),
        "undefined": (EXTERNAL, "symbols"),
    }
    source, complaint = kinds[check]
    if check != "relocations":
        monkeypatch.setattr(make, "_RELOCATIONS", ())
    with pytest.raises(make.CheckFailed, match=complaint):
        make.checked(translated(source))


def test_a_name_that_is_no_number_of_the_layout_is_refused():
    with pytest.raises(KeyError, match="LANE_NOWHERE"):
        make.expand("  %x = word %lane, LANE_NOWHERE\n")


def test_short_forms_are_written_out():
    text = make.expand("; a remark\n  %x = acquire %lane, LANE_PENDING\n  release 3, %lane, LANE_SUBMITTED\n")
    assert text.splitlines() == [
        "  %at.1 = getelementptr i8, ptr %lane, i64 24",
        "  %x = load atomic i64, ptr %at.1 acquire, align 8",
        "  %at.2 = getelementptr i8, ptr %lane, i64 8",
        "  store atomic i64 3, ptr %at.2 release, align 8",
    ]


def test_the_code_is_whole_and_was_made_for_these_records():
    assert hashlib.sha256(CODE).hexdigest() == native_code.SHA256
    assert native_code.LAYOUT == native_layout.LAYOUT, "run `make native`"
    assert len(set(native_layout.NUMBERS)) == len(native_layout.LAYOUT.split())


def test_code_that_was_made_for_other_records_is_not_run(monkeypatch):
    monkeypatch.setattr(native_code, "LAYOUT", native_code.LAYOUT.replace("SLOT_SHIFT=9", "SLOT_SHIFT=10"))
    with pytest.raises(native.Unavailable, match="made for other records"):
        native.check("cuda", None)


REFUSAL = """
import ctypes, os, sys
from atomr_trio._worker import native
{forbid}
try:
    native.mapped()
except native.Unavailable as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("forbid", "reason"),
    [
        (
            "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); import signal; "
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)",
            "File too large",
        ),
        ("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))", "Too many open files"),
        (
            "def refuse(*_): raise PermissionError(13, 'Permission denied')\nos.memfd_create = refuse",
            "Permission denied",
        ),
        ("import mmap; mmap.MAP_PRIVATE = 0", "Invalid argument"),
    ],
    ids=["no-file", "no-descriptor", "no-memfd", "no-mapping"],
)
def test_a_system_that_forbids_the_code_is_named(forbid, reason):
    """Whatever `OSError` it is: such a worker runs the loop of Python."""
    program = [sys.executable, "-c", REFUSAL.format(forbid=forbid)]
    output = subprocess.run(program, env=child_environment(), capture_output=True, text=True, check=True).stdout
    assert output.startswith("the system does not allow its code: ")
    assert reason in output


def printed_by(program: str) -> str:
    """What a process prints that runs this; a test whose process prints `no ...` is skipped by those words."""
    run = subprocess.run([sys.executable, "-c", program], env=child_environment(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    if run.stdout.startswith("no "):
        pytest.skip(run.stdout.strip())
    return run.stdout.strip()


FORBIDDEN = """
import ctypes
from atomr_trio._worker import native
code = {filter!r}
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]
libc = ctypes.CDLL(None, use_errno=True)
filter = Filter(len(code) // 8, code)
if libc.prctl({no_new_privileges}, 1, 0, 0, 0) or libc.prctl({set_seccomp}, 2, ctypes.byref(filter), 0, 0):
    print("no filter of system calls here: error", ctypes.get_errno())
else:
    wants = dict.fromkeys(("driver", "loop", "page", "page_on_device", "patience", "give_up"))
    print(native.loop_for(backend="cuda", ring=object(), **wants))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter knows the calls of x86-64 alone")
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM], ids=["EACCES", "EPERM"])
def test_where_the_kernel_maps_no_file_as_code_the_loop_of_python_runs(number):
    """As SELinux or a mount without programs has it: here a filter refuses each ``mmap`` with ``PROT_EXEC``."""
    load, equals, has_bits, answer = 0x20, 0x15, 0x45, 0x06
    mmap, protection, executable, refuse, allow = 9, 32, 4, 0x0005_0000, 0x7FFF_0000
    steps = [
        (load, 0, 0, 0),
        (equals, 0, 3, mmap),
        (load, 0, 0, protection),
        (has_bits, 0, 1, executable),
        (answer, 0, 0, refuse | number),
        (answer, 0, 0, allow),
    ]
    code = b"".join(struct.pack("<HBBI", *step) for step in steps)
    told = printed_by(FORBIDDEN.format(filter=code, no_new_privileges=38, set_seccomp=22))
    assert told == repr((None, f"the system does not allow its code: {os.strerror(number)}"))


MAKES_NO_CODE = """
import ctypes, mmap
from support import sim_process
from support.loops import Launch, Machine
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(65, 1, 0, 0, 0):
    raise SystemExit(print("no PR_SET_MDWE here: error", ctypes.get_errno()))
try:
    mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_WRITE | mmap.PROT_EXEC)
except PermissionError:
    sim_process.begin()
    machine = Machine(natively=True)
    machine.run([Launch(0, 2, bytes(8))] * 40)
    print(sum(effect[0] == "launch" for effect in machine.effects), machine.returned)
"""


def test_where_memory_that_was_written_never_becomes_code_the_native_loop_runs():
    """`PR_SET_MDWE` is what a hardened service sets. The code is mapped from a sealed file, and was never writable."""
    assert printed_by(MAKES_NO_CODE) == f"40 {[int(native_layout.Reason.RECORD)] * 2}"


def finds_no_record(run: Callable[[int], int]) -> bool:
    """Whether code that was mapped runs, and says of an empty ring that it is empty."""
    libc, state, page = ctypes.CDLL(None), Words(len(LOOP_WORDS)), Words(PAGE_BYTES // 8)
    state.view[PAGE_ADDRESS] = page.address
    for place, function in ((SCHED_YIELD, libc.sched_yield), (CLOCK_GETTIME, libc.clock_gettime)):
        state.view[place] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return run(state.address) == native_layout.Reason.EMPTY


def test_a_kernel_that_does_not_know_how_to_forbid_programs_maps_the_code_nevertheless(monkeypatch):
    """Linux before 6.3 refuses the flag, and has no other way."""
    asked: list[int] = []
    make = os.memfd_create

    def make_as_before(name: str, flags: int) -> int:
        asked.append(flags)
        if flags & native._NOEXEC_SEAL:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return make(name, flags)

    monkeypatch.setattr(os, "memfd_create", make_as_before)
    assert finds_no_record(native.mapped.__wrapped__())
    plain = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    assert asked == [plain | native._NOEXEC_SEAL, plain]


def test_the_code_lies_in_memory_that_nobody_can_change():
    """Executable and not writable, from a file that is sealed."""
    run = native.mapped()
    address = native.address_of_function(run)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        (line,) = [
            each for each in maps if int(each.split("-")[0], 16) <= address < int(each.split("-")[1].split()[0], 16)
        ]
    assert line.split()[1] == "r-xp"
    assert "atomr-trio-native" in line
