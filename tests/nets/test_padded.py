"""Padded networks against the networks that they stand for, which know nothing of padding."""

import functools
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from jaxsolve import kernels
from jaxsolve.nets import (
    ConvNet,
    DeepLinear,
    Gaussian,
    Given,
    LambdaBalanced,
    Mirrored,
    MLP,
    NearParallel,
    Padded,
    partition,
    rates,
    ResNet18,
    Scaling,
    softplus,
    Sphere,
    TwoLayerLinear,
    WideResNet,
)
from tests.cases import assert_fails, eps, inputs, problem, scaling, slow_after
from tests.inside import LayeredJacobian, Mask


UNITS, SIZE = 4, 7
PADDED = Padded(UNITS, SIZE)
ACTIVATIONS = {"softplus": softplus(5.0), "relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "linear": "linear"}


def _mlp(width: Any, activation: Any = "softplus", *, depth: int = 2, bias: bool = True, **options: Any) -> MLP:
    rule = Scaling.ntk(0.75, sigma=1.3).with_bias(sigma=0.3, eta=0.65)
    settings: dict[str, Any] = {"scaling": rule, "key": jr.key(3), **options}
    return MLP(
        in_size=3,
        out_size=2,
        width_size=width,
        depth=depth,
        activation=ACTIVATIONS.get(activation, activation),
        bias=bias,
        **settings,
    )


def _pair(*args: Any, **options: Any) -> tuple[MLP, MLP]:
    return _mlp(UNITS, *args, **options), _mlp(PADDED, *args, **options)


def _own(tree: Any) -> list[Any]:
    """The weights and biases of the units that are kept."""
    weights, last = list(tree.weights), len(tree.weights) - 1
    rows = [slice(None) if layer == last else slice(UNITS) for layer in range(last + 1)]
    columns = [slice(UNITS) if layer else slice(None) for layer in range(last + 1)]
    own = [w[..., row, column] for w, row, column in zip(weights, rows, columns, strict=True)]
    return own + [b[..., row] for b, row in zip(tree.biases, rows, strict=False)]


def _assert_zero_behind(tree: Any) -> None:
    """Every number that is not of a kept unit is 0.0."""
    inside = _own(tree)
    everything = [*tree.weights, *tree.biases]
    for array, kept in zip(everything, inside, strict=True):
        behind = np.ones(array.shape, bool)
        behind[tuple(slice(size) for size in kept.shape)] = False
        np.testing.assert_array_equal(np.asarray(array)[behind], 0)
    assert sum(a.size for a in everything) > sum(a.size for a in inside)


def _same(found: Any, expected: Any, units: float = 100) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=eps(units) * (1 + np.max(np.abs(b)))),
        found,
        expected,
    )


# --- the start


@pytest.mark.parametrize(
    "init", [Gaussian(), Sphere(), Mirrored(), Mirrored(Sphere())], ids=["Gaussian", "Sphere", "Mirrored", "both"]
)
@pytest.mark.parametrize("depth", slow_after(1, [3, 1]))
def test_the_start_is_that_of_the_width_number_by_number(init, depth):
    plain, padded = _pair(depth=depth, init=init)
    _same(_own(padded), [*plain.weights, *plain.biases], units=4)
    _assert_zero_behind(padded)
    # drawn for all the room and then cut, which is another start: JAX fills arrays row by row
    full = _mlp(SIZE - SIZE % 2, depth=depth, init=init)  # an even width, for Mirrored
    assert_fails(lambda: _same(_own(full), [*plain.weights, *plain.biases], units=4))
    assert jax.tree.map(jnp.shape, padded.weights) == ((SIZE, 3), *[(SIZE, SIZE)] * (depth - 1), (2, SIZE))


def test_near_parallel_starts_are_those_of_the_width():
    make = lambda width: TwoLayerLinear(
        in_size=3, width_size=width, scaling=scaling(2), init=NearParallel(0.2), key=jr.key(5)
    )
    plain, padded = make(UNITS), make(PADDED)
    _same(_own(padded), list(plain.weights), units=4)
    _assert_zero_behind(padded)


def test_given_arrays_lose_what_is_behind(getkey):
    arrays = [jr.normal(getkey(), shape) for shape in ((SIZE, 3), (SIZE, SIZE), (2, SIZE))]
    net = _mlp(PADDED, bias=False, init=Given(arrays))
    _assert_zero_behind(net)
    full = _mlp(SIZE, bias=False, init=Given(arrays))
    for one, two in zip(_own(net), _own(full), strict=True):
        np.testing.assert_array_equal(one, two)


