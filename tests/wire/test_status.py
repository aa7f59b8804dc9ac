"""Status codes by class: the table of `atomr_trio._wire.status`."""

import subprocess
import sys

import pytest

from atomr_trio._wire.status import CUDA_SUCCESS, STATUS_CLASSES, StatusClass, classify
from support import describe_registered_statuses

EXAMPLES = [
    (1, StatusClass.REQUEST),
    (209, StatusClass.REQUEST),
    (218, StatusClass.REQUEST),
    (500, StatusClass.REQUEST),
    (600, StatusClass.REQUEST),
    (701, StatusClass.REQUEST),
    (801, StatusClass.REQUEST),
    (908, StatusClass.REQUEST),
    (2, StatusClass.OUT_OF_MEMORY),
    *((status, StatusClass.POISONS) for status in (226, 700, 702, 709, 710, 721, 810, 911, 999)),
    *((status, StatusClass.POISONS) for status in range(714, 720)),
    *((status, StatusClass.GONE) for status in (3, 46, 100, 101, 214)),
]


@pytest.mark.parametrize(("status", "expected"), EXAMPLES)
def test_a_status_has_the_class_that_its_consequence_calls_for(status, expected):
    assert classify(status) is expected


@pytest.mark.parametrize("status", [-1, 9, 600_000, 1000])
def test_an_unknown_status_counts_as_poison(status):
    assert status not in STATUS_CLASSES
    assert classify(status) is StatusClass.POISONS


def test_success_has_no_class():
    assert CUDA_SUCCESS not in STATUS_CLASSES
    with pytest.raises(ValueError, match="success"):
        classify(CUDA_SUCCESS)


def test_no_status_stands_in_two_classes():
    from atomr_trio._wire import status as module

    codes = [code for group in module._CODES.values() for code in group]
    assert len(codes) == len(set(codes)) == len(STATUS_CLASSES)


@pytest.mark.parametrize("library", ["nvrtc", "nvjitlink"])
def test_a_compiler_on_the_host_cannot_harm_the_context(library):
    assert classify(700, library) is StatusClass.REQUEST


def test_the_numbers_of_another_library_are_not_read_as_the_drivers():
    describe_registered_statuses()
    assert classify(1, "cudnn") is StatusClass.POISONS
    assert classify(3, "cublas") is StatusClass.OUT_OF_MEMORY
    assert classify(2, "cublas") is StatusClass.POISONS


def test_a_worker_loads_the_table_without_trio_numpy_or_attrs():
    code = (
        "import sys, atomr_trio._wire.status;"
        "print(sorted({'trio', 'numpy', 'attr', 'attrs', 'ctypes'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
