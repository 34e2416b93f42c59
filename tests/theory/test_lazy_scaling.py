"""The exponents of Geiger et al. against small networks that are trained."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve.theory import lazy_scaling, ReducedLine
from tests.cases import assert_fails, eps


SOFTPLUS = js.nets.softplus(5.0)
X = jr.normal(jr.key(0), (8, 4))
Y = jnp.where(jnp.arange(8) % 2 == 0, 1.0, -1.0)[:, None]
X_TEST = jr.normal(jr.key(9), (20, 4))


def problem(width, depth, alpha, key, activation=SOFTPLUS, x=X, y=Y):
    rule = js.nets.Scaling.lazy(alpha, gain=True)
    net = js.nets.MLP(
        in_size=x.shape[1], out_size=1, width_size=width, depth=depth, activation=activation, scaling=rule, key=key
    )
    return js.Problem(net, x, y, test=(X_TEST[:, : x.shape[1]], jnp.zeros(20)), centered=True)


def trained(width, depth, alphas, seeds, flow, t_end):
    """Kernel change, weight change, time of the end and test outputs, each (alphas, seeds, ...)."""
    make = lambda alpha, seed: problem(width, depth, alpha, jr.key(seed))
    watched = [js.observe.kernel_change(), js.observe.weight_distances(), js.observe.weight_norms()]
    axes = {"alpha": alphas, "seed": range(seeds)}
    observables = [*watched, js.observe.test_outputs()]
    runs = js.sweep(make, axes, flow, [0.0, t_end], observe=observables, progress=False)
    size = lambda name, when: np.linalg.norm(runs[name].values[:, :, when], axis=-1)
    moved = size("weight_distances", -1) / size("weight_norms", 0)
    outputs = runs["test_outputs"].values[:, :, -1, :, 0]
    return runs["kernel_change"].values[:, :, -1], moved, runs["t_end"].values, outputs


def slopes(values, over):
    """Slopes of logarithms between neighbors along the first axis."""
    return np.diff(np.log(values), axis=0).T / np.diff(np.log(over))


def test_the_exponents_of_the_paper():
    deep, shallow = lazy_scaling(5), lazy_scaling(2)
    # Table 1: predictions 1.66 and 1.33, 0.166 and 0.333.
    for law, exponent in [(deep.kernel_change_feature, 5 / 3), (shallow.kernel_change_feature, 4 / 3)]:
        assert (law.alpha, law.width) == pytest.approx((-exponent, -exponent / 2))
    for law, exponent in [(deep.weight_change_feature, 1 / 6), (shallow.weight_change_feature, 1 / 3)]:
        assert (law.alpha, law.width) == pytest.approx((-exponent, -exponent / 2 - 1 / 2))


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_laws_of_neighboring_regimes_meet(depth):
    laws = lazy_scaling(depth)
    for width in (10.0, 1e4):
        alpha = float(laws.crossover(width, 123.0))
        assert alpha == pytest.approx(width**-0.5, rel=eps(100))
        for lazy, feature in [
            (laws.kernel_change_coherent, laws.kernel_change_feature),
            (laws.half_loss_time_lazy, laws.half_loss_time_feature),
            (laws.weight_change_lazy, laws.weight_change_feature),
        ]:
            assert lazy.regime is js.observe.Regime.KERNEL
            assert feature.regime is js.observe.Regime.FEATURE_LEARNING
            np.testing.assert_allclose(lazy(width, alpha), feature(width, alpha), rtol=eps(100))
        coherent, first_order = laws.kernel_change_coherent(width, 1.0), laws.kernel_change_lazy(width, 1.0)
        np.testing.assert_allclose(coherent, first_order, rtol=eps(100))


@pytest.mark.x64_only
def test_powers_do_not_overflow():
    law = lazy_scaling(1).kernel_change_lazy
    assert float(law(1e300, 1e-150)) == pytest.approx(1e-150, rel=1e-11)
    assert law(jnp.ones(3), jnp.ones(3)).shape == (3,)


def exact_changes(width, alphas, seeds=16):
    """Kernel change, growth of the weights and starts' spread of the exact two-layer linear network, for each alpha."""

    def one(alpha, seed):
        a, b = jr.normal(jr.key(seed), (2, width))
        k = alpha / jnp.sqrt(1.0 * width)
        line = ReducedLine.from_layers(a, b, k, 1.0 + k * jnp.sum(a * b))  # centered on the target 1
        start, end = line.ntk(0.0), line.ntk(jnp.inf)
        grown = sum(line.squared_norms(jnp.inf)) / (2 * line.total)
        return (end / start - 1) ** 2, grown

    squares, grown = jax.jit(jax.vmap(lambda alpha: jax.lax.map(lambda s: one(alpha, s), jnp.arange(seeds))))(alphas)
    return np.sqrt(np.mean(squares, axis=1)), np.sqrt(np.mean(grown, axis=1))


