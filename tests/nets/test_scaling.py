import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve import Problem
from jaxsolve.nets import MLP, Optimizers, partition, Prescription, Scaling, ScalingRule, Transformer
from tests.cases import assert_fails, eps, inputs, mlp, problem, scaling


# Three weight matrices, all sizes different: what depends on the wrong one shows.
FANS = ((3, 4), (4, 16), (16, 2))
GAIN = 1.25


def _exponents(**options):
    return Scaling.from_exponents(c_gamma=-0.5, c_u=-1.0, c_w=-2.0, c_eta_u=0.5, c_eta_w=1.0, **options)


# rule: multiplier, sigma, eta, gamma, written by hand
RULES = {
    "ntk": (Scaling.ntk(), [3**-0.5, 1 / 2, 1 / 4], [1, 1, 1], [1, 1, 1], 1),
    "ntk, gain": (Scaling.ntk(0.1, gain=True), [3**-0.5, 1.25 / 2, 1.25 / 4], [1, 1, 1], [1, 1, 1], 0.1),
    "mean_field": (Scaling.mean_field(), [3**-0.5, 1 / 2, 1 / 16], [1, 1, 1], [16, 16, 16], 1),
    "standard": (Scaling.standard(), [1, 1, 1], [3**-0.5, 1 / 2, 1 / 4], [1, 1, 1], 1),
    "xavier": (Scaling.xavier(), [1, 1, 1], [(2 / 7) ** 0.5, 0.1**0.5, 1 / 3], [1, 1, 1], 1),
    "kaiming": (Scaling.kaiming(), [1, 1, 1], [1.25 * 3**-0.5, 1.25 / 2, 1.25 / 4], [1, 1, 1], 1),
    "mup": (Scaling.mup(), [1, 1, 1], [3**-0.5, 1 / 2, 1 / 16], [4, 1, 1 / 16], 1),
    "mup, adam": (Scaling.mup(adam=True), [1, 1, 1], [3**-0.5, 1 / 2, 1 / 16], [1, 1 / 4, 1 / 16], 1),
    "lazy": (Scaling.lazy(5.0), [3**-0.5, 1 / 2, 1 / 4], [1, 1, 1], [0.04, 0.04, 0.04], 5),
    "lazy, gain": (Scaling.lazy(5, gain=True), [3**-0.5, 1.25 / 2, 1.25 / 4], [1, 1, 1], [0.04] * 3, 5),
    "exponents of the width": (_exponents(), [1, 1, 1], [1 / 16, 1 / 16, 1 / 4], [16, 16, 4], 1 / 4),
    "exponents of kappa": (_exponents(kappa=9.0, gamma=2), [1, 1, 1], [1 / 9, 1 / 9, 1 / 3], [9, 9, 3], 2 / 3),
}


def _assert_equal(made, multiplier, sigma, eta, gamma):
    np.testing.assert_allclose(made.multiplier, multiplier, rtol=eps(4))
    np.testing.assert_allclose(made.sigma, sigma, rtol=eps(4))
    np.testing.assert_allclose(made.eta, eta, rtol=eps(4))
    np.testing.assert_allclose(made.gamma, gamma, rtol=eps(4))


@pytest.mark.parametrize("name", RULES)
def test_rules(name):
    rule, *expected = RULES[name]
    made = rule(FANS, GAIN)
    _assert_equal(made, *expected)
    for other in set(RULES) - {name}:
        assert_fails(lambda other=other: _assert_equal(made, *RULES[other][1:]))
    assert len(made) == 3
    assert float(made.bias_sigma) == 0
    # Only where an output scale is undone by the rates, those of biases are too.
    np.testing.assert_allclose(made.bias_eta, 0.04 if "lazy" in name else 1, rtol=eps(4))
    wanted = {"mup": Optimizers.GRADIENT, "mup, adam": Optimizers.ADAM}.get(name, Optimizers.ANY)
    assert made.optimizers is wanted


