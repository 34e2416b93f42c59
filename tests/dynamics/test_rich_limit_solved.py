"""The rich limit by `js.solve`: against its closed equations, other scalings, more samples and more nodes."""

import re

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from jaxsolve.dynamics.wide import dmft
from jaxsolve.dynamics.wide.dmft import descent_nodes, flow_nodes, normal_form
from tests.cases import assert_fails, eps
from tests.dmft.equations import fixed_point


RATE, STEPS = 0.4, 6
X, Y = jr.normal(jr.key(0), (2, 3)), jnp.array([[0.8, -0.5], [0.3, 1.1]])
TEST = (jr.normal(jr.key(1), (2, 3)), jnp.zeros((2, 2)))
SIGMA, ETA = jnp.array([1.1, 0.8, 0.9]), jnp.array([0.7, 0.5, 0.6])
IDENTITY = js.nets.leaky_relu(1.0)  # not recognized as linear, so that neurons are sampled


def _problem(scaling, *, depth=2, activation: js.nets.Activation | str = "linear", width=64, x=X, y=Y, test=TEST):
    net = js.nets.MLP(
        in_size=x.shape[1],
        out_size=y.shape[1],
        width_size=width,
        depth=depth,
        activation=activation,
        scaling=scaling,
        key=jr.key(0),
    )
    return js.Problem(net, x, y, test=test)


def _rule(layers=3, gamma=0.7):
    return js.nets.Scaling.mean_field(gamma, sigma=SIGMA[:layers], eta=ETA[:layers])


@pytest.mark.x64_only
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("rate", [None, RATE])
def test_linear_networks_solve_the_published_equations(rate, depth):
    problem = _problem(_rule(depth + 1), depth=depth)
    ts = np.linspace(0, 1.5, STEPS + 1) if rate is None else rate * np.arange(STEPS + 1)
    watched = [js.observe.outputs(), js.observe.test_outputs()]
    watched += [
        kind(l) for kind in (js.observe.feature_kernel, js.observe.gradient_kernel) for l in range(1, depth + 1)
    ]
    run = js.solve(problem, js.RichLimit(rate=rate, nodes=1 if rate is None else STEPS), ts, observe=watched)

    # One node besides the requested ones: the first time again.
    nodes = flow_nodes(jnp.asarray([0.0, *ts, ts[-1]])) if rate is None else descent_nodes(STEPS + 1, jnp.asarray(rate))
    here = slice(1, -1) if rate is None else slice(None)
    inputs = np.concatenate([X, TEST[0]])
    push = lambda f: np.concatenate([(np.asarray(Y) - f[:, :2]) / 2, 0 * f[:, 2:]], axis=1)

    def agree(response):
        weights = np.asarray(nodes.weights)
        f, layers = fixed_point(normal_form(problem.net), weights, inputs @ inputs.T, push, 2, response=response)
        close = lambda found, wanted: np.testing.assert_allclose(found, wanted[here], atol=1e-10, rtol=0)
        close(run["outputs"], f[:, :2])
        close(run["test_outputs"], f[:, 2:])
        for l, layer in enumerate(layers, 1):
            close(run[f"feature_kernel_{l}"], np.einsum("titj->tij", layer.h)[:, :2, :2])
            close(run[f"gradient_kernel_{l}"][:, 0, :, 0], np.einsum("tatb->tab", layer.g))

    agree(1.0)
    if depth > 1:  # there are responses of hidden matrices only
        assert_fails(lambda: agree(0.0))


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize("rate", [None, RATE])
def test_derivatives_by_name(rate):
    ts = [0.0, 6 * RATE]

    def last(gamma, sigma, eta):
        problem = _problem(js.nets.Scaling.mean_field(gamma, sigma=sigma, eta=eta))
        return js.solve(problem, js.RichLimit(rate=rate, nodes=6), ts, observe=js.observe.outputs())["outputs"][-1]

    both = jax.jit(lambda at, along: jax.jvp(last, at, along))
    at = (jnp.asarray(0.7), SIGMA, ETA)
    for name, index, layer in [("gamma", 0, ()), *((n, i, l) for n, i in (("sigma", 1), ("eta", 2)) for l in range(3))]:
        along = tuple(
            jnp.zeros_like(a).at[layer].set(1.0) if i == index else jnp.zeros_like(a) for i, a in enumerate(at)
        )
        shifted = [both(tuple(a + h * d for a, d in zip(at, along, strict=True)), along)[0] for h in (1e-5, -1e-5)]
        moved = (shifted[0] - shifted[1]) / 2e-5
        np.testing.assert_allclose(both(at, along)[1], moved, rtol=1e-7, atol=1e-9, err_msg=f"{name} {layer}")
        assert np.abs(moved).max() > 1e-2


