"""The exception tree, what its members print, and the mapping from a status to one of them."""

import copy
import pickle
import subprocess
import sys

import pytest
import trio

from atomr_trio._values import errors as _errors
from atomr_trio._values.errors import (
    ActorCrashed,
    AtomrInternalError,
    CommandFailed,
    CompileError,
    ContextLost,
    ConvergenceError,
    DeviceClosed,
    DeviceError,
    DeviceFailed,
    InvalidArgument,
    LibraryNotFound,
    NotFiniteError,
    NotPositiveDefiniteError,
    OutOfDeviceMemory,
    OutOfHostMemory,
    RequestError,
    SingularMatrixError,
    StaleArray,
    StaleKernel,
    advice_on_simulator,
    error_from_status,
    fresh,
    in_flight_in_words,
    stale_array,
)
from atomr_trio._wire.status import classify
from support import child_environment, describe_registered_statuses

PARENTS = [
    (InvalidArgument, (RequestError, ValueError)),
    (OutOfDeviceMemory, (RequestError, MemoryError)),
    (OutOfHostMemory, (RequestError, MemoryError)),
    (CompileError, (RequestError,)),
    (StaleArray, (RequestError,)),
    (StaleKernel, (RequestError,)),
    (CommandFailed, (RequestError,)),
    (SingularMatrixError, (RequestError,)),
    (NotPositiveDefiniteError, (RequestError,)),
    (ConvergenceError, (RequestError,)),
    (NotFiniteError, (ConvergenceError, RequestError)),
    (ActorCrashed, (DeviceError,)),
    (ContextLost, (DeviceError,)),
    (DeviceFailed, (DeviceError, trio.BrokenResourceError)),
    (DeviceClosed, (DeviceError, trio.ClosedResourceError)),
    (LibraryNotFound, (DeviceError, ImportError)),
]

EVERY_FIELD = {
    "device": 2,
    "generation": 7,
    "status": 13,
    "status_name": "NAME",
    "library": "somelib",
    "operation": "verb.call",
    "advice": "try again",
}

WHOLE = [
    *(kind("it failed", **EVERY_FIELD) for kind, _ in PARENTS),
    CompileError("it failed", log="k.cu(1): error", device=0),
    ActorCrashed("it failed", actor="blas", generation=1),
    ContextLost("it failed", reason="the worker hung", generation=3),
    ContextLost("it failed", in_flight=("launch of a", "memory.fill"), generation=3),
    stale_array("launch of a was writing it", None, device=0),
    SingularMatrixError("it failed", pivot=3, matrix=(1, 2)),
    NotPositiveDefiniteError("it failed", minor=5, device=0),
    ConvergenceError("it failed", unconverged=2, matrix=(0,)),
    NotFiniteError("it failed", operand="a", found="NaN", matrix=(0,)),
]


@pytest.mark.parametrize(("kind", "parents"), PARENTS)
def test_each_error_is_caught_by_its_parents_and_by_no_other_branch(kind, parents):
    assert issubclass(kind, DeviceError)
    assert all(issubclass(kind, parent) for parent in parents)
    assert issubclass(kind, RequestError) is (RequestError in parents)


def test_the_abstract_base_refuses_to_be_raised():
    with pytest.raises(TypeError, match="abstract"):
        DeviceError("nothing in particular")


def test_an_internal_error_is_not_a_device_error_and_asks_for_a_report():
    assert not issubclass(AtomrInternalError, DeviceError)
    assert str(AtomrInternalError("two tasks hold ticket 4")) == (
        "two tasks hold ticket 4\n"
        "What to do: this is an internal error: please report it together with the traceback of the cause."
    )


def test_every_public_error_says_when_one_gets_the_neighbour_instead():
    kinds = [getattr(_errors, name) for name in _errors.__all__]
    for kind in (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception)):
        if kind is DeviceError:
            continue
        neighbours = {other.__name__ for other in kinds if isinstance(other, type) and other is not kind}
        assert any(f"`{name}`" in kind.__doc__ for name in neighbours) or kind is StaleKernel


