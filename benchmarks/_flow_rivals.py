"""The rivals of our gradient-flow integrator: what else integrates theta_l' = -eta_l dL/dtheta_l, called its best way.

Every rival is a function `rival(problem, T, knob, *, max_steps=...) -> Run`, whose knob is a tolerance or a step. It is
compiled once for problems of one shape: T and the knob are traced. `_cheapest.py` turns the knob.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree
from scipy.integrate import BDF, LSODA
from threadpoolctl import ThreadpoolController

import jaxsolve as js


MAX_STEPS = 1_000_000


def reference_problem(
    gamma: float, *, n: int = 200, width: int = 256, activation: str = "softplus", dtype: Any = None
) -> js.Problem:
    """Parity of digits: 10 standardized principal components, n training and n test samples, two hidden layers, MSE.

    Geiger et al.'s parameterisation: every activation is multiplied by its gain (1.404 for their softplus, beta = 5),
    and gamma (f - f_0) is trained at eta = gamma^-2 in every layer.

    "softplus" is the one with beta = 5; any other name is that of `nets`. `dtype=None` takes the default float.
    """
    data = js.data.digits(task="parity", n_train=n, n_test=n, pca=10, key=jax.random.key(0))
    phi = js.nets.softplus(5.0) if activation == "softplus" else activation
    scaling = js.nets.Scaling.lazy(gamma, gain=True)
    net = js.nets.MLP(
        in_size=10,
        out_size=1,
        width_size=width,
        depth=2,
        activation=phi,
        scaling=scaling,
        key=jax.random.key(1),
        dtype=dtype,
    )
    train, test = jax.tree.map(lambda array: array.astype(net.weights[0].dtype), (data.train, data.test))
    return js.Problem(net, *train, test=test, centered=True)


def largest_rate(problem: js.Problem, displacement: PyTree | None = None) -> float:
    """Largest eigenvalue of the eta-weighted NTK over n: at steps above about 2 over it, descent is unstable.

    That of the eta-weighted Hessian of the loss, but for what the residuals add to it. Looks at the start, or at this
    displacement from it. Raises ValueError for other losses than MSE.
    """
    if not isinstance(problem.loss, js.losses.MSE):
        raise ValueError(f"largest_rate needs js.losses.MSE(), whose Hessian in the outputs is 1/n, got {problem.loss}")
    params = problem.params
    params = params if displacement is None else jax.tree.map(jnp.add, params, displacement)
    kernel = eqx.filter_jit(lambda problem, params: problem.kernel(params, problem.x))(problem, params)
    return float(jnp.linalg.eigvalsh(kernel.reshape(problem.y.size, -1))[-1]) / problem.x.shape[0]


class Run(NamedTuple):
    """What came out of an integration up to time T.

    Attributes:
        displacement: w(T) - w(0), a pytree as `problem.params`; not a number where T was not reached.
        test_outputs: of the trained function at T, shape (m, c); not a number where T was not reached.
        steps: taken, the rejected ones among them.
        evaluations: of the gradient; an exact Jacobian counts as one per parameter. -1 where nobody counts.
    """

    displacement: PyTree
    test_outputs: Float[Any, "m c"]
    steps: Any
    evaluations: Any


def _run(problem: js.Problem, params: PyTree, steps: Any, evaluations: Any, reached: Any) -> Run:
    moved = jax.tree.map(lambda end, start: jnp.where(reached, end - start, jnp.nan), params, problem.params)
    return Run(moved, jnp.where(reached, problem.test_outputs(params), jnp.nan), steps, evaluations)


def _compiled(integrate: Callable[..., Run]) -> Callable[..., Run]:
    program = eqx.filter_jit(integrate)

    @functools.wraps(integrate)
    def run(problem: js.Problem, T: Any, knob: Any, *, max_steps: int = MAX_STEPS) -> Run:
        T, knob = (jnp.asarray(value, problem.x.dtype) for value in (T, knob))
        with _one_thread():
            return jax.block_until_ready(program(problem, T, knob, max_steps))

    return run


# For LAPACK: two threads factorize a few hundred rows no faster, and 20 times slower where others use the machine.
_one_thread = lambda: _libraries().limit(limits=1)
_libraries = functools.cache(ThreadpoolController)


def _flat_velocity(problem: js.Problem, y: Float[Array, " params"]) -> Float[Array, " params"]:
    gradient = jax.grad(problem.objective)(ravel_pytree(problem.params)[1](y))
    return ravel_pytree(jax.tree.map(lambda rate, g: -rate * g, problem.eta, gradient))[0]


# --- diffrax, at rtol = atol = tol: weights are of order one


def _diffrax(solver: diffrax.AbstractAdaptiveSolver) -> Callable[..., Run]:
    def integrate(problem: js.Problem, T: Array, tol: Array, max_steps: int) -> Run:
        start, unravel = ravel_pytree(problem.params)  # one vector: as fast as a pytree, and compiles faster
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: _flat_velocity(args, y)),
            solver,
            jnp.zeros_like(T),
            T,
            None,
            start,
            problem,
            saveat=diffrax.SaveAt(t1=True),
            # Where stability sets the step, a controller with a proportional part rejects fewer.
            stepsize_controller=diffrax.PIDController(rtol=tol, atol=tol, pcoeff=0.3, icoeff=0.4),
            adjoint=diffrax.ForwardMode(),  # plain loops, which nobody will differentiate backwards
            max_steps=max_steps,
            throw=False,
        )
        steps = jnp.asarray(solution.stats["num_steps"])
        evaluations = jnp.full((), -1, steps.dtype)
        if isinstance(solver, diffrax.AbstractERK):
            tableau = cast(diffrax.ButcherTableau, solver.tableau)
            shared = int(tableau.fsal)  # the last stage of a step is the first of the next
            evaluations = steps * (tableau.num_stages - shared) + shared  # diffeqsolve chooses a first step of 0.01
        reached = solution.result == diffrax.RESULTS.successful
        return _run(problem, unravel(cast(Any, solution.ys)[-1]), steps, evaluations, reached)

    return _compiled(integrate)


tsit5 = _diffrax(diffrax.Tsit5())
dopri8 = _diffrax(diffrax.Dopri8())
kvaerno5 = _diffrax(diffrax.Kvaerno5())  # forms Jacobians: for few parameters


class _Place(NamedTuple):
    params: PyTree
    outputs: Float[Array, "n c"]
    gradient: PyTree
    t: Float[Array, ""]
    dt: Float[Array, ""]
    attempts: Any


@_compiled
def adaptive_euler(problem: js.Problem, T: Array, bound: Array, max_steps: int) -> Run:
    """Euler's method with the steps of Geiger et al. (`dynamics.py` of feature_lazy, and gradientflow).

    A step dt is accepted if the gradient changes by |g_1 - g_0|^2 / (|g_0| |g_1|) < bound (theirs is 1e-4), and the
    outputs by less than 0.1 (f by 0.1/gamma) at every training sample. dt starts at 1, grows by 1.1 after a step that
    keeps to half of both bounds, and shrinks by 10 after one that is not accepted.
    """
    square = lambda tree: sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)), start=jnp.zeros_like(T))

    def look(params: PyTree) -> tuple[PyTree, Array]:
        def loss(params: PyTree) -> tuple[Array, Array]:
            f = problem.outputs(params)
            return problem.loss.value(f, problem.y), f

        return jax.grad(loss, has_aux=True)(params)

    def attempt(old: _Place) -> _Place:
        last = old.t + old.dt >= T
        dt = jnp.where(last, T - old.t, old.dt)
        params = jax.tree.map(lambda w, rate, g: w - dt * rate * g, old.params, problem.eta, old.gradient)
        gradient, f = look(params)
        sizes = jnp.sqrt(square(gradient)) * jnp.sqrt(square(old.gradient))
        turn = square(jax.tree.map(jnp.subtract, gradient, old.gradient)) / jnp.where(sizes == 0, jnp.inf, sizes)
        ratio = jnp.maximum(turn / bound, jnp.max(jnp.abs(f - old.outputs)) / 0.1)
        t, attempts = jnp.where(last, T, old.t + dt), old.attempts + 1
        new = _Place(params, f, gradient, t, jnp.where(ratio < 0.5, 1.1 * old.dt, old.dt), attempts)
        kept = old._replace(dt=old.dt / 10, attempts=attempts)
        return jax.tree.map(lambda a, b: jnp.where(ratio < 1, a, b), new, kept)  # kept if it is not a number

    gradient, f = look(problem.params)
    start = _Place(problem.params, f, gradient, jnp.zeros_like(T), jnp.ones_like(T), jnp.zeros((), int))
    end = jax.lax.while_loop(lambda place: (place.t < T) & (place.attempts < max_steps), attempt, start)
    return _run(problem, end.params, end.attempts, end.attempts + 1, end.t >= T)


@_compiled
def descent(problem: js.Problem, T: Array, step: Array, max_steps: int) -> Run:
    """Gradient descent in the fewest equal steps to T, none longer than `step`, or until the loss is infinite."""
    count = jnp.ceil(T / step).astype(int)
    h = T / count.astype(T.dtype)

    def move(state: tuple[PyTree, Array, Array]) -> tuple[PyTree, Array, Array]:
        params, _, taken = state
        loss, gradient = jax.value_and_grad(problem.objective)(params)
        return jax.tree.map(lambda w, rate, g: w - h * rate * g, params, problem.eta, gradient), loss, taken + 1

    going = lambda state: (state[2] < count) & (state[2] < max_steps) & jnp.isfinite(state[1])
    params, loss, steps = jax.lax.while_loop(going, move, (problem.params, jnp.zeros_like(T), jnp.zeros((), int)))
    return _run(problem, params, steps, steps, (steps >= count) & jnp.isfinite(loss))


# --- scipy, at rtol = atol = tol with exact Jacobians: for few parameters


@functools.cache
def _fields(structure: Any) -> tuple[Callable[..., Array], Callable[..., Array]]:
    """The velocity and its Jacobian, -eta times the Hessian, for problems of one structure."""
    # A list of arrays: going through the nested classes at every call takes longer than a small gradient.
    velocity = lambda leaves, y: _flat_velocity(jax.tree.unflatten(structure, leaves), y)
    return jax.jit(velocity), jax.jit(jax.jacfwd(velocity, 1))


def _scipy(method: Any, problem: js.Problem, T: Any, tol: Any, *, max_steps: int = MAX_STEPS) -> Run:
    leaves, structure = jax.tree.flatten(problem)
    velocity, jacobian = _fields(structure)
    start, unravel = ravel_pytree(problem.params)
    field = lambda t, y: np.asarray(velocity(leaves, y))
    exact = lambda t, y: np.asarray(jacobian(leaves, y))
    # As `solve_ivp` drives it, but for the bound on steps, and none is kept.
    with _one_thread():
        solver = method(field, 0.0, np.asarray(start), float(T), rtol=float(tol), atol=float(tol), jac=exact)
        if isinstance(solver, BDF):
            solver.D[2:] = 0  # SciPy leaves them empty, and its first step reads them, whatever was in memory
        steps = 0
        while solver.status == "running" and steps < max_steps:
            solver.step()
            steps += 1
    end = unravel(jnp.asarray(solver.y, start.dtype))
    return _run(problem, end, steps, solver.nfev + start.size * solver.njev, solver.status == "finished")


lsoda = functools.partial(_scipy, LSODA)
bdf = functools.partial(_scipy, BDF)


class Rival(NamedTuple):
    """A rival, the settings to try (loosest first), and the power of the setting that errors should go with."""

    name: str
    run: Callable[..., Run]
    ladder: Callable[[js.Problem, Run], Sequence[float]]
    order: float = 1.0


def _tolerances(problem: js.Problem, reference: Run, loosest: float = 0.01) -> Sequence[float]:
    """By half decades, from an error per step of `loosest` times all that the weights move, in root mean squares."""
    moved = ravel_pytree(reference.displacement)[0]
    size = loosest * float(jnp.linalg.norm(moved)) / math.sqrt(moved.size)
    return [size * 10 ** (-0.5 * index) for index in range(14)]


_loose_tolerances = functools.partial(_tolerances, loosest=10.0)  # for what is stable at any step


def _bounds(problem: js.Problem, reference: Run) -> Sequence[float]:
    """By half decades: the step goes with the square root of the bound."""
    return [10 ** (-0.5 * index) for index in range(21)]


def _descent_steps(problem: js.Problem, reference: Run) -> Sequence[float]:
    """By factors of sqrt(2), from just below the stability limit at the stiffer end of the run."""
    rate = max(largest_rate(problem), largest_rate(problem, reference.displacement))
    return [1.95 / rate * 2 ** (-0.5 * index) for index in range(24)]


RIVALS = (
    Rival("diffrax Tsit5", tsit5, _tolerances),
    Rival("diffrax Dopri8", dopri8, _tolerances),
    Rival("adaptive Euler", adaptive_euler, _bounds, order=0.5),
    Rival("gradient descent", descent, _descent_steps),
)
SMALL_RIVALS = (
    Rival("diffrax Kvaerno5", kvaerno5, _loose_tolerances),
    Rival("scipy LSODA", lsoda, _loose_tolerances),
    Rival("scipy BDF", bdf, _loose_tolerances),
)
