"""Networks that compute in bfloat16, their parameters in float32: numbers are those of float32 but for rounding."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js


class Mixed(eqx.Module):
    """A network that casts its parameters and inputs, as mixed precision does."""

    net: eqx.nn.MLP
    dtype: Any = eqx.field(static=True)
    returned: Any = eqx.field(static=True)
    multiplier: float = 1.0

    def __call__(self, x):
        cast = lambda leaf: leaf.astype(self.dtype) if eqx.is_inexact_array(leaf) else leaf
        return self.multiplier * jax.tree.map(cast, self.net)(x.astype(self.dtype)).astype(self.returned)


@pytest.fixture(autouse=True)
def single():
    with jax.enable_x64(False):
        yield


def mixed(dtype=jnp.bfloat16, returned=jnp.bfloat16, **options):
    return Mixed(eqx.nn.MLP(6, 1, 64, 2, activation=jnp.tanh, key=jr.key(0)), dtype, returned, **options)


def data():
    x = jr.normal(jr.key(1), (32, 6))
    return x, jnp.sin(x[:, :1] - x[:, 1:2])


@pytest.mark.parametrize("returned", [jnp.bfloat16, jnp.float32], ids=["half", "single"])
@pytest.mark.parametrize(
    "dynamics",
    [js.Descent(optax.adam(1e-2)), js.GradientFlow(), js.FrozenKernel()],
    ids=lambda dynamics: type(dynamics).__name__,
)
def test_runs(dynamics, returned):
    x, y = data()
    found, wanted = (
        js.solve(js.Problem(net, x, y), dynamics, [0.2, 1.0])["loss"]
        for net in (mixed(returned=returned), mixed(jnp.float32, jnp.float32))
    )
    assert found.dtype == jnp.float32
    # Measured 2e-3 of the loss, and 7e-6 near its end; bfloat16 rounds outputs of size 1 to 8e-3, squares to 3e-5.
    np.testing.assert_allclose(found, wanted, rtol=8e-3, atol=3e-5)


def test_kernels_and_their_certificate():
    x, _ = data()
    found, wanted = (js.kernels.empirical(net, x).ntk for net in (mixed(), mixed(jnp.float32, jnp.float32)))
    assert 1e-4 < float(js.kernels.relative_change(found, wanted)) < 1e-2
    check = js.kernels.check(mixed(), x, found, key=jr.key(2))
    assert check.holds
    assert check.bound == pytest.approx(10 * 2.0**-7)


def test_a_diagnosis_says_what_it_is_of():
    x, y = data()
    options = {"optimizer": optax.adam(1e-3), "steps": 20}
    found, wanted = (js.diagnose(net, x, y, **options) for net in (mixed(), mixed(jnp.float32, jnp.float32)))
    assert found.regime == wanted.regime
    for name in ("kernel_change", "nonlinearity", "progress", "effective_rank", "critical_rate", "stability"):
        np.testing.assert_allclose(found.findings[name].value, wanted.findings[name].value, rtol=0.05, err_msg=name)
    assert any("computes in bfloat16: numbers are accurate to about 0.008" in note for note in found.notes)
    assert not any("computes in" in note for note in wanted.notes)


def test_rounding_is_no_nonlinearity():
    """Outputs that move by less than bfloat16 resolves: what the linearized network misses is rounding alone."""
    x, y = data()
    options = {"optimizer": optax.sgd(1e-4), "steps": 20}
    half, single = (js.diagnose(net, x, y, **options) for net in (mixed(), mixed(jnp.float32, jnp.float32)))
    assert single.findings["nonlinearity"].value < 0.01
    assert np.isnan(half.findings["nonlinearity"].value)
    assert "moved by little more than rounding" in half.findings["nonlinearity"].words
    assert "The error of its linearization is not known: the outputs have moved by little more" in str(half)


def test_what_cancels_is_warned_of_in_the_dtype_of_the_network():
    x, y = data()
    with pytest.warns(UserWarning, match="which bfloat16 rounds by about"):
        js.Problem(mixed(multiplier=30.0), x, y, centered=True)


def test_half_precision_off_the_products_says_nothing():
    """A mask of 0 and 1 in bfloat16 rounds nothing; a product in a loop that is not written out rounds all."""

    class Masked(eqx.Module):
        net: eqx.nn.MLP

        def __call__(self, x):
            return self.net(x * (x > -10).astype(jnp.bfloat16).astype(jnp.float32))

    class Looped(eqx.Module):
        net: Mixed

        def __call__(self, x):
            return jax.lax.scan(lambda f, _: (self.net(x).astype(jnp.float32), None), jnp.zeros(1), None, 70)[0]

    x, y = data()
    for net, said in ((Masked(mixed().net), False), (Looped(mixed()), True)):
        report = js.diagnose(net, x, y, optimizer=optax.sgd(0.1), steps=2, checkpoints=1, products=3)
        assert any("computes in bfloat16" in note for note in report.notes) == said


def test_noise_trains_in_single_precision():
    x, y = data()
    found, wanted = (
        js.solve(js.Problem(mixed(), x, y), js.Descent(optax.sgd(0.1), **options), [0.1])["loss"]
        for options in ({"noise": lambda net, x, key: net(x), "key": jr.key(0)}, {})
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_outputs_that_do_not_move_are_said_to():
    x, y = data()
    report = js.diagnose(mixed(), x, y, optimizer=optax.sgd(1e-8), steps=2, checkpoints=1, products=3)
    assert report.findings["nonlinearity"].words == "the outputs have not changed"
    assert "Its outputs have not changed." in str(report)


def test_parameters_in_half_precision():
    """Through `MixedPrecision`, to the bit as a module that casts by hand; not as one that computes in float32."""
    x, y = data()
    cast = lambda dtype: lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf
    half = jax.tree.map(cast(jnp.bfloat16), mixed().net)
    net = js.nets.MixedPrecision(half, jnp.bfloat16)
    by_hand = Mixed(jax.tree.map(cast(jnp.float32), half), jnp.bfloat16, jnp.float32)
    optimizer = optax.adam(1e-2)
    loss = lambda net: js.solve(js.Problem(net, x, y), js.Descent(optimizer), [0.2, 1.0])["loss"]
    np.testing.assert_array_equal(loss(net), loss(by_hand))
    assert not np.array_equal(loss(net), loss(by_hand.net))
    with pytest.raises(
        ValueError, match=r"or keep computing in bfloat16 with js.nets.MixedPrecision\(net, jnp.bfloat16"
    ):
        js.diagnose(half, x, y)
    for bad, error, said in ((3, TypeError, "a network acting"), (half, ValueError, "dtype must be jnp.bfloat16")):
        with pytest.raises(error, match=said):
            js.nets.MixedPrecision(bad, jnp.float32)


def test_a_diagnosis_of_parameters_in_half_precision_says_so():
    x, y = data()
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16) if eqx.is_inexact_array(a) else a, mixed().net)
    report = js.diagnose(js.nets.MixedPrecision(half, jnp.bfloat16), x, y, optimizer=optax.adam(1e-2), steps=30)
    assert any("computes in bfloat16" in note for note in report.notes)
    monitor = js.Monitor(js.Problem(js.nets.MixedPrecision(half, jnp.bfloat16), x, y), every=1)
    row = monitor(0, half)
    assert row is not None
    assert np.isfinite(row["loss"])
    assert row["kernel_change"] == 0