STRINGS = [
    (InvalidArgument("grid must be positive"), "grid must be positive"),
    (InvalidArgument("grid must be positive", device=0), "grid must be positive [on device 0]"),
    (StaleArray("y is torn", device=0, generation=2), "y is torn [on device 0, generation 2]"),
    (StaleArray("y is torn", generation=2), "y is torn [generation 2]"),
    (CommandFailed("no", status=4711, operation="a.b"), "no [status 4711 reported by a.b]"),
    (CommandFailed("no", status_name="ODD"), "no [ODD]"),
    (
        CommandFailed("no", status=14, status_name="X_INTERNAL", library="x", device=1),
        "no [X_INTERNAL (14) of x on device 1]",
    ),
    (DeviceFailed("given up", device=0, advice="relaunch"), "given up [on device 0]\nWhat to do: relaunch"),
    (CompileError("k.cu did not compile", log="k.cu(3): error: x\n"), "k.cu did not compile\nk.cu(3): error: x"),
    (CompileError("k.cu did not compile", log=" \n"), "k.cu did not compile"),
    (
        CompileError("k.cu(1): error: x", log="k.cu(1): error: x\n  int y;\n\nk.cu(2): error: z\n", device=0),
        "k.cu(1): error: x [on device 0]\n  int y;\n\nk.cu(2): error: z",
    ),
    (
        ActorCrashed("the actor crashed", actor="blas"),
        "the actor crashed\n"
        "What to do: this is an internal error: please report it together with the traceback of the cause.",
    ),
]


@pytest.mark.parametrize(("error", "text"), STRINGS)
def test_str_says_what_who_where_and_what_to_do(error, text):
    assert str(error) == text


REPRS = [
    (InvalidArgument("no"), "InvalidArgument('no')"),
    (OutOfDeviceMemory("full", device=0, generation=1), "OutOfDeviceMemory('full', device=0, generation=1)"),
    (LibraryNotFound("no cublas", library="cublas"), "LibraryNotFound('no cublas', library='cublas')"),
    (CompileError("bad", log="x"), "CompileError('bad', log='x')"),
    (ContextLost("gone", generation=3), "ContextLost('gone', generation=3, reason='gone')"),
    (
        ActorCrashed("bug", actor="fft", advice=""),
        "ActorCrashed('bug', advice='', actor='fft')",
    ),
]


@pytest.mark.parametrize(("error", "text"), REPRS)
def test_repr_shows_the_fields_that_are_known(error, text):
    assert repr(error) == text


def test_a_reported_fault_reads_as_one_message():
    error = error_from_status(
        700,
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "an illegal memory access was encountered",
        operation="module.launch",
        device=0,
        generation=3,
    )
    first, advice = str(error).split("\n")
    assert first == (
        "the context was lost: an illegal memory access was encountered "
        "[CUDA_ERROR_ILLEGAL_ADDRESS (700) reported by module.launch on device 0, generation 3]"
    )
    assert advice.startswith("What to do: a kernel accessed memory outside its arrays")


@pytest.mark.parametrize("status", [700, 719])
def test_the_advice_for_a_fault_on_the_simulator_names_its_checks(status):
    assert "compute-sanitizer" in ContextLost("gone", status=status).advice
    assert "`python -m atomr_trio check program.py`" in advice_on_simulator(status)
    assert "compute-sanitizer" not in advice_on_simulator(status)


@pytest.mark.parametrize("status", [716, None])
def test_other_statuses_have_the_same_advice_on_the_simulator(status):
    assert advice_on_simulator(status) is None


def test_the_error_of_an_array_says_how_it_becomes_good_again():
    torn = stale_array("launch of a was writing it", None, device=0, generation=2)
    assert str(torn).startswith(
        "the array is torn: launch of a was writing it [on device 0, generation 2]\nWhat to do: "
    )
    assert all(word in torn.advice for word in ("`copy_from`", "`fill`", "`overwrites(x)`", "`read_only(x)`"))
    lost = stale_array("launch of a was writing it", "no descriptor")
    assert str(lost).startswith("the array's memory is lost: no descriptor\nWhat to do: make a new array")


IN_WORDS = [
    ([], "nothing"),
    (["launch of a"], "launch of a"),
    (["launch of a", "memory.fill"], "launch of a, memory.fill"),
    (["launch of a", "memory.fill"] * 500, "launch of a (500 times), memory.fill (500 times)"),
    ([f"launch of k{n}" for n in range(1000)], "launch of k0, launch of k1, launch of k2, and 997 more"),
    (["a", "b", "c", "d", "a", "d"], "a (2 times), b, c, and 2 more"),
]


