"""What notebooks show of devices, arrays, events and findings: tables that cost no wait, with every text escaped."""

from __future__ import annotations

import base64
import threading
from html.parser import HTMLParser
from xml.etree import ElementTree

import attrs
import numpy as np
import pytest

import atomr_trio
from atomr_trio import (
    ContextWasLost,
    Finding,
    GroupStatistics,
    MemberEvent,
    OtherThread,
    StandbyReady,
    testing,
)
from atomr_trio._device.device import core_of
from support import chosen_backend
from support.groups import open_group

pytestmark = pytest.mark.used_workers

FINDING = Finding(
    check="races",
    kernel="k<int>",
    block=(1, 0, 0),
    thread=(2, 0, 0),
    file="a<b>.cu",
    line=7,
    what="writes & reads",
    address=0x1000,
    array="x",
    index=3,
    other=OtherThread((0, 0, 0), (1, 0, 0), "a<b>.cu", 8, "reads it"),
)


class Cells(HTMLParser):
    """The texts of a page, and its elements, which have to be closed in their order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in ("table", "caption", "tr", "th", "td")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def texts(shown: object) -> list[str]:
    return Cells(shown._repr_html_()).texts  # type: ignore[attr-defined]


def rows(shown: object) -> dict[str, str]:
    title, *cells = texts(shown)
    return {"title": title, **dict(zip(cells[::2], cells[1::2], strict=True))}


async def test_an_array_is_shown_without_a_copy_or_a_wait(dev):
    x = dev.zeros((2, 3), np.float32)
    with testing.hold_worker(dev):
        before = dev.statistics()
        assert rows(x) == {
            "title": "DeviceArray",
            "shape": "(2, 3)",
            "dtype": "float32",
            "bytes": "24",
            "state": "ready",
            "device": "0",
            "generation": "1",
        }
        assert rows(x.transpose())["strides"] == "(4, 12)"
        assert dev.statistics().lanes == before.lanes
    x.free()
    assert rows(x)["state"] == "freed"


async def test_a_device_is_shown_as_it_is_at_the_moment(open_test_device):
    async with open_test_device(standby=1) as dev:
        await dev.wait_standby()
        x = await dev.to_device(np.zeros(1024))
        shown = rows(dev)
        assert shown["title"] == "Device 0"
        assert shown["name"] == dev.info.name
        assert (shown["state"], shown["generation"], shown["standbys"]) == ("running", "1", "1 of 1 ready")
        assert shown["memory of arrays"].startswith("8 KiB in use, 64 MiB reserved, at most ")
        assert "last error" not in shown
        core_of(dev).last_error = "<script>"
        assert rows(dev)["last error"] == "<script>"
        assert "<script>" not in dev._repr_html_()
        del x
    assert rows(dev)["state"] == "closed"


async def test_statistics_are_shown_with_a_row_for_each_lane_and_actor(dev):
    await dev.zeros(4).fill(1)
    now = dev.statistics()
    shown = texts(now)
    assert shown[0] == "DeviceStatistics"
    assert {"MemoryStatistics", "LaneStatistics", "ActorStatistics"} <= set(shown)
    assert {each.name for each in (*now.lanes, *now.actors)} <= set(shown)
    assert [*attrs.fields_dict(type(now.lanes[0]))] == shown[(at := shown.index("LaneStatistics") + 1) : at + 5]
    assert f"ok {now.actors[0].settled['ok']}" in shown
    group = GroupStatistics(devices=[now, attrs.evolve(now, device=1, lanes=[])], failed=(1,), restarts_left=2)
    shown = texts(group)
    assert shown[:3] == ["GroupStatistics", "failed", "(1,)"]
    assert shown.count("DeviceStatistics") == 2
    assert shown.count("LaneStatistics") == 1


async def test_a_kernel_is_shown_with_its_signature(dev):
    kernel = await dev.nvrtc.compile('extern "C" __global__ void f(const int *x, float a) { int unused; }', "f")
    shown = rows(kernel)
    assert shown["title"] == f"Kernel {kernel.signature.described('f')}"
    assert shown["target"] == kernel.module.target
    assert "unused" in shown["log"]


async def test_a_device_that_was_never_open_has_no_facts_to_show(dev):
    core = core_of(dev)
    info, core.known_info = core.known_info, None
    try:
        assert "name" not in rows(dev)
    finally:
        core.known_info = info


async def test_a_group_is_shown_with_a_table_for_each_device():
    async with open_group(2) as devices:
        shown = texts(devices)
        assert shown[:3] == ["Devices, one_for_one", "0", "Device 0"]
        assert "Device 1" in shown


def test_an_event_is_shown_with_its_fields_and_the_findings_in_it():
    lost = ContextWasLost(
        generation=3,
        reason="a <fault>",
        status=719,
        reported_by="the driver",
        in_flight=(),
        actors=("modules",),
        findings=(FINDING, FINDING),
    )
    shown = texts(lost)
    assert shown[:3] == ["ContextWasLost", "generation", "3"]
    assert shown.count("Finding: race") == 2
    assert "a <fault>" in shown
    assert "in_flight" not in shown
    assert "('modules',)" in shown
    assert rows(StandbyReady(seconds=0.5, standbys=1)) == {"title": "StandbyReady", "seconds": "0.5", "standbys": "1"}
    assert texts(MemberEvent(device=1, event=StandbyReady(seconds=0.5, standbys=1)))[4:6] == ["StandbyReady", "seconds"]


def test_a_finding_is_shown_with_all_that_is_known():
    assert rows(FINDING) == {
        "title": "Finding: race",
        "place": "a<b>.cu:7",
        "what": "writes & reads",
        "kernel": "k<int>",
        "block": "(1, 0, 0)",
        "thread": "(2, 0, 0)",
        "address": "0x1000",
        "array": "x",
        "index": "3",
        "other thread": "a<b>.cu:8: reads it, thread (1, 0, 0)",
    }
    bare = Finding(check="bounds", kernel="k", block=None, thread=None, file=None, line=None, what="is wrong")
    assert set(rows(bare)) == {"title", "place", "what", "kernel"}


async def test_the_memory_is_shown_as_an_image_with_a_text_beside_it(dev):
    x = await dev.to_device(np.zeros(1024))
    drawn = dev.memory_map()
    assert repr(drawn) == str(drawn)
    shown = drawn._repr_html_()
    before, picture = shown.removesuffix('">').split("base64,")
    assert before.startswith(
        '<img style="max-width:100%" alt="device 0: 8 KiB in use of 64 MiB in 1 chunks" src="data:'
    )
    assert ElementTree.fromstring(base64.b64decode(picture)).tag.endswith("svg")
    assert x.state == "ready"


def test_the_blocking_forms_show_the_same_from_every_thread():
    with atomr_trio.start(0, backend=chosen_backend()) as dev:
        x = dev.zeros(3)
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.extend([dev._repr_html_(), x._repr_html_()]))
        thread.start()
        thread.join()
        assert found == [dev.awaited._repr_html_(), x.awaited._repr_html_()]
        assert dev.memory_map()._repr_html_().startswith("<img ")
    assert rows(dev)["state"] == "closed"