@pytest.mark.parametrize(
    ("depth", "activation"),
    [
        (1, "linear"),
        pytest.param(2, "linear", marks=pytest.mark.slow),
        pytest.param(1, "tanh", marks=pytest.mark.slow),
    ],
)
def test_scalings_of_one_normal_form_have_one_limit(depth, activation):
    width, gamma = 256, 0.7
    layers = slice(0, depth + 1)
    sigma, eta, first = SIGMA[layers], ETA[layers], jnp.ones(depth + 1).at[0].set(1 / 3)
    rules = {
        "mean field": js.nets.Scaling.mean_field(gamma, sigma=sigma, eta=eta),
        "mup": js.nets.Scaling.mup(gamma, sigma=sigma, eta=eta * first),
        "lazy": js.nets.Scaling.lazy(gamma * width**-0.5, sigma=sigma, eta=gamma**2 * eta),
    }
    if depth == 1:
        rules["exponents"] = js.nets.Scaling.from_exponents(
            c_gamma=-1.0,
            c_u=0.0,
            c_w=0.0,
            c_eta_u=1.0,
            c_eta_w=1.0,
            gamma=gamma,
            sigma=sigma * first**0.5,
            eta=eta * first,
        )
    watched = [js.observe.outputs(), js.observe.test_outputs(), js.observe.kernel()]
    solve = lambda rule: js.solve(
        _problem(rule, depth=depth, activation=activation, width=width),
        js.RichLimit(rate=RATE, nodes=STEPS, samples=1024),
        RATE * np.arange(STEPS + 1),
        observe=watched,
    )

    def agree(rule):
        for one in watched:
            size = np.abs(runs["mean field"][one.name]).max()
            np.testing.assert_allclose(solve(rule)[one.name], runs["mean field"][one.name], atol=eps(1e4) * size)

    runs = {"mean field": solve(rules["mean field"])}
    for rule in rules.values():
        agree(rule)
    assert_fails(lambda: agree(js.nets.Scaling.mup(gamma, sigma=sigma, eta=eta)))


@pytest.mark.slow
def test_trained_outputs_of_more_points_are_worth_more_than_draws():
    """At the end of training, over seeds: the order of quadrature, and the error that the certificate says."""
    counts, seeds = [64, 256, 1024, 4096], 6

    def run(samples, seed):
        limit = js.RichLimit(rate=RATE, samples=samples, seed=seed)
        found = js.solve(
            _problem(_rule(2), depth=1, activation="tanh"), limit, [40 * RATE], observe=js.observe.test_outputs()
        )
        assert found.certificate is not None
        return np.asarray(found["test_outputs"][-1]), float(found.certificate.sampling_error)

    exact = run(2**17, 0)[0]
    off, said = [], []
    for samples in counts:
        runs = [run(samples, seed) for seed in range(seeds)]
        off.append(np.sqrt(np.mean([(found - exact) ** 2 for found, _ in runs])) / np.abs(exact).max())
        said.append(np.sqrt(np.mean([error**2 for _, error in runs])))
    order = -np.polyfit(np.log(counts), np.log(off), 1)[0]
    assert order > 0.7  # draws: 0.5
    assert all(0.7 < one / other < 4 for one, other in zip(said, off, strict=True))  # of the largest, off by the mean


@pytest.mark.x64_only
@pytest.mark.slow
def test_learning_over_six_decades_of_time_needs_some_hundred_nodes():
    """Directions of the inputs are learnt at t = 10, 10^4 and in between; nodes that lie evenly in time do not do."""
    ts = np.array([0.0, 1.0, 10.0, 1e2, 1e3, 1e4, 1e5, 1e6])
    x = jr.normal(jr.key(2), (3, 3)) @ jnp.diag(jnp.array([1.0, 0.03, 0.003]))
    problem = _problem(_rule(), x=x, y=jnp.array([[1.0], [-1.0], [0.5]]), test=None)

    def outputs(nodes, ts=ts):
        return np.asarray(js.solve(problem, js.RichLimit(nodes=nodes), ts, observe=js.observe.outputs())["outputs"])

    few, more, many = (outputs(nodes) for nodes in (200, 400, 800))
    far, near = np.abs(few - many).max(), np.abs(more - many).max()
    assert far < 3e-3  # 4e-4, of outputs of order 1
    assert 1.7 < np.log2(far / near) < 2.6  # second order, against a third one that is not exact: 2.3
    learnt = np.abs(np.diff(many, axis=0)).max(axis=(1, 2))
    assert np.sum(learnt > 0.05) >= 3
    with pytest.raises(js.SolveError, match="diverged"):
        outputs(1, np.linspace(0, 1e6, 400))