OWN_FACTORS = {
    "ntk": Scaling.ntk,
    "mean_field": Scaling.mean_field,
    "standard": Scaling.standard,
    "xavier": Scaling.xavier,
    "kaiming": Scaling.kaiming,
    "mup": Scaling.mup,
    "lazy": lambda gamma, **factors: Scaling.lazy(gamma, **factors),
    "from_exponents": lambda gamma, **factors: _exponents(gamma=gamma, **factors),
}


@pytest.mark.parametrize("name", OWN_FACTORS)
def test_factors_on_sigma_and_eta_for_all_layers_or_each(name):
    rule = OWN_FACTORS[name]
    plain = rule(2.0)(FANS, GAIN)
    for sigma, eta in ((3.0, 0.5), ([2, 3, 5], [0.1, 0.2, 0.3]), (np.array([2.0, 3.0, 5.0]), jnp.asarray(0.5))):
        made = rule(2.0, sigma=sigma, eta=eta)(FANS, GAIN)
        expected = np.asarray(sigma) * np.asarray(plain.sigma), np.asarray(eta) * np.asarray(plain.eta)
        _assert_equal(made, plain.multiplier, *expected, plain.gamma)


def test_scales_of_biases():
    made = Scaling.standard(eta=2).with_bias(sigma=0.5, eta=3)(FANS)
    assert (float(made.bias_sigma), float(made.bias_eta)) == (0.5, 3.0)
    np.testing.assert_array_equal(made.eta, [2, 2, 2])


def test_a_law_of_ones_own():
    def law(layer):
        return Prescription(layer.position + 1.0, layer.layers, layer.fan_out, 0.1 if layer.last else 100)

    made = ScalingRule(law, 3.0)(FANS)
    _assert_equal(made, [1, 2, 3], [3, 3, 3], [4, 16, 2], 0.3)


def test_kaiming_of_a_relu_has_variance_two_over_fan_in(getkey):
    net = MLP(in_size=8, out_size=1, width_size=2, depth=1, activation="relu", scaling=Scaling.kaiming(), key=getkey())
    np.testing.assert_allclose(net.scaling.sigma**2, [2 / 8, 2 / 2], rtol=eps(10))


