"""One computation in both precisions, and what is said of its numbers."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, PyTree

import jaxsolve as js


CLOSED, KERNEL, FLOW = 1e-4, 1e-4, 1e-3
"""What is held to be said where nothing is: of closed forms and predictions, of kernels, of flows by default."""

SMOOTH, KINKED = 0.5, 1.5
"""By how many digits trust may be too high, by docs/how-to-choose.md: in general, and where there are kinks."""

CHANGES = {
    f"{of}{kind}": size
    for of in ("kernel_", "test_kernel_", "kernel_centered_")
    for kind, size in (("change", 1e-6), ("distance", 1e-12))
}
"""Of changes of a kernel, what the docs say of rounding in single precision."""


class Numbers(NamedTuple):
    """What one computation gives.

    Attributes:
        values: by name.
        trust: digits that its certificate vouches for, if it has one.
        bound: what the documentation says of the error, or the bound of the kind.
        each: names of those whose entries along the first axis (times, eigenvalues) are each measured by their own
            size; the others by the largest. True is all of them.
        digits: by how many trust may be too high.
        floors: by name, the absolute error that the documentation speaks of, beside the relative one.
    """

    values: dict[str, ArrayLike]
    bound: float
    trust: float | None = None
    each: bool | tuple[str, ...] = False
    digits: float = SMOOTH
    floors: dict[str, float] = {}  # noqa: RUF012


def centered_rounding(problem: js.Problem) -> float:
    """What `js.Problem` says of the error of centered outputs where weights move, in single precision."""
    return 100 * float(jnp.finfo(jnp.float32).eps) * float(jnp.max(jnp.abs(problem.initial)))  # pyright: ignore[reportArgumentType]


class Case(NamedTuple):
    """One computation.

    Attributes:
        what: is computed, and of which size.
        inputs: draws them, in double precision.
        way: takes them in either precision.
        rounded: whether double precision takes the inputs as single precision holds them. It does not where
            a theory assumes of them what is lost by rounding: that they are whitened, say.
    """

    what: str
    inputs: Callable[[], PyTree]
    way: Callable[[Any], Numbers]
    rounded: bool = True


class Compared(NamedTuple):
    """The error of a number in single precision, and what was said.

    Attributes:
        name: of the number; empty where all was refused.
        error: the largest difference to double precision, as `Numbers.each` measures it.
        said: the error that the certificate or the documentation allows.
        words: trust, warnings, or why it was refused.
        warned: whether the library said by itself that something is wrong.
    """

    name: str
    error: float
    said: float
    words: str
    warned: bool


def compared(case: Case) -> list[Compared]:
    """Computes a case in both precisions."""
    with jax.enable_x64(True):
        exact = case.inputs()
    with jax.enable_x64(False), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            single = _cast(exact, jnp.float32)
            found = _on_host(case.way(single))
        except (ValueError, TypeError, RuntimeError) as error:
            return [Compared("", np.nan, np.nan, f"refused: {_short(error)}", warned=True)]
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right = _on_host(case.way(_cast(single, jnp.float64) if case.rounded else exact))
    # NumPy's own, of overflows, say nothing of a number.
    warned = (one.message for one in caught if one.category is UserWarning)
    words = list(dict.fromkeys(f"warned: {_short(message)}" for message in warned))
    said = found.bound if found.trust is None else 10.0 ** (found.digits - found.trust)
    trust = [] if found.trust is None else [f"trust {found.trust:.1f}"]
    rows = []
    for name, value in found.values.items():
        each = found.each if isinstance(found.each, bool) else name in found.each
        floor = found.floors.get(name, 0.0)
        error = _error(value, right.values[name], each, floor)
        known = np.isfinite(right.values[name])
        size = max(float(np.max(np.abs(right.values[name]), initial=0.0, where=known)), floor)
        allowed = said + (floor / size if size else 0.0)
        rows.append(Compared(name, error, allowed, "; ".join(trust + words), bool(words)))
    return rows


def _cast(tree: PyTree, dtype: Any) -> PyTree:
    def leaf(value: Any) -> Any:
        if not isinstance(value, jax.Array | np.ndarray) or jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):  # pyright: ignore[reportPrivateImportUsage]
            return value
        if jnp.issubdtype(value.dtype, jnp.floating):
            return jnp.asarray(np.asarray(value).astype(dtype))
        return jnp.asarray(np.asarray(value).astype(np.int32)) if value.dtype == np.int64 else value

    def anew(node: Any) -> Any:  # what users make in this precision, with its warnings, and with outputs at the start
        if not isinstance(node, js.Problem):
            return node
        test = None if node.x_test is None else (node.x_test, node.y_test)
        return js.Problem(node.net, node.x, node.y, test=test, loss=node.loss, centered=node.centered)

    with jax.enable_x64(dtype == jnp.float64):
        return jax.tree.map(anew, jax.tree.map(leaf, tree), is_leaf=lambda node: isinstance(node, js.Problem))


def _on_host(numbers: Numbers) -> Numbers:
    values = {name: np.asarray(value) for name, value in numbers.values.items()}
    return numbers._replace(values=values, trust=None if numbers.trust is None else float(numbers.trust))


def _error(found: Any, right: Any, each: bool, floor: float) -> float:
    found, right = (np.asarray(value, np.float64) for value in (found, right))
    known = np.isfinite(right)
    if found.shape != right.shape or not np.array_equal(found[~known], right[~known], equal_nan=True):
        return np.inf
    found, right = np.where(known, found, 0.0), np.where(known, right, 0.0)
    rows = (lambda a: a.reshape(len(a), -1)) if each else (lambda a: a.reshape(1, -1))
    off, size = (np.max(np.abs(rows(value)), axis=1) for value in (found - right, right))
    size = np.maximum(size, floor)
    share = np.where(size > 0, off / np.where(size > 0, size, 1), np.where(off > 0, np.inf, 0))
    return float(np.max(share)) if np.all(np.isfinite(found)) else np.inf


def _short(text: Any) -> str:
    return " ".join(str(text).split())[:100]
