"""Observables of neurons, by their definition in NumPy and along a flow."""

import diffrax
import jax.random as jr
import numpy as np
import pytest

import jaxsolve as js
from tests import cases


@pytest.mark.x64_only
def test_they_are_what_they_say_at_every_time(getkey):
    net = js.nets.MLP(
        in_size=3, out_size=1, width_size=4, depth=1, activation="leaky_relu", scaling=cases.scaling(2), key=getkey()
    )
    problem = js.Problem(net, jr.normal(getkey(), (6, 3)), jr.normal(getkey(), (6, 1)))
    flow = js.GradientFlow(diffrax.Dopri8(), rtol=1e-10, atol=1e-12, land_on_ts=True)
    watched = [js.observe.neuron_radius(), js.observe.neuron_direction(), js.observe.neuron_delta()]
    run = js.solve(problem, flow, np.array([0.0, 0.5, 2.0]), observe=watched)
    eta_w, eta_a = (float(rate) for rate in net.scaling.eta)

    def formulas(params):
        w, a = (np.asarray(matrix) for matrix in params.weights)
        length = np.linalg.norm(w, axis=1)
        return a[0] * length, w / length[:, None], eta_w * a[0] ** 2 - eta_a * length**2, a[0] ** 2 - length**2

    for index, params in ((0, problem.params), (-1, run.final.params)):
        radius, direction, delta, unrated = formulas(params)
        np.testing.assert_allclose(run["neuron_radius"][index], radius, rtol=1e-13)
        np.testing.assert_allclose(run["neuron_direction"][index], direction, rtol=1e-13)
        np.testing.assert_allclose(run["neuron_delta"][index], delta, rtol=1e-12, atol=1e-13)
        found = run["neuron_delta"][index]
        # The rates are left out.
        cases.assert_fails(lambda d=unrated, f=found: np.testing.assert_allclose(f, d, rtol=1e-3))
    moved = np.abs(run["neuron_radius"][-1] - run["neuron_radius"][0])
    assert np.max(moved) > 0.1
    drift = np.max(np.abs(run["neuron_delta"] - run["neuron_delta"][:1]))
    assert drift < 1.4e-14, drift  # conserved; measured 1.4e-15


@pytest.mark.x64_only
def test_of_several_outputs_delta_is_conserved_too(getkey):
    """Theorem 4.1: delta_k = eta_w |a_k|^2 - eta_a |w_k|^2, and the size of beta_k = w_k a_k^T."""
    net = js.nets.MLP(
        in_size=3, out_size=2, width_size=4, depth=1, activation="linear", scaling=cases.scaling(2), key=getkey()
    )
    problem = js.Problem(net, jr.normal(getkey(), (6, 3)), jr.normal(getkey(), (6, 2)))
    flow = js.GradientFlow(diffrax.Dopri8(), rtol=1e-10, atol=1e-12, land_on_ts=True)
    watched = [js.observe.neuron_radius(), js.observe.neuron_delta()]
    run = js.solve(problem, flow, np.array([0.0, 2.0]), observe=watched)
    eta_w, eta_a = (float(rate) for rate in net.scaling.eta)
    w, a = (np.asarray(matrix) for matrix in run.final.params.weights)
    betas = np.array([np.outer(w[k], a[:, k]) for k in range(4)])
    np.testing.assert_allclose(run["neuron_radius"][1], np.linalg.norm(betas, axis=(1, 2)), rtol=1e-13)
    delta = eta_w * np.sum(a**2, axis=0) - eta_a * np.sum(w**2, axis=1)
    np.testing.assert_allclose(run["neuron_delta"][1], delta, rtol=1e-12, atol=1e-13)
    one_output = eta_w * a[0] ** 2 - eta_a * np.sum(w**2, axis=1)
    cases.assert_fails(lambda: np.testing.assert_allclose(run["neuron_delta"][1], one_output, rtol=1e-3))
    assert np.max(np.abs(run["neuron_radius"][1] - run["neuron_radius"][0])) > 0.1
    drift = np.max(np.abs(run["neuron_delta"][1] - run["neuron_delta"][0]))
    assert drift < 1.5e-12, drift  # measured 1.6e-13
    scale, (w, a) = js.observe.neuron_delta().scale, (np.asarray(matrix) for matrix in net.weights)
    assert scale is not None
    terms = eta_w * np.sum(a**2, axis=0) + eta_a * np.sum(w**2, axis=1)
    np.testing.assert_allclose(scale(js.View(problem, run.ts[0], problem.params)), max(terms), rtol=1e-12)


def test_other_networks_are_refused(getkey):
    net = js.nets.MLP(
        in_size=3, out_size=1, width_size=4, depth=1, activation="tanh", scaling=js.nets.Scaling.ntk(), key=getkey()
    )
    problem = js.Problem(net, jr.normal(getkey(), (6, 3)), jr.normal(getkey(), (6, 1)))
    with pytest.raises(js.NotApplicable, match="the activation tanh"):
        js.solve(problem, js.GradientFlow(), 1.0, observe=js.observe.neuron_delta())
