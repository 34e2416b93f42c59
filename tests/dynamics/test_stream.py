"""Samples drawn anew at every step: against the exact mean of online SGD, and as every problem has it."""

import copy
import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from tests import cases


SIZE, STEPS, BATCH, RATE, NOISE, RUNS = 8, 100, 4, 0.2, 0.05, 2000
EIGENVALUES, TARGET = np.arange(1, SIZE + 1) ** -1.5, np.arange(1, SIZE + 1) ** -0.6
TS = RATE * jnp.arange(STEPS + 1.0)


def _sample(key, size, noise: Any = NOISE):
    one, two = jr.split(key)
    x = jr.normal(one, (size, SIZE)) * EIGENVALUES[None] ** 0.5
    return x, x @ TARGET[:, None] + noise**0.5 * jr.normal(two, (size, 1))


def _linear(w, x):
    return w @ x


def _net():
    return js.nets.Function(_linear, jnp.zeros((1, SIZE)))


def _stream(sample=_sample, *, key: Any = None, size=16, **options: Any):
    return js.Stream(_net(), sample, key=jr.key(7) if key is None else key, size=size, **options)


def _descent(key: Any, batch_size: int | None = BATCH, rate: float = RATE):
    return js.Descent(optax.sgd(rate), batch_size=batch_size, key=key)


@functools.cache
def _runs(batch_size=BATCH, reused=False):
    """The error sum_k l_k (w_k - w*_k)^2 of many runs before each step, and after the last."""

    def one(key):
        problem, descent = _stream(), _descent(key, batch_size)
        if reused:
            problem, descent = js.Problem(_net(), *_sample(key, batch_size)), js.Descent(optax.sgd(RATE))
        w = js.solve(problem, descent, TS, observe=js.observe.parameters())["parameters"]
        return (w - TARGET[None]) ** 2 @ EIGENVALUES

    return np.asarray(jax.jit(jax.vmap(one))(jr.split(jr.key(3), RUNS)))


def test_the_mean_over_runs_is_that_of_theory():
    expected = js.theory.online_sgd(
        EIGENVALUES, TARGET**2, jnp.full(STEPS, RATE), batch_size=BATCH, noise_variance=NOISE
    )

    def check(found):
        assert np.abs(found[:, 0] - expected[0]).max() < cases.eps(10)
        error = found[:, 1:].std(0) / RUNS**0.5
        assert np.max(np.abs(found[:, 1:].mean(0) - expected[1:]) / error) < 3.5  # the largest of 100

    check(_runs())
    cases.assert_fails(lambda: check(_runs(batch_size=BATCH + 1)))
    cases.assert_fails(lambda: check(_runs(reused=True)))  # one batch at all steps


def test_a_key_decides_the_batches_and_what_is_held_does_not():
    observed = [js.observe.parameters(), js.observe.loss()]
    solve = lambda stream, key: js.solve(stream, _descent(key), TS[::20], observe=observed)
    first, same, other = (solve(_stream(), jr.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first["parameters"], same["parameters"])
    assert np.abs(first["parameters"] - other["parameters"])[1:].max() > 0.01
    elsewhere = solve(_stream(key=jr.key(8), size=3), jr.key(0))
    np.testing.assert_allclose(elsewhere["parameters"], first["parameters"], rtol=cases.eps(100), atol=cases.eps(10))
    assert np.abs(elsewhere["loss"] - first["loss"]).min() > 1e-4
    held = _stream()
    x, y = _sample(jr.key(7), 16)
    np.testing.assert_array_equal(held.x, x)
    np.testing.assert_array_equal(held.y, y)


def test_no_sample_comes_twice():
    """The gradient of each step is that of a new batch: the steps of a rate that is tiny are uncorrelated."""
    rate = 2.0**-10
    ts = rate * jnp.arange(401.0)
    run = js.solve(_stream(), _descent(jr.key(0), 1, rate), ts, observe=js.observe.parameters())
    steps = np.diff(np.asarray(run["parameters"], float), axis=0) / rate
    assert len(np.unique(steps, axis=0)) == 400
    noise = steps - steps.mean(0)
    lags = [np.sum(noise[lag:] * noise[:-lag]) / np.sum(noise**2) for lag in range(1, 40)]
    assert np.max(np.abs(lags)) < 4 / 400**0.5


def test_groups_of_steps_make_no_difference():
    stream, descent = _stream(), _descent(jr.key(0))
    whole = js.solve(stream, descent, TS[-1], observe=js.observe.parameters())["parameters"]
    state = descent.init(stream, TS[-1:])
    advance = jax.jit(lambda *arguments: descent.advance(*arguments))
    for steps in (1, 7, 30, 62):
        assert not state.done
        state = advance(stream, state, jnp.asarray(steps))
    assert state.done
    np.testing.assert_allclose(state.params.params[0], whole, rtol=cases.eps(100), atol=cases.eps(10))


def test_a_sweep_varies_what_sample_closes_over():
    def problem(noise, seed):
        target = jr.normal(jr.key(seed), (SIZE, 1))

        def sample(key, size):
            x, y = _sample(key, size, noise)
            return x, y - x @ TARGET[:, None] + x @ target

        return _stream(sample, key=jr.key(seed))

    axes, ts = {"noise": jnp.array([0.0, 0.5]), "seed": range(3)}, TS[::50]
    observed = [js.observe.parameters(), js.observe.loss()]
    swept = js.sweep(problem, axes, _descent(jr.key(5)), ts, observe=observed, progress=False)
    for index, (noise, seed) in enumerate([(0.0, 0), (0.0, 1), (0.0, 2), (0.5, 0), (0.5, 1), (0.5, 2)]):
        alone = js.solve(problem(noise, seed), _descent(jr.fold_in(jr.key(5), index)), ts, observe=observed)
        lane = swept.sel(noise=noise, seed=seed)
        for name in ("parameters", "loss"):
            np.testing.assert_allclose(lane[name], alone[name], rtol=cases.eps(1e3), atol=cases.eps(100))


def test_other_ways_to_write_sample():
    wanted = js.solve(_stream(), _descent(jr.key(0)), TS[10], observe=js.observe.parameters())["parameters"]

    def swapped(noise, key, size):
        return _sample(key, size, noise)

    class Sample:
        def __call__(self, key, size):
            return _sample(key, size)

    for sample in (functools.partial(swapped, jnp.asarray(NOISE)), functools.partial(_sample, noise=NOISE), Sample()):
        found = js.solve(_stream(sample), _descent(jr.key(0)), TS[10], observe=js.observe.parameters())["parameters"]
        np.testing.assert_allclose(found, wanted, rtol=cases.eps(100), atol=cases.eps(10))
    gradient = jax.jvp(
        lambda noise: js.solve(_stream(functools.partial(swapped, noise)), _descent(jr.key(0)), TS[10])["loss"],
        (jnp.asarray(NOISE),),
        (jnp.asarray(1.0),),
    )[1]
    assert jnp.isfinite(gradient) and gradient != 0  # noqa: PT018


def test_a_stream_travels():
    stream = _stream(functools.partial(_sample, noise=jnp.asarray(NOISE)))
    wanted = js.solve(stream, _descent(jr.key(0)), TS[10])["loss"]
    for there in (copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))):
        assert js.solve(there, _descent(jr.key(0)), TS[10])["loss"] == wanted


