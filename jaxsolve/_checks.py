"""Checks on arguments, which read concrete values and skip traced ones."""

import functools
import os
import warnings
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from ._extras import attempt as attempt, see as see


def concrete(value: Any) -> np.ndarray | None:
    """The value as a NumPy array, or None while JAX is tracing it (then there is nothing to check yet).

    A value that NumPy cannot hold, such as a ragged list or a random key, becomes an array of objects.
    """
    try:
        return np.asarray(value)
    except jax.errors.TracerArrayConversionError:
        return None
    except (TypeError, ValueError):
        return np.array([None])


def traced(tree: Any, ts: Array) -> bool:
    """True if a leaf is traced or the call is inside a trace, where even operations on concrete times are traced."""
    return any(isinstance(leaf, Tracer) for leaf in (*jax.tree.leaves((tree, ts)), jax.lax.neg(ts)))


def is_real(known: np.ndarray) -> bool:
    """True if an array holds real numbers or booleans (bfloat16 included), not strings, complex numbers or objects."""
    return known.dtype.kind in "fiub" or jnp.issubdtype(known.dtype, jnp.floating)


def describe(value: Any) -> str:
    """A short name for an argument in an error message: shape and dtype of arrays, else type and value."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {tuple(value.shape)} and dtype {value.dtype}"
    text = " ".join(repr(value).split())
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"


def in_float32(dtypes: Iterable[Any]) -> str:
    """Advice on parameters whose dtypes are not supported."""
    if any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in dtypes):
        return "hold real and imaginary parts as two arrays, and put them together in the call"
    advice = "convert them with jax.tree.map(lambda a: a.astype(jnp.float32) if eqx.is_inexact_array(a) else a, net)"
    half = [dtype for dtype in dtypes if dtype in (jnp.bfloat16, jnp.float16)]
    return advice + (
        f", or keep computing in {half[0]} with js.nets.MixedPrecision(net, jnp.{half[0]})" if half else ""
    )


def require_settings(tree: Any, name: str) -> None:
    """Raises where JAX would fail with a worse message, hang, or silently compute in another precision.

    Raises:
        ValueError: an array is float64 while JAX is set to 32 bits.
        RuntimeError: `jax_transfer_guard` refuses Python numbers, or this process was forked from one that used JAX.
    """
    if _first_process() != os.getpid():
        raise RuntimeError(
            "this process was forked from one that had used JAX; it lacks JAX's threads and would wait forever: "
            "start it with multiprocessing.get_context('spawn')"
        )
    config: Any = jax.config
    if config.jax_transfer_guard_host_to_device in ("disallow", "disallow_explicit"):
        raise RuntimeError(
            f"jax_transfer_guard is {config.jax_transfer_guard_host_to_device!r}, but computing from {name} moves "
            "numbers from Python to the device: call it within jax.transfer_guard('allow')"
        )
    if config.jax_enable_x64:
        return
    if any(isinstance(leaf, jax.Array) and leaf.dtype in _WIDE for leaf in jax.tree.leaves(tree)):
        raise ValueError(
            f"{name} was made in float64, but JAX is now set to 32 bits: call jax.config.update('jax_enable_x64', "
            "True), or make it again"
        )


@functools.cache
def _first_process() -> int:
    """The id of the process that called this first; a forked process inherits the cached value."""
    return os.getpid()


_WIDE = (jnp.dtype("float64"), jnp.dtype("complex128"))


def as_array(value: Any) -> Array:
    """`jnp.asarray`, but NumPy integers too large for JAX's integer dtype become floats instead of wrapping around."""
    array = jnp.asarray(value)
    if isinstance(value, np.ndarray | np.integer) and value.dtype.kind in ("i", "u") and value.size:
        limits = jnp.iinfo(array.dtype)
        if value.min() < limits.min or value.max() > limits.max:
            return jnp.asarray(value.astype(np.float64))
    return array


