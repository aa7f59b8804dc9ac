"""The caller's cost of every public verb in a batch: `make bench-verbs`.

The verbs are found by walking the interface of a batch and of its libraries, so none is left out: one that has no call
in here is an error. Each is called many times with small operands, with `out` and, where it makes its result itself,
without; the figure is the caller's time of one call, the median over batches.

None costs more than `targets.VERB_LIMIT` without a reason. The reasons are in `verb_reasons.toml`, and are printed.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import inspect
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import conclusion
import numpy as np
import targets
import trio
from speed_report import HEADER, OURS, Measure, Table, Verdict, line, shown
from speed_subjects import SOURCE

import atomr_trio

sys.path.append(str(Path(__file__).parents[1]))
right_calls: Final[Any] = importlib.import_module("support.verbs")
REASONS: Final = Path(__file__).with_name("verb_reasons.toml")

MATRIX, COMPLEX = (4, 4), ((4, 4), "complex64")
NUMBERS: Final = 64
DRAWS: Final[Mapping[str, Mapping[str, Any]]] = {
    "bernoulli": {"p": 0.5},
    "beta": {"a": 1.5, "b": 2.5},
    "binomial": {"n": 10, "p": 0.5},
    "bits": {},
    "cauchy": {},
    "discrete": {"pvals": (0.25, 0.75)},
    "exponential": {},
    "gamma": {"shape": 2.5},
    "integers": {"low": 0, "high": 10},
    "lognormal": {},
    "multinomial": {"n": 10, "pvals": (0.25, 0.75)},
    "normal": {},
    "poisson": {"lam": 4.0},
    "standard_t": {"df": 3.0},
    "uniform": {},
}
"""The parameters of each draw, beside its size."""
DTYPES: Final[Mapping[str, str]] = {
    "bits": "uint32",
    "bernoulli": "bool",
    **dict.fromkeys(("binomial", "discrete", "integers", "multinomial", "poisson"), "int64"),
}
"""The dtype of a draw's result, if it is not float32."""


def drawn(name: str) -> tuple[tuple[int, ...], str]:
    """The shape and the dtype of the result of a draw."""
    shape = (NUMBERS, 2) if name == "multinomial" else (NUMBERS,)
    return shape, DTYPES.get(name, "float32")


CALLS: Final[Mapping[str, tuple[Any, ...]]] = {
    **{name: given for name, given in right_calls.VERBS.items() if " " not in name},
    "blas.hemm": (COMPLEX, COMPLEX, {"out": COMPLEX}),
    "blas.herk": (COMPLEX, {"out": COMPLEX}),
    "blas.her2k": (COMPLEX, COMPLEX, {"out": COMPLEX}),
    **{f"random.{name}": ({**parameters, "out": drawn(name)},) for name, parameters in DRAWS.items()},
    "random.philox": (1, 2, {"out": drawn("bits")}),
}
"""A right call of each verb of a library: a shape stands for an array of float32, or of the dtype beside it."""


NEEDED: Final = ("out", "b")
"""The arguments that are given by name; others are options, which keep their defaults."""


@attrs.frozen
class Verb:
    """A verb that is called in a batch: how its call is found there."""

    name: str
    call_of: Callable[[Any], Callable[[], object]]

    @property
    def row(self) -> str:
        """Its row in the table."""
        return f"{self.name}, caller in a batch"


# --- the interface ----------------------------------------------------------------------------------------------------


def verbs_of(batch: Any) -> Iterator[str]:
    """The name of every public verb of a batch and of its libraries. What is awaited is none of them."""
    yield from _called(batch, "")
    for name in _public(batch):
        if isinstance(getattr(type(batch), name), property):
            yield from _called(getattr(batch, name), f"{name}.")


def _called(owner: Any, prefix: str) -> Iterator[str]:
    for name in _public(owner):
        found = getattr(type(owner), name)
        if callable(found) and not inspect.iscoroutinefunction(found):
            yield f"{prefix}{name}"


def _public(owner: Any) -> list[str]:
    return [name for name in dir(type(owner)) if not name.startswith("_")]


# --- the calls --------------------------------------------------------------------------------------------------------


async def calls_of(dev: Any, name: str) -> list[Verb]:
    """The calls of a verb: with `out`, and with a new result. Raises `KeyError` for a verb that has none in here."""
    library, _, verb = name.rpartition(".")
    if not library:
        return await _own(dev, name)
    if name == "fft.run":
        plan, x, out = await _planned(dev)
        return [
            Verb("fft.run", lambda batch: lambda: batch.fft.run(plan, x, out)),
            Verb("fft.run, new result", lambda batch: lambda: batch.fft.run(plan, x)),
        ]
    if library == "random":
        await dev.random.load(verb if verb != "philox" else "bits")
    positional, named = [], {}
    for place, given in right_calls.numbered(CALLS[name]):
        if isinstance(place, str) and library != "random" and place not in NEEDED:
            continue  # an option: it is called as it mostly is
        argument = await _argument(dev, given)
        if isinstance(place, int):
            positional.append(argument)
        else:
            named[place] = argument
    found = []
    if "out" in named:
        found.append(Verb(name, _of_library(library, verb, positional, dict(named))))
        del named["out"]
        named |= {"size": NUMBERS} if library == "random" else {}
    new = _of_library(library, verb, positional, named)
    return [*found, Verb(f"{name}, new result" if found else name, new)]