# --- bad input


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scaling([1, 1], [1, -1], [1, 1]), r"sigma must be finite and >= 0, got \[1.0, -1.0\]"),
        (lambda: Scaling([1, 1], [1, 1], [-1, 1]), "eta must be finite and >= 0"),
        (lambda: Scaling([1, 1], [1, 1], [1, np.nan]), "eta must be finite and >= 0"),
        (lambda: Scaling([1, 1], [1, np.inf], [1, 1]), "sigma must be finite and >= 0"),
        (lambda: Scaling([1, 1], [1, 1], [1, 1], np.nan), "gamma holds 1 value.* NaN or infinite"),
        (lambda: Scaling([1, np.inf], [1, 1], [1, 1]), "multiplier holds 1 value"),
        (lambda: Scaling([1, 1], [1, 1], [1, 1], bias_sigma=-1.0), "bias_sigma must be finite and >= 0, got -1.0"),
        (lambda: Scaling([1, 1], [1, 1], [1, 1], bias_eta=-1.0), "bias_eta must be finite and >= 0, got -1.0"),
        (lambda: Scaling([1, 1], [1, 1, 1], [1, 1]), r"must all have shape \(layers,\), got .*\(3,\)"),
        (lambda: Scaling(1.0, 1.0, 1.0), r"must all have shape \(layers,\)"),
        (lambda: Scaling([], [], []), r"must all have shape \(layers,\)"),
        (lambda: Scaling([1], [1], [1], [1.0, 2.0]), "gamma, bias_sigma and bias_eta must be single numbers"),
        (lambda: Scaling.ntk(sigma=-1), "sigma must be finite and >= 0, got -1.0"),
        (lambda: Scaling.ntk(eta=[1.0, -2.0]), r"eta must be finite and >= 0, got \[1.0, -2.0\]"),
        (lambda: Scaling.ntk(gamma=np.inf), "gamma holds 1 value"),
        (lambda: Scaling.ntk().with_bias(sigma=-1), "bias sigma must be finite and >= 0"),
        (lambda: Scaling.ntk().with_bias(eta=-1), "bias eta must be finite and >= 0"),
        (lambda: Scaling.lazy(0.0), "lazy needs alpha > 0, got 0.0"),
        (lambda: Scaling.lazy(-2), "lazy needs alpha > 0, got -2"),
        (lambda: _exponents(kappa=-2.0)(FANS), "must be finite and >= 0"),
        (
            lambda: Scaling.ntk(sigma=[1, 1])(FANS),
            r"sigma must be one number or one per weight matrix: .* 3, got .*\(2,\)",
        ),
        (lambda: Scaling.ntk(eta=[1, 1])(FANS), "eta must be one number or one per weight matrix"),
    ],
)
def test_bad_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.usefixtures("as_users")
def test_bad_types():
    with pytest.raises(TypeError, match="sigma must be an array of real numbers, got str 'big'"):
        Scaling.ntk(sigma="big")
    with pytest.raises(TypeError, match="eta must be an array of real numbers"):
        Scaling([1.0], [1.0], None)
    for number in (1j, "2", None, 10**30):
        with pytest.raises(TypeError, match=f"alpha must be an array of real numbers, got {type(number).__name__}"):
            Scaling.lazy(number)
    with pytest.raises(TypeError, match="c_eta_w"):
        Scaling.from_exponents(c_gamma=0.0, c_u=0.0, c_w=0.0, c_eta_u=0.0)  # pyright: ignore[reportCallIssue]


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    "make",
    [
        lambda: Scaling.ntk(gamma=1j),
        lambda: Scaling.ntk(eta=2 + 1j),
        lambda: Scaling.ntk().with_bias(sigma=1j),
        lambda: Scaling([1j, 1.0], [1.0, 1.0], [1.0, 1.0]),
    ],
)
def test_complex_numbers_do_not_lose_their_imaginary_part(make):
    with pytest.raises(TypeError, match="must be an array of real numbers, got (complex|list)"):
        make()


def test_nothing_raises_inside_a_trace_but_valid_tells():
    @jax.jit
    @jax.vmap
    def valid(sigma, eta, gamma, bias_sigma):
        rule = Scaling.ntk(gamma, sigma=sigma, eta=eta).with_bias(sigma=bias_sigma)
        return rule(FANS).valid

    nan, inf = np.nan, np.inf
    sigma, eta, gamma, bias_sigma = jnp.asarray(
        [[1, 1, 1, 0], [-1, 1, 1, 0], [1, -1, 1, 0], [1, 1, -1, 0], [1, nan, 1, 0], [inf, 1, 1, 0], [1, 1, nan, 0],
         [1, 1, 1, -1.0]]
    ).T  # fmt: skip
    np.testing.assert_array_equal(valid(sigma, eta, gamma, bias_sigma), [1, 0, 0, 1, 0, 0, 0, 0])


# --- hyperparameters are data


def test_changing_hyperparameters_or_the_key_never_recompiles(getkey):
    traces = []

    @jax.jit
    def output(sigma, eta, gamma, key, x):
        traces.append(1)
        rule = Scaling.lazy(gamma, sigma=sigma, eta=eta).with_bias(sigma=sigma)
        net = MLP(in_size=3, out_size=2, width_size=5, depth=2, activation="tanh", bias=True, scaling=rule, key=key)
        return net(x), net.scaling.eta

    x = inputs(getkey(), 1)[0]
    results = [output(s, e, g, getkey(), x) for s, e, g in ((1.0, 1.0, 1.0), (0.1, 2.0, 3.0), (0.0, 0.5, 7.0))]
    assert len(traces) == 1
    assert len({float(f[0]) for f, _ in results}) == 3
    np.testing.assert_allclose([float(eta[0]) for _, eta in results], [1, 2 / 9, 0.5 / 49], rtol=eps(4))


