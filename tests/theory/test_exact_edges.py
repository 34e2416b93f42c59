"""Near the edge of every assumption: what calls itself exact is the flow of the weights, and two such forms agree."""

from functools import partial

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.theory import Balanced, DecoupledModes, DeepBalanced
from tests.linear_cases import aligned, signs, whitened


REFERENCE = js.GradientFlow(diffrax.Dopri8(), rtol=1e-10, atol=1e-12, land_on_ts=True)
TS = jnp.array([0.3, 2.0, 10.0])
FORMS = (DeepBalanced(), Balanced(), DecoupledModes())


def blocks(seed, layers, targets):
    """A linear network of these matrices between random frames, on whitened inputs of second moment 1."""
    size, count = len(targets), len(layers)
    rng = np.random.default_rng(seed)
    frames = [np.linalg.qr(rng.normal(size=(size, size)))[0] for _ in range(count + 1)]
    weights = [above @ np.asarray(w) @ below.T for w, below, above in zip(layers, frames[:-1], frames[1:], strict=True)]
    scaling = js.nets.Scaling(multiplier=[1.0] * count, sigma=[1.0] * count, eta=[1.0] * count)
    init, key = js.nets.Given([jnp.asarray(w, float) for w in weights]), jax.random.key(0)
    net = js.nets.DeepLinear(
        in_size=size, out_size=size, width_size=size, depth=count - 1, scaling=scaling, init=init, key=key
    )
    x = whitened(seed, size + 2, size, size, size=1.0)
    return js.Problem(net, x, x @ jnp.asarray(frames[-1] @ np.diag(targets) @ frames[0].T, float).T)


@jax.jit
def _flow(problem):
    return js.solve(problem, REFERENCE, TS, observe=js.observe.outputs(), throw=False)["outputs"]


@jax.jit
def _closed(problem):
    """Outputs of every form that solves problems of this kind, and whether it calls itself exact."""
    forms = FORMS if len(problem.net.weights) == 2 else FORMS[:1]
    return [(form.check(problem).exact, jax.vmap(lambda t, f=form: f.at(problem, t).outputs)(TS)) for form in forms]


def _in(dtype, problem):
    return jax.tree.map(lambda a: a.astype(dtype) if eqx.is_inexact_array(a) else a, problem)


def assert_exact_where_it_says_so(problem, dtype=jnp.float64):
    """Of a problem in this precision; the flow of the same weights in float64."""
    rounded = _in(dtype, problem)
    claimed = [np.asarray(outputs) for exact, outputs in _closed(rounded) if bool(exact)]
    if claimed:
        flow = np.asarray(_flow(_in(jnp.float64, rounded)))
        most = (1e-6 if dtype == jnp.float64 else 1e-3) * max(np.abs(flow).max(), 1.0)
        for outputs in claimed:
            np.testing.assert_allclose(outputs, flow, atol=most, rtol=0)
            np.testing.assert_allclose(outputs, claimed[0], atol=most, rtol=0)
    return len(claimed)


EDGE = st.sampled_from([0.0, 1e-15, 1e-13, 1e-11, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
SMALL = st.sampled_from([0.0, 1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.8])
CASES = dict(
    seed=st.integers(0, 10_000),
    strong=st.sampled_from([0.3, 1.0, 1.5]),
    weak=st.lists(SMALL, min_size=2, max_size=2),
    side=st.lists(signs, min_size=3, max_size=3),
    targets=st.lists(st.sampled_from([0.0, 1e-9, 0.3, 1.0, 2.0]), min_size=3, max_size=3),
    uneven=EDGE,  # between layers, relative to each mode
    mixed=EDGE,  # between modes, in the units of weights
    generic=st.booleans(),  # weak modes as a block without any structure
)


def _near_an_edge(matrices, seed, strong, weak, side, targets, uneven, mixed, generic):
    rng = np.random.default_rng(seed)
    layers = []
    for _ in range(matrices):
        layer = np.diag([strong, *weak] * (1 + uneven * rng.normal(size=3)))
        if generic:
            layer[1:, 1:] = max(weak) * rng.normal(size=(2, 2))
        layers.append(layer + mixed * rng.normal(size=(3, 3)))
    return blocks(seed, layers, np.array(side) * targets)


@pytest.mark.x64_only
@settings(max_examples=12, deadline=None)
@given(**CASES)
def test_two_matrices_near_every_edge(**case):
    assert_exact_where_it_says_so(_near_an_edge(2, **case))


@pytest.mark.x64_only
@settings(max_examples=8, deadline=None)
@given(**CASES)
def test_three_matrices_near_every_edge(**case):
    assert_exact_where_it_says_so(_near_an_edge(3, **case))


@pytest.mark.slow
@pytest.mark.x64_only
@settings(max_examples=12, deadline=None)
@given(matrices=st.sampled_from([2, 3]), **CASES)
def test_float32_near_every_edge(matrices, **case):
    assert_exact_where_it_says_so(_near_an_edge(matrices, **case), jnp.float32)


@pytest.mark.slow
@pytest.mark.x64_only
@settings(max_examples=150, deadline=None)
@given(matrices=st.sampled_from([2, 2, 3, 5]), **CASES)
def test_many_more_near_every_edge(matrices, **case):
    assert_exact_where_it_says_so(_near_an_edge(matrices, **case))
    assert_exact_where_it_says_so(_near_an_edge(matrices, **case), jnp.float32)


@pytest.mark.x64_only
def test_the_middle_is_claimed():
    # Else the tests above would say nothing.
    middle = dict(seed=1, strong=1.0, weak=[0.1, 0.8], side=[1, 1, 1], targets=[2.0, 1.0, 0.3])
    settled = dict(uneven=0.0, mixed=0.0, generic=False)
    assert assert_exact_where_it_says_so(_near_an_edge(2, **middle, **settled)) == 3
    assert assert_exact_where_it_says_so(_near_an_edge(3, **middle, **settled)) == 1


@pytest.mark.parametrize("weak", [[0.01, 0.02, 0.03], [0.01, 0.0101, 0.01]])
def test_a_strong_mode_hides_no_weak_one(weak):
    problem = blocks(0, [np.diag([1.0, w]) for w in weak], [1.2, 1.0])
    assert not bool(DeepBalanced().check(problem).exact)
    even = blocks(0, [np.diag([1.0, weak[0]])] * 3, [1.2, 1.0])
    assert bool(DeepBalanced().check(even).exact)


@pytest.mark.x64_only
def test_a_strong_mode_hides_no_weak_one_of_the_size_of_rounding():
    problem = blocks(0, [np.diag([1.0, w]) for w in (1e-7, 3e-7, 9e-7)], [1.2, 1.0])
    assert not bool(DeepBalanced().check(problem).exact)


@pytest.mark.parametrize("matrices", [2, 3])
@pytest.mark.parametrize("middle", [0.5, 0.0])
def test_modes_that_oppose_their_target_or_start_at_zero_are_refused(matrices, middle):
    made = partial(aligned, 0, (3,) * (matrices + 1), gamma=1.0, eta=(1.0,) * matrices)
    problem = made(strengths=[[1.3, middle, 0.7]], targets=[0.4, -2.0, 0.3])
    assert "saddle" in DeepBalanced().check(problem).missed()
    if matrices == 2:
        assert "saddle" in DecoupledModes().check(problem).missed()
    rising = made(strengths=[[1.3, 0.5, 0.7]], targets=[0.4, 2.0, 0.3])
    assert bool(DeepBalanced().check(rising).exact)