RULES = {
    "ntk": Scaling.ntk(0.3, gain=True),
    "mean_field": Scaling.mean_field(),
    "standard": Scaling.standard(),
    "xavier": Scaling.xavier(),
    "kaiming": Scaling.kaiming(),
    "mup": Scaling.mup(),
    "mup, adam": Scaling.mup(adam=True),
    "lazy": Scaling.lazy(5.0),
    "exponents": Scaling.from_exponents(c_gamma=-0.5, c_u=-1.0, c_w=-2.0, c_eta_u=0.5, c_eta_w=1.0),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_of_scaling_see_the_units(name):
    plain, padded = (_mlp(width, scaling=RULES[name]).scaling for width in (UNITS, PADDED))
    _same(padded, plain, units=4)
    wider = _mlp(Padded(UNITS + 1, SIZE), scaling=RULES[name]).scaling
    assert_fails(lambda: _same(wider, plain, units=4))
    assert padded.optimizers is plain.optimizers


# --- what is computed


@pytest.mark.parametrize("name", slow_after(2, ACTIVATIONS))
def test_outputs_kernels_and_conserved_quantities(name, getkey):
    plain, padded = _pair(name)
    x = inputs(getkey())
    _same(jax.vmap(padded)(x), jax.vmap(plain)(x))
    one, two = (kernels.empirical(net, x, eta=rates(net), by_layer=True) for net in (plain, padded))
    _same((two.ntk, two.layers), (one.ntk, one.layers))
    assert not two.fallbacks
    assert_fails(lambda: _same(two.ntk, kernels.empirical(plain, x).ntk))  # without the rates
    quantities = [net.conserved(partition(net)[0], rates(net)) for net in (plain, padded)]
    assert len(quantities[0]) == len(quantities[1]) == (2 if name in ("relu", "linear") else 0)
    for expected, found in zip(*quantities, strict=True):
        value = np.array(found.value)
        inside = np.ix_(*[range(UNITS)] * value.ndim)
        _same(value[inside], expected.value)
        value[inside] = 0
        np.testing.assert_array_equal(value, 0)
        _same(found.scale, expected.scale)


@pytest.mark.slow
def test_other_routes_to_the_kernel(getkey):
    """By products, and by the signals of `FunctionSpace`."""
    plain, padded = _pair()
    x, eta = inputs(getkey(), 3), rates(padded)
    expected = kernels.empirical(plain, x, eta=rates(plain)).ntk
    jacobian = LayeredJacobian(padded, x)
    _same(jacobian.ntk(eta), expected)
    q = jr.normal(getkey(), (3, 2))
    pulled = jacobian.pull(q)
    _assert_zero_behind(pulled)
    _same(_own(pulled), _own(LayeredJacobian(plain, x).pull(q)))
    noise = jax.tree.map(lambda p: jr.normal(getkey(), p.shape), partition(padded)[0])
    _, pushed = jax.jvp(lambda p: jax.vmap(eqx.combine(p, padded))(x), (partition(padded)[0],), (noise,))
    _same(jacobian.push(noise), pushed)


def test_infinite_width_refuses(getkey):
    with pytest.raises(ValueError, match="this MLP is padded; for its infinite width make it with an integer"):
        kernels.infinite(_mlp(PADDED), inputs(getkey()))


# --- how it moves


TS = (0.0, 0.5, 2.0)
DYNAMICS = {
    "flow": (js.GradientFlow(diffrax.Dopri8(), rtol=1e-12, atol=1e-14), 3e-12),
    "function space": (js.GradientFlow(js.integrators.FunctionSpace()), 1e-12),
    "descent": (js.Descent(optax.sgd(0.05)), 1e-12),
    "momentum": (js.Descent(optax.sgd(0.005, momentum=0.9)), 1e-12),
    "adam": (js.Descent(optax.adam(0.05)), 1e-12),
}


def _runs(dynamics, *args, **options):
    observe = [js.observe.loss(), js.observe.outputs()]
    return [
        js.solve(problem(net, jr.key(1)), dynamics, TS, observe=observe) for net in _pair(*args, depth=1, **options)
    ]


@pytest.mark.x64_only
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "adam" else pytest.mark.slow) for name in DYNAMICS]
)
def test_trajectories(name):
    dynamics, tolerance = DYNAMICS[name]
    plain, padded = _runs(dynamics)
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=tolerance)
    close(padded["loss"], plain["loss"])
    close(padded["outputs"], plain["outputs"])
    _assert_zero_behind(padded.final.net)
    for found, expected in zip(_own(padded.final.net), _own(plain.final.net), strict=True):
        close(found, expected)
    assert plain["loss"][-1] < 0.9 * plain["loss"][0]