def test_labels_a_centered_network_and_a_condition():
    def sample(key, size):
        x = jr.normal(key, (size, 2))
        return x, (x[:, 0] > x[:, 1] ** 3).astype(int)

    net = js.nets.MLP(
        in_size=2, out_size=2, width_size=32, depth=1, activation="tanh", scaling=js.nets.Scaling.ntk(), key=jr.key(0)
    )
    stream = js.Stream(
        net, sample, key=jr.key(1), loss=js.losses.CrossEntropy(), centered=True, size=200
    )  # fewer than each step draws
    condition = js.until.loss_below(0.4)
    descent = js.Descent(optax.adam(0.05), batch_size=300, key=jr.key(2), until=condition, max_steps=500)
    run = js.solve(stream, descent, jnp.inf, observe=[js.observe.loss(), js.observe.accuracy()])
    assert run["loss"] <= 0.4 < js.solve(stream, descent, 0.0)["loss"]
    assert run["accuracy"] > 0.8


def test_inputs_in_a_dict_and_augmentation():
    def sample(key, size):
        image = jr.normal(key, (size, 1, 8, 8))
        return {"image": image}, image.mean((1, 2, 3))[:, None]

    net = js.nets.Function(lambda w, x: w * jnp.sum(x["image"][:, :, :4]), jnp.zeros(1))
    stream = js.Stream(net, sample, key=jr.key(1), size=8)
    run = js.solve(stream, _descent(jr.key(2), 16, 2.0**-8), 2.0**-4, observe=js.observe.parameters())
    assert run["parameters"] > 0
    plain = js.nets.Function(lambda w, x: w * jnp.sum(x[:, :, :4]), jnp.zeros(1))
    image = lambda key, size: (sample(key, size)[0]["image"], sample(key, size)[1])
    stream = js.Stream(plain, image, key=jr.key(1), size=8)
    params = lambda **options: js.solve(
        stream,
        js.Descent(optax.sgd(2.0**-8), batch_size=16, key=jr.key(2), **options),
        2.0**-4,
        observe=js.observe.parameters(),
    )["parameters"]
    np.testing.assert_allclose(params(), run["parameters"], rtol=cases.eps(100))
    assert np.abs(params(augmentation=js.data.flip_and_crop(padding=2)) - params()) > 1e-6


@pytest.mark.slow
def test_a_diagnosis():
    report = js.diagnose(_stream(), optimizer=optax.sgd(0.1), steps=20, checkpoints=1, products=3, batch_size=32)
    assert report.regime.label == "kernel"  # a linear model
    assert "Trained on 32 new samples at each step" in " ".join(report.notes)
    assert report["progress"] > 0.5
    with pytest.raises(ValueError, match="a problem already holds x, y, loss, test, centered and state"):
        js.diagnose(_stream(), _stream().x)


