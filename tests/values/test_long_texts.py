"""Long texts are read in pieces, and the result is that of the whole."""

from __future__ import annotations

import random

import pytest

from atomr_trio._compiling.directives import CLOCKS, usual
from atomr_trio._values import long_texts
from atomr_trio._values.long_texts import copied, cuts, encoded, joined, pieces
from atomr_trio._values.signatures import code_of, codes_of, parse_signatures

WORDS = (
    *(
        "/*",
        "*/",
        "/*/",
        "//",
        "\n",
        "\n",
        "\\\n",
        "??/ \n",
        "\\ \t\r\n",
        "#",
        "include <a>",
        '"',
        "x",
        " ",
        "__TI",
        "ME__",
    ),
    *(";", "}", "{", "/", "*"),
)


def test_what_is_read_in_pieces_is_what_is_read_at_once() -> None:
    chosen = random.Random(1)
    for _ in range(2_000):
        text = "".join(chosen.choice(WORDS) for _ in range(chosen.randrange(60)))
        for size in (1, 5, 20):
            cut = list(pieces(text, size))
            assert "".join(cut) == text
            assert list(pieces(text.encode(), size)) == [piece.encode() for piece in cut]
            assert "".join(map(code_of, cut)) == code_of(text)
            spelled = [usual(piece.encode()) for piece in cut]
            assert b"".join(spelled) == usual(text.encode())
            assert any(map(CLOCKS.search, spelled)) == bool(CLOCKS.search(usual(text.encode())))


def test_a_long_text_is_cut_into_pieces_of_about_that_size() -> None:
    text = "int x; // a line\n" * 10_000
    assert {len(piece) // 1_000 for piece in list(pieces(text, 1_000))[:-1]} == {1}
    assert list(pieces("", 10)) == [""]
    assert list(pieces("short", 10)) == ["short"]


def test_no_function_of_a_ptx_text_is_in_two_parts() -> None:
    kernel = ".visible .entry k%d(\n.param .u64 p)\n{\nmov.u32 %%r1, 1; /* } */\n{\nret;\n}\n}\n"
    text = ".version 8.0\n.target sm_80\n" + "\n// a comment }\n".join(kernel % index for index in range(50))
    for size in (1, 30, 100, 300):
        codes = codes_of(pieces(text, size))
        assert len(codes) >= len(text) // size // 3 or len(codes) == 50
        assert all(code.count("{") == code.count("}") == 2 * code.count(".entry") for code in codes)
        assert "".join("".join(codes).split()) == "".join(code_of(text).split())
        assert [name for code in codes for name in parse_signatures(code)] == list(parse_signatures(text))
    assert codes_of(pieces("int a = {", 1)) == ["int a = {"]
    assert codes_of(pieces("// nothing\n", 30)) == [""]


def test_what_is_copied_piece_by_piece_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "COPIED", 3)
    text = "a\u20ac\U0001f600b" * 10
    assert encoded("x", text) == ("x" + text).encode()
    assert "".join(cuts(text, 3)) == text
    for content in (b"", bytes(range(100))):
        assert copied(bytearray(content)) == copied(memoryview(content)) == joined(content) == content
    assert copied(memoryview(bytes(range(100)))[::2]) == bytes(range(0, 100, 2))
    with pytest.raises(UnicodeEncodeError):
        encoded(text, "\ud800")


@pytest.mark.parametrize(("takes", "naps"), [(0.11e-3, 19), (0.4e-3, 49), (0.7e-3, 99)])
def test_a_thread_lets_go_of_the_lock_between_two_pieces_if_it_has_had_it_for_a_while(
    takes: float, naps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(now[0])
        now[0] += seconds

    monkeypatch.setattr(long_texts.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(long_texts.time, "sleep", sleep)
    found = []
    for item in long_texts.in_turn(range(100)):
        found.append(item)
        now[0] += takes
    assert found == list(range(100))
    assert len(slept) == naps
