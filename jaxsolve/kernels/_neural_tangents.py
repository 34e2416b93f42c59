"""The only module that imports neural-tangents, whose last release uses names that newer JAX has removed."""

import contextlib
import enum
import importlib
import importlib.metadata
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class NeuralTangentsUnavailable(ImportError):
    """neural-tangents is not installed, or does not work with the installed JAX.

    Example:
        >>> net = js.nets.MLP(2, 8, 1, 1, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> try:
        ...     kernel = js.kernels.infinite(net, jnp.eye(2)).ntk
        ... except js.kernels.NeuralTangentsUnavailable:
        ...     kernel = js.kernels.empirical(net, jnp.eye(2)).ntk  # at finite width
    """


class NTKImplementation(enum.Enum):
    """How neural-tangents contracts Jacobians."""

    JACOBIAN_CONTRACTION = "JACOBIAN_CONTRACTION"
    NTK_VECTOR_PRODUCTS = "NTK_VECTOR_PRODUCTS"
    STRUCTURED_DERIVATIVES = "STRUCTURED_DERIVATIVES"
    AUTO = "AUTO"


# The others interpret primitives by rules that current JAX no longer offers.
_WORKING = (NTKImplementation.JACOBIAN_CONTRACTION, NTKImplementation.NTK_VECTOR_PRODUCTS)


def _add_if_missing(module: types.ModuleType, name: str, find: Callable[[], Any]) -> None:
    # Never replaces: on a JAX that still has the name, that one is used.
    if not hasattr(module, name):
        setattr(module, name, find())


def _restore_removed_names() -> None:
    """Adds what neural-tangents imports to `jax.core`, `jax.util` and `jax.interpreters.ad`, where missing."""
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
    """Silences JAX's deprecation warnings about neural-tangents, which nobody maintains."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def load() -> types.ModuleType:
    """Imports neural-tangents without TensorFlow.

    `neural_tangents.experimental` needs TensorFlow and is replaced by an empty module.

    Raises:
        NeuralTangentsUnavailable: it is not installed, or the installed JAX has broken it; names the versions.
    """
    if sys.modules.get("neural_tangents") is not None:
        return sys.modules["neural_tangents"]
    try:
        version = importlib.metadata.version("neural-tangents")
    except importlib.metadata.PackageNotFoundError as error:
        raise NeuralTangentsUnavailable(
            "neural-tangents is not installed; it serves kernels of networks whose layers jaxsolve does not know, and "
            "infinite width. "
            "Install it with `pip install --no-deps neural-tangents frozendict` (its declared dependencies would "
            "bring TensorFlow, which it does not need here)."
        ) from error
    try:
        sys.modules.setdefault("neural_tangents.experimental", types.ModuleType("neural_tangents.experimental"))
        with _old_ways():
            _restore_removed_names()  # looking at a deprecated name of JAX warns
            return importlib.import_module("neural_tangents")
    except Exception as error:  # whatever a future JAX breaks, the caller should read the versions
        raise NeuralTangentsUnavailable(
            f"neural-tangents {version} does not work with jax {jax.__version__}: {error}. Everything in jaxsolve but "
            "infinite width and the kernels of unknown layers works without it; to use those install an older jax."
        ) from error


@contextlib.contextmanager
def stax() -> Iterator[types.ModuleType]:
    """`neural_tangents.stax`, under the rules of promotion it was written for.

    Raises:
        NeuralTangentsUnavailable: it is missing or broken.
    """
    module = load().stax
    with _old_ways(), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield module


def empirical_ntk(
    f: Callable[[PyTree, Array], Array],
    params: PyTree,
    eta: PyTree,
    x1: Float[Array, "n ..."],
    x2: Float[Array, "m ..."],
    *,
    implementation: NTKImplementation = NTKImplementation.JACOBIAN_CONTRACTION,
) -> Float[Array, "n out m out"]:
    """sum_l eta_l <df/dtheta_l, df/dtheta_l> of any function `f(params, x)` of a batch, by neural-tangents.

    Raises:
        NeuralTangentsUnavailable: it is missing or broken.
        ValueError: the implementation is one of those that do not work on current JAX.
    """
    if implementation not in _WORKING:
        raise ValueError(
            f"{implementation.value} of neural-tangents does not work on current JAX; "
            f"use {' or '.join(item.value for item in _WORKING)}"
        )
    nt = load()
    # With q = 0 and theta + sqrt(eta) q as parameters, the plain kernel in q is the eta-weighted one in theta.
    zeros = jax.tree.map(jnp.zeros_like, params)

    def shifted(q, x):
        return f(jax.tree.map(lambda p, e, s: p + jnp.sqrt(e) * s, params, eta, q), x)

    with _old_ways():
        kernel_fn = nt.empirical_ntk_fn(
            shifted, trace_axes=(), vmap_axes=0, implementation=nt.NtkImplementation[implementation.value]
        )
        return jnp.transpose(kernel_fn(x1, x2, zeros), (0, 2, 1, 3))