@pytest.mark.slow
@pytest.mark.parametrize("flow", [js.GradientFlow, functools.partial(js.MomentumFlow, tau=0.3)])
def test_errors_are_measured_by_what_is_kept(flow):
    """So many zeros would else hide them, and steps be longer."""
    nets = [_mlp(width, depth=1) for width in (UNITS, Padded(UNITS, 50 * UNITS))]
    tolerances = {"rtol": 1e-3, "atol": 1e-4}
    plain, padded = (
        js.solve(problem(net, jr.key(1)), flow(integrator=diffrax.Tsit5(), **tolerances), TS) for net in nets
    )
    assert padded.stats.steps == plain.stats.steps
    assert padded.certificate is not None
    assert plain.certificate is not None
    found, expected = padded.certificate.step_error, plain.certificate.step_error
    np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_padding_counts_parameters(depth, bias):
    plain, padded = _pair(depth=depth, bias=bias)
    count = lambda net: sum(leaf.size for leaf in (*net.weights, *net.biases))
    assert padded.padding == pytest.approx(count(padded) / count(plain), rel=eps(4))
    assert plain.padding == 1


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_is_behind_stays_zero(name):
    """Steps of one length for every weight whose gradient is not zero. Without a mask such an activation wakes some."""
    net = _mlp(PADDED, name)
    bare = _mlp(SIZE, name, scaling=net.scaling, init=Given(net.weights, net.biases))

    @jax.jit
    def moved(params, start):
        for _ in range(3):
            params = jax.tree.map(lambda p, g: p - 0.1 * jnp.sign(g), params, jax.grad(start.objective)(params))
        return params

    start, without = (problem(one, jr.key(1)) for one in (net, bare))
    ends = [moved(task.params, task) for task in (start, without)]
    _assert_zero_behind(ends[0])
    assert all(jnp.any(before != after) for before, after in zip(_own(start.params), _own(ends[0]), strict=True))
    if name in ("softplus", "sigmoid"):
        assert_fails(lambda: _assert_zero_behind(ends[1]))
    else:
        _same(_own(ends[0]), _own(ends[1]))


# --- theory


LINE_TS = (0.0, 0.7, 3.0, jnp.inf)


@pytest.mark.slow
@pytest.mark.parametrize("form", [js.theory.TwoLayerLine(), js.theory.DecoupledModes()], ids=lambda form: form.name)
def test_closed_forms(form, getkey):
    line = js.data.line(6, 3, key=getkey())

    def run(width, room):
        outer = jnp.concatenate([jnp.asarray([[0.5], [0.2]]), jnp.zeros((room - 2, 1))]) * jnp.ones((1, 3))
        arrays = Given([outer, jnp.concatenate([jnp.asarray([[0.4, 0.3]]), jnp.zeros((1, room - 2))], 1)])
        net = TwoLayerLinear(in_size=3, width_size=width, scaling=Scaling.ntk(2.0), init=arrays, key=getkey())
        return js.solve(js.Problem(net, *line.train), form, LINE_TS, observe=[js.observe.loss(), js.observe.outputs()])

    plain, padded = run(2, 2), run(Padded(2, 5), 5)
    for name in ("loss", "outputs"):
        _same(padded[name], plain[name], units=1e4)
    fewer = run(Padded(1, 5), 5)  # the second unit belongs to the padding
    assert_fails(lambda: _same(fewer["outputs"], plain["outputs"], units=1e4))


# --- transformations


def test_traced_units(getkey):
    """One program for all widths, under jit and vmap, with derivatives."""
    x = inputs(getkey())

    @eqx.debug.assert_max_traces(max_traces=1)
    def both(units, gamma):
        net = _mlp(Padded(units, SIZE), scaling=Scaling.ntk(gamma))
        return jnp.sum(jax.vmap(net)(x) ** 2)

    widths = jnp.arange(1, SIZE + 1)
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(both, argnums=1), (0, None)))(widths, 0.8)
    for units, value, slope in zip(range(1, SIZE + 1), values, slopes, strict=True):
        net = _mlp(units, scaling=Scaling.ntk(0.8))
        expected = jnp.sum(jax.vmap(net)(x) ** 2)
        _same(value, expected)
        _same(slope, 2 / 0.8 * expected)


