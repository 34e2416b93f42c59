"""The only module that imports neural-tangents, whose last release uses names that newer JAX has removed."""

import contextlib
import importlib
import importlib.metadata
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from ..._checks import describe, require_finite
from ...nets import Function
from ...nets._internal import is_stax


class NeuralTangentsUnavailable(ImportError):
    """neural-tangents is not installed, or does not work with the installed JAX.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> try:
        ...     kernel = js.kernels.infinite(net, jnp.eye(2)).ntk
        ... except js.kernels.NeuralTangentsUnavailable:
        ...     kernel = js.kernels.empirical(net, jnp.eye(2)).ntk  # at finite width
    """


def _add_if_missing(module: types.ModuleType, name: str, find: Callable[[], Any]) -> None:
    # Never replaces: a JAX that still has the name keeps it.
    if not hasattr(module, name):
        setattr(module, name, find())


def _restore_removed_names() -> None:
    """Adds any missing names that neural-tangents imports to `jax.core`, `jax.util` and `jax.interpreters.ad`."""
    import jax.core
    import jax.extend.core
    import jax.interpreters.ad

    internal = importlib.import_module("jax._src.core")  # some of the names have no public home any more
    for name in ("Jaxpr", "JaxprEqn", "Literal", "Var", "Primitive"):
        _add_if_missing(jax.core, name, lambda name=name: getattr(jax.extend.core, name))
    for name in ("ShapedArray", "Value", "AbstractValue"):
        _add_if_missing(jax.core, name, lambda name=name: getattr(internal, name))
    _add_if_missing(jax.core, "eval_context", lambda: getattr(internal, "eval_context", contextlib.nullcontext))

    try:
        util = importlib.import_module("jax.util")
    except ModuleNotFoundError:
        util = sys.modules["jax.util"] = types.ModuleType("jax.util")
    internal_util = importlib.import_module("jax._src.util")
    for name in ("safe_map", "safe_zip"):
        _add_if_missing(util, name, lambda name=name: getattr(internal_util, name))

    _add_if_missing(jax.interpreters.ad, "zeros_like_p", lambda: jax.extend.core.Primitive("zeros_like"))


@contextlib.contextmanager
def _old_ways() -> Iterator[None]:
    """Silences JAX's deprecation warnings about neural-tangents, which is no longer maintained."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def neural_tangents() -> types.ModuleType:
    """The module `neural_tangents`, with the names that JAX has removed, for when `import neural_tangents` fails.

    `neural_tangents.experimental` needs TensorFlow and is replaced by an empty module. `js.nets.from_stax` converts
    networks of its `stax`.

    Example:
        >>> stax = js.kernels.neural_tangents().stax
        >>> init_fn, apply_fn, kernel_fn = stax.serial(stax.Dense(8), stax.Erf(), stax.Dense(1))
        >>> js.kernels.infinite((init_fn, apply_fn, kernel_fn), jnp.eye(2)).ntk.shape
        (2, 2)

    Raises:
        NeuralTangentsUnavailable: it is not installed, or fails with the installed JAX; the message names the versions.
    """
    if sys.modules.get("neural_tangents") is not None:
        return sys.modules["neural_tangents"]
    try:
        version = importlib.metadata.version("neural-tangents")
    except importlib.metadata.PackageNotFoundError as error:
        raise NeuralTangentsUnavailable(
            "neural-tangents, which computes kernels of infinite width, is not installed. Install it with `pip "
            "install --no-deps neural-tangents frozendict` (its declared dependencies would bring TensorFlow, which "
            "it does not need here)."
        ) from error
    try:
        sys.modules.setdefault("neural_tangents.experimental", types.ModuleType("neural_tangents.experimental"))
        with _old_ways():
            _restore_removed_names()  # accessing a deprecated name of JAX warns
            return importlib.import_module("neural_tangents")
    except Exception as error:  # whatever a future JAX breaks, the message should name the versions
        raise NeuralTangentsUnavailable(
            f"neural-tangents {version} does not work with jax {jax.__version__}: {error}. Everything in jaxsolve but "
            "infinite width works without it; to use that install an older jax."
        ) from error


@contextlib.contextmanager
def stax() -> Iterator[types.ModuleType]:
    """`neural_tangents.stax`, under the promotion rules that it was written for.

    Raises:
        NeuralTangentsUnavailable: it is missing or broken.
    """
    module = neural_tangents().stax
    with _old_ways(), jax.enable_checks(False):  # one of its derivative rules has another number of arguments
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            yield module


def kernel_fn_of(net: Any) -> Callable[..., Any] | None:
    """The function that gives a network's kernels by neural-tangents; None if it has none."""
    if isinstance(net, Function):
        return net.kernel_fn
    return net[2] if is_stax(net) else None


def kernels_by(kernel_fn: Callable[..., Any], x1: Array, x2: Array | None) -> tuple[Array, Array]:
    """NNGP and NTK. Raises ValueError if there is not one number for each pair of samples, or inputs are not finite."""
    for name, x in (("x1", x1), ("x2", x1 if x2 is None else x2)):
        if not eqx.is_array(x) or x.ndim < 2 or x.shape[1:] != x1.shape[1:]:
            raise ValueError(f"{name} must be an array (n, ...) of inputs of one shape, got {describe(x)}")
        require_finite(x, name)
    with stax():
        found = kernel_fn(x1, x2, ("nngp", "ntk"))
    if found.nngp.ndim != 2:
        raise ValueError(
            f"the outputs of this network are not vectors: its kernels have shape {found.nngp.shape}, not (n, m). End "
            "it in stax.Flatten() or a global pooling, and stax.Dense"
        )
    if x2 is not None:
        return found.nngp, found.ntk
    return (found.nngp + found.nngp.T) / 2, (found.ntk + found.ntk.T) / 2
