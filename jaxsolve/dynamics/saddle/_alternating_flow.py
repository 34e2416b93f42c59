"""Training from small weights: the order, times and levels of the drops from saddle to saddle."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from ..._checks import require_size
from ..._core import AbstractRandomAccess, Assumption, Problem, Quantity, Validity, View
from ..._numerics import nonzero, norm
from ...losses import MSE
from ...nets._internal import Split, split
from ._active import settle
from ._dormant import Population, wait


class Drops(eqx.Module):
    """The drops of a run from small weights, in order; drops that never occur are at t = inf.

    Attributes:
        times: the time at which each drop reaches half its amplitude, with a quarter of its loss left.
        losses: the training loss before the first drop and after each one.
        neurons: the index of the neuron that becomes active, -1 for drops that never occur.
        params: the parameters before the first drop and after each one, stacked; dormant neurons are 0.

    Example:
        >>> scaling = js.nets.Scaling([1.0, 1.0], sigma=[1e-6, 1e-6], eta=[1.0, 1.0])
        >>> net = js.nets.TwoLayerLinear(in_size=2, out_size=2, width_size=8, scaling=scaling, key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.diag(jnp.array([4.0, 1.0])))
        >>> drops = js.AlternatingFlow(drops=3).drops(problem)
        >>> print(*(f"{loss:.2f}" for loss in drops.losses), drops.neurons[2])
        4.25 0.25 0.00 0.00 -1
    """

    times: Float[Array, " drops"]
    losses: Float[Array, " plateaus"]
    neurons: Int[Array, " drops"]
    params: Any


class AlternatingFlow(AbstractRandomAccess):
    r"""Training from small weights, saddle to saddle: dormant neurons grow until one counts, active ones rest at once.

    For networks $f = \sum_i g(\theta_i, x)$ of homogeneous neurons, of degree $\kappa \ge 2$, under mean squared error.
    Each dormant neuron climbs its utility $U(\theta) = \frac1n \sum_\mu g(\theta, x_\mu) \cdot r_\mu$ under the
    residual r of the active ones: with $d = \theta/|\theta|$,

    $$\frac{d |\theta|}{dt} = \kappa |\theta|^{\kappa-1} U(d), \quad
    \frac{d d}{dt} = |\theta|^{\kappa-2} (1 - d d^\top) \nabla U(d).$$

    The first neuron large enough to fit its part of the residual becomes active; then the active ones flow to a minimum
    of the loss instantaneously. An active neuron that shrinks to 0 there becomes dormant again. Neurons with the same
    destined contribution (to 99 % in cosine) count together.

    This is the limit of gradient flow for weights of size $a \to 0$. Times of drops grow like $\log(1/a)$ for
    $\kappa = 2$ and like $a^{2-\kappa}$ above. For $\kappa = 2$ they are off by a constant, a relative error of
    $1/\log(1/a)$. The growth of a small component of a neuron is lost to rounding: below about $a = 10^{-8}$ ($10^{-4}$
    in single precision) drops after the first may be late or missing.

    For `nets.MLP` of depth 1 without biases with ReLU, leaky ReLU or linear activation, `nets.TwoLayerLinear`,
    `nets.LinearAttention` with separate keys and queries, and any other neurons by `nets.Neurons`. With `js.solve` it
    yields plateaus, between which the loss jumps; `drops` gives times, levels and neurons. Provides parameters, outputs
    and NTK at the saddles, where dormant neurons are 0.

    Arguments:
        drops: maximum number of drops to look for.

    Example:
        >>> scaling = js.nets.Scaling([1.0, 1.0], sigma=[1e-6, 1e-6], eta=[1.0, 1.0])
        >>> net = js.nets.TwoLayerLinear(in_size=2, out_size=2, width_size=8, scaling=scaling, key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.diag(jnp.array([4.0, 1.0])))
        >>> run = js.solve(problem, js.AlternatingFlow(drops=3), [0.0, 10.0, 100.0])
        >>> print(*(f"{loss:.2f}" for loss in run["loss"]))
        4.25 0.25 0.00

    Reference:
        @article{kunin2025alternating, title={Alternating gradient flows: a theory of feature learning in two-layer
          neural networks}, author={Daniel Kunin and others}, year={2025}, note={arXiv 2506.06489}}

    Raises:
        NotApplicable: when used, if the network is not such a sum, the loss is not MSE, or the problem is centered.
        ValueError, TypeError: drops is not an integer >= 1.
    """

    most: int = eqx.field(static=True)  # a shape

    def __init__(self, *, drops: int = 8):
        self.most = require_size(drops, "drops")

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset({Quantity.PARAMS, Quantity.OUTPUTS, Quantity.KERNEL})

    def check(self, problem: Problem) -> Validity:
        found, dtype = split(problem.net, problem.params), problem.dtype
        kind = [
            (
                "a sum of homogeneous neurons: two layers without biases or padding, attention with separate keys and "
                "queries, or nets.Neurons",
                found is not None,
                type(problem.net).__name__,
            ),
            ("MSE loss", isinstance(problem.loss, MSE), type(problem.loss).__name__),
            ("outputs that are not centered", not problem.centered, "centered=True"),
        ]
        assumptions = [Assumption.of_kind(*one, dtype) for one in kind]
        if found is not None:
            small = found.degree >= 2
            assumptions.append(Assumption.of_kind("degree at least 2", small, f"degree {found.degree}", dtype))
        if found is not None and not any(a.structural for a in assumptions):
            start = problem.outputs(problem.params)
            doubled = problem.outputs(jax.tree.map(lambda leaf: 2 * leaf, problem.params)) / 2**found.degree
            off = norm(doubled - start) / nonzero(norm(start))
            name = f"twice the weights, 2^{found.degree:g} times the outputs"
            assumptions += [
                Assumption(name, off, 1e-3, "the outputs have another degree in the weights"),
                Assumption("small outputs at the start", norm(start) / nonzero(norm(problem.y)), 0.1, "over targets"),
            ]
        return Validity(tuple(assumptions), asymptotic=True)

    def drops(self, problem: Problem) -> Drops:
        """The order, the times and the levels of the drops, and the parameters at the saddles.

        Raises:
            NotApplicable: the problem is of a different kind.
        """
        if (validity := self.check(problem)).structural:
            raise validity.refusal(self.name)
        return _drops(problem, self.most)

    def at(self, problem: Problem, t: Float[Array, ""]) -> View:
        drops = self.drops(problem)
        plateau = jnp.sum(drops.times <= t)
        return View(problem, t, jax.tree.map(lambda leaf: leaf[plateau], drops.params))


class _March(NamedTuple):
    neurons: Population
    t: Float[Array, ""]
    drop: Int[Array, ""]
    times: Float[Array, " drops"]
    losses: Float[Array, " plateaus"]
    first: Int[Array, " drops"]
    weights: Float[Array, "plateaus neurons size"]
    done: Array


@eqx.filter_jit
def _drops(problem: Problem, most: int) -> Drops:
    found: Split = split(problem.net, problem.params)  # pyright: ignore[reportAssignmentType]
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], found.thetas))
    rates = ravel_pytree(jax.tree.map(lambda leaf, eta: jnp.full_like(leaf[0], eta), found.thetas, found.eta))[0]
    start = jax.vmap(lambda theta: ravel_pytree(theta)[0])(found.thetas) / jnp.sqrt(rates)[None, :]
    count, dtype, y = len(start), start.dtype, problem.y

    of_samples = jax.vmap(found.neuron, in_axes=(None, None, 0))
    one = lambda w, constant: of_samples(unravel(jnp.sqrt(rates) * w), constant, problem.x)
    added = lambda w: jax.vmap(one)(w, found.constants)
    residual_of = lambda neurons: (
        y - jnp.sum(jnp.where(neurons.active[:, None, None], added(neurons.weights), 0), axis=0)
    )
    loss_of = lambda residual: problem.loss.value(y - residual, y)
    norms = jnp.linalg.norm(start, axis=1)
    neurons = Population(start / nonzero(norms)[:, None], jnp.log(norms), jnp.zeros(count, bool))
    # Gains below the rounding error of the targets count as zero.
    least = 2 * loss_of(y) * float(jnp.finfo(dtype).eps) ** 0.5
    slots = min(count, most)

    def rest(neurons: Population) -> Population:
        """The population with active neurons at rest."""
        places = jnp.nonzero(neurons.active, size=slots, fill_value=count)[0]
        held = lambda leaf: jnp.take(leaf, places, axis=0, mode="clip")
        constants, here = jax.tree.map(held, found.constants), places < count

        def objective(w: Float[Array, "slots size"]) -> Float[Array, ""]:
            outputs = jax.vmap(one)(jnp.where(here[:, None], w, 0), constants)
            return problem.loss.value(jnp.sum(jnp.where(here[:, None, None], outputs, 0), axis=0), y)

        before = jnp.where(here[:, None], held(neurons.weights), 0)
        after = settle(objective, before)
        norms = jnp.linalg.norm(after, axis=1)
        gone = norms < 1e-3 * jnp.linalg.norm(before, axis=1)
        # A neuron that has shrunk to 0 is dormant again at its former size, from which it falls and may rise.
        write = lambda leaf, new: leaf.at[places].set(jnp.where(_like(gone, new), held(leaf), new), mode="drop")
        return Population(
            write(neurons.directions, after / nonzero(norms)[:, None]),
            write(neurons.sizes, jnp.log(norms)),
            neurons.active.at[places].set(~gone, mode="drop"),
        )

    def body(march: _March) -> _March:
        waited = wait(added, found.degree, march.neurons, residual_of(march.neurons), least)
        t, first = march.t + waited.t, waited.first
        size = jnp.linalg.norm(waited.target)
        woken = Population(
            waited.neurons.directions.at[first].set(waited.target / nonzero(size)),
            waited.neurons.sizes.at[first].set(jnp.log(size)),
            waited.neurons.active.at[first].set(True),
        )
        ended = ~jnp.isfinite(t)
        rested = jax.lax.cond(ended, lambda: march.neurons, lambda: rest(woken))
        held = jnp.where(rested.active[:, None], rested.weights, 0)
        drop = march.drop
        later = jnp.arange(most + 1) > drop
        return _March(
            rested,
            t,
            drop + 1,
            march.times.at[drop].set(t),
            jnp.where(later, loss_of(residual_of(rested)), march.losses),
            march.first.at[drop].set(jnp.where(ended, -1, first)),
            jnp.where(later[:, None, None], held[None], march.weights),
            ended,
        )

    begin = _March(
        neurons,
        jnp.zeros((), dtype),
        jnp.zeros((), int),
        jnp.full(most, jnp.inf, dtype),
        jnp.broadcast_to(loss_of(y), (most + 1,)),
        jnp.full(most, -1),
        jnp.zeros((most + 1, *start.shape), dtype),
        jnp.zeros((), bool),
    )
    end = jax.lax.while_loop(lambda march: ~march.done & (march.drop < most), body, begin)
    thetas = jax.vmap(jax.vmap(lambda w: unravel(jnp.sqrt(rates) * w)))(end.weights)
    return Drops(end.times, end.losses, end.first, jax.vmap(found.join)(thetas))


def _like(flags: Array, array: Array) -> Array:
    return flags.reshape(flags.shape + (1,) * (array.ndim - 1))