@pytest.mark.slow
def test_layers_of_two_layer_networks_are_aligned_as_in_wide_ones():
    """On a line with its sign, as the closed form has it at finite width; elsewhere as networks do."""
    watched, ts = js.observe.layer_alignment(), [0.0, 0.7, 2.0, 8.0]
    line = js.data.line(5, 3, key=jr.key(3))
    rule = js.nets.Scaling.mean_field(0.7, sigma=SIGMA[:2], eta=ETA[:2])

    def aligned(dynamics, **options):
        problem = _problem(rule, depth=1, test=None, **options)
        return np.asarray(js.solve(problem, dynamics, ts, observe=watched)[watched.name])

    def agree(width, dynamics, close, **options):
        """The limit, and the same of samples, with a wide network; gives the limit's."""
        found = aligned(js.RichLimit(), **options)
        np.testing.assert_allclose(found, aligned(dynamics, width=width, **options), atol=close)
        of_samples = aligned(js.RichLimit(samples=1024), activation=IDENTITY, **options)
        np.testing.assert_allclose(of_samples, found, atol=0.01)
        return found

    ends = [agree(100_000, js.theory.TwoLayerLine(), 0.02, x=line.x, y=y)[-1, 0] for y in (line.y, -line.y)]
    assert min(ends) < -0.5 < 0.5 < max(ends)
    # Of inputs that nobody looks at, |w| has its share.
    wider = jnp.concatenate([X, jnp.zeros((2, 9))], axis=1)
    few, many = (agree(20_000, js.Descent(optax.sgd(0.05)), 0.02, x=x) for x in (X, wider))
    assert_fails(lambda: np.testing.assert_allclose(few, many, atol=0.1))

    with pytest.raises(ValueError, match="two-layer networks only; for deep ones use kernel_alignment"):
        js.solve(_problem(_rule()), js.RichLimit(), ts, observe=watched)


def test_alignment_has_a_derivative_where_it_is_zero():
    w, u = jnp.array([[1.0], [1.0]]), jnp.array([[1.0, -1.0], [0.5, -0.5]])
    value, slope = jax.jvp(lambda w: dmft.two_layer_alignment(w, u, X[:, :1]), (w,), (jnp.ones_like(w),))
    assert value == 0
    assert np.isfinite(slope)


def test_what_does_not_fit_is_refused():
    x = jr.normal(jr.key(4), (2000, 2))
    for activation in ("linear", "tanh"):
        problem = _problem(_rule(3), activation=activation, x=x, y=x[:, :1], test=None)
        with pytest.raises(
            MemoryError, match=r"needs .* TB, .* its kernels at 20000 times do not fit: ask for \d+ times"
        ):
            js.solve(problem, js.RichLimit(rate=1e-5), np.linspace(0, 1, 20_000))
    with pytest.raises(MemoryError, match=r"needs .* TB, .*; give samples=\d+"):
        js.solve(_problem(_rule(2), depth=1, activation="tanh"), js.RichLimit(samples=2**36), [0.0, 1.0])


@pytest.mark.parametrize(("depth", "activation"), [(1, "tanh"), (2, "tanh"), (2, "linear")])
def test_a_budget_is_kept(depth, activation):
    """What is refused says what would fit, and that does: shapes are enough to know."""
    problem = _problem(_rule(depth + 1), depth=depth, activation=activation)
    start = lambda **given: jax.eval_shape(lambda p: js.RichLimit(**given).choose(p).init(p, jnp.arange(2.0)), problem)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(MemoryError, match="and 1 kB may be used; .*, or allow more with memory="):
        start(memory=1000)
    if activation == "tanh":
        with pytest.raises(MemoryError, match=r"give samples=(\d+)") as caught:
            start(memory=10**7, samples=2**20)
        (fits,) = map(int, re.findall(r"samples=(\d+)", str(caught.value)))
        start(memory=10**7, samples=fits)
        with pytest.raises(MemoryError):
            start(memory=10**7, samples=2 * fits)
    start(memory=10**8)


@pytest.mark.slow
def test_derivatives_where_the_read_out_starts_at_zero():
    """Everything depends on sigma^2."""

    def last(sigma):
        problem = _problem(js.nets.Scaling.mean_field(0.7, sigma=sigma, eta=ETA))
        return js.solve(problem, js.RichLimit(rate=RATE, nodes=6), [6 * RATE], observe=js.observe.outputs())["outputs"]

    at, step = SIGMA.at[2].set(0.0), 1e-3
    for layer in range(3):
        along = jnp.zeros(3).at[layer].set(1.0)
        slope = jax.jvp(last, (at,), (along,))[1]
        moved = (last(at + step * along) - last(at - step * along)) / (2 * step) if layer < 2 else jnp.zeros(())
        np.testing.assert_allclose(slope, jnp.broadcast_to(moved, slope.shape), atol=1e-3)
