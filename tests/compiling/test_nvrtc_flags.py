"""The table of NVRTC's options, held against the real NVRTC."""

from __future__ import annotations

from pathlib import Path

import pytest

from atomr_trio._compiling import flags as _nvrtc_flags
from atomr_trio._compiling.compiler import compile_program
from atomr_trio._compiling.flags import Flag, check_contradictions, parse_flags
from atomr_trio._compiling.nvrtc_library import nvrtc_version
from atomr_trio._compiling.options import NvrtcOptions
from atomr_trio._values.errors import CompileError, InvalidArgument

FLAGS = _nvrtc_flags._FLAGS
VALUES = {
    _nvrtc_flags._SWITCH: "true",
    _nvrtc_flags._NUMBER: "32",
    _nvrtc_flags._POSITIVE: "3",
    _nvrtc_flags._NUMBERS: "1,2",
    "--gpu-architecture": "compute_90",
    "--tile-preview": "simt",
    "--dopt": "on",
    "--Ofast-compile": "mid",
    "--ptxas-options": "-v",
    "--jump-table-density": "101",
    "--warning-as-error": "reorder,conversion",
    "--optimization-info": "inline",
    "--std": "c++17",
    "--time": "-",
}
"""A value for each option, by its name or its pattern."""


def value_of(flag: Flag, folder: Path) -> str | None:
    """A value that NVRTC takes; a file or a folder for what reads and writes some."""
    if flag.value is None:
        return None
    if flag.name in ("--include-path", "--pch-dir", "--use-bundled-headers"):
        return str(folder / "folder")
    return VALUES.get(flag.name) or VALUES.get(flag.value) or str(folder / "file")


def says(flags: list[str]) -> str:
    """NVRTC's own words on these options."""
    try:
        return compile_program("", NvrtcOptions(cpp_std=None), "compute_80", extra_flags=tuple(flags)).log
    except CompileError as error:
        return error.log


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_nvrtc_knows_an_option_by_both_spellings_and_by_no_third_since_its_version(flag: Flag, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    value = value_of(flag, tmp_path)
    known = flag.since <= nvrtc_version()
    for spelling in (flag.name, flag.short):
        text = spelling if value is None else f"{spelling}={value}"
        assert ("unrecognized option" not in (words := says([text]))) is known, words
        assert [each.flag for each in parse_flags([text])] == [flag]
        if known and value is not None:
            apart = says([spelling, value])
            assert ("unrecognized option" in apart) is not flag.separable, apart
    if flag.name.lstrip("-") != flag.short.lstrip("-"):
        assert "unrecognized option" in says(["-" + flag.short if value is None else f"-{flag.short}={value}"])


@pytest.mark.parametrize(("one", "other"), _nvrtc_flags._CONTRADICTIONS)
def test_what_is_refused_as_a_contradiction_nvrtc_does_not_take_quietly(one: str, other: str, tmp_path: Path) -> None:
    def written(option: str) -> str:
        [flag] = [flag for flag in FLAGS if flag.name == option.partition("=")[0]]
        value = value_of(flag, tmp_path)
        return option if value is None or "=" in option else f"{option}={value}"

    flags = [written(one), written(other)]
    with pytest.raises(InvalidArgument, match="contradicts"):
        check_contradictions(parse_flags(flags))
    assert says(flags)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-DN=4"], [("--define-macro", "N=4")]),
        (["-D", "N=4"], [("--define-macro", "N=4")]),
        (["-D N"], [("--define-macro", "N")]),
        (["-D=N"], [("--define-macro", "N")]),
        (["-I/a b", "--include-path", "/c"], [("--include-path", "/a b"), ("--include-path", "/c")]),
        (["-include=a.h"], [("--pre-include", "a.h")]),
        (
            ["--relocatable-device-code", "true", "-w"],
            [("--relocatable-device-code", "true"), ("--disable-warnings", None)],
        ),
        (["-Xptxas", "-v", "-Xptxas=-O1"], [("--ptxas-options", "-v"), ("--ptxas-options", "-O1")]),
    ],
)
def test_options_are_read_as_nvrtc_reads_them(options: list[str], expected: list[tuple[str, str | None]]) -> None:
    given = parse_flags(options)
    assert [(each.flag.name, each.value) for each in given] == expected
    check_contradictions(given)
    assert "unrecognized option" not in says(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bogus"], "'--bogus' is no option of NVRTC"),
        (["--restrct"], "did you mean '--restrict'?"),
        (["--FTZ=true"], "'--FTZ=true' is no option of NVRTC"),
        (["--rdc=true"], "did you mean '-rdc'?"),
        (["--pch true"], "'--pch true' is no option"),
        (["--pch=true"], "--pch takes no value"),
        (["-rdc"], "write --relocatable-device-code=VALUE with a value that matches true|false"),
        (["-rdc=yes"], "not 'yes'"),
        (["-rdc", "-w"], "not '-w'"),
        (["--time", "log"], "write --time=VALUE with a value"),
        (["--jump-table-density=102"], "not '102'"),
        (["--diag-error=0"], "not '0'"),
        (["-D"], "write --define-macro=VALUE with a value"),
        (["--Ofast-compile=9"], "matches 0|min|mid|max"),
    ],
)
def test_an_option_that_nvrtc_would_not_take_is_refused_with_the_reason(options: list[str], said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_flags(options)
    assert said in str(caught.value)
    assert str(caught.value).startswith("NvrtcOptions: extra_options: ")


def test_an_option_is_given_once_unless_it_adds_up() -> None:
    check_contradictions(parse_flags(["-DA", "-DB", "--diag-warn=1", "--diag-warn=2"]))
    with pytest.raises(InvalidArgument, match="'-rdc=true' was given before"):
        check_contradictions(parse_flags(["-rdc=true", "--relocatable-device-code=false"]))
