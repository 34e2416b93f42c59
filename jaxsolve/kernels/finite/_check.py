"""The check of a kernel: its products with random vectors, against gradients of a separately compiled program."""

import math
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, PyTree

from ..._checks import concrete, describe, products_round, real_array, require_key, require_size
from ..._numerics import Inputs, nonzero, norm, one_of, samples_in, scaled, take_samples
from ..._programs import equations
from ...nets import partition
from ._batches import choose_batch_size, dtype_of, output, rows, sum_batches
from ._capture import Capture, Outline, outline
from ._finite import nonfinite_derivatives
from ._inputs import check_inputs, check_rates
from ._outputs import Outputs
from ._use_gram import multiplications


# Rounding may grow as the root of the number of terms, one per parameter. Measured errors were at most 12 eps, for
# networks of any width and up to 50 layers, so growth beyond a million parameters need not be expected.
ROUNDING, LEAST_TERMS, MOST_TERMS = 10, 100, 10**6
# The rounding of TF32 and bfloat16, to which accelerators round the factors of products.
COARSE = 2.0**-8
# `empirical` itself checks about every `EACH`-th sample, and at least `LEAST` samples.
EACH, LEAST = 64, 4
# A gradient of fewer samples takes as long as one of this many: it reads and writes all parameters.
AS_LONG_AS = 16
# The check runs if it takes at most this share of the kernel's multiplications, and if these are at least `MANY`, which
# takes longer than calling another program.
SHARE, MANY = 0.1, 10**8
# Intermediate sums of products may exceed a kernel's trace: it must stay below this share of the largest number.
NEAR = 1e-3


class KernelCheck(eqx.Module):
    """The distance of a kernel from the gradients of its network.

    Attributes:
        error: |v^T K w - <J^T v, J^T w>|, relative to the larger of |J^T v||J^T w| and |K|_F, the typical size of v^T K
            w, which does not vanish if v happens to miss K. NaN if the kernel or a derivative is not finite.
        bound: the largest error that rounding explains: 10 sqrt(P) eps for P parameters, with P at least 100 and at
            most 10^6; at least 10 times the eps of the coarsest dtype that the network computes in, or to which the
            device rounds the factors of products.
    """

    error: Float[Array, ""]
    bound: float = eqx.field(static=True)  # decided by shapes and dtypes

    @property
    def holds(self) -> Bool[Array, ""]:
        """True if the error is within the bound."""
        return self.error <= self.bound

    @property
    def doubt(self) -> str:
        """A sentence on what is wrong and what to do if the check does not hold."""
        return (
            f"this kernel is not that of the network's gradients: v^T K v is off by {float(self.error):.1e} for a "
            f"random v, and rounding explains at most {self.bound:.1e}. The program was compiled wrongly (`jaxsolve "
            "doctor` says whether this compiler is known for it: try another version of jax), or the network "
            "magnifies rounding (then float64 helps). js.kernels.check(net, x, kernel, key=key) repeats the check"
        )

    def __repr__(self) -> str:
        known = concrete(self.error)
        if known is None or known.ndim:
            return "KernelCheck(traced or batched)"
        said = "holds" if known <= self.bound else "DOES NOT HOLD"
        return f"KernelCheck({said}: v^T K w is off by {float(known):.1e}, of rounding at most {self.bound:.1e})"