@pytest.mark.slow
@pytest.mark.x64_only
def test_the_exact_solution_follows_the_laws_of_one_hidden_layer():
    laws, widths = lazy_scaling(1), (10_000, 1_000_000)
    for law, alphas, alpha_error, width_error in [
        (laws.kernel_change_lazy, [1e3, 1e4], 6e-4, 0.07),  # measured 6e-5 and 0.007, by the luck of 16 random signs
        (laws.kernel_change_coherent, [0.03, 0.05], 0.05, 0.01),  # measured 0.03, of the order alpha, and 0.001
        (laws.kernel_change_feature, [1e-8, 1e-7], 4e-4, 3e-3),  # measured 4e-5 and 3e-4
    ]:
        curves = np.array([exact_changes(width, jnp.array(alphas))[0] for width in widths])
        in_alpha, in_width = slopes(curves[1], alphas), slopes(curves[:, 0], widths)
        np.testing.assert_allclose(in_alpha, law.alpha, atol=alpha_error)
        np.testing.assert_allclose(in_width, law.width, atol=width_error)
        if law is laws.kernel_change_lazy:  # as printed
            assert_fails(lambda s=in_width, e=width_error: np.testing.assert_allclose(s, -0.5, atol=e))
    grown = exact_changes(1000, jnp.array([1e-8, 1e-7]))[1]
    np.testing.assert_allclose(slopes(grown, [1e-8, 1e-7]), laws.weight_change_feature.alpha, atol=1e-3)


def lazy_slopes(depth, widths, seeds):
    """Slopes in alpha and in width of the changes of kernel and weights, and in width of the outputs' variance."""
    alphas = jnp.array([1e2, 1e4])
    # The weights move by 1e-4 of their size: hence the tolerances.
    flow = js.GradientFlow(rtol=1e-8, atol=1e-9)
    kernel, weights, _, outputs = zip(
        *(trained(width, depth, alphas, seeds, flow, 2.0) for width in widths), strict=True
    )
    size = lambda values: np.sqrt(np.mean(np.array(values) ** 2, axis=2))  # (widths, alphas)
    in_alpha = [slopes(size(values).T, alphas)[:, 0] for values in (kernel, weights)]
    in_width = [slopes(size(values)[:, -1], widths)[0] for values in (kernel, weights)]
    variance = [np.mean(np.var(one[-1], axis=0)) for one in outputs]
    # O(1) time: at a given time the outputs are the same for all alpha.
    gap = max(float(jnp.max(jnp.abs(one[0] - one[1]))) for one in outputs)
    return in_alpha, in_width, slopes(variance, widths)[0], gap


def assert_lazy_laws(depth, measured, *, alpha_error, width_error, variance_error):
    laws = lazy_scaling(depth)
    in_alpha, in_width, variance, gap = measured
    for change, law in enumerate((laws.kernel_change_lazy, laws.weight_change_lazy)):
        np.testing.assert_allclose(in_alpha[change], law.alpha, atol=alpha_error)
        np.testing.assert_allclose(in_width[change], law.width, atol=width_error[change])
    np.testing.assert_allclose(variance, laws.output_variance.width, atol=variance_error)
    assert gap < 0.01  # measured 1.1e-3


