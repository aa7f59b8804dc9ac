"""The captions of the demo's picture, and its progress on a narrow terminal: nothing runs over anything else."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest

from atomr_trio._cli import progress
from atomr_trio._cli.choice import Choice
from atomr_trio._cli.demo import captions, program

SMALL, LARGE = 193, 768
"""The narrowest panel that a demo has, and that of a GPU."""


def panels(size: int, last_step: int) -> list[program.Panel]:
    field = np.zeros((size, size), np.float32)
    return [program.Panel(step, faults, field) for faults, step in enumerate((1, last_step // 2, last_step))]


@pytest.mark.parametrize(
    ("faults", "caption"), [(0, "step 7, no fault yet"), (1, "step 7, after 1 fault"), (2, "step 7, after 2 faults")]
)
def test_a_caption_counts_the_faults(faults, caption):
    assert program.Panel(7, faults, np.zeros((1, 1), np.float32)).caption == caption


@pytest.mark.parametrize("size", [SMALL, 384, LARGE])
@pytest.mark.parametrize("last_step", [6, 6000, 1234567890])
def test_each_caption_lies_above_its_panel_and_within_its_width(size, last_step):
    given = panels(size, last_step)
    texts = [panel.caption for panel in given]
    grey = np.full((size, size, 3), 128, np.uint8)
    made = captions.captioned([grey] * 3, texts)
    for picture, text in zip(made, texts, strict=True):
        strip, panel = picture[:-size], picture[-size:]
        assert picture.shape[1] == size
        assert np.array_equal(panel, grey)
        inked = (strip != 255).any(axis=(0, 2))
        scale = strip.shape[0] // 11
        assert len(text) * 6 * scale <= size, "the caption would be cut off"
        assert inked.any()
        assert not inked[len(text) * 6 * scale :].any()
        assert (strip[:scale] == 255).all()
        assert (strip[-scale:] == 255).all()


def test_captions_of_one_picture_have_letters_of_one_size():
    heights = {each.shape for each in captions.captioned([np.zeros((384, 384, 3), np.uint8)] * 3, ["s", "ss", "sss"])}
    assert heights == {(384 + 11 * 3, 384, 3)}


def test_every_letter_of_a_caption_is_drawn_and_no_two_look_alike():
    used = sorted({*"0123456789", *"".join(panel.caption for panel in panels(8, 10))} - {" "})
    drawn = [captions.captioned([np.zeros((8, 8, 3), np.uint8)], [letter])[0].tobytes() for letter in used]
    assert len(set(drawn)) == len(used)


def test_a_letter_that_is_not_there_is_no_blank():
    with pytest.raises(KeyError):
        captions.captioned([np.zeros((8, 8, 3), np.uint8)], ["Q"])


@pytest.mark.parametrize(
    ("backend", "devices", "command"),
    [("sim", 1, "demo --device sim --devices 2"), ("sim", 2, "doctor"), ("cuda", 1, "doctor"), ("cuda", 2, "doctor")],
)
def test_the_next_command_is_one_that_works_there(backend, devices, command):
    assert program.following(Choice(0, backend), devices).startswith(f"python -m atomr_trio {command}    ")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [20, 60, 80, 200])
def test_a_progress_line_does_not_wrap(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    shown = progress.Progress("undisturbed run", 6000, stream)
    shown.update(6000)
    [line] = re.findall(r"\r\x1b\[2K([^\r]*)", stream.getvalue())
    assert line.startswith("undisturbed run")
    assert len(line) < columns
    assert ("step 6000 of 6000" in line) == (columns > 20)
    assert (line.count("━") == 32) == (columns == 200)
