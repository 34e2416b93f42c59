"""Small programs with known answers, which show whether the installed compiler computes correctly."""

import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np


# Versions of jaxlib that pyproject.toml excludes, and why. Each fails where other versions do not.
WRONG_VERSIONS = {
    "0.10.0": "it crashes in programs of attention (jax-ml/jax#39264)",
    "0.10.1": "it crashes in programs of attention (jax-ml/jax#39264)",
    "0.10.2": "on a CPU its products of matrices and vectors, and therefore Jacobians, are wrong (jax-ml/jax#39103)",
    "0.11.0": "it computes wrong numbers on GPUs (jax-ml/jax#40633)",
    "0.11.1": "it computes wrong numbers on GPUs (jax-ml/jax#40633)",
}
ADVICE = 'install another version: pip install --upgrade "jax>=0.12" "jaxlib>=0.12"'


class KnownAnswer(NamedTuple):
    """The distance of a compiled program from its known answer.

    Attributes:
        program, dtype: the name of the program, and the dtype it ran in.
        error: the norm of the difference, relative to the norm of the answer.
        bound: the largest error that rounding explains.
    """

    program: str
    dtype: str
    error: float
    bound: float

    @property
    def missed(self) -> bool:
        """True if the answer is wrong, or NaN."""
        return not self.error <= self.bound


def known_answers() -> list[KnownAnswer]:
    """Runs every program in float32 and float64, each with its users' JAX settings; takes about two seconds."""
    found = []
    for dtype, bound in (("float32", 1e-5), ("float64", 1e-13)):
        with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
            for program in _PROGRAMS:
                got, wanted = program(np.random.default_rng(0), jnp.dtype(dtype))
                error = np.linalg.norm(np.asarray(got, np.float64) - wanted) / np.linalg.norm(wanted)
                found.append(KnownAnswer(program.__name__.removeprefix("_"), dtype, float(error), bound))
    return found


@functools.cache
def warn_of_wrong_version() -> None:
    """Warns, once per process, if the installed jaxlib is known to compute wrong numbers."""
    version = jaxlib.version.__version__
    if reason := WRONG_VERSIONS.get(version):
        import equinox  # constructs a Problem, so the warning skips it; the programs here do not need it

        warnings.warn(
            f"do not trust jaxlib {version}: {reason}; {ADVICE}",
            skip_file_prefixes=(os.path.dirname(__file__), os.path.dirname(equinox.__file__)),
        )


Answer = tuple[Any, np.ndarray]


def _jacobian_of_layer_norm(draw: np.random.Generator, dtype: Any) -> Answer:
    """The Jacobian of rows that are normalized and then read out by a matrix; rows do not mix."""
    x, weight = 0.03 * draw.normal(size=(8, 64)), 0.02 * draw.normal(size=(100, 64))
    # Rounded to the dtype first, so that the answer is for exactly the numbers that the program gets.
    x, weight = (np.asarray(array.astype(dtype), np.float64) for array in (x, weight))

    def outputs(x):
        centered = x - x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt(x.var(-1, keepdims=True) + jnp.asarray(1e-5, dtype))
        return jnp.ravel((centered * scale) @ jnp.asarray(weight, dtype).T)

    scale = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    unit = (x - x.mean(-1, keepdims=True)) * scale
    # (x - mean) s with s = 1/sqrt(var + eps) has the Jacobian s (1 - 1 1^T/d - u u^T/d), where u is the result.
    inner = np.eye(64) - 1 / 64 - unit[:, :, None] * unit[:, None, :] / 64
    wanted = np.zeros((8, 100, 8, 64))
    for row in range(8):
        wanted[row, :, row] = scale[row] * weight @ inner[row]
    return jax.jit(jax.jacrev(outputs))(jnp.asarray(x, dtype)), wanted.reshape(800, 8, 64)


def _products_of_matrix_and_vectors(draw: np.random.Generator, dtype: Any) -> Answer:
    """Many vectors, each multiplied by the same matrix and reduced."""
    matrix, rows = draw.normal(size=(3, 3)), draw.normal(size=(32_769 if dtype == jnp.float32 else 16_385, 3))
    matrix, rows = (np.asarray(array.astype(dtype), np.float64) for array in (matrix, rows))
    program = jax.jit(lambda m, x: jax.vmap(lambda row: jnp.sum((m @ row) ** 2))(x))
    return program(jnp.asarray(matrix, dtype), jnp.asarray(rows, dtype)), np.sum((rows @ matrix.T) ** 2, axis=1)


