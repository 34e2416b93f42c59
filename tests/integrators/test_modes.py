"""The linear part of `FunctionSpace` and its modes, against dense matrices in NumPy."""

import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
from jax.flatten_util import ravel_pytree

from jaxsolve import GradientFlow, losses, nets, Problem, solve
from jaxsolve.integrators import FunctionSpace, HOCHBRUCK_OSTERMANN_3
from tests import cases
from tests.inside import (
    frozen_jacobian,
    integrators_modes as _modes,
    JacobianAndModes,
    kernel_part,
    Model,
    modes,
    no_modes,
    Term,
)


# --- the linear part


class Dense(NamedTuple):
    """A = -eta J^T C J as a matrix."""

    eta: np.ndarray
    jacobian: np.ndarray
    curvature: np.ndarray

    @property
    def a(self):
        return -self.eta[:, None] * self.jacobian.T @ self.curvature @ self.jacobian

    def lift(self, q):
        return self.eta * (self.jacobian.T @ q)

    def phi(self, k, time, v):
        """From the exponential of a larger matrix (Al-Mohy & Higham 2011, theorem 2.1)."""
        block = np.zeros((v.size + k, v.size + k))
        block[: v.size, : v.size] = time * self.a
        if k == 0:
            return scipy.linalg.expm(block) @ v
        block[: v.size, v.size] = v
        block[v.size : -1, v.size + 1 :] = np.eye(k - 1)
        return scipy.linalg.expm(block)[: v.size, -1]

    def power(self, time, v):
        return self.phi(0, time, v) ** 2 @ (1 / self.eta)


# Blocks that mix outputs and have a direction along which they are 0; and positive numbers. Of the second also with
# three of its eight modes only.
CASES = {
    "cross entropy": (losses.CrossEntropy(), 8),
    "logistic": (losses.Logistic(), 8),
    "three modes": (losses.Logistic(), 3),
}


@pytest.fixture(scope="module", params=CASES)
def part(request):
    """A linear part, the same in NumPy, and the residuals there."""
    loss, kept = CASES[request.param]
    y = jnp.array([0, 1, 1, 0]) if request.param == "cross entropy" else jnp.sign(cases.inputs(jr.key(2), 4, 2))
    problem = Problem(cases.mlp(jr.key(0)), cases.inputs(jr.key(1), 4), y, loss=loss)
    params, unravel = ravel_pytree(problem.params)
    outputs = problem.outputs(problem.params)

    @eqx.filter_jit
    def build():
        known = JacobianAndModes(frozen_jacobian(Model(problem), params), no_modes(8, outputs.dtype))
        part, _ = kernel_part(problem, outputs, jnp.asarray(jnp.inf), known)
        jacobian = jax.jacrev(lambda w: problem.outputs(unravel(w)).ravel())(params)
        return part, jacobian, problem.loss.hessian(outputs, problem.y)

    part, jacobian, blocks = build()
    part = eqx.tree_at(
        lambda p: (p.vectors, p.values), part, (part.vectors.at[:, :-kept].set(0), part.values.at[:-kept].set(0))
    )
    eta = ravel_pytree(jax.tree.map(lambda rate, p: jnp.broadcast_to(rate, p.shape), problem.eta, problem.params))[0]
    curvature = scipy.linalg.block_diag(*blocks)
    if kept < 8:
        root = np.real(scipy.linalg.sqrtm(curvature))
        curvature = root @ part.vectors @ part.vectors.T @ root
    dense = Dense(np.asarray(eta), np.asarray(jacobian), np.asarray(curvature))
    return part, dense, np.asarray(problem.loss.gradient(outputs, problem.y)).ravel()


TIMES = (0.0, 1e-3, 0.7, 30.0, 1e4)  # times the rate of the fastest mode


@eqx.filter_jit
def functions(part, time, v):
    each = [part.combine(*part.over(time), [Term(k, 1.0, v)]) for k in range(4)]
    return [(part.vector(moved), moved.pushed) for moved in each]