def real_array(value: Any, name: str) -> Array:
    """Returns real numbers as an array of floats; raises TypeError for anything else."""
    require_settings(value, name)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating):
        return value  # the common case, traced or not
    try:
        array = as_array(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be an array of real numbers, got {describe(value)}") from error
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        if array.dtype != jnp.bool_:
            raise TypeError(f"{name} must be an array of real numbers, got {describe(value)}")
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.result_type(float))


def real_numbers(value: Any, name: str) -> np.ndarray:
    """Returns concrete real numbers as a float64 NumPy array; raises TypeError for anything else."""
    known = concrete(value)
    if known is None or not is_real(known):
        raise TypeError(f"{name} must be an array of real numbers, got {describe(value)}")
    return known.astype(np.float64)


def require_finite(value: Any, name: str) -> None:
    """Raises ValueError if a concrete array holds NaN or an infinity, saying how many and where the first is."""
    known = concrete(value)
    if known is not None and not is_real(known):
        raise TypeError(f"{name} must hold real numbers, got {describe(value)}")
    if known is None or np.all(np.isfinite(known)):
        return
    bad = np.argwhere(~np.isfinite(known))
    first = tuple(int(i) for i in bad[0])
    raise ValueError(
        f"{name} holds {len(bad)} value(s) that are NaN or infinite (the first at index {first}); "
        "all values must be finite. Clean the array before building the problem."
    )


def require_not_negative(value: Any, name: str) -> None:
    """Raises ValueError if a concrete hyperparameter is negative, NaN or infinite."""
    known = concrete(value)
    if known is not None and not is_real(known):
        raise TypeError(f"{name} must be finite and >= 0, got {describe(value)}")
    if known is None or (np.all(np.isfinite(known)) and np.all(known >= 0)):
        return
    raise ValueError(f"{name} must be finite and >= 0, got {known.tolist()}")


def require_positive(value: Any, name: str) -> None:
    """Raises ValueError if a concrete number is not positive and finite."""
    known = concrete(value)
    if known is not None and not is_real(known):
        raise TypeError(f"{name} must be finite and > 0, got {describe(value)}")
    if known is not None and not (np.all(np.isfinite(known)) and np.all(known > 0)):
        raise ValueError(f"{name} must be finite and > 0, got {known.tolist()}")


def one_number(value: Any, name: str, *, zero: bool = False, hint: str = "") -> Float[Array, ""]:
    """Returns one finite number > 0 (>= 0 if `zero`) as an array of the default dtype; a traced one is not checked.

    Raises:
        TypeError: `value` is not a real number.
        ValueError: `value` is not one number, or is NaN, infinite or of the wrong sign. The message ends in `hint`.
    """
    accepted = f"{name} must be one finite number {'>= 0' if zero else '> 0'}"
    require_settings(value, name)
    known = concrete(value)
    if known is not None and not is_real(known):
        raise TypeError(f"{accepted}, got {describe(value)}{hint}")
    if np.ndim(value) != 0:
        raise ValueError(f"{accepted}, got {describe(value)}{hint}; to map over several values use jax.vmap")
    if known is not None and not (np.isfinite(known) and (known > 0 or (zero and known == 0))):
        raise ValueError(f"{accepted}, got {known}{hint}")
    if isinstance(value, int | float):
        return jax.device_put(np.asarray(value, jnp.result_type(float)))  # compiles nothing
    return jax.lax.convert_element_type(as_array(value), jnp.result_type(float))


def require_number(value: Any, name: str, accepted: str = "> 0") -> float:
    """Returns one concrete, finite number > 0 as a float; raises TypeError or ValueError for anything else."""
    known = concrete(value)
    if known is None:
        raise TypeError(
            f"{name} must be a concrete number {accepted}, got a traced one: the compiled program depends on it"
        )
    if known.ndim or not is_real(known) or known.dtype.kind == "b":
        raise TypeError(f"{name} must be one number {accepted}, got {describe(value)}")
    if not (np.isfinite(known) and known > 0):
        raise ValueError(f"{name} must be {accepted}, got {value}")
    return float(known)


