"""Every table against the vendors' headers of CUDA 12 and 13, and the comparison against errors that are planted.

What the headers say lies in ``tests/abi/*.json``; ``make abi`` reads it anew. Nothing is loaded or downloaded here.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from dataclasses import replace
from enum import IntEnum

import pytest

from abi.conformance import (
    agrees,
    check_enums,
    check_functions,
    check_structures,
    fields,
    mismatches,
    read_facts,
    split_signature,
)
from abi.libraries import LIBRARIES, Table, read_table
from atomr_cuda import Function, ValueFunction, driver

TABLES = {library: read_table(library) for library in LIBRARIES}
FACTS = {library: read_facts(library) for library in LIBRARIES}
BOTH = ("cu12", "cu13")


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_table_says_what_the_headers_say(library):
    assert mismatches(TABLES[library], FACTS[library]) == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_declared_function_has_a_name_in_its_module(library):
    functions = TABLES[library].functions.values()
    [declared] = {function.library for function in functions}
    assert {function.symbol for function in functions} == set(declared.functions)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_headers_are_those_of_both_generations(library):
    assert [facts.version[0] for facts in FACTS[library]] == list(LIBRARIES[library].majors)


def test_a_header_knows_most_of_what_the_table_declares():
    """The comparison would be silent about a header from which nothing was read."""
    for library, table in TABLES.items():
        for facts in FACTS[library]:
            symbols = {function.symbol for function in table.functions.values()}
            assert len(symbols & set(facts.functions)) > len(symbols) / 2
            assert len(set(table.enums) & set(facts.enums)) > len(table.enums) / 2


# Planted errors: one of each kind, with the words in which it is reported --------------------------------------------


def planted(section: str, name: str, value: object, library: str = "driver") -> Table:
    """A copy of a table in which one thing is another."""
    table = TABLES[library]
    return replace(table, **{section: {**getattr(table, section), name: value}})


def without(section: str, name: str) -> Table:
    table = TABLES["driver"]
    return replace(table, **{section: {key: value for key, value in getattr(table, section).items() if key != name}})


def function(symbol: str, *argtypes: object, restype: object = c_int, since: tuple[int, int] | None = None) -> Function:
    return Function(driver.library, symbol, argtypes, restype, since)


def structure(name: str, *members: tuple[str, object]) -> type[Structure]:
    return type(name, (Structure,), {"_fields_": list(members)})


def in_both(line: str) -> list[str]:
    return [f"{line} ({generation})" for generation in BOTH]


DEVICE_POINTER = POINTER(driver.CUdeviceptr)


@pytest.mark.parametrize(
    ("name", "wrong", "reported"),
    [
        pytest.param(
            "cuMemAlloc",
            function("cuMemAlloc_v2", DEVICE_POINTER, c_uint),
            "cuMemAlloc_v2: argument 2 is c_uint, not u64",
            id="too narrow",
        ),
        pytest.param(
            "cuMemFree",
            function("cuMemFree_v2", c_void_p),
            "cuMemFree_v2: argument 1 is c_void_p, not u64",
            id="a pointer for a number",
        ),
        pytest.param(
            "cuStreamQuery",
            function("cuStreamQuery", c_size_t),
            f"cuStreamQuery: argument 1 is {c_size_t.__name__}, not opaque CUstream_st*",
            id="a number for a handle",
        ),
        pytest.param(
            "cuStreamGetPriority",
            function("cuStreamGetPriority", driver.CUstream, POINTER(c_uint)),
            "cuStreamGetPriority: argument 2 is LP_c_uint, not i32*",
            id="the wrong sign behind a pointer",
        ),
        pytest.param(
            "cuMemsetD8Async",
            function("cuMemsetD8Async", driver.CUdeviceptr, ctypes.c_ubyte, c_size_t),
            "cuMemsetD8Async: 3 arguments, not 4",
            id="an argument too few",
        ),
        pytest.param(
            "cuCtxSynchronize",
            function("cuCtxSynchronize", c_void_p),
            "cuCtxSynchronize: 1 arguments, not 0",
            id="an argument too many",
        ),
        pytest.param(
            "cuMemSetAccess",
            function("cuMemSetAccess", driver.CUdeviceptr, c_size_t, POINTER(driver.CUmemLocation), c_size_t),
            "cuMemSetAccess: argument 3 is LP_CUmemLocation, not struct CUmemAccessDesc_st*",
            id="another structure",
        ),
        pytest.param(
            "cuIpcOpenEventHandle",
            function("cuIpcOpenEventHandle", POINTER(driver.CUevent), POINTER(driver.CUipcEventHandle)),
            "cuIpcOpenEventHandle: argument 2 is LP_CUipcEventHandle, not struct CUipcEventHandle_st",
            id="a pointer for a structure",
        ),
        pytest.param(
            "cuLaunchHostFunc",
            function("cuLaunchHostFunc", driver.CUstream, CFUNCTYPE(c_int, c_void_p), c_void_p),
            "cuLaunchHostFunc: argument 2 is CFunctionType, not void(void*)*",
            id="another callback",
        ),
        pytest.param(
            "cuGraphLaunch",
            function("cuGraphLaunch", driver.CUgraphExec, driver.CUstream, restype=c_double),
            "cuGraphLaunch: the result is c_double, not enum",
            id="another result",
        ),
    ],
)
def test_a_wrong_function_is_reported(name, wrong, reported):
    assert mismatches(planted("functions", name, wrong), FACTS["driver"]) == in_both(reported)


def test_a_status_in_place_of_a_value_is_reported():
    wrong = ValueFunction(TABLES["nvrtc"].functions["nvrtcVersion"].library, "nvrtcGetErrorString", (c_int,), c_int)
    found = mismatches(planted("functions", "nvrtcGetErrorString", wrong, "nvrtc"), FACTS["nvrtc"])
    assert found == in_both("nvrtcGetErrorString: the result is c_int, not char*")


def test_a_number_of_the_other_precision_is_reported():
    """``cusolverDnDsyevdx`` takes the bounds of the interval by value, as doubles; ``cusolverDnSsyevdx`` as floats."""
    functions = TABLES["cusolver"].functions
    wrong = function("cusolverDnDsyevdx", *functions["cusolverDnSsyevdx"].argtypes)
    assert mismatches(planted("functions", wrong.symbol, wrong, "cusolver"), FACTS["cusolver"]) == sorted(
        line for place in (8, 9) for line in in_both(f"cusolverDnDsyevdx: argument {place} is c_float, not f64")
    )


def test_the_unversioned_symbol_behind_a_name_is_reported():
    """The symbol ``cuMemAlloc`` exists too, and takes 32-bit sizes."""
    found = mismatches(
        planted("functions", "cuMemAlloc", function("cuMemAlloc", DEVICE_POINTER, c_size_t)), FACTS["driver"]
    )
    assert "cuMemAlloc: stands for cuMemAlloc, the headers say cuMemAlloc_v2" in found


def test_a_plain_name_that_the_headers_disagree_about_is_reported():
    table = planted("functions", "cuCtxCreate", TABLES["driver"].functions["cuCtxCreate_v2"])
    disagreeing = [
        replace(facts, names={**facts.names, "cuCtxCreate": symbol})
        for facts, symbol in zip(FACTS["driver"], ("cuCtxCreate_v2", "cuCtxCreate_v4"), strict=True)
    ]
    assert mismatches(table, disagreeing) == [
        "cuCtxCreate: stands for cuCtxCreate_v2, the headers say cuCtxCreate_v2 or cuCtxCreate_v4"
    ]


@pytest.mark.parametrize(
    ("name", "since", "reported"),
    [
        ("cuMemcpyBatchAsync_v2", None, "cuMemcpyBatchAsync_v2: the header has no such function (cu12)"),
        ("cuFuncGetName", (13, 0), "cuFuncGetName: is said to be newer than 12.9, and the header has it (cu12)"),
    ],
)
def test_a_wrong_word_on_the_version_of_a_function_is_reported(name, since, reported):
    right = TABLES["driver"].functions[name]
    wrong = function(right.symbol, *right.argtypes, since=since)
    assert mismatches(planted("functions", name, wrong), FACTS["driver"]) == [reported]


def test_a_function_of_no_header_is_reported():
    found = mismatches(planted("functions", "cuNothing", function("cuNothing", c_int)), FACTS["driver"])
    assert found == in_both("cuNothing: the header has no such function")


@pytest.mark.parametrize(
    ("section", "name", "reported"),
    [
        ("functions", "cuMemAlloc", "cuMemAlloc_v2"),
        ("structures", "CUuuid", "CUuuid"),
        ("enums", "CUlimit", "CUlimit"),
        ("constants", "CU_STREAM_PER_THREAD", "CU_STREAM_PER_THREAD"),
    ],
)
def test_what_a_table_lost_is_reported(section, name, reported):
    found = mismatches(without(section, name), FACTS["driver"])
    assert set(in_both(f"{reported}: is not declared")) <= set(found)


@pytest.mark.parametrize(
    ("library", "new"),
    [("nvrtc", "nvrtcNew"), ("nvjitlink", "nvJitLinkNew"), ("cusolver", "cusolverDnXnew"), ("cublaslt", "cublasLtNew")],
)
def test_a_function_that_a_complete_table_lacks_is_reported(library, new):
    facts = [replace(facts, functions={**facts.functions, new: "enum(i32)"}) for facts in FACTS[library]]
    assert mismatches(TABLES[library], facts) == in_both(f"{new}: is not declared")


def test_a_function_that_the_older_linker_lacks_is_said_to_be_newer():
    """12.9 exports no ``nvJitLinkGetLinkedLTOIR``: the table says so, and the comparison would miss it otherwise."""
    right = TABLES["nvjitlink"].functions["nvJitLinkGetLinkedLTOIR"]
    wrong = Function(right.library, right.symbol, right.argtypes, right.restype)
    assert mismatches(planted("functions", right.symbol, wrong, "nvjitlink"), FACTS["nvjitlink"]) == [
        "nvJitLinkGetLinkedLTOIR: the header has no such function (cu12)"
    ]


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        pytest.param(
            structure("CUmemAccessDesc", ("flags", c_int), ("location", driver.CUmemLocation)),
            ["CUmemAccessDesc.flags: at offset 0, not 8", "CUmemAccessDesc.location: at offset 4, not 0"],
            id="shifted",
        ),
        pytest.param(
            structure("CUmemAccessDesc", ("location", driver.CUmemLocation)),
            ["CUmemAccessDesc.flags: is missing", "CUmemAccessDesc: 8 bytes, not 12"],
            id="a field too few",
        ),
        pytest.param(
            structure("CUmemAccessDesc", ("location", driver.CUuuid), ("flags", c_int)),
            [
                "CUmemAccessDesc.flags: at offset 16, not 8",
                "CUmemAccessDesc.location: is CUuuid, not struct CUmemLocation_st",
                "CUmemAccessDesc: 20 bytes, not 12",
            ],
            id="another structure inside",
        ),
        pytest.param(
            structure("CUmemAccessDesc", ("location", driver.CUmemLocation), ("flags", ctypes.c_float)),
            ["CUmemAccessDesc.flags: is c_float, not enum"],
            id="another type of the same size",
        ),
    ],
)
def test_a_wrong_structure_is_reported(wrong, reported):
    found = mismatches(planted("structures", "CUmemAccessDesc", wrong), FACTS["driver"])
    assert found == sorted(line for words in reported for line in in_both(words))


def test_a_field_of_no_header_is_reported():
    wrong = structure("CUuuid", ("bytes", ctypes.c_ubyte * 16), ("more", ctypes.c_ubyte * 0))
    assert mismatches(planted("structures", "CUuuid", wrong), FACTS["driver"]) == [
        "CUuuid.more: no header has such a field"
    ]


def test_a_structure_of_no_header_is_reported():
    found = mismatches(planted("structures", "CUnothing", structure("CUnothing", ("a", c_int))), FACTS["driver"])
    assert found == ["CUnothing: no header has such a structure"]


def test_what_an_older_header_reserved_may_be_spent_and_nothing_else():
    """12.9 reserves the byte that 13.4 calls ``gpuDirectRDMACapable``; the newest layout is held exactly."""
    assert list(check_structures(TABLES["driver"], FACTS["driver"])) == []
    only_old = list(check_structures(TABLES["driver"], FACTS["driver"][:1]))
    assert "CUmemPoolProps.gpuDirectRDMACapable: no header has such a field" in only_old
    assert "CUmemPoolProps.reserved: at offset 35, not 34 (cu12)" in only_old


@pytest.mark.parametrize(
    ("words", "grows", "reported"),
    [
        pytest.param(14, True, [], id="grown"),
        pytest.param(14, False, ["112 bytes, not 64 (cu12)"], id="another size"),
        pytest.param(13, True, ["104 bytes, not 112 (cu13)"], id="smaller than the newest"),
        pytest.param(7, True, ["56 bytes, not 64 (cu12)", "56 bytes, not 112 (cu13)"], id="smaller than any"),
    ],
)
def test_room_for_a_library_may_be_larger_than_an_older_one_needs(words, grows, reported):
    name = "cublasLtMatrixLayoutOpaque_t"
    room = type(name, (Structure,), {"_fields_": [("data", ctypes.c_uint64 * words)], "_grows_": grows})
    found = check_structures(Table(structures={name: room}), FACTS["cublaslt"])
    assert [line for line in found if "bytes" in line] == [f"{name}: {words}" for words in reported]


@pytest.mark.parametrize(
    ("members", "reported"),
    [
        ({"CU_COMPUTEMODE_PROHIBITED": 1}, in_both("CUcomputemode.CU_COMPUTEMODE_PROHIBITED: is 1, not 2")),
        ({"CU_COMPUTEMODE_PROHIBITED": None}, in_both("CUcomputemode.CU_COMPUTEMODE_PROHIBITED: is missing, it is 2")),
        ({"CU_COMPUTEMODE_SHY": 9}, ["CUcomputemode.CU_COMPUTEMODE_SHY: no header has such a member"]),
    ],
    ids=["wrong", "missing", "invented"],
)
def test_a_wrong_enumeration_is_reported(members, reported):
    right = {name: int(value) for name, value in driver.CUcomputemode.__members__.items()}
    wrong = IntEnum("CUcomputemode", {name: value for name, value in {**right, **members}.items() if value is not None})
    assert mismatches(planted("enums", "CUcomputemode", wrong), FACTS["driver"]) == reported


def test_an_enumeration_of_no_header_is_reported():
    found = mismatches(planted("enums", "CUmood", IntEnum("CUmood", {"CU_MOOD_BLUE": 1})), FACTS["driver"])
    assert found == ["CUmood: no header has such an enumeration"]


def test_members_that_only_count_the_others_may_be_left_out():
    """``CU_LIMIT_MAX`` may, being the largest; ``CU_SHAREDMEM_CARVEOUT_MAX_L1`` and its like may not."""
    assert "CU_LIMIT_MAX" in FACTS["driver"][0].enums["CUlimit"]
    assert "CU_LIMIT_MAX" not in driver.CUlimit.__members__
    facts = [replace(facts, enums={"CUlimit": {"CU_LIMIT_MAX": 0, "CU_LIMIT_LATER": 1}}) for facts in FACTS["driver"]]
    found = list(check_enums(Table(enums={"CUlimit": IntEnum("CUlimit", {"CU_LIMIT_LATER": 1})}), facts))
    assert found == in_both("CUlimit.CU_LIMIT_MAX: is missing, it is 0")


def test_an_end_counts_also_below_what_is_reserved():
    facts = [
        replace(facts, enums={"E": {"E_A": 0, "E_END": end, "E_RESERVED": 9}})
        for facts, end in zip(FACTS["cublaslt"], (1, 5), strict=True)
    ]
    assert list(check_enums(Table(enums={"E": IntEnum("E", {"E_A": 0, "E_RESERVED": 9})}), facts)) == []
    without_both = Table(enums={"E": IntEnum("E", {"E_A": 0})})
    assert list(check_enums(without_both, facts)) == in_both("E.E_RESERVED: is missing, it is 9")


@pytest.mark.parametrize(
    ("section", "name", "wrong", "reported"),
    [
        ("constants", "CU_STREAM_PER_THREAD", 3, in_both("CU_STREAM_PER_THREAD: is 3, not 2")),
        ("constants", "CU_STREAM_OTHER", 3, ["CU_STREAM_OTHER: no header has such a constant"]),
        ("aliases", "CUdeviceptr", c_uint, in_both("CUdeviceptr: is c_uint, not u64")),
    ],
)
def test_a_wrong_constant_or_alias_is_reported(section, name, wrong, reported):
    assert mismatches(planted(section, name, wrong), FACTS["driver"]) == reported


# Planted errors: one in every place ----------------------------------------------------------------------------------


def spoiled_functions(right):
    """Every function with one thing wrong: the result, or one argument, or their number."""
    result, arguments, since = right.restype, right.argtypes, right.since
    yield function(right.symbol, *arguments, restype=c_double, since=since)
    yield function(right.symbol, *arguments, c_int, restype=result, since=since)
    for place in range(len(arguments)):
        others = arguments[:place], arguments[place + 1 :]
        another = c_int if arguments[place] is c_double else c_double
        yield function(right.symbol, *others[0], *others[1], restype=result, since=since)
        yield function(right.symbol, *others[0], another, *others[1], restype=result, since=since)


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_function_can_go_wrong_unnoticed(library):
    for name, right in TABLES[library].functions.items():
        table = replace(TABLES[library], functions={name: right})
        assert list(check_functions(table, FACTS[library])) == []
        for wrong in spoiled_functions(right):
            assert list(check_functions(replace(table, functions={name: wrong}), FACTS[library])), wrong


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_structure_can_go_wrong_unnoticed(library):
    for name, right in TABLES[library].structures.items():
        for place in range(len(right._fields_)):
            spoiled = list(right._fields_)
            spoiled[place] = (spoiled[place][0], ctypes.c_byte * 3)
            missing = right._fields_[:place] + right._fields_[place + 1 :]
            for wrong in (spoiled, missing):
                kind = type(name, right.__bases__, {"_fields_": wrong})
                assert list(check_structures(Table(structures={name: kind}), FACTS[library])), (name, place)


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_member_of_an_enumeration_can_go_wrong_unnoticed(library):
    for name, right in TABLES[library].enums.items():
        members = {member: int(value) for member, value in right.__members__.items()}
        for member, value in members.items():
            wrong = IntEnum(name, {**members, member: value + 1_000_000})
            assert list(check_enums(Table(enums={name: wrong}), FACTS[library])), member


# The grammar of types, also where no table uses it yet ---------------------------------------------------------------


class Complex(Structure):
    _fields_ = [("x", ctypes.c_float), ("y", ctypes.c_float)]


TAGS = {"Complex": "struct float2"}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (c_int, "i32"),
        (c_int, "enum"),
        (c_uint, "enum"),
        (c_size_t, "u64"),
        (c_ulonglong, "u64"),
        (ctypes.c_longlong, "i64"),
        (ctypes.c_float, "f32"),
        (c_double, "f64"),
        (ctypes.c_bool, "bool"),
        (ctypes.c_char, "char"),
        (ctypes.c_ubyte, "char"),
        (None, "void"),
        (Complex, "struct float2"),
        (POINTER(Complex), "struct float2*"),
        (POINTER(POINTER(Complex)), "struct float2**"),
        (c_void_p, "struct float2*"),
        (c_void_p, "opaque cublasContext*"),
        (POINTER(c_void_p), "opaque cublasContext**"),
        (POINTER(c_void_p), "void**"),
        (c_char_p, "char*"),
        (POINTER(c_char_p), "char**"),
        (c_int * 3, "i32[3]"),
        ((c_int * 3) * 2, "i32[3][2]"),
        (CFUNCTYPE(None, c_void_p, c_int), "void(void*, i32)*"),
        (c_void_p, "void(void*, i32)*"),
    ],
)
def test_types_that_agree(kind, text):
    assert agrees(kind, text, TAGS)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (c_int, "u32"),
        (c_uint, "i32"),
        (c_int, "i64"),
        (c_size_t, "enum"),
        (c_int, "f32"),
        (c_int, "void"),
        (None, "i32"),
        (None, "void*"),
        (c_size_t, "void*"),
        (c_void_p, "u64"),
        (Complex, "struct float2*"),
        (POINTER(Complex), "struct float2"),
        (Complex, "struct double2"),
        (Structure, "struct float2"),
        (POINTER(c_int), "u32*"),
        (POINTER(c_int), "void*"),
        (POINTER(c_int), "opaque cublasContext*"),
        (POINTER(c_void_p), "opaque cublasContext*"),
        (c_char_p, "void*"),
        (c_char_p, "u8*"),
        (c_int * 3, "i32[4]"),
        (c_int * 3, "u32[3]"),
        (c_int, "i32[1]"),
        (CFUNCTYPE(None, c_void_p), "void(void*, i32)*"),
        (CFUNCTYPE(c_int, c_void_p, c_int), "void(void*, i32)*"),
        (CFUNCTYPE(None), "void*"),
    ],
)
def test_types_that_do_not_agree(kind, text):
    assert not agrees(kind, text, TAGS)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("enum()", ("enum", [])),
        ("enum(i32)", ("enum", ["i32"])),
        ("char*(enum, u64*)", ("char*", ["enum", "u64*"])),
        ("enum(i32(void*, void*)*, void*)", ("enum", ["i32(void*, void*)*", "void*"])),
    ],
)
def test_signatures_are_taken_apart(text, parts):
    assert split_signature(text) == parts


def test_fields_of_members_declared_in_place_have_paths():
    paths = dict(fields(driver.CUlaunchAttributeValue))
    assert paths["clusterDim.y"] == (4, c_uint)
    assert "clusterDim" not in paths
    assert {"waitValue.value": 16, "waitValue.value64": 16, "waitValue.flags": 24}.items() <= {
        path: offset for path, (offset, _) in fields(driver.CUstreamBatchMemOpParams)
    }.items()
