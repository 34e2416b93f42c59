"""Online learning from a teacher in infinite input dimension: closed equations for a few overlaps."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._checks import concrete, one_number, real_array, require_finite, require_size
from ..._core import read_times


class OrderParameters(eqx.Module):
    r"""The overlaps of a student sum_k v_k erf(w_k . x/sqrt(2d)) and its teacher, which determine its generalization.

    Attributes:
        Q: overlaps w_i . w_k/d of the student's weights, shape (k, k).
        R: overlaps w_i . w*_n/d of the student's weights with the teacher's, shape (k, m).
        T: overlaps of the teacher's weights, shape (m, m).
        v: the student's second layer, shape (k,).
        A: the teacher's second layer, shape (m,).

    In the result of `SoftCommittee.solve` all five have times as their first axis.

    Raises:
        ValueError: shapes do not fit together, or a value is not finite.

    Example:
        >>> start = js.dynamics.OrderParameters.of(
        ...     jnp.zeros((1, 4)), jnp.ones(1), teacher=jnp.ones((2, 4)), teacher_readout=jnp.ones(2)
        ... )
        >>> print(f"{start.error:.3f}")  # half the mean square of the teacher's outputs
        0.667
    """

    Q: Float[Array, "*times k k"]
    R: Float[Array, "*times k m"]
    T: Float[Array, "*times m m"]
    v: Float[Array, "*times k"]
    A: Float[Array, "*times m"]

    def __init__(self, Q: Any, R: Any, T: Any, v: Any, A: Any):
        given = {"Q": Q, "R": R, "T": T, "v": v, "A": A}
        arrays = {name: real_array(value, name) for name, value in given.items()}
        for name, array in arrays.items():
            require_finite(array, name)
            if array.ndim == 0:
                raise ValueError(f"{name} must be an array of one number for each unit or pair of them, got {array}")
        *times, k = arrays["v"].shape
        m = arrays["A"].shape[-1]
        wanted = {"Q": (*times, k, k), "R": (*times, k, m), "T": (*times, m, m), "v": (*times, k), "A": (*times, m)}
        found = {name: array.shape for name, array in arrays.items()}
        if found != wanted:
            raise ValueError(f"order parameters of {k} units and a teacher of {m} have shapes {wanted}, got {found}")
        floats = [array.dtype for array in arrays.values() if jnp.issubdtype(array.dtype, jnp.floating)]
        dtype = np.result_type(*floats) if floats else jnp.result_type(float)
        self.Q, self.R, self.T, self.v, self.A = (array.astype(dtype) for array in arrays.values())

    @classmethod
    def of(
        cls,
        weights: Float[ArrayLike, "k d"],
        readout: Float[ArrayLike, " k"],
        *,
        teacher: Float[ArrayLike, "m d"],
        teacher_readout: Float[ArrayLike, " m"],
    ) -> "OrderParameters":
        """The order parameters of weights in d dimensions, with entries of order 1.

        Raises:
            ValueError: shapes do not fit together.
        """
        w, b = real_array(weights, "weights"), real_array(teacher, "teacher")
        if w.ndim != 2 or b.ndim != 2 or w.shape[1] != b.shape[1]:
            raise ValueError(f"weights (k, d) and teacher (m, d) must have one d, got shapes {w.shape} and {b.shape}")
        d = w.shape[1]
        return cls(w @ w.T / d, w @ b.T / d, b @ b.T / d, readout, teacher_readout)

    @property
    def covariance(self) -> Float[Array, "*times units units"]:
        """The covariance of the preactivations of student and teacher, in this order."""
        return jnp.block([[self.Q, self.R], [jnp.swapaxes(self.R, -1, -2), self.T]])

    @property
    def signs(self) -> Float[Array, "*times units"]:
        """The coefficients of units in the difference of student and teacher."""
        return jnp.concatenate([self.v, -self.A], axis=-1)

    @property
    def error(self) -> Float[Array, "*times"]:
        """The generalization error: half the mean square of the difference of student and teacher on a new input."""
        signs = self.signs
        return jnp.sum(signs[..., :, None] * signs[..., None, :] * _products(self.covariance), axis=(-1, -2)) / 2


class SoftCommittee(eqx.Module):
    r"""A two-layer erf network that learns online from a teacher, in the limit of infinite input dimension.

    Each step sees a new Gaussian input and moves $w_k$ by $-\frac{\eta}{\sqrt d} v_k g'(\lambda_k) \Delta x$ and $v_k$
    by $-\frac{\eta_v}{d} g(\lambda_k) \Delta$, with $g(z) = \mathrm{erf}(z/\sqrt2)$, $\lambda_k = w_k \cdot x/\sqrt d$
    and the difference $\Delta$ of student and teacher, whose outputs have noise of variance $\sigma^2$. In time t =
    samples/d the overlaps then follow, without randomness,

    $$\dot R_{in} = -\eta v_i \langle g'_i \Delta \rho_n \rangle, \quad
      \dot Q_{ik} = -\eta \langle v_i g'_i \Delta \lambda_k + v_k g'_k \Delta \lambda_i \rangle
        + \eta^2 v_i v_k \langle g'_i g'_k (\Delta^2 + \sigma^2) \rangle, \quad
      \dot v_i = -\eta_v \langle g_i \Delta \rangle.$$

    These averages are arcsines and square roots of the overlaps. The term in $\eta^2$, the noise of single samples, has
    the same order as the others. A run at finite d deviates by about 1/sqrt(d).

    Arguments:
        rate: eta of the first layer, >= 0.
        readout_rate: eta_v of the second layer, >= 0; 0 keeps that layer fixed.
        noise_variance: sigma^2, >= 0.
        rtol: relative tolerance of Tsit5, whose absolute tolerance is 1/100 of it. None takes 1e-8 (float32: 1e-5).
        max_steps: maximum number of steps of the integrator.

    Raises:
        ValueError: an argument is negative or not finite, or ts is not a sorted sequence of finite times >= 0.

    Example:
        >>> one = jnp.eye(2)
        >>> start = js.dynamics.OrderParameters(Q=0.2 * one, R=0.1 * one, T=one, v=jnp.ones(2), A=jnp.ones(2))
        >>> end = js.SoftCommittee(1.0).solve(start, [0.0, 10.0, 50.0])
        >>> print([f"{error:.3f}" for error in end.error])
        ['0.358', '0.020', '0.005']

    Reference:
        Saad and Solla, Phys. Rev. E 52, 4225 (1995); Goldt, Advani, Saxe, Krzakala and Zdeborova, arXiv 1906.08632. The
        averages are derived from reduced covariances, and tested by quadrature and by online SGD.
    """

    rate: Float[Array, ""]
    readout_rate: Float[Array, ""]
    noise_variance: Float[Array, ""]
    rtol: float | None = eqx.field(static=True)  # a tolerance
    max_steps: int = eqx.field(static=True)

    def __init__(
        self,
        rate: Any,
        *,
        readout_rate: Any = 0.0,
        noise_variance: Any = 0.0,
        rtol: float | None = None,
        max_steps: int = 100_000,
    ):
        self.rate = one_number(rate, "rate", zero=True)
        self.readout_rate = one_number(readout_rate, "readout_rate", zero=True)
        self.noise_variance = one_number(noise_variance, "noise_variance", zero=True)
        self.rtol = None if rtol is None else float(one_number(rtol, "rtol"))
        self.max_steps = require_size(max_steps, "max_steps")

    def velocity(self, at: OrderParameters) -> OrderParameters:
        """The time derivatives; those of the teacher are 0."""
        dtype, k = at.Q.dtype, at.v.shape[0]
        rate, readout_rate, noise = (
            value.astype(dtype) for value in (self.rate, self.readout_rate, self.noise_variance)
        )
        covariance, signs = at.covariance, at.signs
        # <g'_i lambda_b Delta> over all preactivations lambda_b, and <g'_i g'_k (Delta^2 + sigma^2)>.
        drift = at.v[:, None] * jax.vmap(lambda i: _drift(covariance, signs, i))(jnp.arange(k))
        noisy = jax.vmap(lambda i: jax.vmap(lambda j: _spread(covariance, signs, noise, i, j))(jnp.arange(k)))
        spread = at.v[:, None] * at.v[None, :] * noisy(jnp.arange(k))
        mean = _products(covariance)[:k] @ signs
        student = drift[:, :k]
        zero = jnp.zeros_like
        moved = -rate * (student + student.T) + rate**2 * spread, -rate * drift[:, k:], zero(at.T)
        where = lambda p: (p.Q, p.R, p.T, p.v, p.A)
        return eqx.tree_at(where, at, (*moved, -readout_rate * mean, zero(at.A)))

    def solve(self, start: OrderParameters, ts: Any) -> OrderParameters:
        """The order parameters at times ts = samples/d, from those at time 0. Differentiable by `jax.grad`.

        Raises:
            TypeError: start is not an `OrderParameters`.
            ValueError: ts is not sorted, negative or not finite.
            RuntimeError: the integrator reached `max_steps`.
        """
        if not isinstance(start, OrderParameters):
            raise TypeError(f"start must be js.dynamics.OrderParameters, got {type(start).__name__}")
        if start.v.ndim != 1:
            raise ValueError(f"start must be at one time, got order parameters with v of shape {start.v.shape}")
        times = jnp.atleast_1d(read_times(ts, start.Q.dtype))
        known = concrete(times)
        if known is not None and not np.isfinite(known).all():
            raise ValueError("ts must be finite, got inf; relaxation is exponential, so take a late time")
        return _solve(self, start, times)


@eqx.filter_jit
def _solve(committee: SoftCommittee, start: OrderParameters, ts: Float[Array, " times"]) -> OrderParameters:
    double = ts.dtype == jnp.float64
    rtol = (1e-8 if double else 1e-5) if committee.rtol is None else committee.rtol
    found = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, at, args: committee.velocity(at)),
        diffrax.Tsit5(),
        t0=jnp.zeros((), ts.dtype),
        t1=ts[-1],
        dt0=None,
        y0=start,
        saveat=diffrax.SaveAt(ts=ts),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol / 100),
        max_steps=committee.max_steps,
    )
    assert found.ys is not None
    return found.ys


def _products(covariance: Float[Array, "*times n n"]) -> Float[Array, "*times n n"]:
    """<g(z_a) g(z_b)> for Gaussian z."""
    scale = jnp.sqrt(1 + jnp.diagonal(covariance, axis1=-2, axis2=-1))
    return 2 / jnp.pi * jnp.arcsin(covariance / (scale[..., :, None] * scale[..., None, :]))


def _drift(covariance: Float[Array, "n n"], signs: Float[Array, " n"], i: Array) -> Float[Array, " n"]:
    """<g'(z_i) z_b Delta> for all b.

    The Gaussian factor g'(z_i) turns the average into one over z with a reduced covariance; and <z_b g(z_c)> is <z_b
    z_c> <g'(z_c)>.
    """
    row, size = covariance[i], 1 + covariance[i, i]
    tilted = covariance - row[:, None] * row[None, :] / size
    return 2 / jnp.pi / jnp.sqrt(size) * (tilted @ (signs / jnp.sqrt(1 + jnp.diagonal(tilted))))


def _spread(
    covariance: Float[Array, "n n"], signs: Float[Array, " n"], noise: Float[Array, ""], i: Array, k: Array
) -> Float[Array, ""]:
    """<g'(z_i) g'(z_k) (Delta^2 + sigma^2)>: both factors reduce the covariance."""
    a, b, c = 1 + covariance[i, i], 1 + covariance[k, k], covariance[i, k]
    size = a * b - c**2
    one, two = covariance[i], covariance[k]
    outer = lambda u, w: u[:, None] * w[None, :]
    taken = b * outer(one, one) + a * outer(two, two) - c * (outer(one, two) + outer(two, one))
    products = _products(covariance - taken / size)
    return 2 / jnp.pi / jnp.sqrt(size) * (signs @ products @ signs + noise)