@pytest.mark.x64_only
def test_functions_of_the_linear_part(part):
    part, dense, residual = part
    own = np.random.default_rng(0).normal(size=dense.eta.size)
    v, vector = part.direction(jnp.asarray(own), jnp.asarray(residual)), own + dense.lift(residual)
    np.testing.assert_allclose(-dense.lift(part.curvature(v.pushed)), dense.a @ vector, rtol=0, atol=1e-14)
    found = [functions(part, time / part.values[-1], v) for time in TIMES]

    def check(scale):
        off = dense._replace(curvature=scale * dense.curvature)
        for time, row in zip(TIMES, found, strict=True):
            for k, moved in enumerate(row):
                exact = off.phi(k, float(time / part.values[-1]), vector)
                lost = 2e-14 + 1e-15 * time  # by squaring the matrix exponential; measured: 6e-15 at 30, 3e-12 at 1e4
                np.testing.assert_allclose(moved[0], exact, rtol=0, atol=lost)
                np.testing.assert_allclose(moved[1], off.jacobian @ exact, rtol=0, atol=lost)

    check(1.0)
    cases.assert_fails(lambda: check(0.0))  # the curvature is left out


@eqx.filter_jit
def energies(part, time, v):
    return part.power(*part.over(time), v), part.spent(*part.over(time), v)


@pytest.mark.x64_only
def test_energy_spent_under_the_linear_part(part):
    part, dense, residual = part
    v, vector = part.direction(jnp.zeros(dense.eta.size), jnp.asarray(residual)), dense.lift(residual)
    times = np.array(TIMES) / float(part.values[-1])
    found = np.array([energies(part, jnp.asarray(t), v) for t in times])

    def check(scale):
        off = dense._replace(curvature=scale * dense.curvature)
        power = lambda t: off.power(t, vector)
        pieces = [scipy.integrate.quad(power, *ends, epsrel=1e-11, limit=500)[0] for ends in itertools.pairwise(times)]
        np.testing.assert_allclose(found[:, 0], [power(t) for t in times], rtol=2e-12, atol=1e-15 * power(0))
        np.testing.assert_allclose(found[1:, 1], np.cumsum(pieces), rtol=5e-13)  # measured: 5e-14

    check(1.0)
    cases.assert_fails(lambda: check(0.0))  # the curvature is left out
    assert found[0, 1] == 0


# --- the modes of a kernel


def kernel_with(values, angle=0.0):
    """A kernel with these eigenvalues in ascending order, its eigenvectors turned by about an angle."""
    generator = np.random.default_rng(0)
    size = len(values)
    turn, skew = (generator.normal(size=(size, size)) for _ in range(2))
    basis = scipy.linalg.expm(angle * (skew - skew.T) / np.sqrt(size)) @ np.linalg.qr(turn)[0]
    return jnp.asarray((basis * values) @ basis.T, float)


VALUES = 2.0 ** np.arange(-19, 1)


@pytest.mark.parametrize(("trace", "found"), [(0.099, False), (0.101, True)])
def test_modes_are_sought_where_a_problem_is_stiff(trace, found):
    kernel, h = kernel_with(VALUES), jnp.asarray(trace / VALUES.sum(), float)
    vectors, values, known = jax.jit(lambda: modes(kernel, h, no_modes(20, kernel.dtype)))()
    if not found:
        assert not np.any(vectors)
        assert not np.any(values)
        return
    np.testing.assert_allclose(vectors @ jnp.diag(values) @ vectors.T, kernel, rtol=0, atol=cases.eps(10))
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(20), rtol=0, atol=cases.eps(20))
    np.testing.assert_allclose(values, VALUES, rtol=0, atol=cases.eps(10))
    assert known.vectors.shape == (20, 0)


@pytest.fixture
def few(monkeypatch):
    """Four modes are followed of more than ten outputs."""
    monkeypatch.setattr(_modes, "DENSE", 10)
    monkeypatch.setattr(_modes, "FOLLOWED", 4)


