"""Chooses the closed form that solves a problem."""

import equinox as eqx

from .._checks import concrete, see
from .._core import AbstractRandomAccess, NotApplicable, Problem, require_problem, Validity
from .._numerics import unwatched
from .kunin._single_neuron import SingleNeuronFlow
from .linear._balanced import Balanced
from .linear._deep_balanced import DeepBalanced
from .xu_ziyin._decoupled_modes import DecoupledModes
from .xu_ziyin._two_layer_line import TwoLayerLine


def exact(problem: Problem) -> AbstractRandomAccess:
    """The first closed form that solves a concrete problem exactly, as judged by its `check`.

    They are tried in this order: TwoLayerLine, SingleNeuronFlow, Balanced, DeepBalanced, DecoupledModes. Asymptotic
    predictions such as `js.theory.SilentAlignment` are never chosen.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=8, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.array([[3.0, 4.0]]), jnp.array([2.0]))
        >>> js.exact(problem).name
        'TwoLayerLine'

    Raises:
        TypeError: the argument is not a problem, or its numbers are traced.
        NotApplicable: the problem is a stream or has weight decay, or no closed form solves it. The message names the
            nearest form first, the one that misses the fewest assumptions by the least, then all others, each with what
            it misses and by how much.
    """
    require_problem(problem)
    if problem.sampler is not None:
        raise NotApplicable(
            "a closed form needs a training set, and a stream has none; js.theory.online_sgd solves SGD on a linear "
            "model, and js.exact(js.Problem(net, stream.x, stream.y)) the flow on the samples that the stream holds"
        )
    if problem.weight_decay is not None:
        raise NotApplicable(
            "no closed form covers weight decay: leave weight_decay out of the problem, or run js.GradientFlow()"
        )
    missed = []
    for form in (TwoLayerLine(), SingleNeuronFlow(), Balanced(), DeepBalanced(), DecoupledModes()):
        validity = _check(form, problem)
        if concrete(validity.exact) is None:
            raise TypeError(
                "a closed form is chosen by the numbers of a problem, which are traced here; call js.exact outside of "
                f"jit, vmap and grad, or name the form, such as js.theory.{form.name}()"
            )
        if bool(validity.exact):
            return form
        missed.append((_distance(validity), f"{form.name} needs {validity.missed()}"))
    (_, nearest), *others = sorted(missed, key=lambda pair: pair[0])
    lines = "\n  ".join([nearest, *(line for _, line in others)])
    raise NotApplicable(
        f"no closed form solves this problem exactly; the nearest is\n  {lines}\n{see('no-closed-form').strip()}"
    )


@unwatched()  # for a problem of another kind, the violation is infinite
@eqx.filter_jit
def _check(form: AbstractRandomAccess, problem: Problem) -> Validity:
    return form.check(problem)


def _distance(validity: Validity) -> tuple[int, int, float]:
    """The distance of a problem from a form: first by kind, then by number of assumptions missed, then by size."""
    failed = [a for a in validity.assumptions if not bool(a.holds)]
    kinds = sum(a.structural for a in failed)
    return kinds, len(failed), sum((float(a.violation) for a in failed if not a.structural), 0.0)
