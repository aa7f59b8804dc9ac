"""The names in a source: of the kernels that it seems to declare, and of their parameters.

A mangled name holds types, but no names of parameters, so those are taken from the text. They are only shown. Macros
and conditions are not followed: what is found may be too little, and what is asked of the compiler by it may be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from atomr_trio._values.long_texts import in_turn, pieces

__all__ = ["kernels_in", "parameter_names"]

_COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.DOTALL)
_GLOBAL = re.compile(r"\b__global__\b")
_ATTRIBUTE = re.compile(
    r"\b(?:__launch_bounds__|__cluster_dims__|__maxnreg__|__block_size__|__attribute__|alignas)\s*\($"
)

_NAME_BEFORE = re.compile(r"([A-Za-z_]\w*)\s*$")
_C_BLOCK = re.compile(r'extern\s*"C"\s*\{')
_C = re.compile(r'extern\s*"C"')
_TEMPLATE_OR_MACRO = re.compile(r"\btemplate\b|#\s*define\b")
_MOST_BEFORE: Final = 400
"""Characters before ``__global__`` that are looked at."""
_OPENS: Final = {"(": ")", "[": "]", "{": "}", "<": ">"}
_TYPE_WORDS: Final = frozenset(
    (
        *("const", "volatile", "unsigned", "signed", "char", "short", "int", "long", "float", "double", "bool", "void"),
        *("auto", "wchar_t", "char8_t", "char16_t", "char32_t", "__int128", "struct", "class", "enum", "union"),
        *("typename", "__restrict__", "__restrict", "restrict", "__grid_constant__"),
    )
)
_INDIRECT = re.compile(r"\(\s*\*[\s\w]*?(\w+)\s*\)")
_LAST_NAME = re.compile(r"(::\s*)?([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*$")
_WORD = re.compile(r"[A-Za-z_]\w*")


def kernels_in(source: str) -> tuple[str, ...]:
    """Return the names of the kernels that a source seems to declare as ``extern "C"``."""
    parts = _without_comments(source)
    code, in_block = _around_kernels(parts), any(_C_BLOCK.search(part) for part in in_turn(parts))
    return tuple(dict.fromkeys(name for name, before, _ in _declared(code) if _is_of_c(before, in_block=in_block)))


def parameter_names(source: str, kernel: str) -> tuple[str, ...]:
    """Return the names of a kernel's parameters, by an expression that names it; empty where they are not clear."""
    wanted = _NAME_BEFORE.search(kernel.partition("<")[0])
    if wanted is None:
        return ()
    found = {
        tuple(names) for name, _, names in _declared(_around_kernels(_without_comments(source))) if name == wanted[1]
    }
    lists = [names for names in found if all(names)]
    return lists[0] if len(found) == 1 and lists else ()


def _without_comments(source: str) -> list[str]:
    """Return a source in pieces, without comments."""
    return [
        _COMMENT_OR_TEXT.sub(lambda match: match[0] if match[0].startswith('"') else " ", piece)
        for piece in pieces(source)
    ]


def _around_kernels(parts: Sequence[str]) -> str:
    """Return those parts of a long source that declare a kernel, and their neighbours."""
    near = {at for index, part in enumerate(parts) if "__global__" in part for at in range(index - 1, index + 2)}
    return "".join(part if at in near else "\n" for at, part in enumerate(parts))


def _is_of_c(before: str, *, in_block: bool) -> bool:
    """Whether a kernel has its own name in the image, by what stands before it."""
    return not _TEMPLATE_OR_MACRO.search(before) and (in_block or _C.search(before) is not None)


def _declared(code: str) -> Iterator[tuple[str, str, list[str]]]:
    """Each kernel: its name, what stands before it, and its parameters' names."""
    for match in _GLOBAL.finditer(code):
        before = re.split(r"[;}]", code[max(0, match.start() - _MOST_BEFORE) : match.start()])[-1]
        yield from ((name, before, names) for name, names in _head(code, match.end()))


def _head(code: str, at: int) -> Iterator[tuple[str, list[str]]]:
    """The name and the parameters of the function whose head goes on here, if it can be read."""
    while True:
        opening = code.find("(", at)
        if opening < 0 or code[at:opening].find(";") >= 0:
            return
        close = _closing(code, opening)
        if close is None:
            return
        if _ATTRIBUTE.search(code[at : opening + 1]):
            at = close + 1
            continue
        name = _NAME_BEFORE.search(code, at, opening)
        if name is not None:
            yield name[1], [_name_of(text) for text in _split(code[opening + 1 : close])]
        return


def _closing(code: str, at: int) -> int | None:
    """Return where the bracket that opens here is closed."""
    depth = 0
    for index in range(at, len(code)):
        if code[index] == "(":
            depth += 1
        elif code[index] == ")":
            depth -= 1
            if not depth:
                return index
    return None


def _split(text: str) -> list[str]:
    """Split a list of parameters at its own commas."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        if letter in _OPENS:
            depth += 1
        elif letter in _OPENS.values():
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return [] if text.strip() in ("", "void") else parts


def _name_of(parameter: str) -> str:
    """Return the name that one parameter declares; empty if it has none."""
    text = parameter.partition("=")[0].rstrip()
    inner = _INDIRECT.search(text)
    if inner is not None:
        return inner[1]
    last = _LAST_NAME.search(text)
    if last is None or last[1] or last[2] in _TYPE_WORDS:
        return ""
    before = [word for word in _WORD.findall(text[: last.start()]) if word not in ("const", "volatile")]
    return last[2] if before else ""