@pytest.mark.parametrize("name", RULES)
def test_however_hyperparameters_are_given_the_network_compiles_once(name, getkey):
    key, x = getkey(), inputs(getkey(), 1)[0]

    @jax.jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def output(net):
        return net(x)

    for given_ in (2, 2.0, np.float64(2), np.asarray(2.0), np.float32(2), jnp.asarray(2.0), jnp.asarray(2)):
        rule = RULES[name][0]
        rule = ScalingRule(
            rule.law, given_, sigma=given_, eta=[given_] * 3, kappa=None if rule.kappa is None else given_
        )
        net = MLP(in_size=3, out_size=2, width_size=5, depth=2, scaling=rule, bias=True, key=key)
        leaves = [leaf for leaf in jax.tree.leaves(net) if eqx.is_array(leaf)]
        assert len(leaves) == 3 + 3 + 6
        assert not any(leaf.weak_type for leaf in leaves)
        assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.result_type(float))}
        output(net)


def test_leaves_are_never_weakly_typed():
    one = jnp.asarray(0.5)
    for made in (
        scaling(3),
        Scaling([1, 1.0], (1, 2), [one, one], 0.5, bias_sigma=1, bias_eta=np.float64(2)),
        Scaling.ntk(),
    ):
        assert not any(leaf.weak_type for leaf in jax.tree.leaves(made))
        assert {leaf.dtype for leaf in jax.tree.leaves(made)} == {jnp.dtype(jnp.result_type(float))}


def test_maps_over_hyperparameters(getkey):
    key, x = getkey(), inputs(getkey(), 1)[0]

    def output(gamma, sigma):
        return MLP(in_size=3, out_size=2, width_size=5, depth=2, scaling=Scaling.standard(gamma, sigma=sigma), key=key)(
            x
        )

    gammas, sigmas = jnp.asarray([0.5, -1.0, 2.0]), jnp.asarray([1.0, 0.3, 2.0])
    many = jax.jit(jax.vmap(output))(gammas, sigmas)
    for index in range(3):
        np.testing.assert_allclose(many[index], output(gammas[index], sigmas[index]), rtol=eps(50), atol=eps(10))
    # a ReLU network without biases is homogeneous: f = gamma sigma^3 f_1, so df/dgamma = f/gamma and so on
    slopes = jax.jacobian(output, argnums=(0, 1))(2.0, 0.7)
    np.testing.assert_allclose(slopes[0], output(2.0, 0.7) / 2.0, rtol=eps(50))
    np.testing.assert_allclose(slopes[1], 3 * output(2.0, 0.7) / 0.7, rtol=eps(50))


# --- what the rules mean


def _rescaled(values, factors):
    """The abc symmetry (m, sigma, eta) -> (s m, sigma/s, eta/s^2), layer by layer."""
    return eqx.tree_at(
        lambda s: (s.multiplier, s.sigma, s.eta),
        values,
        (values.multiplier * factors, values.sigma / factors, values.eta / factors**2),
    )


FACTORS = jnp.asarray([2.3, 0.4, 1.7])


def _abc_problems(getkey):
    """The problem, its image under the symmetry, and a twin whose last eta is left as it was."""
    key, data, values = getkey(), getkey(), scaling(3)
    image = _rescaled(values, FACTORS)
    twin = eqx.tree_at(lambda s: s.eta, image, image.eta.at[-1].set(values.eta[-1]))
    sizes = {"bias": True, "key": key}
    return [
        problem(MLP(in_size=3, out_size=2, width_size=5, depth=2, activation="tanh", scaling=s, **sizes), data)
        for s in (values, image, twin)
    ]


@pytest.mark.x64_only
def test_abc_symmetry_of_gradient_flow(getkey):
    ts = jnp.asarray([0.3, 1.0, 5.0])
    dynamics = js.GradientFlow(rtol=1e-9, atol=1e-12)
    runs = [js.solve(p, dynamics, ts, observe=js.observe.outputs())["outputs"] for p in _abc_problems(getkey)]
    assert jnp.min(jnp.max(jnp.abs(jnp.diff(runs[0], axis=0)), axis=(1, 2))) > 0.05  # it moves
    check = lambda run: np.testing.assert_allclose(run, runs[0], atol=3e-9)
    check(runs[1])
    assert_fails(lambda: check(runs[2]))


