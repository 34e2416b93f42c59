"""NaN and infinite values: the samples and parameters they belong to, and why a training run ended in them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PyTree

from .._core import Problem
from .._numerics import take_samples
from ..dynamics import Descent
from ..kernels._internal import nonfinite_derivatives, Trace
from ..observe._internal import next_update, outputs_at, slope_at
from ._movement import Look, look
from ._rescaled import suited
from ._stability import is_finite
from ._train import loss_of, objective, ShortTraining


NAMED = 6  # names shown; the rest are counted
SMALLER = "take a smaller rate"  # if there is no better advice


def check_finite(problem: Problem, params: PyTree, when: str) -> None:
    """Raises ValueError if outputs or the loss are not finite; `when` says at which point of training."""
    if problem.held:
        f = outputs_at(problem, params)
        sizes, value = np.max(np.abs(np.asarray(f)), axis=1), loss_of(problem, f)
    else:
        sizes, value = np.asarray(_largest(problem, params)), objective(problem, params)
    bad = int(np.sum(~np.isfinite(sizes)))
    if bad:
        raise ValueError(
            f"the outputs of the network {when} are NaN or infinite for {bad} of {len(sizes)} samples; scale the "
            "inputs down, or look for a division by zero or a logarithm in the network; if it has diverged, give an "
            "earlier checkpoint"
        )
    if not np.isfinite(value):
        largest = lambda array: f"{float(np.max(np.abs(array))):.2g}"
        raise ValueError(
            f"the loss {when} is {value}, of outputs up to {largest(sizes)} and targets up to {largest(problem.y)}: "
            f"the loss does not suit them, or it overflows {sizes.dtype}: then scale them down"
        )


def checked_look(probe: Problem, params: PyTree, when: str, trace: Trace) -> Look:
    """The gradient and the kernels; if not finite, raises ValueError that names samples and parameters.

    Arguments:
        probe: the problem on the probe samples.
        params: the parameters.
        when: the point of training, in words.
        trace: how kernels are computed.
    """
    found = look(probe, params, trace)
    if not is_finite(found.slope.gradient) or not is_finite(np.sum(np.asarray(found.kernels), axis=0)):
        # If every derivative is finite, sums of their products have overflowed.
        raise ValueError(_named(probe, params, when) or _overflows(probe, params, when))
    return found


def ending(problem: Problem, probe: Problem, optimizer: optax.GradientTransformation, run: ShortTraining) -> str:
    """Why a training run diverged, and how to fix it.

    Arguments:
        problem: the problem.
        probe: the problem on some of its samples, for full-batch steps.
        optimizer: the optimizer of the training run.
        run: the training run, which diverged.

    Raises:
        ValueError: derivatives are not finite at the start.
    """
    if wrong := _named(problem, run.checkpoints[0].params, "at the start"):
        raise ValueError(wrong)
    # From the most to the least specific cause: derivatives, the optimizer's step, its direction, where it leads.
    point = run.checkpoints[-1]
    when = f"after {point.step} steps" if point.step > 1 else "after 1 step" if point.step else "at its first step"
    if wrong := _named(problem, point.params, "there"):
        return f"The training diverged {when}: {wrong}."
    held, slope = Descent(suited(optimizer, problem.net), rate=1.0).optimizer, slope_at(probe, point.params)
    step = next_update(probe.eta, held, point.params, point.state, slope)
    if not is_finite(step):
        return (
            f"The training diverged {when}: the optimizer's step is NaN or infinite though the gradient is finite. "
            "Take a finite rate, or a smaller one, or look for a division by 0 in the optimizer."
        )
    # The first-order change of the loss along the step; if positive, the rate has the wrong sign.
    upward = jax.tree.map(lambda g, u: jnp.sum(g * u), slope.gradient, step)
    if not point.step and float(sum(jax.tree.leaves(upward))) > 0:
        return f"The training diverged {when}, which goes uphill: check the sign of the rate."
    if not np.isfinite(objective(probe, jax.tree.map(jnp.add, point.params, step))):
        return (
            f"The training diverged {when}: the {'next' if point.step else 'first'} step leads to outputs or a loss "
            "that are NaN or infinite. Take a smaller rate; if that does not help, look for a root, a logarithm or a "
            "division in the network."
        )
    return f"The training diverged {when}: {SMALLER}."


def _named(problem: Problem, params: PyTree, when: str) -> str:
    """The samples and parameters whose derivatives are not finite, and what to do; empty if there are none."""
    if of_outputs := nonfinite_derivatives(problem.of_sample(params, problem.eta)[0], problem.x).words():
        return f"{of_outputs}. This is {when}: no rate trains such a network, and it has no tangent kernel"
    _, of_loss = _not_finite(problem, params)
    if np.any(of_loss):
        return (
            f"the derivative of the loss with respect to the outputs {when} is NaN or infinite for "
            f"{_samples(of_loss)}: no rate trains such a network. Look for a root, a norm or a logarithm of 0 and a "
            "division by 0 in the loss"
        )
    return ""


def _overflows(problem: Problem, params: PyTree, when: str) -> str:
    """A sentence on where squared derivatives, which the kernel sums, overflow, and what to do."""
    squares, _ = _not_finite(problem, params)
    where = f", for {_where(params, squares)}" if np.any(squares) else ""
    other = ", or use float64" if problem.dtype == jnp.float32 else ""
    return (
        f"the derivatives of the outputs {when} are finite, but the tangent kernel or the gradient of the loss "
        f"overflows {problem.dtype}{where}: scale the inputs or the network's outputs down{other}"
    )


def _where(params: PyTree, bad: Bool[Array | np.ndarray, "n leaves"]) -> str:
    """Names the samples and the parameters that are marked True."""
    paths = (path for path, _ in jax.tree_util.tree_leaves_with_path(params))
    names = [jax.tree_util.keystr(path).lstrip(".") or "the parameters" for path in paths]
    wrong = [name for name, one in zip(names, np.any(bad, axis=0), strict=True) if one]
    return f"{_samples(np.any(bad, axis=1))}, in {_listed(wrong)}"


def _samples(bad: Bool[Array | np.ndarray, " n"]) -> str:
    places = np.flatnonzero(bad)
    return f"{len(places)} of {len(bad)} samples ({_listed(list(map(str, places)))})"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


@eqx.filter_jit
def _not_finite(problem: Problem, params: PyTree) -> tuple[Bool[Array, "n leaves"], Bool[Array, " n"]]:
    """Two arrays, True where a sample's squared output derivatives, or its loss derivative, are not finite."""
    bad = lambda array: ~jnp.all(jnp.isfinite(array))

    def of_sample(sample: tuple[PyTree, Array]) -> tuple[Array, Array]:
        x, y = sample
        f, pull = jax.vjp(lambda p: problem.predict(p, take_samples(x, None)), params)
        squares = [bad(jnp.sum(row**2)) for row in jax.tree.leaves(pull(jnp.ones_like(f))[0])]
        return jnp.stack(squares), bad(problem.loss.gradient(f, y[None]))

    return jax.lax.map(of_sample, (problem.x, problem.y))  # one by one: a batch would hold a gradient per sample


@eqx.filter_jit
def _largest(problem: Problem, params: PyTree) -> Float[Array, " n"]:
    """The largest absolute output of every sample."""
    largest = lambda x: jnp.max(jnp.abs(problem.network(params)(x)))
    return jax.lax.map(largest, problem.x, batch_size=problem.at_once)
