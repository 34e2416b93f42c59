r"""The function that a moving kernel learns: the flow of MSE in function space, from the kernels along a run.

$\dot f(x) = -\frac1n k_t(x)(f - y)$ has the solution $f(x) = f_0(x) + \frac1n \int dt\, k_t(x)\,
\mathcal T\exp\big(-\frac1n \int_0^t K\big)(y - f_0)$ (Atanasov et al., equation 2, corrected: kernels at different
times do not commute, so the exponential is time-ordered).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._checks import concrete, describe, real_array
from ..._numerics import finite_product, integrated_decay, nonzero
from ._matrices import read_cross, read_kernel, read_like, read_start, read_targets, require_positive
from ._modes import eigh, kept_modes


class PathOutputs(NamedTuple):
    """The outputs that the kernels of a run have learned by each of its times.

    Attributes:
        outputs: outputs on the training points, shape (times, n, c).
        predictions: outputs on the other points, shape (times, m, c); None without `cross`.
    """

    outputs: Float[Array, "times n out"]
    predictions: Float[Array, "times m out"] | None


def along_path(
    ts: Float[ArrayLike, " times"],
    kernel: Float[ArrayLike, "times n n"] | Float[ArrayLike, "times n out n out"],
    y: Float[ArrayLike, "n out"],
    *,
    start: Float[ArrayLike, "n out"] | None = None,
    cross: Float[ArrayLike, "times m n"] | Float[ArrayLike, "times m out n out"] | None = None,
    cross_start: Float[ArrayLike, "m out"] | None = None,
) -> PathOutputs:
    """The outputs that follow from the kernels along a run alone.

    Between two times the kernel is the mean of the two, which is exact for a constant kernel; the error is of second
    order in the time steps.

    Arguments:
        ts: times, ascending, the first being the start.
        kernel: kernel on the training points at each time, such as `run["kernel"]` of `js.observe.kernel`.
        y: targets.
        start: outputs at the first time; None means 0.
        cross: kernel between other points and the training points at each time, such as from `js.observe.cross_kernel`;
            None if there are no other points.
        cross_start: outputs on the other points at the first time; None means 0.

    Raises:
        ValueError: shapes or dtypes do not fit, a kernel is not symmetric, the mean of two neighbors is not positive
            semi-definite, times do not ascend, or cross_start is given without cross.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), centered=True)
        >>> watched = [js.observe.kernel(), js.observe.outputs()]
        >>> run = js.solve(problem, js.GradientFlow(), jnp.linspace(0, 2, 40), observe=watched)
        >>> path = js.kernels.along_path(run.ts, run["kernel"], problem.y)
        >>> print(bool(jnp.allclose(path.outputs, run["outputs"], atol=1e-3)))
        True
    """
    targets, ts, kernel = read_targets(y), real_array(ts, "ts"), real_array(kernel, "kernel")
    count = ts.shape[0] if ts.ndim == 1 else 0
    if count < 2 or kernel.shape[:1] != (count,):
        raise ValueError(f"need two or more times and a kernel for each, got {describe(ts)} and {describe(kernel)}")
    known = concrete(ts)
    if known is not None and not bool((known[1:] >= known[:-1]).all()):
        raise ValueError("ts must ascend")
    if cross is None and cross_start is not None:
        raise ValueError("cross_start is at other points: give their kernel as cross")
    matrices = jnp.stack([read_kernel(one, targets) for one in kernel])
    rows = matrices.shape[-1]
    first = read_start(start, targets)
    gap = (targets - first).reshape(rows, -1)
    if cross is None:
        # An empty kernel, so that `_march` needs no special case without other points.
        others = jnp.zeros((count, 0, rows), targets.dtype)
    else:
        cross = real_array(cross, "cross")
        if cross.shape[:1] != (count,):
            raise ValueError(f"cross must hold a kernel for each of {count} times, got {describe(cross)}")
        others = jnp.stack([read_cross(one, rows, targets) for one in cross])
    mean = lambda array: (array[1:] + array[:-1]) / 2
    durations = jnp.diff(ts).astype(targets.dtype)
    residuals, gains, spectra = _march(gap, mean(matrices), mean(others), durations, len(targets))
    # Check the step whose kernel is the most negative relative to its size.
    require_positive(spectra[jnp.argmin(spectra[:, 0] / nonzero(jnp.max(jnp.abs(spectra), axis=1)))])
    outputs = targets[None] - jnp.concatenate([gap[None], residuals]).reshape(count, *targets.shape)
    if cross is None:
        return PathOutputs(outputs, None)
    moved = jnp.concatenate([jnp.zeros_like(gains[:1]), jnp.cumsum(gains, axis=0)])
    moved = moved.reshape(count, -1, targets.shape[1])
    return PathOutputs(
        outputs,
        moved if cross_start is None else moved + read_like(cross_start, moved.shape[1:], "cross_start", targets)[None],
    )


@functools.partial(jax.jit, static_argnames="n")
def _march(gap: Array, kernels: Array, others: Array, durations: Array, n: int) -> tuple[Array, Array, Array]:
    """The residuals after each step, the gain of the other points in it, and the eigenvalues of its kernel."""

    def step(residual: Array, now: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array, Array]]:
        # Exact for a kernel that is constant over the step: exp(-K dt/n) on the residual, its integral on other points.
        mean, toward, dt = now
        values, vectors = eigh(mean)
        kept = kept_modes(values)  # null modes move nothing
        rates = jnp.where(kept, values, 0) / n
        modes = vectors.T @ residual
        integral = jnp.where(kept, integrated_decay(rates, dt), 0)
        gained = vectors @ (integral[:, None] * modes)  # the residual, integrated over the step
        after = vectors @ (jnp.exp(-finite_product(rates, dt))[:, None] * modes)
        return after, (after, toward @ gained / n, values)

    return jax.lax.scan(step, gap, (kernels, others, durations))[1]