def _kernel_of_a_network(draw: np.random.Generator, dtype: Any) -> Answer:
    """The tangent kernel of a network with one tanh layer, from Jacobians of single samples."""
    first, last, x = draw.normal(size=(40, 7)), draw.normal(size=40), draw.normal(size=(33, 7))
    first, last, x = (np.asarray(array.astype(dtype), np.float64) for array in (first, last, x))
    output = lambda parts, x: parts[1] @ jnp.tanh(parts[0] @ x)

    def kernel(parts, x):
        jacobians = jax.vmap(jax.jacrev(output), (None, 0))(parts, x)
        rows = [leaf.reshape(len(x), -1) for leaf in jacobians]
        return sum(row @ row.T for row in rows)

    hidden = np.tanh(x @ first.T)
    signal = last * (1 - hidden**2)
    found = jax.jit(kernel)((jnp.asarray(first, dtype), jnp.asarray(last, dtype)), jnp.asarray(x, dtype))
    return found, (signal @ signal.T) * (x @ x.T) + hidden @ hidden.T


def _gradient_of_a_convolution(draw: np.random.Generator, dtype: Any) -> Answer:
    """The gradient of half the sum of a convolution's squared outputs with respect to the filter."""
    image, filters = draw.normal(size=(5, 3, 9, 9)), draw.normal(size=(4, 3, 3, 3))
    image, filters = (np.asarray(array.astype(dtype), np.float64) for array in (image, filters))
    convolve = lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "VALID")
    loss = lambda w, x: jnp.sum(convolve(x, w) ** 2) / 2
    patches = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(2, 3))  # n c i j h w
    outputs = np.einsum("ncijhw,ochw->noij", patches, filters)
    wanted = np.einsum("ncijhw,noij->ochw", patches, outputs)
    return jax.jit(jax.grad(loss))(jnp.asarray(filters, dtype), jnp.asarray(image, dtype)), wanted


def _gradient_of_a_scan(draw: np.random.Generator, dtype: Any) -> Answer:
    """The gradient of a gated recurrent cell with biases on four samples, with respect to the input matrix.

    The answer is exact to rounding: for smooth functions f(w + ih) = f(w) + ihf'(w).
    """
    arrays = [draw.normal(size=shape) / 2 for shape in ((15, 2), (15, 5), (15,), (5,), (4, 3, 2))]
    arrays = [np.asarray(array.astype(dtype), np.float64) for array in arrays]

    def step(xp, state, x, inner, outer, bias, last):
        known, fed = xp.split(inner @ x + bias, 3), xp.split(outer @ state, 3)
        sigmoid = jax.nn.sigmoid if xp is jnp else lambda gate: 1 / (1 + np.exp(-gate))
        reset, keep = sigmoid(known[0] + fed[0]), sigmoid(known[1] + fed[1])
        new = xp.tanh(known[2] + reset * (fed[2] + last))
        return new + keep * (state - new)

    def loss(inner, outer, bias, last, inputs):
        follow = lambda state, x: (step(jnp, state, x, inner, outer, bias, last), None)
        ends = jax.vmap(lambda sample: jax.lax.scan(follow, jnp.zeros(5, dtype), sample)[0])(inputs)
        return jnp.sum(ends.sum(1) ** 2)

    # The complex step: no difference is formed, so nothing cancels, however small h is.
    def slope(aside):
        follow = lambda state, x: step(np, state, x, arrays[0] + 1e-30j * aside, *arrays[1:4])
        ends = [functools.reduce(follow, sample, np.zeros(5)) for sample in arrays[4]]
        return sum(end.sum() ** 2 for end in ends).imag / 1e-30

    wanted = np.array([slope(aside) for aside in np.eye(30).reshape(30, 15, 2)]).reshape(15, 2)
    return jax.jit(jax.grad(loss))(*(jnp.asarray(array, dtype) for array in arrays)), wanted


def _gradient_of_cross_entropy(draw: np.random.Generator, dtype: Any) -> Answer:
    """The gradient of the cross-entropy, which reduces over classes and over many samples."""
    logits, labels = draw.normal(size=(3000, 11)), draw.integers(11, size=3000)
    logits = np.asarray(logits.astype(dtype), np.float64)
    loss = lambda f: jnp.sum(jax.nn.logsumexp(f, axis=1) - f[jnp.arange(3000), labels])
    share = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return jax.jit(jax.grad(loss))(jnp.asarray(logits, dtype)), share - np.eye(11)[labels]


_PROGRAMS: tuple[Callable[[np.random.Generator, Any], Answer], ...] = (
    _jacobian_of_layer_norm,
    _products_of_matrix_and_vectors,
    _kernel_of_a_network,
    _gradient_of_a_convolution,
    _gradient_of_a_scan,
    _gradient_of_cross_entropy,
)


if __name__ == "__main__":  # runs without the library's dependencies, for `.ci/run known-wrong`
    answers = known_answers()
    for one in answers:
        print(f"{'MISSED' if one.missed else 'met':6} {one.program} {one.dtype}: off by {one.error:.1e}")  # noqa: T201
    sys.exit(3 if any(one.missed for one in answers) else 0)
