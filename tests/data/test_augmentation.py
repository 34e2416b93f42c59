"""Augmentation: what may come out, how often, and that the key alone decides."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from jaxsolve import Descent, Problem, solve
from tests import cases


IMAGES = jnp.arange(2 * 4 * 5, dtype=float).reshape(1, 2, 4, 5) + 1  # no pixel is 0 or equals another


def _shifted(image, down, right, mirrored):
    """By a path of its own: pixel by pixel."""
    image = np.asarray(image)[..., ::-1] if mirrored else np.asarray(image)
    moved = np.zeros_like(image)
    _, height, width = image.shape
    for i in range(height):
        for j in range(width):
            if 0 <= i + down < height and 0 <= j + right < width:
                moved[:, i, j] = image[:, i + down, j + right]
    return moved


def test_every_shift_and_mirror_image_is_as_likely(getkey):
    draws = 20_000
    x = jnp.broadcast_to(IMAGES, (draws, *IMAGES.shape[1:]))
    drawn = np.asarray(js.data.flip_and_crop(1)(x, key=getkey()))
    possible = [
        _shifted(IMAGES[0], down, right, mirrored)
        for down in (-1, 0, 1)
        for right in (-1, 0, 1)
        for mirrored in (False, True)
    ]
    counts = [int((drawn == one).all(axis=(1, 2, 3)).sum()) for one in possible]
    assert sum(counts) == draws  # nothing else comes out
    expected = draws / len(possible)
    assert np.sum((np.array(counts) - expected) ** 2) / expected < 45  # chi^2 of 17 degrees: exceeded once in 3000


def test_without_a_flip_or_a_shift(getkey):
    x = jnp.broadcast_to(IMAGES, (50, *IMAGES.shape[1:]))
    np.testing.assert_array_equal(js.data.flip_and_crop(0, flip=False)(x, key=getkey()), x)
    mirrored = np.asarray(js.data.flip_and_crop(0)(x, key=getkey()))
    same = (mirrored == np.asarray(x)).all(axis=(1, 2, 3))
    assert 0 < same.sum() < 50
    np.testing.assert_array_equal(mirrored[~same], np.asarray(x)[~same][..., ::-1])


def test_the_key_alone_decides(getkey):
    x, crop, key = jr.normal(getkey(), (8, 3, 6, 6)), js.data.flip_and_crop(2), getkey()
    np.testing.assert_array_equal(crop(x, key=key), jax.jit(lambda x, key: crop(x, key=key))(x, key))
    assert not np.array_equal(crop(x, key=key), crop(x, key=getkey()))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-1,), ValueError, "padding must be an integer >= 0, got -1"),
        ((1.5,), TypeError, "padding must be an integer >= 0, got float 1.5"),
    ],
)
def test_bad_arguments(arguments, error, message, as_users):
    with pytest.raises(error, match=message):
        js.data.flip_and_crop(*arguments)


def test_flat_inputs(as_users):
    with pytest.raises(ValueError, match=r"images of shape \(n, channels, height, width\), got \(3, 4\); read them"):
        js.data.flip_and_crop()(jnp.ones((3, 4)), key=jr.key(0))


# In a descent


class Double(js.data.AbstractAugmentation):
    """Twice the inputs."""

    def __call__(self, x, *, key):
        return 2 * x


class Jitter(js.data.AbstractAugmentation):
    """Inputs times normal numbers, one for each sample."""

    def __call__(self, x, *, key):
        return x * jr.normal(key, (len(x), 1), x.dtype)


def _end(problem, **options):
    return solve(problem, Descent(optax.sgd(0.1), **options), [1.0]).final.net.weights


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("centered", [False, True])
def test_steps_see_the_changed_inputs(batch, centered, getkey):
    x, y, net = cases.inputs(getkey(), 6), cases.inputs(getkey(), 6, 2), cases.mlp(getkey())
    key = jr.key(1)
    plain = {} if batch is None else {"batch_size": batch, "key": key}
    doubled = _end(Problem(net, 2 * x, y, centered=centered), **plain)
    changed = _end(Problem(net, x, y, centered=centered), batch_size=batch, key=key, augmentation=Double())
    for one, other in zip(doubled, changed, strict=True):
        np.testing.assert_allclose(one, other, rtol=cases.eps(100), atol=cases.eps(100))
    unchanged = _end(Problem(net, x, y, centered=centered), **plain)
    assert not np.allclose(unchanged[0], changed[0], rtol=1e-3)


def test_each_step_draws_anew(getkey):
    """One linear weight: a step multiplies its distance from 0 by 1 - rate * z^2, with z drawn for this step."""
    problem = Problem(cases.Linear(jnp.ones((1, 1))), jnp.ones((1, 1)), jnp.zeros((1, 1)))
    runs = [
        solve(problem, Descent(optax.sgd(0.1), key=jr.key(seed), augmentation=Jitter()), 0.1 * np.arange(20.0))
        for seed in (0, 0, 1)
    ]
    losses = [np.asarray(run["loss"]) for run in runs]
    factors = losses[0][1:] / losses[0][:-1]
    assert len(np.unique(factors.round(6))) == len(factors)
    np.testing.assert_array_equal(losses[0], losses[1])
    assert not np.allclose(losses[0], losses[2])


def test_what_a_descent_refuses(as_users):
    with pytest.raises(ValueError, match="an augmentation draws at random: give key= too"):
        Descent(optax.sgd(0.1), augmentation=Double())
    with pytest.raises(TypeError, match=r"augmentation must be a function such as js.data.flip_and_crop\(\), got"):
        Descent(optax.sgd(0.1), key=jr.key(0), augmentation=lambda x: x)  # pyright: ignore[reportArgumentType]


class Noisy(js.data.AbstractAugmentation):
    """Noise on the first of two arrays, or as written for one array; or half of the inputs."""

    way: str = eqx.field(static=True)

    def __call__(self, x: Any, *, key) -> Any:
        if self.way == "one array":
            return x + jr.normal(key, x.shape)
        noisy = {**x, "a": x["a"] + jr.normal(key, x["a"].shape)}
        return noisy if self.way == "right" else {"a": noisy["a"]}


class OfTwo(eqx.Module):
    w: jax.Array

    def __call__(self, x):
        return self.w @ x["a"] + x["b"]


@pytest.mark.parametrize(
    ("way", "said"), [("one array", r"it fails: AttributeError 'dict'"), ("half", r"it returned \{'a': \(8, 3\)\}")]
)
def test_inputs_of_several_arrays(way, said):
    x = {"a": jr.normal(jr.key(0), (8, 3)), "b": jnp.ones((8, 1))}
    problem = Problem(OfTwo(jnp.ones((1, 3))), x, jnp.ones((8, 1)))
    run = lambda way: solve(problem, Descent(optax.sgd(0.1), augmentation=Noisy(way), key=jr.key(1)), [0.0, 1.0])
    assert np.all(np.isfinite(run("right")["loss"]))
    shapes = r"here of shape \{'a': \(8, 3\), 'b': \(8, 1\)\}, and returns others of the same; "
    with pytest.raises(ValueError, match=shapes + said):
        run(way)
