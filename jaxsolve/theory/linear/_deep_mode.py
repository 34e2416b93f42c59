r"""The strength of one mode of a balanced deep linear network at any time, from the implicit solution of its flow.

With $c = v^L$ the strength and s its target, $\dot v = v^{L-1} (s - v^L)$ (Atanasov et al., eq. 38, corrected). For a
fraction $u \in (0, 1)$ that grows with time, $\int u^{\alpha-1} (1-u)^{\beta-1} du = L |s|^{2-2/L} T$: an incomplete
beta function, usually written as a 2F1:

- below the target, $u = c/s$: $\alpha = 2/L - 1, \beta = 0$;
- above it, $u = s/c$: $\alpha = 2 - 2/L, \beta = 0$;
- target of the opposite sign, $u = |s|/(c + |s|)$: $\alpha = 2 - 2/L, \beta = 2/L - 1$.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..._numerics import nonzero


TERMS = 60  # of the binomial series, which fall like 2^-k, to below the last digit of float64
# Six sufficed for 3 to 16 matrices, starts from 1e-12 of the target and ends from 1e-9 to 1 - 1e-12 of it. The number
# is fixed, so that all modes and lanes of a sweep take the same steps.
NEWTON_STEPS = 9
HALF = float(-np.log(2.0))


class _Series(NamedTuple):
    """int_0^u u^(alpha-1) (1-u)^(beta-1) du = u^alpha sum_k c_k u^k for u <= 1/2, with log u in place of u^0/0."""

    alpha: Float[Array, "..."]
    coefficients: Float[Array, "... terms"]

    def __call__(self, log_u: Float[Array, "..."]) -> Float[Array, "..."]:
        k = jnp.arange(TERMS, dtype=log_u.dtype).reshape((1,) * log_u.ndim + (TERMS,))
        powers = jnp.exp((self.alpha[..., None] + k) * log_u[..., None])
        return jnp.sum(self.coefficients * powers, axis=-1) + jnp.where(self.alpha == 0, log_u, 0)


def _coefficients(alpha: float, beta: float) -> np.ndarray:
    k = np.arange(TERMS)
    binomial = np.cumprod(np.concatenate([[1.0], (k[1:] - beta) / k[1:]]))
    powers = k + alpha
    return np.where(powers == 0, 0.0, binomial / np.where(powers == 0, 1.0, powers))


class IncompleteBeta(NamedTuple):
    """Incomplete beta functions, one per mode: -1 < alpha <= 2, -1 < beta <= 0."""

    low: _Series  # from u = 0
    high: _Series  # from u = 1
    match: Float[Array, "..."]

    @staticmethod
    def choose(exponents: list[tuple[float, float]], case: Int[Array, "..."], dtype) -> "IncompleteBeta":
        """The functions with the pair (alpha, beta) that the case of each mode selects."""
        pick = lambda values: jnp.asarray(np.array(values), dtype)[case]
        low = [_coefficients(alpha, beta) for alpha, beta in exponents]
        high = [_coefficients(beta, alpha) for alpha, beta in exponents]
        halves = 0.5 ** np.arange(TERMS)
        at_half = lambda power, c: 0.5**power * np.sum(c * halves) + (HALF if power == 0 else 0)
        match = [at_half(x, l) + at_half(y, h) for (x, y), l, h in zip(exponents, low, high, strict=True)]
        alpha, beta = zip(*exponents, strict=True)
        return IncompleteBeta(_Series(pick(alpha), pick(low)), _Series(pick(beta), pick(high)), pick(match))

    def integral(self, y: Float[Array, "..."]) -> Float[Array, "..."]:
        """The integral up to u = 1/(1 + e^-y), up to a constant if alpha <= 0; strictly increasing in y.

        Uses the binomial series from the nearer end.
        """
        near = jnp.minimum(-jax.nn.softplus(jnp.abs(y)), HALF)
        return jnp.where(y < 0, self.low(near), self.match - self.high(near))

    def log_slope(self, y: Float[Array, "..."]) -> Float[Array, "..."]:
        """log(d integral/dy), where the slope is u^alpha (1 - u)^beta."""
        return -self.low.alpha * jax.nn.softplus(-y) - self.high.alpha * jax.nn.softplus(y)


@jax.custom_jvp
def _advance(law: IncompleteBeta, y: Float[Array, "..."], duration: Float[Array, "..."]) -> Float[Array, "..."]:
    """The logit of u after a duration >= 0, starting from the logit y."""
    begin = law.integral(y)
    goal = begin + jnp.minimum(duration, 0.1 * float(jnp.finfo(y.dtype).max))
    half = law.match - law.high(jnp.full_like(y, HALF))
    late = goal > half
    near = _invert(law, jnp.where(late, law.match - goal, goal), late)
    far = jnp.log1p(-jnp.exp(near))
    found = jnp.maximum(jnp.where(late, far - near, near - far), y)
    found = found + (goal - law.integral(found)) * jnp.exp(-law.log_slope(found))  # a Newton step in y itself
    return jnp.where(jnp.isfinite(begin), found, y)  # otherwise no time of the dtype suffices to escape


@_advance.defjvp
def _advance_jvp(primals, tangents):
    law, y, _ = primals
    later = _advance(*primals)
    # Through logarithms: either slope alone may overflow or underflow.
    slope = law.log_slope(later)
    return later, jnp.exp(law.log_slope(y) - slope) * tangents[1] + jnp.exp(-slope) * tangents[2]


def _invert(law: IncompleteBeta, goal: Array, late: Array) -> Array:
    """log u <= log(1/2) at which the series from the nearer end equals `goal`; u stands for 1 - u where `late`.

    In terms of its leading term, z = u^alpha/alpha or log u, each series has the slope (1 - u)^(beta-1), which changes
    monotonically from 1 up to at most 4, or down to 1/2. The series is therefore convex and above z, or concave and
    below z. From z = goal, or from u = 1/2 if that comes first, Newton's method approaches the solution from one side.
    """
    pick = lambda high, low: jnp.where(late, high, low)
    alpha, beta = pick(law.high.alpha, law.low.alpha), pick(law.low.alpha, law.high.alpha)
    series = _Series(alpha, jnp.where(late[..., None], law.high.coefficients, law.low.coefficients))
    safe = nonzero(alpha)
    most = jnp.where(alpha == 0, HALF, jnp.exp(alpha * HALF) / safe)
    tiny = float(jnp.finfo(goal.dtype).tiny)
    log_u = lambda z: jnp.minimum(jnp.where(alpha == 0, z, jnp.log(jnp.maximum(safe * z, tiny)) / safe), HALF)

    def newton(_, z):
        at = log_u(z)
        slope = jnp.exp((beta - 1) * jnp.log1p(-jnp.exp(at)))
        return jnp.minimum(z + (goal - series(at)) / slope, most)

    return log_u(jax.lax.fori_loop(0, NEWTON_STEPS, newton, jnp.minimum(goal, most)))


def mode_strength(
    v: Float[Array, "..."], target: Float[Array, "..."], T: Float[Array, "..."], *, matrices: int
) -> Float[Array, "..."]:
    """v(T) = c^(1/L) of a mode with v' = v^(L-1) (target - v^L), from v >= 0.

    Arguments:
        v: at the start. A mode at 0 stays there.
        target: the limit of c if positive; otherwise c falls to 0.
        T: times in [0, inf].
        matrices: L >= 2.
    """
    L = matrices
    a = 1 - 2 / L
    ended = jnp.isinf(T)
    T = jnp.where(ended, 0, T)
    c = v**L
    size = jnp.abs(target)
    s = nonzero(size)
    log_s = jnp.log(s)
    rising, falling, crossing = (target > 0) & (c < size), (target > 0) & (c > size), target < 0
    moves = (v > 0) & (rising | falling | crossing)
    log_c = jnp.where(moves, L * jnp.log(jnp.where(moves, v, 1)), log_s - float(np.log(2.0)))  # c may be 0 or inf
    log_gap = jnp.log(jnp.where(moves & ~crossing, jnp.abs(s - c), s))
    # The logit of u = c/s, s/c or s/(c + s).
    below, above = jnp.where(rising, log_c, log_s), jnp.where(rising | falling, log_gap, log_c)
    case = jnp.where(rising, 0, jnp.where(falling, 1, 2))
    law = IncompleteBeta.choose([(-a, 0.0), (1 + a, 0.0), (1 + a, -a)], case, v.dtype)
    y = _advance(law, below - above, L * jnp.exp((2 - 2 / L) * log_s) * T)
    log_c = jnp.where(rising, -jax.nn.softplus(-y), jnp.where(falling, jax.nn.softplus(-y), -y))
    # With a target of 0, v' = -v^(2L-1).
    powers = 2 * L - 2
    idle, met = (v > 0) & (size == 0), (v > 0) & (target == v**L)
    shrunk = jnp.log1p(powers * jnp.where(idle, v, 0) ** powers * T) / powers
    fading = v / jnp.exp(shrunk)
    # Modes at rest move with their target: first-order terms, with value 0, for a target of 0 and for one that is met.
    # Modes so small that the power overflows have no such term.
    least = float(jnp.finfo(v.dtype).tiny) ** (1 / (L + 1))
    power = lambda which, of: jnp.where(which & (of > least), of, jnp.inf) ** (1 - L)
    rest = power(idle, fading) * -jnp.expm1(-(3 * L - 2) * shrunk) / (3 * L - 2)
    follows = power(met, v) * -jnp.expm1(-L * jnp.where(met, v, 0) ** powers * T) / L
    rest, follows = jax.lax.stop_gradient((rest, follows))
    still = v + jnp.where(met, target - v**L, 0) * follows
    found = jnp.where(moves, jnp.exp((log_s + log_c) / L), jnp.where(size == 0, fading + target * rest, still))
    end = jnp.where(target > 0, jnp.exp(jnp.log(jnp.where(target > 0, target, 1)) / L), 0)
    return jnp.where(ended & (v > 0), end, found)


def half_loss_time(v: Float[Array, "..."], target: Float[Array, "..."], *, matrices: int) -> Float[Array, "..."]:
    """The time T at which the loss of a rising mode, (target - c)^2/2, has halved, in closed form.

    NaN for modes that do not rise (target <= v^L or v = 0).
    """
    L = matrices
    rises = (v > 0) & (target > v**L)
    v, s = jnp.where(rises, v, 0.5 ** (1 / L)), jnp.where(rises, target, 1.0)
    gap = s - v**L
    # The loss has halved where the gap s - c is 1/sqrt(2) of its initial value.
    half = s - 0.5**0.5 * gap
    law = IncompleteBeta.choose([(2 / L - 1, 0.0)], jnp.zeros(v.shape, int), v.dtype)
    # Logits of u = c/s: log c - log(s - c).
    begin, end = L * jnp.log(v) - jnp.log(gap), jnp.log(half) - jnp.log(0.5**0.5 * gap)
    passed = law.integral(end) - law.integral(begin)
    return jnp.where(rises, passed / (L * jnp.exp((2 - 2 / L) * jnp.log(s))), jnp.nan)