def _of_library(
    library: str, verb: str, positional: list[Any], named: dict[str, Any]
) -> Callable[[Any], Callable[[], object]]:
    def call_of(batch: Any) -> Callable[[], object]:
        method = getattr(getattr(batch, library), verb)
        return lambda: method(*positional, **named)

    return call_of


async def _argument(dev: Any, given: Any) -> Any:
    """Ones and identities, of which nothing is singular, for the shapes that stand for arrays."""
    if isinstance(given, list):
        return [await _argument(dev, each) for each in given]
    if not isinstance(given, tuple) or (given and isinstance(given[0], float)):
        return given
    shape, dtype = right_calls.dtype_of(given)
    return await dev.to_device(np.eye(*shape, dtype=dtype) if len(shape) == 2 else np.ones(shape, dtype))


async def _planned(dev: Any) -> tuple[Any, Any, Any]:
    x = await dev.to_device(np.ones(NUMBERS, np.complex64))
    plan = dev.fft.plan("fft", (NUMBERS,), np.complex64)
    return plan, x, dev.zeros(NUMBERS, np.complex64)


async def _own(dev: Any, name: str) -> list[Verb]:
    """The calls of a verb of the batch itself."""
    array, other = dev.zeros(1024, np.float32), dev.zeros(1024, np.float32)
    host, out = np.ones(1024, np.float32), np.ones(1024, np.float32)
    kernel = await dev.nvrtc.compile(SOURCE, "saxpy")
    arguments = (4, 256, 2.0, array, other, 1024)
    prepared = kernel.prepare(*arguments)
    graph = await dev.capture(lambda recorder: recorder.launch(kernel, *arguments))
    own: dict[str, dict[str, Callable[[Any], Callable[[], object]]]] = {
        "fill": {"": lambda batch: lambda: batch.fill(array, 1.0)},
        "copy_from": {
            " of 4 KiB on the device": lambda batch: lambda: batch.copy_from(array, other),
            " of 4 KiB on the host": lambda batch: lambda: batch.copy_from(array, host),
        },
        "copy_to": {" of 4 KiB": lambda batch: lambda: batch.copy_to(array, out)},
        "to_device": {" of 4 KiB": lambda batch: lambda: batch.to_device(host)},
        "to_host": {" of 4 KiB": lambda batch: lambda: batch.to_host(array)},
        "launch": {
            "": lambda batch: lambda: batch.launch(kernel, *arguments),
            ", prepared": lambda batch: lambda: batch.launch(prepared),
        },
        "launch_graph": {"": lambda batch: lambda: batch.launch_graph(graph)},
        "record": {"": lambda batch: batch.record},
    }
    return [Verb(f"batch.{name}{how}", call_of) for how, call_of in own[name].items()]


# --- the costs --------------------------------------------------------------------------------------------------------


async def cost(dev: Any, verb: Verb, calls: int, repetitions: int) -> Measure:
    """The caller's time of one call, in several batches; the first one warms up."""
    seconds = []
    for number in range(repetitions + 1):
        async with dev.batch() as batch:
            call = verb.call_of(batch)
            call()
            begun = time.perf_counter()
            for _ in range(calls):
                call()
            taken = (time.perf_counter() - begun) / calls
        if number:
            seconds.append(taken)
    return Measure(verb.row, OURS, seconds)


def reasons(path: Path = REASONS) -> dict[str, str]:
    """Why verbs may cost more, by a pattern of their names."""
    with path.open("rb") as file:
        found: dict[str, str] = tomllib.load(file)["reasons"]
    return found


def judged(measure: Measure, known: Mapping[str, str]) -> Verdict:
    """Compare a verb's cost with the limit; one that costs more is not judged if there is a reason."""
    verdict = targets.verb(measure.what).judge(Table([measure]))
    name = measure.what.partition(", caller")[0]
    if verdict.held:
        return verdict
    for pattern, reason in known.items():
        if fnmatch.fnmatchcase(name, pattern):
            return attrs.evolve(verdict, held=None, missing=f"takes {shown(measure.median)}: {reason}")
    return verdict


async def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if a verb costs too much without a reason and `--strict` asks for that."""
    on_gpu = arguments.backend == "cuda"
    calls, repetitions = (50, conclusion.fewer(7, arguments.share)) if on_gpu else (2, 1)
    table = Table()
    print(HEADER)
    async with atomr_trio.open_device(0, backend=arguments.backend) as dev:
        async with dev.batch() as batch:
            names = [name for name in verbs_of(batch) if arguments.only in name]
        for name in names:
            for verb in await calls_of(dev, name):
                if arguments.rows and verb.row not in arguments.rows:
                    continue
                table.measures.append(await cost(dev, verb, calls, repetitions))
                print(line(table.measures[-1]), flush=True)
    known = reasons()
    verdicts = [judged(measure, known) for measure in table.measures]
    if not on_gpu:
        verdicts = targets.judged(table, [targets.verb(measure.what) for measure in table.measures], "sim")
    title = f"The caller's cost of each verb in a batch, medians of {repetitions} batches of {calls} calls"
    return conclusion.conclude(arguments, "verbs", title, table, verdicts)


if __name__ == "__main__":
    parser = conclusion.with_rows(conclusion.options(__doc__))
    parser.add_argument("--only", default="", help="verbs with this text in their names")
    sys.exit(trio.run(main, parser.parse_args()))
