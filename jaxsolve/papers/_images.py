"""Real images for the figures; if they are missing, small scale takes the digits of scikit-learn."""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from ..data import cifar10, Dataset, digits, fashion_mnist, Images, mnist, partial_whiten, pca
from ._figure import Scale


READERS = {Images.MNIST: mnist, Images.FASHION_MNIST: fashion_mnist, Images.CIFAR10: cifar10}
DIGIT_TESTS, DIGIT_PIXELS = 1000, 64  # test samples, out of 1797 digits
DIGIT_RANK = 40  # components of digits: in some draws of 60, only 49 pixels vary
SHAPES = {Images.MNIST: (1, 28, 28), Images.FASHION_MNIST: (1, 28, 28), Images.CIFAR10: (3, 32, 32)}


def images(collection: Images, scale: Scale, *, flatten: bool = True, key: PRNGKeyArray, **request: Any) -> Dataset:
    """Training and test samples, as from `js.data.mnist`.

    By default the official split is used only at the paper's scale; other scales pool all images found. Substitute
    digits have 64 pixels if flat, and are otherwise enlarged to the shape of the images they replace. They are fewer,
    so at most 1000 are for tests.

    Raises:
        FileNotFoundError: the images are missing, and the scale is not small; the message says how to get them.
    """
    split = request.pop("official_split", scale is Scale.PAPER)
    try:
        data = READERS[collection](flatten=flatten, official_split=split, key=key, **request)
    except FileNotFoundError:
        if scale is not Scale.SMALL:
            raise
        data = digits(key=key, **request | {"n_test": min(request["n_test"], DIGIT_TESTS)})
        return data if flatten else _enlarged(data, collection)
    return data


def principal(data: Dataset, rank: int) -> Dataset:
    """The data in their leading principal components, at most `DIGIT_RANK` for digits that replace larger images."""
    rank = min(rank, DIGIT_RANK) if data.x.shape[1] == DIGIT_PIXELS else rank
    return data.transform(pca(rank, standardize=False))


def drawn(count: int, draw: Callable[[PRNGKeyArray], Dataset]) -> Dataset:
    """Independent draws of data with the keys 0 to count - 1, stacked along the first axis.

    Each seed of a sweep takes the draw of its number, so that intervals over seeds cover both networks and tasks.
    """
    return _stacked(draw(jax.random.key(i)) for i in range(count))


def _stacked(draws: Iterable[Dataset]) -> Dataset:
    return jax.tree.map(lambda *parts: jnp.stack(parts), *draws)


def draw_of(data: Dataset, seed: Array | int) -> Dataset:
    """The draw of `drawn` that belongs to a seed, modulo the number of draws."""
    return jax.tree.map(lambda part: part[seed % len(part)], data)


def pictures(
    collection: Images,
    scale: Scale,
    samples: Mapping[Scale, int],
    tests: Mapping[Scale, int],
    halvings: int,
    draws: int,
    **request: Any,
) -> Dataset:
    """Draws of images that are not flattened; at small scale their resolution is halved `halvings` times.

    At the paper's scale there is one draw, the official split.
    """
    sizes = {"n_train": samples[scale], "n_test": tests[scale]}

    def draw(key: PRNGKeyArray) -> Dataset:
        data = images(collection, scale, flatten=False, key=key, **sizes, **request)
        for _ in range(halvings if scale is Scale.SMALL else 0):
            data = halved(data)
        return data

    return drawn(1 if scale is Scale.PAPER else draws, draw)


def images_used(collection: Images, scale: Scale) -> str:
    """The images that `images` finds, in words: their name, their number, and a hash of 40 of them."""
    found = images(collection, scale, n_train=20, n_test=20, key=jax.random.key(0))
    if found.x.shape[1] == DIGIT_PIXELS:
        return f"digits of scikit-learn: {collection.value} is not on this machine"
    assert found.x_test is not None  # requested above
    pixels = np.round(255 * np.concatenate([found.x, found.x_test]))  # the same in any precision
    digest = hashlib.sha256(pixels.astype(np.uint8).tobytes()).hexdigest()[:12]
    (count,) = re.findall(r"\((\d+) ", found.source)
    return f"{collection.value} ({count} images; sha256 of 40 of them: {digest})"


def name_used(collection: Images) -> str:
    """The name of the images used, for pictures, titles and claims. Larger scales need the images themselves."""
    return re.split(r":| \(", images_used(collection, Scale.SMALL))[0]


def _enlarged(data: Dataset, collection: Images) -> Dataset:
    shape = SHAPES[collection]
    big = lambda x: None if x is None else _repeated(x, shape)
    return Dataset(_repeated(data.x, shape), data.y, big(data.x_test), data.y_test, source=f"{data.source}, enlarged")


def _repeated(x: Float[Array, "n pixels"], shape: tuple[int, int, int]) -> Float[Array, "n channels height width"]:
    """Each pixel becomes a block; the border is black."""
    side = math.isqrt(x.shape[1])
    factor, border = divmod(shape[1], side)
    image = jnp.repeat(jnp.repeat(x.reshape(-1, 1, side, side), factor, axis=2), factor, axis=3)
    padding = (border // 2, border - border // 2)
    return jnp.broadcast_to(jnp.pad(image, ((0, 0), (0, 0), padding, padding)), (len(x), *shape))


def halved(data: Dataset) -> Dataset:
    """Images of half the resolution, averaged over 2 x 2 pixels, in single precision."""
    window = (1, 1, 2, 2)
    half = lambda x: (lax.reduce_window(x, 0.0, lax.add, window, window, "valid") / 4).astype("float32")
    y, y_test = (jnp.float32(part) for part in (data.y, data.y_test))
    return Dataset(half(data.x), y, half(data.x_test), y_test, source=f"{data.source}; halved")


def whitened(data: Dataset) -> Dataset:
    """Each draw with its images whitened, in their original shape."""
    return _stacked(_whitened(draw_of(data, i)) for i in range(len(data.x)))


def _whitened(data: Dataset) -> Dataset:
    assert data.x_test is not None
    flat = [images.reshape(len(images), -1) for images in (data.x, data.x_test)]
    affine = partial_whiten(1.0).fit(flat[0])
    x, x_test = (affine(part).reshape(-1, *data.x.shape[1:]) for part in flat)
    return Dataset(x, data.y, x_test, data.y_test, source=data.source)