def test_abc_symmetry_of_gradient_descent(getkey):
    ts = jnp.asarray([0.1, 1.0, 3.0])
    dynamics = js.Descent(optax.sgd(0.1))
    runs = [js.solve(p, dynamics, ts, observe=js.observe.outputs())["outputs"] for p in _abc_problems(getkey)]
    assert jnp.min(jnp.max(jnp.abs(jnp.diff(runs[0], axis=0)), axis=(1, 2))) > 0.05
    check = lambda run: np.testing.assert_allclose(run, runs[0], atol=eps(30))
    check(runs[1])
    assert_fails(lambda: check(runs[2]))


@settings(max_examples=20, deadline=None)
@given(logs=st.lists(st.floats(-3, 3), min_size=3, max_size=3))
def test_abc_symmetry_of_function_and_kernel_at_the_start(logs):
    key, x = jax.random.key(0), inputs(jax.random.key(1))
    one = MLP(in_size=3, out_size=2, width_size=5, depth=2, activation="tanh", bias=True, scaling=scaling(3), key=key)
    two = MLP(
        in_size=3,
        out_size=2,
        width_size=5,
        depth=2,
        activation="tanh",
        bias=True,
        scaling=_rescaled(scaling(3), jnp.exp(jnp.asarray(logs))),
        key=key,
    )
    for a, b in zip(two.biases, one.biases, strict=True):
        np.testing.assert_array_equal(a, b)
    (f, kernel), (g, image) = _function_and_kernel(one, x), _function_and_kernel(two, x)
    np.testing.assert_allclose(g, f, atol=eps(50))
    np.testing.assert_allclose(image, kernel, atol=eps(500))


@jax.jit
def _function_and_kernel(net, x):
    return jax.vmap(net)(x), js.kernels.empirical(net, x, eta=net.rates()).ntk


@pytest.mark.parametrize(
    ("one", "two", "without_rates"),
    [
        # m = 1/sqrt(fan_in) against sigma = 1/sqrt(fan_in): s = sqrt(fan_in)
        (Scaling.ntk(), Scaling.standard(eta=[1 / 3, 1 / 5, 1 / 5]), Scaling.standard()),
        # mup against mean field: s = sqrt(d), sqrt(h), h, where mup's first rate leaves out the data's dimension d
        (Scaling.mean_field(eta=[3, 1, 1]), Scaling.mup(), Scaling.mup(eta=[1 / 5, 1, 5])),
    ],
)
def test_rules_joined_by_the_symmetry(one, two, without_rates, getkey):
    key, x = getkey(), inputs(getkey())
    made = (
        MLP(in_size=3, out_size=2, width_size=5, depth=2, activation="tanh", scaling=rule, key=key)
        for rule in (one, two, without_rates)
    )
    (f, kernel), *others = [_function_and_kernel(net, x) for net in made]
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=eps(100), atol=eps(100))
    for other_f, _ in others:
        close(other_f, f)
    close(others[0][1], kernel)
    assert_fails(lambda: close(others[1][1], kernel))  # all rates 1: the same function, moved by another kernel


