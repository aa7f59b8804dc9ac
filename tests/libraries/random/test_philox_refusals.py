"""The stateless form refuses what is not right, and sends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from atomr_trio import InvalidArgument
from support.blas import submitted

pytestmark = [pytest.mark.used_workers, pytest.mark.usefixtures("kept_compiles")]

NAN, INF = float("nan"), float("inf")

PARAMETERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("bits has no parameter low; it has none", "bits", {"low": 1}),
    ("uniform has no parameter scale; it has low, high", "uniform", {"scale": 1}),
    ("gamma needs shape", "gamma", {"scale": 1}),
    ("beta needs b", "beta", {"a": 1}),
    ("multinomial needs pvals", "multinomial", {"n": 4}),
    ("low is a finite number, not nan", "uniform", {"low": NAN}),
    ("high is a finite number, not inf", "uniform", {"high": INF}),
    ("the distance of low and high is too large for float64", "uniform", {"low": -1.7e308, "high": 1.7e308}),
    (
        "the distance of low and high is too large for float32",
        "uniform",
        {"low": -3e38, "high": 3e38, "dtype": "float32"},
    ),
    ("high is too large for float32", "uniform", {"high": 1e39, "dtype": "float32"}),
    ("loc is a finite number, not nan", "normal", {"loc": NAN}),
    ("scale is a finite number, not nan", "normal", {"scale": NAN}),
    ("scale is at least 0, not -1.0", "normal", {"scale": -1}),
    ("sigma is at least 0, not -5e-324", "lognormal", {"sigma": -5e-324}),
    ("scale is at least 0", "exponential", {"scale": -1.0}),
    ("scale is a finite number", "exponential", {"scale": INF}),
    ("scale is too large", "exponential", {"scale": 10**400}),
    ("scale is a real number, not '1'", "exponential", {"scale": "1"}),
    ("scale is a real number, not 1j", "exponential", {"scale": 1j}),
    ("scale is a real number, not None", "exponential", {"scale": None}),
    (r"scale is one number, not \[1.0\]: arrays of parameters are not supported", "exponential", {"scale": [1.0]}),
    ("scale is one number, not", "exponential", {"scale": np.ones(3)}),
    ("loc is one number", "cauchy", {"loc": (1, 2)}),
    ("scale is at least 0", "cauchy", {"scale": -2}),
    ("shape is at least 0", "gamma", {"shape": -0.5}),
    ("shape is a finite number", "gamma", {"shape": NAN}),
    ("scale is at least 0", "gamma", {"shape": 1, "scale": -1}),
    ("a is greater than 0, not 0.0", "beta", {"a": 0, "b": 1}),
    ("b is greater than 0, not -1.0", "beta", {"a": 1, "b": -1}),
    ("b is a finite number", "beta", {"a": 1, "b": INF}),
    ("df is greater than 0", "standard_t", {"df": 0}),
    ("df is a finite number", "standard_t", {"df": INF}),
    ("there are no integers from 5 up to, and without, 5", "integers", {"low": 5, "high": 5}),
    ("there are no integers from 0 up to, and without, 0", "integers", {"low": 0}),
    ("there are no integers from 5 to 4", "integers", {"low": 5, "high": 4, "endpoint": True}),
    ("high is at least -128 and at most 128, not 129", "integers", {"low": 0, "high": 129, "dtype": "int8"}),
    ("high is at least -128 and at most 127", "integers", {"low": 0, "high": 128, "endpoint": True, "dtype": "int8"}),
    ("low is at least 0 and at most 255", "integers", {"low": -1, "high": 5, "dtype": "uint8"}),
    ("high is at least 0 and at most 2, not 3", "integers", {"low": 0, "high": 3, "dtype": "bool"}),
    ("low is an integer, not 0.5", "integers", {"low": 0.5, "high": 5}),
    ("endpoint is True or False", "integers", {"low": 0, "high": 5, "endpoint": "no"}),
    ("lam is at least 0, not -1.0", "poisson", {"lam": -1}),
    ("lam is a finite number", "poisson", {"lam": NAN}),
    ("lam is at most 9.22337e.18 for int64", "poisson", {"lam": 2.0**63}),
    ("lam is at most 14.3.* for int8", "poisson", {"lam": 20, "dtype": "int8"}),
    ("n is at least 0", "binomial", {"n": -1, "p": 0.5}),
    ("n is at least 0 and at most 9223372036854775807", "binomial", {"n": 1 << 63, "p": 0.5, "dtype": "uint64"}),
    ("n is at least 0 and at most 127", "binomial", {"n": 128, "p": 0.5, "dtype": "int8"}),
    ("n is an integer", "binomial", {"n": 4.0, "p": 0.5}),
    ("n is one number", "binomial", {"n": [4], "p": 0.5}),
    ("p is a probability, at least 0 and at most 1, not 1.5", "binomial", {"n": 4, "p": 1.5}),
    ("p is a finite number, not nan", "binomial", {"n": 4, "p": NAN}),
    ("p is a probability", "bernoulli", {"p": -1e-9}),
    ("p is a probability", "bernoulli", {"p": 1.0000001}),
    ("the sum of pvals is 1, not 0.9", "discrete", {"pvals": [0.4, 0.5]}),
    ("the sum of pvals is 1, not 0.0", "multinomial", {"n": 3, "pvals": [0.0, 0.0]}),
    ("each is at least 0 and at most 1", "discrete", {"pvals": [1.5, -0.5]}),
    ("each is at least 0 and at most 1", "multinomial", {"n": 3, "pvals": [NAN, 0.5]}),
    ("pvals has at least 1 and at most 65536 probabilities, not 0", "discrete", {"pvals": np.zeros(0)}),
    ("pvals has at least 1 and at most 65536 probabilities", "discrete", {"pvals": np.full(65537, 1 / 65537)}),
    ("pvals is a sequence of probabilities", "discrete", {"pvals": 1.0}),
    ("pvals is a sequence of probabilities", "discrete", {"pvals": [[1.0]]}),
    ("pvals is a sequence of probabilities", "discrete", {"pvals": [[0.5], [0.25, 0.25]]}),
    ("pvals is a sequence of probabilities", "discrete", {"pvals": [0.5j, 0.5]}),
    ("pvals is a sequence of probabilities", "discrete", {"pvals": "ab"}),
    ("int8 has no number for the last", "discrete", {"pvals": [1 / 129] * 129, "dtype": "int8"}),
    ("bits has no elements of dtype int32; it has uint32, uint64", "bits", {"dtype": "int32"}),
    ("normal has no elements of dtype float16; it has float64, float32", "normal", {"dtype": "float16"}),
    ("poisson has no elements of dtype float64", "poisson", {"dtype": "float64"}),
    ("bernoulli has no elements of dtype float32", "bernoulli", {"p": 0.5, "dtype": "float32"}),
    ("not a numpy dtype", "uniform", {"dtype": "f3"}),
    ("arrays cannot have dtype", "uniform", {"dtype": "U3"}),
    ("distribution is one of bits, integers, uniform", "laplace", {}),
    ("distribution is one of bits", 3, {}),  # type: ignore[arg-type]
    ("distribution is one of bits", ["bits"], {}),  # type: ignore[arg-type]
)


def calls(dev: Any) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    for match, distribution, parameters in PARAMETERS:
        yield match, (0, 0, 3, distribution), parameters
    array, flags = dev.zeros(3, "float64"), dev.zeros((2, 3), "uint32")
    yield "scale is one number", (0, 0, 3, "normal"), {"scale": array}
    yield "low is one number", (0, 0, 3, "integers"), {"low": array}
    yield "pvals is a sequence of numbers on the host", (0, 0, 3, "discrete"), {"pvals": array}
    for key in (-1, 1 << 64):
        yield f"key is at least 0 and at most 18446744073709551615, not {key}", (key, 0, 3), {}
    yield "key is an integer, not 1.5", (1.5, 0, 3), {}
    yield "key is one number", ([1], 0, 3), {}
    yield "counter is at least 0", (0, -1, 3), {}
    yield "counter is an integer, not None", (0, None, 3), {}
    yield r"from counter 18446744073709551613 on there are not 4 numbers left before 2\*\*64", (0, (1 << 64) - 3, 4), {}
    yield "there are not 2 numbers left", (0, (1 << 64) - 3, 2), {"dtype": "uint64"}
    yield "there are not 4 numbers left", (0, (1 << 64) - 3, 4, "gamma"), {"shape": 1}
    yield "there are not 3 numbers left", (0, (1 << 64) - 3, 3, "normal"), {}
    yield "a shape is an int or a sequence", (0, 0, 2.5), {}
    yield "lengths of a shape are at least 0", (0, 0, (2, -1)), {}
    yield "does not support this shape", (0, 0, 1 << 63), {}
    yield r"out has shape \(2, 3\) and dtype uint32, and the result has \(3,\) and uint32", (0, 0, 3), {"out": flags}
    yield "the result has .* and uint64", (0, 0, (2, 3)), {"out": flags, "dtype": "uint64"}
    yield "bits has no elements of dtype float64", (0, 0), {"out": array}
    yield (
        "the last axis of out has length 2",
        (0, 0, None, "multinomial"),
        {
            "n": 3,
            "pvals": [0.5, 0.5],
            "out": dev.zeros((4, 3), "int64"),
        },
    )
    yield (
        "the last axis of out has length 2",
        (0, 0, None, "multinomial"),
        {
            "n": 3,
            "pvals": [0.5, 0.5],
            "out": dev.zeros((), "int64"),
        },
    )
    yield "out is an array on the device, not", (0, 0, 3), {"out": np.zeros(3, np.uint32)}
    freed = dev.zeros(3, "uint32")
    freed.free()
    yield "freed", (0, 0), {"out": freed}


async def test_what_is_not_right_is_refused_in_every_form_and_nothing_is_sent(dev, open_test_device):
    await dev.random.load()
    async with open_test_device() as other, dev.batch() as batch:
        foreign = other.zeros(3, "uint32")
        wrong = [*calls(dev), ("belongs to another device", (0, 0), {"out": foreign})]
        before = submitted(dev)

        def record(graph: Any) -> None:
            for match, arguments, keywords in wrong:
                with pytest.raises(InvalidArgument, match=match):
                    graph.random.philox(*arguments, **keywords)
            graph.random.philox(0, 0, 3)  # a graph has at least one node

        for match, arguments, keywords in wrong:
            with pytest.raises(InvalidArgument, match=match):
                await dev.random.philox(*arguments, **keywords)
            with pytest.raises(InvalidArgument, match=match):
                batch.random.philox(*arguments, **keywords)
        assert submitted(dev) == before
        await dev.capture(record)


async def test_positions_end_at_the_end_of_64_bits(dev):
    end = 1 << 64
    assert (await dev.random.philox(0, end - 3, 3)).shape == (3,)
    assert (await dev.random.philox(0, end - 3, 3, "exponential")).shape == (3,)
    assert (await dev.random.philox(0, end - 1, 0)).shape == (0,)
    assert (await dev.random.philox(end - 1, end - 2, 1, dtype="uint64")).shape == (1,)


async def test_only_distributions_can_be_loaded(dev):
    for names in (("gamma", "laplace"), (3,), (["gamma"],)):
        with pytest.raises(InvalidArgument, match="a distribution is one of bits, "):
            await dev.random.load(*names)


async def test_equal_parameters_of_other_types_are_not_taken_for_each_other(dev):
    """Of 9 and 9.0 only the first is a number of trials, however often it was drawn with."""
    async with dev.batch() as batch:
        batch.random.binomial(9, 0.5, 4)
        with pytest.raises(InvalidArgument, match="n is an integer"):
            batch.random.binomial(9.0, 0.5, 4)
        with pytest.raises(InvalidArgument, match="n is an integer"):
            batch.random.philox(1, 0, 4, "binomial", n=9.0, p=0.5)