def test_arithmetic_is_that_of_the_units():
    for calculate in (
        lambda w: 1 / w,
        lambda w: w / 3,
        lambda w: w**0.5,
        lambda w: 2.0**w,
        lambda w: 3 - w,
        lambda w: w - 3,
        lambda w: 2 * w + 1,
        lambda w: 1 + w * 2,
        lambda w: jnp.asarray(2.0) / w,
        lambda w: np.float64(2) * w if jnp.result_type(float) == np.float64 else 2 * w,
        lambda w: jnp.sqrt(jnp.asarray(w, float)),
        lambda w: w * w,
    ):
        _same(calculate(PADDED), jnp.asarray(calculate(UNITS), float), units=4)
    _same(jnp.sqrt(PADDED), jnp.asarray(2.0), units=4)  # pyright: ignore[reportArgumentType]


def test_networks_without_padding_have_no_mask():
    layers = _mlp(UNITS).layers
    assert Mask() not in layers
    assert _mlp(UNITS).units is None
    assert _mlp(PADDED).layers == (*layers[:3], Mask(), *layers[3:6], Mask(), *layers[6:])
    linear = DeepLinear(in_size=3, width_size=PADDED, depth=2, scaling=Scaling.ntk(), key=jr.key(0))
    assert (linear.widths, linear.layers.count(Mask())) == ((SIZE, SIZE), 2)
    assert jax.tree.leaves(partition(_mlp(PADDED))[1])[-1].dtype == jnp.result_type(int)


# --- bad input


@pytest.mark.usefixtures("as_users")
def test_bad_widths(getkey):
    for bad, error, message in (
        ((8, 7), ValueError, "units must be one of 1 to size = 7, got 8"),
        ((0, 7), ValueError, "units must be one of 1 to size = 7, got 0"),
        ((4, 0), ValueError, "size must be an integer >= 1, got 0"),
        ((4, 7.0), TypeError, "size must be an integer >= 1, got float 7.0"),
        ((4.0, 7), TypeError, "units must be an integer, got float 4.0"),
        ((True, 7), TypeError, "units must be an integer, got bool True"),
        (("4", 7), TypeError, "units must be an integer, got str '4'"),
        ((np.arange(3), 7), TypeError, r"units must be an integer, got an array of shape \(3,\)"),
        ((jnp.ones(()), 7), TypeError, r"units must be an integer, got an array of shape \(\) and dtype float"),
    ):
        with pytest.raises(error, match=message):
            Padded(*bad)  # pyright: ignore[reportArgumentType]
    rule, key = Scaling.ntk(), getkey()
    for name, make in {
        "width_size": lambda: ConvNet(in_shape=(1, 8, 8), out_size=2, width_size=PADDED, scaling=rule, key=key),  # pyright: ignore[reportArgumentType]
        "(width_size)": lambda: ResNet18(in_shape=(1, 8, 8), out_size=2, width_size=PADDED, scaling=rule, key=key),  # pyright: ignore
        "k": lambda: WideResNet(in_shape=(1, 8, 8), out_size=2, k=PADDED, b=1, scaling=rule, key=key),  # pyright: ignore
        "in_size": lambda: MLP(in_size=PADDED, out_size=1, width_size=4, depth=1, scaling=rule, key=key),  # pyright: ignore[reportArgumentType]
        "out_size": lambda: MLP(in_size=2, out_size=PADDED, width_size=4, depth=1, scaling=rule, key=key),  # pyright: ignore[reportArgumentType]
    }.items():
        with pytest.raises(TypeError, match=f"{name} cannot be padded here, only the width of MLP.*; give an integer"):
            make()


@pytest.mark.usefixtures("as_users")
def test_starts_that_cannot_be_padded():
    with pytest.raises(ValueError, match=r"LambdaBalanced cannot be padded: .* Use Gaussian\(\), or widths that are"):
        _mlp(PADDED, "linear", init=LambdaBalanced())
    with pytest.raises(ValueError, match="Mirrored needs an even width, got 3"):
        _mlp(Padded(3, SIZE), init=Mirrored())


def test_bad_values_in_traces_make_networks_that_are_not_valid():
    """A number of units out of range; an odd one for a start that mirrors. None raises."""
    task = lambda units, init: js.Problem(_mlp(Padded(units, 6), init=init), jnp.ones((2, 3)), jnp.ones((2, 2)))
    valid = jax.jit(jax.vmap(lambda units: jnp.stack([task(units, i).valid for i in (Gaussian(), Mirrored())])))
    found = valid(jnp.asarray([-1, 0, 1, 2, 5, 6, 7]))
    np.testing.assert_array_equal(found[:, 0], [False, False, True, True, True, True, False])
    np.testing.assert_array_equal(found[:, 1], [False, False, False, True, False, True, False])
