"""The code of the native loop is the one that its source makes, and code that could not run is refused."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import subprocess
import sys

import pytest

from atomr_trio._worker import native, native_code, native_layout
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