def require_kind(value: Any, kind: type | tuple[type, ...], name: str, accepted: str) -> None:
    """Raises TypeError if a value is not an instance of a class, saying what is accepted instead."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {accepted}, got {describe(value)}")


LONGEST_LINE = 200  # characters; a longer line makes a figure wider than a page


def require_line(text: Any, name: str, accepted: str) -> None:
    """Raises TypeError or ValueError for a name that no figure can show: not a string, too long, or unprintable."""
    require_kind(text, str, name, accepted)
    if len(text) > LONGEST_LINE or not text.replace("\n", "").isprintable():
        said = f"{accepted}, of at most {LONGEST_LINE} characters that can be printed"
        raise ValueError(f"{name} must be {said}, got {len(text)}: {text[:40]!r}")


def require_path(path: Any, name: str, accepted: str) -> None:
    """Raises TypeError for a value that is not a path, and ValueError for a path with a NUL, which no system allows."""
    require_kind(path, (str, os.PathLike), name, accepted)
    if "\0" in os.fsdecode(path):
        raise ValueError(f"{name} must be {accepted}, got one with a NUL: {os.fsdecode(path)!r}")


def require_flag(value: Any, name: str) -> bool:
    """Returns True or False; raises TypeError for anything else, such as "no" or 0."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {describe(value)}")
    return bool(value)


def require_size(value: Any, name: str, *, least: int = 1) -> int:
    """Returns an integer >= `least`; raises TypeError or ValueError for anything else."""
    if isinstance(value, Tracer):
        raise TypeError(
            f"{name} must be an integer >= {least} that is concrete, got {describe(value)} that is traced: in a "
            "sweep, give the values of this axis as a list of Python integers, such as [10, 100]"
            + see("a-size-is-traced")
        )
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer >= {least}, got {describe(value)}")
    if value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value}")
    return int(value)


def require_steps(value: Any) -> int:
    """Returns `max_steps`, an integer >= 1, capped at 2e9: steps are counted in int32, and no run takes that many."""
    return min(require_size(value, "max_steps"), 2_000_000_000)


def products_round(dtype: Any) -> bool:
    """True if matrix products of this dtype may be computed in lower precision: float32 on accelerators, by default."""
    config: Any = jax.config
    if dtype != jnp.float32 or config.jax_default_matmul_precision is not None:
        return False
    device = config.jax_default_device
    return (jax.default_backend() if device is None else getattr(device, "platform", device)) != "cpu"


def warn_of_rounded_products(dtype: Any, stacklevel: int) -> None:
    """Warns if matrix products of this dtype may be computed in lower precision."""
    if products_round(dtype):
        warnings.warn(
            "this device may round the factors of float32 products (to TF32 or bfloat16): kernels then keep about "
            "three digits, and flows take more steps. Call jax.config.update('jax_default_matmul_precision', "
            "'highest') first, or set it to 'default' to keep the rounding and silence this warning",
            stacklevel=stacklevel,
        )


def require_power_of_two(value: int, name: str, *, least: int) -> None:
    """Raises ValueError for an integer that is not a power of two or is below `least`."""
    if value < least or value & (value - 1):
        raise ValueError(f"{name} must be a power of two, at least {least}, got {value}")


def require_key(key: Any) -> None:
    """Accepts one key, new style (`jax.random.key`) or legacy (`jax.random.PRNGKey`).

    Raises:
        TypeError: `key` is not a JAX random key.
        ValueError: it is a batch of keys.
    """
    if not isinstance(key, jax.Array) or not (
        jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.dtype == jnp.uint32
    ):
        raise TypeError(
            f"key must be a JAX random key such as jax.random.key(0), got {describe(key)}" + see("no-random-key")
        )
    single = 0 if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else 1
    if key.ndim != single:
        raise ValueError(f"key must be one key, got a batch of shape {key.shape}; map over keys with jax.vmap")