def check(
    net: Any,
    x: Inputs,
    kernel: Float[Array, "..."],
    x2: Inputs | None = None,
    *,
    eta: PyTree | None = None,
    key: Any,
    samples: int | None = None,
) -> KernelCheck:
    """Checks a kernel against a network's gradients: v^T K v = |sqrt(eta) J^T v|^2 for random signs v.

    With x2 it checks v^T K w = <J^T v, eta J_2^T w> for w = K^T v/|K^T v|, along which v^T K w does not cancel. J^T v,
    the gradient of sum_ia v_ia f_a(x_i), comes from a separate program: plain reverse mode of the network on a batch.
    The comparison depends on the layout, which follows from the kernel's shape:

    - (n, c, m, c): one gradient, and one more with x2.
    - (n, m), the trace: sum_a |sqrt(eta) J_a^T v|^2 with one sign per sample, so c times as many, one per output.
    - (c, n, m), equal outputs: for one output, drawn at random, so as many as for all pairs.

    It detects errors in the kernel as a whole: in all of K, or in the contribution of a layer, in proportion to its
    share. It does not detect a few wrong entries among many, errors in small eigenvalues, antisymmetric errors without
    x2, or errors in the network's outputs themselves. Another key draws other signs.

    Arguments:
        net: the network, as for `js.kernels.empirical`.
        x: inputs, shape (n, ...).
        kernel: a kernel in any of the three layouts, finite or not.
        x2: the other inputs; None if they are x.
        eta: the learning rates in the kernel; None means 1 everywhere.
        key: random key of the signs.
        samples: the largest number of samples to check, evenly spread; fewer take less time, None takes all.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=3, out_size=2, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> x = jax.random.normal(jax.random.key(1), (5, 3))
        >>> kernel = js.kernels.empirical(net, x).ntk
        >>> bool(js.kernels.check(net, x, kernel, key=jax.random.key(2)).holds)
        True
        >>> js.kernels.check(net, x, 1.03 * kernel, key=jax.random.key(2))
        KernelCheck(DOES NOT HOLD: v^T K w is off by 3.0e-02, of rounding at most ...)

    Raises:
        ValueError: the kernel's shape is none of the three for these inputs; or as for `js.kernels.empirical`.
        TypeError: an argument has the wrong type.
    """
    check_inputs(net, x, x2, names=("x", "x2"))
    if eta is None:
        eta = jax.tree.map(lambda leaf: jnp.ones((), leaf.dtype), partition(net)[0])
    else:
        check_rates(net, eta)
    require_key(key)
    step = 1 if samples is None else -(-samples_in(x) // require_size(samples, "samples"))
    kernel, known = real_array(kernel, "kernel"), outline(net, x)
    counts = samples_in(x), samples_in(x if x2 is None else x2)
    shapes = {outputs.shape(*counts, known.capture.out_size): outputs for outputs in Outputs}
    if kernel.shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"kernel must have shape {wanted} for these inputs, got {describe(kernel)}")
    outputs = shapes[kernel.shape]
    key_v, key_a = jax.random.split(key)
    rows = len(range(0, samples_in(x), step)) * outputs.rows(known.capture.out_size)
    v = jax.random.rademacher(key_v, (rows,), known.capture.dtype)
    drawn = jax.random.randint(key_a, (), 0, known.capture.out_size)
    return _check(net, eta, x, x2, kernel, v, drawn, outputs, known, step)