@pytest.mark.x64_only
@pytest.mark.slow
def test_lazy_networks_follow_the_lazy_laws():
    measured = lazy_slopes(1, (16, 64), 24)
    # Measured: 1.6e-4; 0.09 and 0.03; 0.05. The last three are finite width and 24 starts.
    check = {"alpha_error": 1.5e-3, "width_error": (0.2, 0.05), "variance_error": 0.25}
    assert_lazy_laws(1, measured, **check)
    assert_fails(lambda: assert_lazy_laws(2, measured, **check))  # the laws of another depth
    assert_fails(lambda: np.testing.assert_allclose(measured[1][0], -0.5, atol=0.25))  # as printed


@pytest.mark.x64_only
@pytest.mark.slow
def test_deeper_lazy_networks_follow_the_lazy_laws():
    measured = lazy_slopes(2, (32, 128), 32)
    # Measured: 3e-4; 0.16 and 0.06; 0.02.
    assert_lazy_laws(2, measured, alpha_error=3e-3, width_error=(0.25, 0.12), variance_error=0.25)
    assert_fails(lambda: np.testing.assert_allclose(measured[1][0], -0.5, atol=0.25))  # as printed


@pytest.mark.slow
@pytest.mark.x64_only
def test_relu_networks_have_an_intermediate_slope():
    """One step of descent moves weights by 1/alpha, which is all that the counting of switches supposes."""
    keys = jr.split(jr.key(2), 2)
    x = jr.normal(keys[0], (100, 3))
    y = jnp.sign(x[:, :1] * x[:, 1:2])
    alphas, far, widths = jnp.array([0.3, 1.0, 3.0, 10.0]), jnp.array([1e6, 1e7]), (1024, 4096)

    @eqx.filter_jit
    def change(width, alphas):
        def one(alpha, seed):
            start = problem(width, 1, alpha, jr.key(seed), js.nets.relu, x, y)
            gradient = jax.grad(start.objective)(start.params)
            moved = jax.tree.map(lambda w, g, eta: w - eta * g, start.params, gradient, start.eta)
            return js.kernels.relative_change(start.kernel(moved, x), start.kernel(start.params, x)) ** 2

        lanes = jnp.stack(jnp.meshgrid(alphas, jnp.arange(12.0)), axis=-1).reshape(-1, 2)
        squares = jax.lax.map(lambda lane: one(lane[0], lane[1].astype(int)), lanes)
        return jnp.sqrt(jnp.mean(squares.reshape(12, -1), axis=0))

    law, smooth = lazy_scaling(1).kernel_change_relu, lazy_scaling(1).kernel_change_lazy
    measured = [np.asarray(change(width, alphas)) for width in widths]
    in_alpha = slopes(measured[1], alphas)
    np.testing.assert_allclose(in_alpha, law.alpha, atol=0.1)  # measured 0.053, 12 starts
    np.testing.assert_allclose(slopes(np.array(measured)[:, 0], widths), law.width, atol=0.1)  # measured 0.053
    np.testing.assert_allclose(slopes(change(widths[0], far), far), smooth.alpha, atol=1e-3)