@pytest.mark.parametrize(
    "dynamics",
    [js.GradientFlow(), js.MomentumFlow(tau=1.0), js.FrozenKernel(), js.RichLimit(), js.theory.Balanced()],
    ids=lambda dynamics: type(dynamics).__name__,
)
def test_what_needs_a_training_set_says_so(dynamics, as_users):
    words = r"needs a training set, and a stream has none: use js.Descent\(..., batch_size=, key=\)"
    with pytest.raises(js.NotApplicable, match=words):
        js.solve(_stream(), dynamics, 1.0)
    with pytest.raises(js.NotApplicable, match=words):
        js.sweep(lambda seed: _stream(key=jr.key(seed)), {"seed": range(2)}, dynamics, [1.0], progress=False)
    with pytest.raises(js.NotApplicable, match=words):
        js.compare(_stream(), [_descent(jr.key(0)), dynamics], [1.0])
    stream = _stream()
    if isinstance(dynamics, js.GradientFlow):  # as the message says
        assert js.solve(js.Problem(_net(), stream.x, stream.y), dynamics, 1.0)["loss"] < 1


def test_closed_forms_say_so_themselves(as_users):
    net = js.nets.TwoLayerLinear(in_size=SIZE, width_size=3, scaling=js.nets.Scaling.ntk(), key=jr.key(0))
    stream = js.Stream(net, _sample, key=jr.key(7), size=1)
    held = js.Problem(net, stream.x, stream.y)
    line = js.theory.TwoLayerLine()
    assert not line.check(held).structural
    assert line.check(stream).structural
    assert line.check(stream).missed() == "a training set: it has a stream of new samples"


def test_exact_says_so(as_users):
    with pytest.raises(js.NotApplicable, match="a stream has none; js.theory.online"):
        js.exact(_stream())


@pytest.mark.parametrize("descent", [js.Descent(optax.sgd(0.1)), js.Descent(optax.sgd(0.1), batches=[(1, 2)])])
def test_descent_needs_a_batch_size_and_a_key(descent, as_users):
    with pytest.raises(ValueError, match=r"a stream has no full batch: give Descent\(..., batch_size=, key=\)"):
        js.solve(_stream(), descent, 1.0)


def _of_size(size):
    return lambda key, wanted: _sample(key, size)


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        (3, TypeError, "sample must be a function of a key and a number of samples, got int 3"),
        (
            lambda key: key,
            TypeError,
            r"called as sample\(key, size\) in a compiled program, .*; it fails: .*positional",
        ),
        (lambda key, size: int(jr.bits(key)), TypeError, r"it fails: .*[Tt]racer"),
        (lambda key, size: jr.normal(key, (size, SIZE)), TypeError, "it returned an array of shape"),
        (lambda key, size: (np.ones((size, SIZE)), np.ones((size, 1))), ValueError, "the same samples for two keys"),
        (
            _of_size(5),
            ValueError,
            r"sample\(key, 16\) must return 16 inputs and targets, got arrays of shapes \[\(5, 8",
        ),
        (lambda key, size: (_sample(key, size)[0], _sample(key, size)[1][:-1]), ValueError, "must return 16 inputs"),
        (lambda key, size: (_sample(key, size)[0][:, :3], _sample(key, size)[1]), ValueError, "shape"),
        (lambda key, size: (_sample(key, size)[0].astype(jnp.float16), _sample(key, size)[1]), ValueError, "float16"),
        (lambda key, size: (_sample(key, size)[0] * jnp.nan, _sample(key, size)[1]), ValueError, "NaN|finite"),
    ],
)
def test_bad_samples(sample, error, message, as_users):
    with pytest.raises(error, match=message):
        _stream(sample)


def test_bad_samples_of_another_number(as_users):
    """Seen where they are asked for: at the verb that trains."""
    solve = lambda sample: js.solve(_stream(sample), _descent(jr.key(0)), 1.0)
    with pytest.raises(ValueError, match=r"sample\(key, 4\) must return 4 inputs and targets, got arrays of shapes"):
        solve(_of_size(16))
    narrow = lambda key, size: (_sample(key, size)[0][:, : SIZE if size == 16 else 3], _sample(key, size)[1])
    with pytest.raises(ValueError, match=r"samples must have the shapes \[\(8,\)\] of those held, got \[\(3,\)\]"):
        solve(narrow)
    named = lambda key, size: (
        _sample(key, size)[0] if size == 16 else {"x": _sample(key, size)[0]},
        jnp.ones((size, 1)),
    )
    with pytest.raises(TypeError, match="sample must return inputs such as those held by the stream"):
        solve(named)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"key": 0},
            TypeError,
            r"key must be a JAX random key such as jax.random.key\(1\), which draws the samples .*, got int 0",
        ),
        ({"key": jr.split(jr.key(0))}, ValueError, "key must be one key, got a batch"),
        ({"size": 0}, ValueError, "size must be an integer >= 1, got 0"),
        ({"test": 3}, ValueError, "test must be a pair"),
    ],
)
def test_bad_options(options, error, message, as_users):
    bad: dict[str, Any] = {"key": jr.key(0)} | options
    with pytest.raises(error, match=message):
        js.Stream(_net(), _sample, **bad)
