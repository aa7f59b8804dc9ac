"""What ``make abi`` reads in a header, on a small one of our own. Needs libclang, of the extra ``abi``."""

from __future__ import annotations

import ctypes
from enum import IntEnum

import pytest

pytest.importorskip("clang.cindex")

from abi.extract import Reader, declarations, encode, facts, version
from abi.libraries import Header, Table
from atomr_cuda import Function, Library

HEADER = """
#include <stdint.h>
#include <stdlib.h>

#define libOpen libOpen_v2
#define LIB_LOUD 0x10
#define LIB_NOBODY ((libHandle)0x2)

typedef struct libHandle_st *libHandle;
typedef unsigned long long libAddress_v1;
typedef libAddress_v1 libAddress;
typedef enum libMode_enum { LIB_MODE_SLOW = 1, LIB_MODE_FAST = -1, LIB_MODE_MAX } libMode;
typedef struct { float x, y; } libComplex;
typedef void (*libCallback)(libHandle handle, int (*inner)(void));

typedef struct libShape_st {
    libMode mode;
    size_t extent[3];
    union {
        uint32_t narrow;
        uint64_t wide;
    };
    struct { char name[8]; const libComplex *numbers; } label;
    struct libNamed_st { short number; } named;
} libShape;

libMode libOpen(libHandle *handle, const libShape *shape, libMode mode);
const char *libName(libComplex number, unsigned char flag, double *results);
void libOther(void);

#ifdef LEGACY
#undef libOpen
libMode libOpen(libHandle *handle, int mode);
libMode libOpen_v1(libHandle *handle, long mode);
#endif
"""


@pytest.fixture
def read(tmp_path):
    def reader(text: str = HEADER, **options: str) -> Reader:
        (tmp_path / "lib.h").write_text(text)
        return Reader(Header(("lib.h",), {}, **options), [tmp_path])

    return reader


@pytest.fixture
def signatures(read):
    return {name: encode(kind) for name, kind in declarations(read().parse()).functions.items()}


def table(*symbols: str, **names: str) -> Table:
    library = Library("lib", sonames=(), describe=lambda status: ("", ""))
    functions = {name: Function(library, symbol, (), None) for name, symbol in names.items()}
    return Table(
        functions=functions | {symbol: Function(library, symbol, (), None) for symbol in symbols},
        structures={"libShape": ctypes.Structure, "libNothing": ctypes.Structure},
        enums={"libMode": IntEnum},
        aliases={"libHandle": ctypes.c_void_p, "libAddress": ctypes.c_uint64},
        constants={"LIB_LOUD": 0, "LIB_NOBODY": 0, "LIB_MODE_FAST": 0, "LIB_NOTHING": 0},
    )


def test_signatures_are_written_in_the_grammar(signatures):
    assert signatures == {
        "libOpen_v2": "enum(opaque libHandle_st**, struct libShape_st*, enum)",
        "libName": "char*(struct libComplex, u8, f64*)",
        "libOther": "void()",
    }


def test_a_function_without_a_list_of_parameters_takes_none(read):
    [kind] = declarations(read("int libOlder();").parse()).functions.values()
    assert encode(kind) == "i32()"


def test_the_attributes_of_cudas_compiler_say_only_how_a_vector_is_aligned(read):
    text = """
    #include "crt/host_defines.h"
    #include <nv/target>
    struct __device_builtin__ __builtin_align__(16) pair { int x; };
    typedef struct { char first; struct pair second; } libShape;
    extern __host__ __device__ __cudart_builtin__ int CUDARTAPI libName(void);
    """
    found = facts(read(text), table("libName"))
    assert found["structures"]["libShape"]["fields"] == {"first": "0 char", "second": "16 struct pair"}
    assert found["functions"] == {"libName": "i32()"}


def test_callbacks_are_written_with_what_they_take(read):
    [callback] = [kind for name, kind in declarations(read().parse()).typedefs.items() if name == "libCallback"]
    assert encode(callback) == "void(opaque libHandle_st*, i32()*)*"


def test_fields_are_written_with_offset_and_type(read):
    found = facts(read(), table())["structures"]
    assert found == {
        "libShape": {
            "tag": "struct libShape_st",
            "size": 64,
            "fields": {
                "mode": "0 enum",
                "extent": "8 u64[3]",
                "narrow": "32 u32",
                "wide": "32 u64",
                "label.name": "40 char[8]",
                "label.numbers": "48 struct libComplex*",
                "named.number": "56 i16",
            },
        }
    }


def test_only_what_the_table_declares_is_written(read):
    found = facts(read(), table("libName", libOpen="libOpen_v2"))
    assert found["functions"].keys() == {"libName", "libOpen_v2"}
    assert found["enums"] == {"libMode": {"LIB_MODE_SLOW": 1, "LIB_MODE_FAST": -1, "LIB_MODE_MAX": 0}}
    assert found["aliases"] == {"libAddress": "u64", "libHandle": "opaque libHandle_st*"}


def test_constants_are_macros_and_enumerators_and_addresses_are_numbers(read):
    found = facts(read(), table())["constants"]
    assert found == {"LIB_LOUD": 16, "LIB_NOBODY": 2, "LIB_MODE_FAST": -1}


def test_a_name_that_the_header_maps_is_written_with_its_symbol(read):
    names = facts(read(), table("libName", libOpen="libOpen_v2"))["names"]
    assert names == {"libOpen": "libOpen_v2"}


def test_symbols_of_older_versions_are_found_behind_a_macro(read):
    wanted = table("libOpen_v1", libOpen="libOpen_v2")
    assert "libOpen_v1" not in facts(read(), wanted)["functions"]
    found = facts(read(legacy="LEGACY"), wanted)
    assert found["functions"]["libOpen_v1"] == "enum(opaque libHandle_st**, i64)"
    assert found["names"] == {"libOpen": "libOpen_v2"}


def test_a_complete_table_is_told_of_every_function(read):
    found = facts(read(complete="lib(?!Name)"), table())
    assert found["functions"].keys() == {"libOpen_v2", "libOther"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#include <missing.h>", "'missing.h' file not found"),
        ("unknown function(void);", "unknown type name 'unknown'"),
        ("typedef struct libShape_st { int few : 3; } libShape;", "libShape_st.few is a bit field"),
        ("typedef enum { LIB_WIDE = 0x100000000 } libMode; libMode libName(void);", "libMode has 8 bytes"),
        ("long double libName(void);", "no words for long double"),
    ],
)
def test_what_cannot_be_read_is_an_error(read, text, words):
    with pytest.raises(ValueError, match=words):
        facts(read(text), table("libName"))


def test_the_version_of_a_wheel_is_in_its_name(tmp_path):
    assert version(tmp_path / "nvidia_cuda_runtime-13.5.37-py3-none-any.whl") == (13, 5, 37)