def certify(net: Any, eta: PyTree, x1: Inputs, x2: Inputs | None, ntk: Array, outputs: Outputs, known: Outline) -> None:
    """Raises ValueError for a kernel that is not finite; warns of a wrong one, if the check is cheap.

    Traced kernels are not checked.
    """
    if isinstance(ntk, Tracer):
        return
    if not _all_finite(ntk):
        raise ValueError(_why_not_finite(net, eta, x1, x2, known.capture.dtype))
    n, m = samples_in(x1), None if x2 is None else samples_in(x2)
    step = max(1, min(n, n if m is None else m) // max(LEAST, n // EACH))
    if not _takes_little(known.capture, n, m, outputs, step):
        return
    found = _check_quickly(net, eta, x1, x2, ntk, outputs, known, step)
    if not bool(found.holds):
        warnings.warn(found.doubt, stacklevel=3)


def check_trace(net: Any, eta: PyTree, x: Inputs, kernel: Float[Array, "n n"], samples: int) -> KernelCheck:
    """As `check` of a trace on at most so many samples, with signs of a fixed seed."""
    return _check_quickly(net, eta, x, None, kernel, Outputs.TRACE, outline(net, x), -(-samples_in(x) // samples))


def _check_quickly(net, eta, x1, x2, kernel, outputs: Outputs, known: Outline, step: int) -> KernelCheck:
    """The check of every step-th sample. NumPy draws the signs: a JAX program would have to be compiled first."""
    draw, c = np.random.default_rng(0), known.capture.out_size
    v = draw.choice([-1.0, 1.0], len(range(0, samples_in(x1), step)) * outputs.rows(c)).astype(kernel.dtype)
    return _check(net, eta, x1, x2, kernel, v, draw.integers(c), outputs, known, step)


def _check(net, eta, x1, x2, kernel, v, drawn, outputs: Outputs, known: Outline, step: int) -> KernelCheck:
    """The check of every step-th sample, with signs v; for the layout of equal outputs, of the output `drawn`."""
    return KernelCheck(_error(net, eta, x1, x2, kernel, v, drawn, outputs, step), _bound(net, x1, known.capture))


def coarsest(net: Any, x: Inputs) -> Any:
    """The coarsest dtype of a network's products, such as bfloat16 if it casts its parameters."""
    params, static = partition(net)
    f = lambda params, x: eqx.combine(params, static)(x)
    made = (
        eqn.outvars[0].aval
        for eqn in equations(jax.make_jaxpr(f)(params, one_of(x)))
        if eqn.primitive.name in _PRODUCTS
    )
    dtypes = [aval.dtype for aval in made if jnp.issubdtype(aval.dtype, jnp.floating)]
    return max([dtype_of(params), *dtypes], key=lambda dtype: float(jnp.finfo(dtype).eps))


_PRODUCTS = ("dot_general", "conv_general_dilated")


def _bound(net: Any, x: Inputs, found: Capture) -> float:
    eps = float(jnp.finfo(found.dtype).eps)
    dtypes = {shape.dtype for shape in found.found.program.shapes if jnp.issubdtype(shape.dtype, jnp.floating)}
    # Products inside loops are not steps of the program, but `coarsest` finds them.
    roughest = max(eps, *(float(jnp.finfo(dtype).eps) for dtype in (*dtypes, coarsest(net, x))))
    if products_round(found.dtype):
        roughest = max(roughest, COARSE)
    count = sum(leaf.size for leaf in jax.tree.leaves(partition(net)[0]))
    return ROUNDING * max(math.sqrt(min(max(count, LEAST_TERMS), MOST_TERMS)) * eps, roughest)


def _takes_little(found: Capture, n: int, m: int | None, outputs: Outputs, step: int) -> bool:
    """True if a check takes a small part of the multiplications of a kernel; shapes alone decide."""
    forward, kernel = multiplications(found, n, n if m is None else m, outputs)
    # The 3 below: a gradient costs about three forward passes (one forward, and backward by data and by parameters).
    gradients = (1 if m is None else 2) * (found.out_size if outputs is Outputs.TRACE else 1)
    samples = max(AS_LONG_AS, -(-max(n, m or 0) // step))
    return kernel >= MANY and 3 * forward * samples * gradients <= SHARE * kernel


# --- the identity


@eqx.filter_jit
def _error(net, eta, x1, x2, kernel, v, drawn, outputs: Outputs, step: int) -> Float[Array, ""]:
    """|v^T K w - <J^T v, eta J^T w>| relative to the larger of |J^T v||J^T w| and |K|_F, of every step-th sample.

    The signs v are given, since a program that draws them takes as long to compile as that of a small network.
    """
    x1, x2 = (take_samples(x, slice(None, None, step)) for x in (x1, x2))
    cut = [slice(None)] * kernel.ndim
    for axis in outputs.sample_axes:
        cut[axis] = slice(None, None, step)
    kernel, size = scaled(kernel[tuple(cut)])
    c = output(net, x1).shape[0]
    # With all pairs of outputs, v has a sign per sample and output. Otherwise it has one per sample, and is propagated
    # from one output at a time.
    if outputs is Outputs.ALL:
        directions, columns, matrix = jnp.ones((1, c)), c, kernel.reshape(samples_in(x1) * c, -1)
    elif outputs is Outputs.TRACE:
        directions, columns, matrix = jnp.eye(c), 1, kernel
    else:
        directions, columns, matrix = jnp.eye(c)[drawn][None], 1, kernel[drawn]
    v = v.reshape(samples_in(x1), columns)
    # Along K^T v, v^T K w is |K^T v| and does not cancel. With x2 = None, v^T K v is a square anyway.
    w = v if x2 is None else (v.ravel() @ matrix).reshape(-1, columns)
    w = w if x2 is None else w / nonzero(norm(w))
    # Divided by the root of the kernel's size, so that squares neither overflow nor vanish.
    dtype = output(net, x1).dtype
    one, two = ((signs / jnp.sqrt(size)).astype(dtype) for signs in (v, w))

    def add(total: Array, direction: Array) -> tuple[Array, None]:
        first = _gradient(net, x1, one * direction[None])
        second = first if x2 is None else _gradient(net, x2, two * direction[None])
        pairs = (first, second), (first, first), (second, second)
        return total + jnp.stack([_inner(eta, *pair) for pair in pairs]).astype(dtype), None

    (product, square1, square2), _ = jax.lax.scan(add, jnp.zeros(3, dtype), directions.astype(dtype))
    # A separate root for each factor, since the product of the squares could overflow or vanish.
    largest = jnp.maximum(jnp.sqrt(square1) * jnp.sqrt(square2), norm(matrix))
    return jnp.abs(v.ravel() @ matrix @ w.ravel() - product) / nonzero(largest)


def _gradient(net: Any, x: Inputs, v: Float[Array, "n out"]) -> PyTree:
    """J^T v, in batches."""
    params, static = partition(net)

    def of_batch(x: Inputs, v: Array) -> PyTree:
        f = lambda p: rows(jax.vmap(eqx.combine(p, static))(x)).astype(v.dtype)
        return jax.vjp(f, params)[1](v)[0]

    return sum_batches(of_batch, choose_batch_size(net, x, None), x, v)


def _inner(eta: PyTree, one: PyTree, two: PyTree) -> Float[Array, ""]:
    parts = jax.tree.map(lambda rate, a, b: rate * jnp.sum(a * b), eta, one, two)
    return jnp.sum(jnp.stack(jax.tree.leaves(parts)))


# --- kernels that are not finite


@jax.jit
def _all_finite(array: Array) -> Bool[Array, ""]:
    return jnp.all(jnp.isfinite(array))


def _why_not_finite(net: Any, eta: PyTree, x1: Inputs, x2: Inputs | None, dtype: Any) -> str:
    given = {"x1": x1} if x2 is None else {"x1": x1, "x2": x2}
    for name, x in given.items():
        found = nonfinite_derivatives(net, x)
        if found.samples:
            return f"the kernel is not finite: {found.words(name)}"
    # |J^T v|^2 is the kernel's trace on average. Python floats do not overflow where float32 does.
    sizes, most = [float(_gradient_size(net, eta, x)) for x in given.values()], float(jnp.finfo(dtype).max)
    # `not <` in place of `>=`: a size of NaN counts as too large. Without x2 both factors are the same size.
    if not sizes[0] * sizes[-1] < NEAR * most:
        return (
            f"the kernel is not finite: the network's derivatives are, but sums of their products exceed {most:.1e}, "
            f"the largest number of {dtype}. Compute in float64, or scale down inputs, initial weights or rates"
        )
    return (
        "the kernel is not finite, but the network's derivatives are, and sums of their products are far from the "
        f"largest number of {dtype}: the program was compiled wrongly. `jaxsolve doctor` says whether this compiler is "
        "known for it; try another version of jax"
    )


@eqx.filter_jit
def _gradient_size(net: Any, eta: PyTree, x: Inputs) -> Float[Array, ""]:
    """|J^T v| for random signs v, whose square is the kernel's trace on average."""
    out = output(net, x)
    signs = jax.random.rademacher(jax.random.key(0), (samples_in(x), *out.shape), out.dtype)
    leaves = jax.tree.map(lambda rate, leaf: jnp.sqrt(rate) * norm(leaf), eta, _gradient(net, x, signs))
    return norm(jnp.stack(jax.tree.leaves(leaves)))