def test_lazy_is_the_flow_of_alpha_f_under_the_loss_over_alpha_squared(getkey):
    alpha, key, data = 30.0, getkey(), getkey()
    make = lambda rule: MLP(in_size=3, out_size=2, width_size=5, depth=2, activation="tanh", scaling=rule, key=key)
    lazy = problem(make(Scaling.lazy(alpha)), data, centered=True)
    plain = problem(make(Scaling.ntk()), data, centered=True)
    moved = jax.tree.map(lambda w: w + 0.1, lazy.params)

    def velocity(p, objective):
        return jax.tree.map(lambda rate, g: -rate * g, p.eta, jax.grad(objective)(moved))

    def chizat(params):
        return jnp.mean(jnp.sum((alpha * plain.predict(params, plain.x) - plain.y) ** 2, 1)) / 2 / alpha**2

    for a, b in zip(
        jax.tree.leaves(velocity(lazy, lazy.objective)), jax.tree.leaves(velocity(plain, chizat)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=eps(1e3), atol=eps(10))


def test_widths_at_which_features_move_and_at_which_they_do_not(getkey):
    """Hidden weights move by width^-1/2 of their size for ntk, as much at any width for mean field and mup."""
    widths, x, y, root = (64, 1024), inputs(getkey(), 3), jnp.asarray([[1.0], [-1.0], [0.5]]), getkey()
    rules = {"ntk": Scaling.ntk(), "mean_field": Scaling.mean_field(), "mup": Scaling.mup()}

    def moved(width):
        def distance(values, key):
            net = MLP(in_size=3, out_size=1, width_size=width, depth=1, activation="tanh", scaling=values, key=key)
            start = js.Problem(net, x, y, centered=True)
            step = lambda w, rate, g: w - 0.1 * rate * g
            descend = lambda _, p: jax.tree.map(step, p, start.eta, jax.grad(start.objective)(p))
            end = jax.lax.fori_loop(0, 10, descend, start.params)
            return jnp.linalg.norm(end.weights[0] - net.weights[0]) / jnp.linalg.norm(net.weights[0])

        made = [rule(((3, width), (width, 1))) for rule in rules.values()]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[_of_any_optimizer(s) for s in made])
        over_keys = jax.vmap(distance, in_axes=(None, 0))
        return jnp.mean(jax.jit(jax.vmap(over_keys, in_axes=(0, None)))(stacked, jax.random.split(root, 8)), axis=1)

    logs = np.log(np.stack([moved(width) for width in widths]))
    slopes = dict(zip(rules, np.polyfit(np.log(widths), logs, 1)[0], strict=True))
    assert slopes["ntk"] == pytest.approx(-0.5, abs=0.05)
    assert slopes["mean_field"] == pytest.approx(0, abs=0.05)
    assert slopes["mup"] == pytest.approx(0, abs=0.05)


def _of_any_optimizer(values):
    return Scaling(values.multiplier, values.sigma, values.eta, values.gamma)


def test_unequal_helper_is_what_it_says(getkey):
    values = jax.tree.leaves(mlp(getkey()).scaling)
    numbers = np.concatenate([np.ravel(v) for v in values])
    assert len(set(numbers.round(6))) == len(numbers)


def test_a_lazy_kernel_does_not_depend_on_alpha_with_biases():
    def kernel(alpha):
        net = MLP(
            in_size=3,
            out_size=1,
            width_size=6,
            depth=2,
            activation="tanh",
            bias=True,
            scaling=Scaling.lazy(alpha),
            key=jr.key(0),
        )
        return Problem(net, jnp.eye(3), jnp.ones((3, 1))).kernel(partition(net)[0], jnp.eye(3))

    np.testing.assert_allclose(kernel(10.0), kernel(1.0), rtol=eps(1e3))  # at rate 1 biases count a hundredfold


def test_positions_and_symbols_both_act_on_the_data():
    rates = {}
    for width in (16, 32):
        net = Transformer(in_shape=(4, 5), out_size=2, width_size=width, scaling=Scaling.mup(), key=jr.key(0))
        rates[width] = net.scaling.eta
    np.testing.assert_allclose(rates[32] / rates[16], [2, 2, *[1] * 6, 0.5])


def test_a_bias_keeps_what_is_not_given():
    rule = Scaling.lazy(10.0).with_bias(sigma=0.5)
    np.testing.assert_allclose([rule.bias_sigma, rule.bias_eta], [0.5, 0.01], rtol=eps(10))
    assert float(rule.with_bias(eta=2.0).bias_sigma) == 0.5
