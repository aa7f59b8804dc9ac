"""References of `images.cu`: scipy's filters and transforms, and a ray tracer that follows all rays together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.fft
from scipy import ndimage

from .case import Arguments, Family, Given, Launch, Result, anything, equals, near, satisfies

Generator = np.random.Generator

family = Family("images.cu")

WIDTH, HEIGHT = 37, 27
TILES = {"grid": (3, 2), "block": (16, 16)}


def picture(rng: Generator) -> np.ndarray:
    return rng.integers(0, 256, (HEIGHT, WIDTH)).astype(np.uint8)


@family.case(**TILES)
def sobel(rng: Generator) -> Arguments:
    image = picture(rng)
    slopes = [ndimage.sobel(image.astype(np.int32), axis, mode="nearest") for axis in (0, 1)]
    edges = (np.abs(slopes[0]) + np.abs(slopes[1])).astype(np.int16)
    return Given(image), WIDTH, HEIGHT, Result(np.zeros_like(edges), equals(edges))


@family.case(**TILES)
def median(rng: Generator) -> Arguments:
    image = picture(rng)
    expected = ndimage.median_filter(image, 3, mode="nearest")
    return Given(image), WIDTH, HEIGHT, Result(np.zeros_like(image), equals(expected))


@family.case(grid=(3, 2), block=(16, 16))
def opening(rng: Generator) -> Arguments:
    image = picture(rng)
    expected = ndimage.maximum_filter(ndimage.minimum_filter(image, 3, mode="nearest"), 3, mode="nearest")
    return Given(image), WIDTH, HEIGHT, Result(np.zeros_like(image), equals(expected))


@family.program
def summed_area(rng: Generator) -> Sequence[Launch]:
    image = rng.integers(-99, 99, (HEIGHT, WIDTH)).astype(np.int32)
    of_rows = image.cumsum(axis=1, dtype=np.int32)
    turned = Result(np.zeros((WIDTH, HEIGHT), np.int32), equals(np.ascontiguousarray(of_rows.T)))
    out = Result(np.zeros_like(image), equals(of_rows.cumsum(axis=0, dtype=np.int32)))
    return [
        Launch("sums_of_rows", HEIGHT, 32, [Given(image), WIDTH, turned]),
        Launch("sums_of_rows", WIDTH, 32, [turned, HEIGHT, out]),
    ]


@family.program
def distances(rng: Generator) -> Sequence[Launch]:
    lit = rng.random((HEIGHT, WIDTH)) < 0.02
    lit[3, 5] = True
    exact = np.rint(ndimage.distance_transform_edt(~lit) ** 2).astype(np.int32)
    squares, out = Result(np.zeros_like(exact), anything), Result(np.full_like(exact, -1), equals(exact))
    return [
        Launch("distance_in_columns", 1, 64, [Given(lit.astype(np.uint8)), WIDTH, HEIGHT, squares]),
        Launch("distance_in_plane", (3, 2), (16, 16), [squares, WIDTH, HEIGHT, out]),
    ]


@family.case(grid=3, block=64)
def haar(rng: Generator) -> Arguments:
    rows = rng.integers(-500, 500, (3, 128)).astype(np.int32)
    means, details = rows, []
    while means.shape[1] > 1:
        even, difference = means[:, ::2], means[:, 1::2] - means[:, ::2]
        means, details = even + (difference >> 1), [difference, *details]
    return (Result(rows, equals(np.concatenate([means, *details], axis=1))),)


@family.program
def cosine_transform(rng: Generator) -> Sequence[Launch]:
    blocks = rng.uniform(-128, 128, (5, 8, 8)).astype(np.float32)
    exact = scipy.fft.dctn(blocks.astype(np.float64), axes=(1, 2), norm="ortho")
    table = Result(np.zeros((8, 8), np.float32), anything)
    out = Result(np.zeros_like(blocks), near(exact, absolute=2e-3, why="16 terms of up to 128 * 8, each rounded twice"))
    return [
        Launch("fill_cosines", 1, (8, 8), [table]),
        Launch("cosine_transform", 5, (8, 8), [table, Given(blocks), out]),
    ]


@family.case(grid=(4, 4), block=(16, 16))
def resize(rng: Generator) -> Arguments:
    width, height, wide, high = 20, 15, 50, 60
    image = rng.uniform(-1, 1, (height, width)).astype(np.float32)
    places = np.meshgrid((np.arange(high) + 0.5) * height / high - 0.5, (np.arange(wide) + 0.5) * width / wide - 0.5,
                         indexing="ij")  # fmt: skip
    exact = ndimage.map_coordinates(image.astype(np.float64), places, order=1, mode="nearest")
    check = near(exact, absolute=2e-5, why="places below 20 are rounded to 2 ** -20, and slopes are below 2")
    return Given(image), width, height, Result(np.zeros((high, wide), np.float32), check), wide, high


def hit(spheres: np.ndarray, start: np.ndarray, along: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The nearest distance, whose sphere it is, and by how much the closest decision was missed."""
    to = spheres[:, None, :3] - start
    middle = (to * along).sum(axis=2)
    under = middle**2 - (to**2).sum(axis=2) + spheres[:, None, 3] ** 2
    distance = middle - np.sqrt(np.maximum(under, 0))
    distance = np.where((under > 0) & (distance > 1e-6), distance, np.inf)
    return distance.min(axis=0), distance.argmin(axis=0), np.abs(under).min(axis=0)


def colours(spheres: np.ndarray, start: np.ndarray, along: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """The brightness of each ray, and the narrowest of its decisions."""
    distance, which, margin = hit(spheres, start, along)
    missed = np.isinf(distance)
    at = start + along * np.where(missed, 0, distance)[:, None]
    normal = (at - spheres[which, :3]) / spheres[which, 3:4]
    light = np.array([1, 2, -1]) / np.sqrt(6)
    shaded, _, of_light = hit(spheres, at, np.broadcast_to(light, at.shape))
    own = 0.1 + 0.9 * np.where(np.isinf(shaded), np.maximum(normal @ light, 0), 0)
    if depth:
        mirrored = along - 2 * normal * (along * normal).sum(axis=1, keepdims=True)
        beyond, further = colours(spheres, at, mirrored, depth - 1)
        own, of_light = own + spheres[which, 4] * (beyond - own), np.minimum(of_light, further)
    return np.where(missed, 0.5 + 0.5 * along[:, 1], own), np.minimum(margin, np.where(missed, 1, of_light))


@family.case(grid=(3, 4), block=(16, 8))
def ray_tracer(rng: Generator) -> Arguments:
    """A ray that touches a sphere is left out: a rounding decides whether it hits."""
    width, height, depth = 40, 30, 2
    spheres = np.array([(0, 0, 1, 0.9, 0.5), (-1.2, 0.3, 0.5, 0.5, 0.8), (1, -0.4, 0, 0.6, 0), (0, -101, 1, 100, 0.2)])
    x, y = np.meshgrid((np.arange(width) + 0.5) / width - 0.5, 0.5 - (np.arange(height) + 0.5) / height)
    along = np.stack([x, y, np.ones_like(x)], axis=-1).reshape(-1, 3)
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    exact, margin = colours(spheres, np.tile([0.0, 0, -3], (width * height, 1)), along, depth)
    clear = margin > 1e-6
    assert clear.mean() > 0.9
    check = satisfies("as bright as it should be", lambda got: (np.abs(got.ravel() - exact) < 1e-8)[clear])
    return Given(spheres), len(spheres), Result(np.zeros((height, width)), check), width, height, depth