@pytest.mark.parametrize(("in_flight", "words"), IN_WORDS)
def test_a_text_about_a_loss_stays_short_whatever_was_in_flight(in_flight, words):
    assert in_flight_in_words(in_flight) == words


MAPPED = [
    (1, "cuda", CommandFailed),
    (701, "cuda", CommandFailed),
    (2, "cuda", OutOfDeviceMemory),
    (700, "cuda", ContextLost),
    (999, "cuda", ContextLost),
    (123_456, "cuda", ContextLost),
    (214, "cuda", DeviceFailed),
    (100, "cuda", DeviceFailed),
    (11, "nvrtc", CommandFailed),
    (3, "cublas", OutOfDeviceMemory),
    (13, "cublas", ContextLost),
    (3, "cusolver", CommandFailed),
    (2, "cusolver", OutOfDeviceMemory),
    (6, "cusolver", ContextLost),
    (3, "a library that is not known", ContextLost),
]


@pytest.mark.parametrize(("status", "library", "kind"), MAPPED)
def test_a_status_becomes_the_error_of_its_class_with_its_context(status, library, kind):
    describe_registered_statuses()  # as the worker does, which sends the class with the status
    error = error_from_status(
        status,
        "NAME",
        "the text",
        operation="a.b",
        device=1,
        generation=2,
        library=library,
        status_class=classify(status, library),
    )
    assert type(error) is kind
    assert "the text" in error.message
    context = (error.status, error.status_name, error.library, error.operation, error.device, error.generation)
    assert context == (status, "NAME", library, "a.b", 1, 2)


def test_a_lost_context_says_why_in_words():
    error = error_from_status(719, "NAME", "unspecified launch failure", operation="a.b", device=0, generation=1)
    assert isinstance(error, ContextLost)
    assert (error.reason, error.status) == ("unspecified launch failure", 719)


@pytest.mark.parametrize(("name", "text", "message"), [("NAME", "", "NAME"), ("", "", "status 1")])
def test_a_status_without_text_still_has_a_message(name, text, message):
    assert error_from_status(1, name, text, operation="a.b", device=0, generation=1).message == message


def test_the_advice_for_a_number_of_the_driver_is_not_given_for_another_library():
    assert CommandFailed("no", status=700).advice is not None
    assert CommandFailed("no", status=700, library="cublas").advice is None
    assert CommandFailed("no", status=700, advice="mine").advice == "mine"


@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, fresh, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize("error", WHOLE, ids=repr)
def test_a_copy_has_the_same_type_and_fields(error, twin_of):
    twin = twin_of(error)
    assert twin is not error
    assert type(twin) is type(error)
    assert (repr(twin), str(twin), twin.args) == (repr(error), str(error), error.args)
    assert vars(twin) == vars(error)


def test_each_waiter_gets_its_own_object_with_the_common_cause():
    bug = ZeroDivisionError("1/0")
    try:
        raise ActorCrashed("bug", actor="blas") from bug
    except ActorCrashed as raised:
        error = raised
    error.add_note("first")
    twins = [fresh(error) for _ in range(3)]
    assert len({id(twin) for twin in [error, *twins]}) == 4
    for twin in twins:
        assert twin.__cause__ is bug
        assert twin.__traceback__ is None
        assert twin.__context__ is None
    twins[0].add_note("second")
    assert error.__notes__ == twins[1].__notes__ == ["first"]


def test_a_fresh_error_without_a_cause_still_shows_the_context_it_is_raised_in():
    def raise_while_handling():
        try:
            raise KeyError("outer")
        except KeyError:
            raise fresh(InvalidArgument("inner"))  # noqa: B904  the missing "from" is what is tested

    with pytest.raises(InvalidArgument) as caught:
        raise_while_handling()
    assert isinstance(caught.value.__context__, KeyError)
    assert not caught.value.__suppress_context__


def test_an_error_from_the_import_branch_keeps_the_attributes_of_an_import_error():
    error = LibraryNotFound("no libcublas")
    assert error.msg == "no libcublas"


def test_an_error_that_the_program_has_never_named_shows_its_public_name():
    code = "from atomr_trio._values import errors; raise errors.InvalidArgument('no')"
    done = subprocess.run([sys.executable, "-P", "-c", code], env=child_environment(), capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "atomr_trio.InvalidArgument: no"
