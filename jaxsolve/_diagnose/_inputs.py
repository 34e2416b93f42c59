"""Checks of a network, its data and its optimizer, before a diagnosis runs anything."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from .. import losses, nets
from .._checks import as_array, attempt, concrete, describe, in_float32, require_flag, require_key, require_settings
from .._core import centered_anew, Problem, read_pair
from .._numerics import Inputs, map_arrays, one_of, samples_in
from .._programs import forward_mode
from ..nets._internal import FREEZE, require_adapted, takes_state, why_not_called
from ._finite import check_finite


_SERVED = (jnp.float32, jnp.float64)


def read_problem(net: Any, x: Any, y: Any, loss: Any, test: Any, centered: Any, state: Any = None) -> Problem:
    """The problem to diagnose.

    Raises:
        TypeError, ValueError: as `js.diagnose`.
    """
    require_flag(centered, "centered")
    if isinstance(net, Problem):
        if centered or any(given is not None for given in (x, y, loss, test, state)):
            raise ValueError("a problem already holds x, y, loss, test, centered and state: do not give them as well")
        check_network(net.net, net.state)
        return _checked(net)
    check_network(net, state)
    x, pair = _inputs(x, "x"), None
    if test is not None:
        test_x, test_y = read_pair(test)
        pair = _inputs(test_x, "the inputs of test"), test_y
        _require_same_kind(x, pair[0])
    # Called on x as given, before `Problem` converts integers that the network rejects to floats.
    one = one_of(x)
    _, error = attempt(eqx.filter_eval_shape, net, one) if state is None else (None, None)
    if error is not None:
        raise ValueError(why_not_called(net, one, error)) from error
    loss = losses.MSE() if loss is None else loss
    return _checked(Problem(net, x, y, test=pair, loss=loss, centered=centered, state=state))


def _checked(problem: Problem) -> Problem:
    _check_loss(problem)
    if problem.own_rule:  # to fail before training: JAX checks rules when it lowers a program
        moved: Any = eqx.filter_jit(lambda p: jax.jvp(p.outputs, (p.params,), (p.params,)))
        with forward_mode():
            moved.lower(problem)
    check_finite(problem, problem.params, "at the start")
    return problem


def check_network(net: Any, state: Any = None, when: str = "at the start") -> None:
    """Raises TypeError or ValueError unless net is a float32 or float64 network with the state it needs."""
    if not callable(net) or isinstance(net, type):
        raise TypeError(
            "net must be a network of js.nets or an Equinox module acting on one sample, or "
            f"jax.tree_util.Partial(f, params) of a function f(params, x); got {describe(net)}"
        )
    require_adapted(net)
    if takes_state(net) and state is None:
        raise ValueError(
            "this network has state (such as the statistics of batch normalization): give it as state= to train with "
            f"it, where the function takes that argument; otherwise {FREEZE}"
        )
    params = nets.partition(net)[0]
    named = jax.tree_util.tree_leaves_with_path(params)
    if not named:
        raise ValueError(
            f"net has no trainable arrays (arrays of floats), got {describe(net)}; wrap a function f(params, x) with "
            "its parameters as js.nets.Function(f, params)"
        )
    for path, leaf in named:
        name = jax.tree_util.keystr(path)
        if leaf.dtype not in _SERVED:
            raise ValueError(
                f"the parameter {name} is {leaf.dtype}; kernels and second derivatives need float32 or float64: "
                f"{in_float32([leaf.dtype])}"
            )
        if leaf.dtype != named[0][1].dtype:
            raise ValueError(
                f"the parameter {name} is {leaf.dtype}, but {jax.tree_util.keystr(named[0][0])} is "
                f"{named[0][1].dtype}; give all of them one dtype: {in_float32([])}"
            )
        known = concrete(leaf)
        if known is not None and not np.all(np.isfinite(known)):
            bad = int(np.sum(~np.isfinite(known)))
            raise ValueError(
                f"the parameter {name} holds {bad} value(s) that are NaN or infinite {when}; a network that has "
                "diverged shows nothing of its regime: give an earlier checkpoint"
            )


def read_key(key: Any) -> Any:
    """The key, or `jax.random.key(0)` if none is given."""
    require_settings((), "a random key")
    if key is None:
        return jax.random.key(0)
    require_key(key)
    # Keys from `jax.random.PRNGKey` are plain arrays of integers.
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def check_optimizer(optimizer: Any) -> None:
    """Raises TypeError unless optimizer is an optax transformation."""
    if isinstance(optimizer, optax.GradientTransformation):
        return
    made = " (a function: call it with a rate)" if callable(optimizer) else ""
    raise TypeError(
        f"optimizer must be an optax transformation, such as optax.adam(1e-3); got {describe(optimizer)}{made}. "
        "Wrappers of other libraries hold one: give that, such as the tx of Flax's TrainState or of nnx.Optimizer"
    )


def require_own(optimizer: Any) -> None:
    """Raises TypeError for a function from optax where a function of the width is expected."""
    module = str(getattr(optimizer, "__module__", ""))
    if not isinstance(optimizer, optax.GradientTransformation) and module.split(".")[0] == "optax":
        name = getattr(optimizer, "__name__", "adam")
        raise TypeError(
            f"optax.{name} would take the width for one of its own arguments: give optax.{name}(rate), or a function "
            f"of your own, such as lambda width: optax.{name}(0.1 / width)"
        )


def _inputs(x: Any, name: str) -> Inputs:
    return map_arrays(lambda given: _array(given, name), x)


def _array(x: Any, name: str) -> Array:
    try:
        array = as_array(x)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be an array of numbers, samples first; got {describe(x)}") from error
    if array.ndim == 0 or array.shape[0] == 0:
        raise ValueError(f"{name} must hold one or more samples along its first axis, got {describe(array)}")
    return array


def _require_same_kind(x: Inputs, test_x: Inputs) -> None:
    """Raises ValueError if test inputs differ in kind from integer training inputs: kernels take both."""
    if jax.tree.structure(x) != jax.tree.structure(test_x):
        raise ValueError(f"the inputs of test must be such as those of training, {describe(x)}, got {describe(test_x)}")
    jax.tree.map(_require_same_dtype, x, test_x)


def _require_same_dtype(x: Array, test_x: Array) -> None:
    if jnp.issubdtype(x.dtype, jnp.floating) or np.can_cast(test_x.dtype, x.dtype):
        return
    known = np.asarray(test_x)
    with np.errstate(invalid="ignore"):
        kept = known.astype(x.dtype)
    if np.any(kept != known):
        raise ValueError(
            f"the inputs of test are {test_x.dtype}, but those of training are {x.dtype}, which cannot hold their "
            f"values: give test inputs as {x.dtype}, or both as floats"
        )


def _check_loss(problem: Problem) -> None:
    f = jax.ShapeDtypeStruct((problem.out_size,), problem.dtype)
    y = jax.ShapeDtypeStruct(problem.y.shape[1:], problem.y.dtype)
    _, error = attempt(eqx.filter_eval_shape, problem.loss.pointwise, f, y)
    if error is not None:
        raise ValueError(
            f"the loss cannot be called on one sample's output of shape {f.shape} and target of shape {y.shape}, as "
            f"JAX traces them: {error or type(error).__name__}"
        ) from error


def choose(problem: Problem, count: int, key: Any) -> Problem:
    """The problem on `count` samples drawn from it, or on all if it has no more, for probes and kernels."""
    n = samples_in(problem.x)
    # Sorted, so that samples keep the order in which they were given.
    chosen = np.arange(n) if n <= count else np.sort(np.asarray(jax.random.permutation(key, n))[:count])
    fields = lambda p: (p.x, p.y, p.initial)
    take = lambda array: jax.device_put(np.asarray(array)[chosen])
    values = jax.tree.map(take, fields(problem))
    problem = eqx.tree_at(fields, problem, values, is_leaf=lambda leaf: leaf is None)
    return problem if problem.state is None else centered_anew(problem)


def same_shapes(nets_given: Any, state: Any) -> list[Any]:
    """Checks that these are checkpoints of one network, and returns them as a list.

    Raises:
        TypeError: not a list or tuple of networks.
        ValueError: fewer than two, or of different shapes or structures.
    """
    if not isinstance(nets_given, list | tuple):
        raise TypeError(f"checkpoints must be a list of networks, the first one first; got {describe(nets_given)}")
    if len(nets_given) < 2:
        raise ValueError(
            f"two or more checkpoints are needed, to see how far the network has moved; got {len(nets_given)}"
        )
    for index, net in enumerate(nets_given):
        check_network(net, state, f"in checkpoint {index}")
    name = jax.tree_util.keystr
    first = {name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(nets.partition(nets_given[0])[0])}
    for index, net in enumerate(nets_given[1:], 1):
        here = {name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(nets.partition(net)[0])}
        if set(here) != set(first):
            odd = sorted(set(here) ^ set(first))[0]
            raise ValueError(
                f"checkpoint {index} is of another network than checkpoint 0: only one of them has the parameter {odd}"
            )
        for path, leaf in here.items():
            if leaf.shape != first[path].shape or leaf.dtype != first[path].dtype:
                raise ValueError(
                    f"checkpoint {index} does not fit checkpoint 0: the parameter {path} is {describe(leaf)}, but "
                    f"{describe(first[path])} in checkpoint 0. Checkpoints must be of one run of one network"
                )
    return list(nets_given)