@pytest.mark.usefixtures("few")
def test_the_fastest_modes_are_followed():
    step = jax.jit(lambda kernel, h, known: modes(kernel, h, known))  # traced here, where few are followed
    first, h = kernel_with(VALUES), jnp.asarray(1.0)
    assert no_modes(10, first.dtype).vectors.shape == (10, 0)
    start = no_modes(20, first.dtype)
    assert start.vectors.shape == (20, 4)
    assert start.slowest == jnp.inf
    vectors, values, known = step(first, h, start)
    np.testing.assert_allclose(values, VALUES, rtol=0, atol=cases.eps(10))
    np.testing.assert_array_equal(known.vectors, vectors[:, -4:])
    assert known.slowest == values[-4]

    kernel = kernel_with(VALUES, 0.01)
    vectors, values, followed = step(kernel, h, known)
    np.testing.assert_array_equal(vectors[:, :-4], 0)
    np.testing.assert_array_equal(values[:-4], 0)
    np.testing.assert_array_equal(followed.vectors, vectors[:, -4:])
    assert followed.slowest == values[-4]
    kept = vectors[:, -4:]
    np.testing.assert_allclose(kept.T @ kept, np.eye(4), rtol=0, atol=cases.eps(10))
    np.testing.assert_allclose(kept.T @ kernel @ kept, np.diag(values[-4:]), rtol=0, atol=cases.eps(10))
    np.testing.assert_allclose(values[-4:], VALUES[-4:], rtol=2e-5)
    before = np.linalg.eigvalsh(known.vectors.T @ kernel @ known.vectors)  # without the step's iteration
    cases.assert_fails(lambda: np.testing.assert_allclose(before, VALUES[-4:], rtol=2e-5))

    _, values, _ = step(kernel, 1.1 / followed.slowest, followed)
    np.testing.assert_allclose(values, VALUES, rtol=0, atol=cases.eps(10))


# --- with few modes


ENDS = (0.0, 4.0, 100.0)


@pytest.fixture(scope="module")
def wide():
    """Twenty outputs, and the displacement under their flow by SciPy."""
    net = nets.MLP(
        in_size=3,
        out_size=1,
        width_size=4,
        depth=1,
        activation="tanh",
        bias=True,
        scaling=cases.scaling(2),
        key=jr.key(0),
    )
    problem = cases.problem(net, jr.key(1), n=20)
    start, unravel = ravel_pytree(problem.params)
    eta = ravel_pytree(jax.tree.map(lambda rate, p: jnp.broadcast_to(rate, p.shape), problem.eta, problem.params))[0]
    velocity = jax.jit(lambda w: -eta * jax.grad(lambda w: problem.objective(unravel(w)))(w))
    field = lambda t, w: np.asarray(velocity(w))
    path = scipy.integrate.solve_ivp(field, (0, ENDS[-1]), start, "DOP853", t_eval=ENDS, rtol=1e-10, atol=1e-12)
    return problem, path.y.T - path.y[:, 0]


def _error(found, exact):
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@pytest.mark.x64_only
@pytest.mark.usefixtures("few")
def test_order_with_few_modes(wide):
    problem, path = wide
    solver = FunctionSpace(problem, HOCHBRUCK_OSTERMANN_3)

    @jax.jit
    def march(h, steps):
        """The displacement, and how often all modes were found."""

        def step(_, carry):
            y, state, found = carry
            found = found + (h * state.known.modes.slowest > 1).astype(int)
            y, _, _, state, _ = solver.step(solver.terms, jnp.zeros(()), h, y, None, state, False)
            return y, state, found

        start = solver.start, solver.init(solver.terms, 0.0, h, solver.start, None), jnp.zeros((), int)
        y, _, found = jax.lax.fori_loop(0, steps, step, start)
        return y.displacement, found

    counts = np.array([16, 32, 64, 128])

    def check(missing):
        ends, found = zip(*[march(ENDS[1] / n, int(n) - missing) for n in counts], strict=True)
        assert found == (1, 1, 1, 1)
        slope = -np.polyfit(np.log(counts), [np.log(_error(end, path[1])) for end in ends], 1)[0]
        assert 2.8 < slope < 3.1, slope  # measured: 2.89

    check(0)
    cases.assert_fails(lambda: check(1))  # the last step is left out


@pytest.mark.x64_only
@pytest.mark.usefixtures("few")
def test_flow_with_few_modes(wide, monkeypatch):
    """Followed while steps are short, all of them found again when steps grow."""
    problem, path = wide
    found = []

    def counted(kernel, everything=_modes._all):
        jax.debug.callback(lambda: found.append(1))
        return everything(kernel)

    monkeypatch.setattr(_modes, "_all", counted)
    run = solve(problem, GradientFlow(FunctionSpace(), rtol=1e-5), jnp.asarray(ENDS))
    jax.effects_barrier()
    moved = ravel_pytree(run.final.params)[0] - ravel_pytree(problem.params)[0]
    assert 1 < len(found) < run.stats.kernel_evaluations / 10  # measured: 4 of 151
    assert _error(moved, path[-1]) < 1e-5  # measured: 2e-6
