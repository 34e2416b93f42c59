"""`exact` picks the right closed form, and says what misses where there is none."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from tests import cases
from tests.linear_cases import aligned, balanced, neuron, scaling, whitened


def on_a_line():
    return js.Problem(
        js.nets.TwoLayerLinear(in_size=2, width_size=3, scaling=scaling((1.0, 1.0)), key=jax.random.key(0)),
        jnp.array([[1.0, 2.0], [-0.5, -1.0]]),
        jnp.array([1.0, 0.3]),
    )


FORMS = {
    "TwoLayerLine": on_a_line,
    "SingleNeuronFlow": lambda: neuron(0),
    "Balanced": lambda: balanced(0),
    "DeepBalanced": lambda: aligned(0, (3, 3, 3, 2), eta=(1.0, 1.0, 1.0)),
    "DecoupledModes": lambda: aligned(0, (3, 3, 2), balance=False),
}


@pytest.mark.parametrize("name", FORMS)
def test_chooses_the_form(name):
    problem = FORMS[name]()
    form = js.exact(problem)
    assert form.name == name
    assert bool(form.check(problem).exact)


@pytest.mark.parametrize("name", ["TwoLayerLine", "SingleNeuronFlow", "SilentAlignment", "PhaseOne"])
def test_negative_times_are_refused(name):
    """The formulas would run backwards from the start; a traced time is not known yet and gives no number."""
    form, problem = getattr(js.theory, name)(), FORMS.get(name, FORMS["SingleNeuronFlow"])()
    with pytest.raises(ValueError, match=r"t must be a time >= 0, got -1\.0"):
        form.at(problem, jnp.array(-1.0))
    outputs = jax.jit(lambda t: form.at(problem, t).outputs)
    assert np.all(np.isnan(outputs(jnp.array(-1.0))))
    assert np.all(np.isfinite(outputs(jnp.array(0.0))))


def test_earlier_forms_win():
    # One neuron is lambda-balanced, and an aligned balanced start is three forms at once.
    assert bool(js.theory.Balanced().check(neuron(0)).exact)
    problem = aligned(0, (3, 3, 2))
    assert js.exact(problem).name == "Balanced"
    assert all(bool(form().check(problem).exact) for form in (js.theory.DeepBalanced, js.theory.DecoupledModes))


def test_the_choice_solves_the_problem():
    problem = FORMS["DecoupledModes"]()
    run = js.solve(problem, js.exact(problem), jnp.array([0.0, jnp.inf]), observe=js.observe.loss())
    np.testing.assert_allclose(run["loss"][1], 0.0, atol=cases.eps(100) ** 2)


def test_a_linear_start_that_is_not_balanced_names_the_nearest_form():
    problem = balanced(0, (3, 3, 3), 0.5)
    w, a = problem.net.weights
    net = js.nets.TwoLayerLinear(
        in_size=3,
        out_size=3,
        width_size=3,
        scaling=problem.net.scaling,
        init=js.nets.Given([w, 1.05 * a]),
        key=jax.random.key(0),
    )
    with pytest.raises(js.NotApplicable) as caught:
        js.exact(js.Problem(net, problem.x, problem.y))
    first, *others = str(caught.value).split("\n  ")[1:]
    assert first.startswith("Balanced needs layers are lambda-balanced (violation 0.0")
    assert {line.split()[0] for line in others} == set(FORMS) - {"Balanced"}
    assert any("1 hidden neuron: it has hidden layers of (3,)" in line for line in others)


def test_inputs_that_are_not_whitened():
    x = whitened(0, 5, 3, 3) * jnp.array([1.0, 1.0, 1.2])[None, :]
    problem = neuron(0)
    with pytest.raises(js.NotApplicable) as caught:
        js.exact(js.Problem(problem.net, x, problem.y))
    assert "the nearest is\n  SingleNeuronFlow needs inputs are whitened on their row space (violation 0." in str(
        caught.value
    )


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_other_networks_have_none(activation):
    net = js.nets.MLP(
        in_size=3,
        out_size=2,
        width_size=4,
        depth=2,
        activation=activation,
        scaling=js.nets.Scaling.ntk(),
        key=jax.random.key(0),
    )
    with pytest.raises(js.NotApplicable, match=f"linear activation: it has {activation}"):
        js.exact(js.Problem(net, jnp.ones((4, 3)), jnp.ones((4, 2))))


def test_asymptotic_theory_is_never_exact():
    problem = js.Problem(
        js.nets.TwoLayerLinear(in_size=3, width_size=4, scaling=scaling((1.0, 1.0), 1e-6), key=jax.random.key(0)),
        whitened(0, 5, 3, 3),
        jax.random.normal(jax.random.key(1), (5,)),
    )
    assert bool(js.theory.SilentAlignment().check(problem).applies)
    with pytest.raises(js.NotApplicable):
        js.exact(problem)


def _swept_neuron(sigma, eta):
    return neuron(0, sigma=sigma, eta=(eta, 1.0))


def _swept_balanced(sigma, eta):
    return balanced(0, (3, 3, 2), sigma=sigma, eta=(eta, 1.0))


def _swept_modes(sigma, eta):
    return aligned(0, (3, 3, 2), eta=(eta, 1.0), strengths=sigma * jnp.array([[0.5, 0.2], [0.1, 0.7]]))


def _swept_deep(sigma, eta):
    return aligned(0, (3, 3, 3, 2), eta=(eta, 1.0, 1.0), strengths=sigma * jnp.array([[0.5, 0.7]]))


@pytest.mark.parametrize(
    ("make", "form"),
    [
        (_swept_neuron, js.theory.SingleNeuronFlow()),
        pytest.param(_swept_balanced, js.theory.Balanced(), marks=pytest.mark.slow),
        pytest.param(_swept_modes, js.theory.DecoupledModes(), marks=pytest.mark.slow),
        pytest.param(_swept_deep, js.theory.DeepBalanced(), marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_sweep_is_a_loop_of_solves(make, form):
    axes = {"sigma": [0.3, 1.0], "eta": [0.5, 2.0]}
    ts = [0.0, 0.7, np.inf]
    swept = js.sweep(make, axes, form, ts, observe=[js.observe.outputs(), js.observe.kernel()], progress=False)
    assert np.all(swept["result"] == 0)
    for i, sigma in enumerate(axes["sigma"]):
        for j, eta in enumerate(axes["eta"]):
            one = js.solve(make(sigma, eta), form, ts, observe=[js.observe.outputs(), js.observe.kernel()])
            for name in one.observed:
                size = float(jnp.max(jnp.abs(one[name])))
                np.testing.assert_allclose(swept[name][i, j], one[name], atol=cases.eps(1e3) * size)


def test_a_sweep_marks_lanes_that_the_form_does_not_solve():
    def stretched(factor):
        problem = neuron(0)
        return js.Problem(problem.net, problem.x * jnp.stack([factor, 1.0, 1.0])[None, :], problem.y)

    swept = js.sweep(stretched, {"factor": [1.0, 1.5]}, js.theory.SingleNeuronFlow(), [1.0], progress=False)
    assert list(js.result_names(swept["result"].values)) == ["successful", "not_applicable"]


@pytest.mark.parametrize("form", [js.theory.TwoLayerLine(), js.theory.SingleNeuronFlow()])
def test_starts_at_a_saddle_but_for_rounding_are_refused(form):
    """Rounding decides when they leave; an exact zero never does."""
    n = jnp.array([0.6, 0.8])
    for rounding, exact in ((4 * cases.eps(), False), (1e-2, True)):
        weights = [-n[None, :], jnp.array([[1.0 + rounding]])]
        key = jax.random.key(0)
        net = js.nets.SingleNeuron(in_size=2, scaling=js.nets.Scaling.standard(), init=js.nets.Given(weights), key=key)
        validity = form.check(js.Problem(net, n[None, :], jnp.ones((1, 1))))
        assert bool(validity.exact) is exact
        assert exact or "further from it than rounding" in validity.missed()


@pytest.mark.parametrize("name", FORMS)
def test_starts_whose_squares_are_no_numbers_are_refused(name):
    """They stayed where they were, or became NaN."""
    form, problem = js.exact(FORMS[name]()), FORMS[name]()

    def small(size):
        weights = jax.tree.map(lambda w: size * w, problem.net.weights)
        return js.Problem(eqx.tree_at(lambda net: net.weights, problem.net, weights), problem.x, problem.y)

    refused, accepted = (1e-17, 1e-12) if problem.x.dtype == jnp.float32 else (1e-150, 1e-140)
    assert not form.check(small(refused)).exact
    if name in ("TwoLayerLine", "SingleNeuronFlow"):  # others may find that rounding mixes modes
        assert form.check(small(accepted)).exact
        one, other = (js.solve(p, form, jnp.inf)["loss"] for p in (small(accepted), problem))
        np.testing.assert_allclose(one, other, atol=cases.eps(1e3))


def test_a_problem_of_traced_numbers_is_refused():
    def loss(x):
        problem = js.Problem(on_a_line().net, x, jnp.array([1.0, 0.3]))
        return js.solve(problem, js.exact(problem), 1.0)["loss"]

    with pytest.raises(TypeError, match=r"call js\.exact outside of jit.* js\.theory\.TwoLayerLine\(\)"):
        jax.jit(loss)(on_a_line().x)


def test_small_inputs_are_on_no_line_either():
    """Their squares are smaller than all numbers of single precision."""
    key = jax.random.key(0)
    net = js.nets.TwoLayerLinear(in_size=2, width_size=3, scaling=scaling((1.0, 1.0)), key=key, dtype=jnp.float32)
    problem = js.Problem(net, 1e-25 * jnp.eye(2, dtype=jnp.float32), jnp.ones((2, 1), jnp.float32))
    assert not js.theory.TwoLayerLine().check(problem).exact
