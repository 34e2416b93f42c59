import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from jax.flatten_util import ravel_pytree

import jaxsolve as js
from benchmarks import _cheapest as cheapest, _flow_rivals as rivals
from tests.cases import assert_fails, by_hand
from tests.inside import find_loss


T = 3.0
# By name: the rival, a tolerance, and how near it comes.
FAST = {
    "tsit5": (rivals.tsit5, 1e-8, 5e-8),
    "lsoda": (rivals.lsoda, 1e-8, 2e-7),
    "bdf": (rivals.bdf, 1e-8, 1e-6),
}
SLOW = {"dopri8": (rivals.dopri8, 1e-8, 2e-9), "kvaerno5": (rivals.kvaerno5, 1e-6, 5e-8)}


@functools.cache
def small(gamma: float = 0.5) -> js.Problem:
    """60 parameters and 20 samples: the same shapes wherever it is used, so each rival is compiled once."""
    return rivals.reference_problem(gamma, n=20, width=4)


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


def displacement(last_moves: bool = True) -> np.ndarray:
    """By scipy's DOP853 and back-propagation in NumPy; the twin leaves out the last layer's rate."""
    hand = by_hand(small(), "softplus(5)", np.array([1.0, 1.0, last_moves]) * np.asarray(small().net.scaling.eta))
    field = lambda t, theta: -hand.eta * hand.loss_and_gradient(theta)[1]
    end = scipy.integrate.solve_ivp(field, (0, T), hand.start, method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
    return end - hand.start


@functools.cache
def reference(last_moves: bool = True) -> rivals.Run:
    problem = small()
    moved = ravel_pytree(problem.params)[1](jnp.asarray(displacement(last_moves), problem.x.dtype))
    outputs = problem.test_outputs(jax.tree.map(jnp.add, problem.params, moved))
    return rivals.Run(moved, outputs, 0, 0)


def test_the_reference_problem():
    problem, gain = rivals.reference_problem(0.1, n=20, width=4, dtype=jnp.float32), 1.404
    assert isinstance(problem.loss, js.losses.MSE)
    assert problem.centered
    assert [w.shape for w in problem.net.weights] == [(4, 10), (4, 4), (1, 4)]
    assert {leaf.dtype for leaf in jax.tree.leaves((problem.params, problem.x, problem.y))} == {jnp.dtype("float32")}
    scaling = problem.net.scaling
    np.testing.assert_allclose(scaling.multiplier, [10**-0.5, gain / 2, gain / 2], rtol=5e-4)
    np.testing.assert_allclose(scaling.eta, 100.0, rtol=1e-6)
    np.testing.assert_allclose(scaling.gamma, 0.1, rtol=1e-6)
    assert problem.net.activation == js.nets.softplus(5.0)
    np.testing.assert_allclose(np.std(problem.x, axis=0), 1.0, rtol=2e-6)
    assert problem.x_test is not None
    assert problem.x_test.shape == problem.x.shape == (20, 10)
    assert set(np.unique(problem.y)) == {-1.0, 1.0}


@pytest.mark.x64_only
def test_the_largest_rate():
    """Of the Gauss-Newton matrix from the Jacobian of all outputs; descent is stable below 2 over it, not above."""
    problem = small(1e4)  # lazy: the rate stays what it is
    params, unravel = ravel_pytree(problem.params)
    jacobian = jax.jit(jax.jacrev(lambda vector: problem.outputs(unravel(vector))[:, 0]))(params)
    eigenvalue = lambda j: float(jnp.linalg.eigvalsh(j.T @ j)[-1]) * 1e4**-2 / 20
    by_jacobian = eigenvalue(jacobian)
    rate = rivals.largest_rate(problem)
    close = lambda value: np.testing.assert_allclose(rate, value, rtol=1e-13)
    close(by_jacobian)
    assert_fails(lambda: close(eigenvalue(jacobian[:, :-4])))  # without the last layer's weights
    still = jax.tree.map(jnp.zeros_like, problem.params)
    close(rivals.largest_rate(problem, still))
    sizes = [float(np.linalg.norm(rivals.descent(problem, 100 / rate, c / rate).test_outputs)) for c in (1.9, 2.2)]
    assert sizes[1] > 100 * sizes[0]


def test_the_largest_rate_is_for_mse_alone():
    problem = eqx.tree_at(lambda p: p.loss, small(), find_loss(lambda f, y: jnp.sum((f - y) ** 4)))
    with pytest.raises(ValueError, match=r"largest_rate needs js\.losses\.MSE\(\)"):
        rivals.largest_rate(problem)


@pytest.mark.x64_only
@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_rivals_integrate_the_flow(name):
    run, tol, near = (FAST | SLOW)[name]
    got = run(small(), T, tol)

    def close(expected):
        moved, outputs = cheapest.errors(got, expected)
        assert moved < near
        assert outputs < near

    close(reference())
    assert_fails(lambda: close(reference(last_moves=False)))


@pytest.mark.x64_only
def test_orders_of_the_steps_along_the_gradient():
    """Errors go with the step of descent, and with the square root of the bound on the gradient's change."""
    for run, knobs, order in ((rivals.descent, (0.02, 0.01, 0.005), 1.0), (rivals.adaptive_euler, (1e-5, 1e-7), 0.5)):
        errors = [cheapest.errors(run(small(), T, knob), reference())[0] for knob in knobs]
        slope = np.polyfit(np.log(knobs), np.log(errors), 1)[0]
        assert abs(slope - order) < 0.008


def by_the_rule(bound: float, well_below: float = 0.5) -> tuple[np.ndarray, int]:
    """Geiger et al.'s loop, in plain Python: a step grows where both changes are well below their bounds."""
    hand = by_hand(small(), "softplus(5)")
    w, t, dt, attempts = hand.start, 0.0, 1.0, 0
    g, f = hand.loss_and_gradient(w)[1], hand.outputs(w)
    while t < T:
        h = dt if t + dt < T else T - t
        new_w = w - h * hand.eta * g
        new_g, new_f = hand.loss_and_gradient(new_w)[1], hand.outputs(new_w)
        dgrad = np.linalg.norm(new_g - g) ** 2 / (np.linalg.norm(g) * np.linalg.norm(new_g)) / bound
        dout = np.max(np.abs(new_f - f)) / 0.1
        attempts += 1
        if dgrad < 1 and dout < 1:
            t = t + h if t + dt < T else T
            if dgrad < well_below and dout < well_below:
                dt *= 1.1
            w, g, f = new_w, new_g, new_f
        else:
            dt /= 10
    return w - hand.start, attempts


@pytest.mark.x64_only
@pytest.mark.parametrize("bound", [1e-2, 1e-4])
def test_the_adaptive_rule_step_by_step(bound):
    run = rivals.adaptive_euler(small(), T, bound)
    moved, attempts = by_the_rule(bound)
    assert (int(run.steps), int(run.evaluations)) == (attempts, attempts + 1)
    close = lambda expected: np.testing.assert_allclose(flat(run.displacement), expected, rtol=0, atol=4e-15)
    close(moved)
    assert_fails(lambda: close(by_the_rule(bound, well_below=1.0)[0]))


def test_evaluations_are_counted_and_settings_traced():
    calls, traces = [], []

    def loss(f, y):
        traces.append(None)
        jax.debug.callback(lambda: calls.append(None))
        return 0.5 * jnp.sum((f - y) ** 2)

    problem = eqx.tree_at(lambda p: p.loss, small(), find_loss(loss))
    for run, knobs in ((rivals.tsit5, (1e-2, 1e-3)), (rivals.adaptive_euler, (1e-2, 1e-3)), (rivals.descent, (1, 0.3))):
        run(problem, 1.0, knobs[0])
        jax.effects_barrier()
        calls.clear()
        traces.clear()
        got = run(problem, 2.0, knobs[1])
        jax.effects_barrier()
        assert not traces
        assert len(calls) == int(got.evaluations)


def test_what_does_not_arrive_is_not_a_number():
    """A descent that diverges, and runs that would need more steps."""
    diverged = rivals.descent(small(), 1e32, 1e30)
    assert int(diverged.steps) < 100
    for run in (diverged, rivals.descent(small(), T, 0.01, max_steps=9), rivals.bdf(small(), T, 1e-4, max_steps=5)):
        assert np.all(np.isnan(flat(run.displacement)))
        assert np.all(np.isnan(run.test_outputs))
    assert int(rivals.descent(small(), T, 0.01, max_steps=9).steps) == 9


def pretend(errors, order: float = 1.0):
    """A rival whose errors are as told, and the settings with which it was run, the first to compile."""
    tried: list[float] = []

    def run(problem, T, setting, *, max_steps):
        tried.append(setting)
        return rivals.Run(jnp.array([1.0 + errors[setting]]), jnp.ones(1), 1, 1)

    return rivals.Rival("pretended", run, lambda problem, reference: list(errors), order), tried


TRUTH = rivals.Run(jnp.ones(1), jnp.ones(1), 0, 0)


def test_the_cheapest_setting_is_the_loosest_good_one():
    errors = {10.0**-k: 10.0**-k for k in range(8)}
    rival, tried = pretend(errors)
    choice = cheapest.cheapest(rival, small(), T, TRUTH, 2e-4)
    assert choice.met
    assert choice.setting == 1e-4
    assert tried == [1.0, 1.0, 1e-3, 1e-4]  # compiled, hopeless, one looser than expected, good
    # Errors that fall faster than expected: up again until one has failed.
    rival, tried = pretend({setting: error**3 for setting, error in errors.items()})
    choice = cheapest.cheapest(rival, small(), T, TRUTH, 2e-4)
    assert (choice.met, choice.setting) == (True, 1e-2)
    assert tried == [1.0, 1.0, 1e-3, 1e-2, 1e-1]
    # Either error must be small, and what is not a number is not.
    rival, _ = pretend({1.0: math.nan, 0.1: 0.0})
    assert cheapest.cheapest(rival, small(), T, TRUTH).setting == 0.1
    wrong = TRUTH._replace(test_outputs=2 * jnp.ones(1))
    assert not cheapest.cheapest(rival, small(), T, wrong).met


def test_a_rival_that_never_gets_there_is_told():
    rival, tried = pretend({1.0: 0.5, 0.1: 0.5, 0.01: 0.5})
    choice = cheapest.cheapest(rival, small(), T, TRUTH)
    assert (choice.met, choice.setting) == (False, 0.01)
    rival, tried = pretend({1.0: 0.5, 0.1: 0.5})
    assert not cheapest.cheapest(rival, small(), T, TRUTH, patience=0.0).met
    assert tried == [1.0, 1.0]


class _FromOldMemory(scipy.integrate.BDF):
    """SciPy's method where the memory of what it does not write held a number that no sum takes."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.D[2:] = np.array(0x7FF0000000000001, np.uint64).view(float)  # a NaN that signals


def test_bdf_does_not_depend_on_what_memory_held():
    run = rivals.bdf.func(_FromOldMemory, small(), T, 1e-3)
    assert run.steps == rivals.bdf(small(), T, 1e-3).steps
    np.testing.assert_array_equal(flat(run.displacement), flat(rivals.bdf(small(), T, 1e-3).displacement))


@pytest.mark.x64_only
@pytest.mark.parametrize("rival", [rivals.RIVALS[2], rivals.RIVALS[3], rivals.SMALL_RIVALS[2]], ids=lambda r: r.name)
def test_the_cheapest_setting_of_a_rival(rival):
    choice = cheapest.cheapest(rival, small(), T, reference(), 1e-2)
    assert choice.met
    assert max(choice.displacement_error, choice.test_error) <= 1e-2
    assert choice.seconds > 0
    settings = list(rival.ladder(small(), reference()))
    looser = settings.index(choice.setting) - 1
    assert looser < 0 or max(cheapest.errors(rival.run(small(), T, settings[looser]), reference())) > 1e-2