@pytest.mark.filterwarnings("ignore:.*lanes can be trusted")  # exponents ask for less
@pytest.mark.x64_only
@pytest.mark.slow
def test_feature_learning_networks_follow_their_laws():
    """Two hidden layers, alpha down to 1e-5/sqrt(h): the heuristic exponents, and not those of one layer.

    Measured: -1.43 for -4/3, -0.36 for -1/3, 1.03 for 1.
    """
    depth, width, seeds = 2, 24, 8
    alphas, laws, other = jnp.array([1e-2, 1e-5]) / width**0.5, lazy_scaling(2), lazy_scaling(1)
    end = lambda fraction: js.GradientFlow(rtol=1e-4, atol=1e-7, until=js.until.loss_fraction(fraction))
    kernel, weights, _, _ = trained(width, depth, alphas, seeds, end(0.05), 1.0)
    half = trained(width, depth, alphas, seeds, end(0.5), 1.0)[2]
    size = lambda values: np.exp(np.mean(np.log(values), axis=1))
    for values, law, wrong, error in [
        (kernel, laws.kernel_change_feature.alpha, other.kernel_change_feature.alpha, 0.15),
        (weights, laws.weight_change_feature.alpha, other.weight_change_feature.alpha, 0.05),
        (half, laws.half_loss_time_feature.alpha, 1.5, 0.08),
    ]:
        slope = slopes(size(values), alphas)
        np.testing.assert_allclose(slope, law, atol=error)
        assert_fails(lambda s=slope, w=wrong, e=error: np.testing.assert_allclose(s, w, atol=e))


@pytest.mark.x64_only
@pytest.mark.slow
def test_feature_learning_depends_on_width_through_sqrt_h_alpha():
    scaled, widths, law = 1e-2, (16, 64), lazy_scaling(2).kernel_change_feature
    flow = js.GradientFlow(rtol=1e-4, atol=1e-7, until=js.until.loss_fraction(0.05))
    at = [trained(w, 2, jnp.array([scaled / w**0.5]), 12, flow, 1.0)[0][0] for w in widths]
    means = np.exp([np.mean(np.log(one)) for one in at])
    # Along alpha = scaled/sqrt(h) the law is constant.
    np.testing.assert_allclose(slopes(means, widths), law.width - law.alpha / 2, atol=0.2)  # measured 0.10


@pytest.mark.slow
@pytest.mark.x64_only
def test_orders_of_gradients_and_velocities_at_the_start():
    """Equations 11 and 12, entry by entry, of weights in units of their start: powers of h, and -1 of alpha."""
    widths, depth = (32, 128), 3

    @functools.partial(jax.jit, static_argnums=0)
    @functools.partial(jax.vmap, in_axes=(None, None, 0))
    def sizes(width, alpha, seed):
        rule = js.nets.Scaling.lazy(alpha, gain=True).with_bias(eta=alpha**-2)
        net = js.nets.MLP(
            in_size=4,
            out_size=1,
            width_size=width,
            depth=depth,
            activation=SOFTPLUS,
            bias=True,
            scaling=rule,
            key=jr.key(seed),
        )
        problem = js.Problem(net, X, Y, loss=js.losses.SoftHinge(20.0), centered=True)
        output = jax.grad(lambda params: problem.outputs(params)[0, 0] / alpha)(problem.params)
        slope = jax.grad(problem.objective)(problem.params)
        moved = jax.tree.map(lambda eta, g: eta * g, problem.eta, slope)
        square = lambda tree: [jnp.mean(leaf**2) for leaf in [*tree.weights[1:], *tree.biases[:-1]]]
        return jnp.array([square(output), square(moved)])

    mean = lambda width, alpha: np.log(np.mean(sizes(width, jnp.asarray(alpha), jnp.arange(300)), axis=0)) / 2
    narrow, wide = (mean(width, 1.0) for width in widths)
    inner, outer = [-1.0] * (depth - 1), [-0.5] * (depth + 1)  # hidden matrices; the last one and the biases

    def check(expected):
        np.testing.assert_allclose((wide - narrow) / np.log(4), np.stack([expected, expected]), atol=0.1)

    check(inner + outer)
    assert_fails(lambda: check([-0.5] * len(inner + outer)))
    change = mean(widths[0], 10.0) - narrow
    np.testing.assert_allclose(change / np.log(10), [[0] * 2 * depth, [-1] * 2 * depth], atol=1e-10)


@pytest.mark.parametrize(("depth", "error"), [(0, ValueError), (1.5, TypeError), (True, TypeError)])
def test_bad_depths_are_refused(as_users, depth, error):
    with pytest.raises(error, match="depth must be an integer >= 1"):
        lazy_scaling(depth)
