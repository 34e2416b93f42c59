"""Diagnosis of a network by a short training run, or from checkpoints."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from .. import nets
from .._checks import require_flag, require_size
from .._core import late, Problem
from .._numerics import samples_in, unwatched
from ..dynamics import Descent
from ..kernels._internal import Trace
from ..observe._internal import MOST, next_update
from ._before import Before, before
from ._diagnosis import Diagnosis, Finding
from ._examine import examine, Examined
from ._finite import check_finite, checked_look, ending
from ._frozen import moving_rates
from ._inputs import check_network, check_optimizer, choose, read_key, read_problem, same_shapes
from ._movement import look, projections_for
from ._rescaled import suited
from ._steps import step_stability, StepStability
from ._train import batch_size_for, checkpoint_steps, train
from ._verdict import decide, paragraph, regime_findings


# Samples for kernels, and for the search for the multiplier, which computes a dozen kernels.
PROBES, FEW = 200, 64
CHECKPOINTS = 5


@unwatched()
def diagnose(
    net: Any,
    x: Any = None,
    y: Any = None,
    *,
    loss: Any = None,
    optimizer: Any = None,
    steps: int = 200,
    test: tuple[Any, Any] | None = None,
    centered: bool = False,
    noise: Any = None,
    state: eqx.nn.State | None = None,
    batch_size: int | None = None,
    checkpoints: int = CHECKPOINTS,
    probes: int | None = None,
    projections: int | None = None,
    products: int = MOST,
    verify: bool = False,
    key: Any = None,
) -> Diagnosis:
    r"""Trains a network briefly, to tell whether it is in the kernel regime or learns features, and how.

    At the parameters theta_t after `steps` steps, on a subset of the samples, it measures how far the tangent kernel
    has moved, $|K_t - K_0|/|K_0|$, and what the linearized network $f_{lin} = f_0 + J_0(\theta_t - \theta_0)$ misses,
    $|f_t - f_{lin}|/|f_t - f_0|$. The verdict compares the kernel's change by the end of training with the limit 0.1 of
    `js.observe.KERNEL_REGIME_LIMIT`. The change is extrapolated in proportion to progress or, below a quarter of it,
    from where linearized training ends. docs/diagnose.md has all thresholds, their sources and how often the verdict is
    right. After 10 s, progress is written to stderr.

    It also finds the output multiplier at which the regime would change: one linearized training run with the same
    optimizer gives the parameters at any multiplier, and kernels are computed there. For the optimizer it measures the
    critical multiple of the next step, and the sharpness in units of the largest stable one, with the preconditioner
    for Adam.

    Arguments:
        net: a network of `js.nets`, any Equinox module that maps one sample to shape (c,), or any f(params, x) as
            `jax.tree_util.Partial(f, params)`. All its floating-point arrays are trained. Alternatively, a `js.Problem`
            or `js.Stream`, which brings x, y, loss, test, centered and state.
        x: inputs, shape (n, ...), or a dict or tuple of several such arrays; integers for embeddings.
        y: targets, as the loss takes them.
        loss: as for `js.Problem`; None takes MSE.
        optimizer: the optax transformation that you train with, such as `optax.adam(1e-3)`; None takes Adam at 1e-3.
            With an array as its rate, `optax.adam(jnp.asarray(1e-3))`, a new rate does not recompile.
        steps: training steps, enough for the loss to fall visibly.
        test: (x, y) of a test set, or None.
        centered: whether to train f - f_0.

    Other Arguments:
        noise: for dropout, the network in training mode, as for `js.Descent`. `net` is then in inference mode, and all
            numbers are measured on it. Linearized training has no noise.
        state: of a network made by `eqx.nn.make_with_state`, `nets.from_nnx_with_state` or `from_torch_with_state`, as
            for `js.Problem`. The network trains in training mode; its kernels are computed in inference mode.
        batch_size: samples per step; None takes the full batch up to 1024 samples, and batches of 256 beyond that and
            for a stream.
        checkpoints: number of checkpoints after the start. Each holds the parameters and the optimizer's state.
        probes: number of samples to measure on, drawn from x. None takes 200, or fewer if these exceed 2^27 outputs.
        projections: number of random projections of the outputs for kernels, as in `js.kernels.Projected`. None takes
            all outputs up to 128, and 16 projections beyond that.
        products: maximum number of products with a Hessian or kernel, two gradients each, per largest eigenvalue. Most
            eigenvalues need 20 to 40; fewer underestimate them, sharpness by about a tenth after 5.
        verify: whether to also train at a third and at three times the crossover multiplier.
        key: random key of batches and probes; None takes `jax.random.key(0)`.

    Returns:
        A `Diagnosis`: `print` it, `report.plot()`, `report.save("diagnosis.html")`, `report.to_xarray()`,
        `report["kernel_change"]`.

    Example:
        >>> import equinox as eqx, optax
        >>> x = jax.random.normal(jax.random.key(0), (32, 4))
        >>> net = eqx.nn.MLP(4, 1, 64, 2, jnp.tanh, key=jax.random.key(1))
        >>> report = js.diagnose(net, x, x[:, :1] * x[:, 1:2], optimizer=optax.adam(1e-2), steps=50)
        >>> print(report.regime.label)
        feature learning
        >>> print(report)
        This network learns features. ...

    Reference:
        Chizat, Oyallon and Bach 2019, "On lazy training in differentiable programming"; Geiger et al. 2020; Cohen et
        al. 2021 and 2022; Kalra and Barkeshli 2024 (arXiv:2406.09405).

    Raises:
        TypeError: net is not a network, the optimizer is not from optax, or a number or key has the wrong type.
        ValueError: the network does not map one sample to an array, or lacks its state; its parameters are not finite,
            or neither float32 nor float64; data do not fit it, or are not finite.
    """
    optimizer = optax.adam(1e-3) if optimizer is None else optimizer
    check_optimizer(optimizer)
    key = read_key(key)
    steps = require_size(steps, "steps")
    if batch_size is not None:
        require_size(batch_size, "batch_size")
    require_flag(verify, "verify")
    require_size(checkpoints, "checkpoints")
    require_size(products, "products")
    problem = read_problem(net, x, y, loss, test, centered, state)
    batch_size = batch_size_for(problem, batch_size)
    probe_key, batch_key = _two(key)
    probe, few = _probes(problem, probes, probe_key)

    trace = _trace(problem, projections, key)
    looks = [checked_look(probe, probe.params, "at the start", trace)]
    say = _said()
    training = train(problem, optimizer, checkpoint_steps(steps, checkpoints), batch_size, batch_key, say, noise)
    end = ending(problem, probe, optimizer, training) if training.diverged else ""
    places = [point.step for point in training.checkpoints]
    # The optimizer as in `train`, whose states the checkpoints hold.
    held = Descent(suited(optimizer, problem.net), rate=1.0).optimizer
    params = [point.params for point in training.checkpoints]
    for step, network in list(zip(places, params, strict=True))[1:]:
        say(f"looking at kernels at step {step} of {places[-1]}")
        looks.append(look(probe, network, trace))
    slopes = [look.slope for look in looks]
    next_of = lambda at, slope: next_update(probe.eta, held, at.params, at.state, slope)
    updates = list(map(next_of, training.checkpoints, slopes))
    eta, frozen = moving_rates(probe, params, [slope.gradient for slope in slopes], updates)
    examined = examine(probe, eta, places, params, looks, trace, products, say)
    at_start = training.checkpoints[0].state
    say("looking for the multiplier at which the regime changes")
    ahead = before(problem, probe, few, eta, optimizer, at_start, steps, batch_size, batch_key, trace, verify=verify)
    verdict = decide(examined, training.diverged, ahead.linearized_change)
    stable = step_stability(probe, held, training.checkpoints, slopes, updates, products, say)

    findings = regime_findings(examined, verdict) | ahead.findings | stable.findings
    if not examined.learnable:  # gradient and steps are rounding errors
        nothing = {name: findings[name].limit for name in ("chizat_ratio", "critical_rate", "crossover_multiplier")}
        findings |= {name: Finding(np.nan, limit, "not known: nothing to learn") for name, limit in nothing.items()}
    history = examined.history | stable.history
    if ahead.linear_loss is not None:
        history["linear_loss"] = _at_end(ahead.linear_loss, len(places))
    if ahead.linear_test_loss is not None:
        history["linear_test_loss"] = _at_end(ahead.linear_test_loss, len(places))
    said = {"ending": end, "stuck": ahead.stuck, "uphill": stable.uphill}
    text = paragraph(examined, verdict, findings, ahead.words, stable.words, **said)
    noisy = [] if noise is None else ["It trained with noise; all numbers are of the network without noise."]
    notes = [
        *noisy,
        *_chosen(problem, probe, examined, batch_size, trace, products),
        *frozen,
        *ahead.notes,
        *stable.notes,
    ]
    return Diagnosis(
        verdict.regime,
        verdict.near,
        text,
        findings,
        history,
        examined.groups.names,
        examined.by_group,
        examined.pairs,
        examined.by_pair,
        ahead.by_scale,
        tuple(notes),
    )


@unwatched()
def diagnose_checkpoints(
    checkpoints: Sequence[Any],
    x: Any,
    y: Any,
    *,
    loss: Any = None,
    test: tuple[Any, Any] | None = None,
    centered: bool = False,
    state: eqx.nn.State | None = None,
    steps: Sequence[int] | None = None,
    probes: int | None = None,
    projections: int | None = None,
    products: int = MOST,
    key: Any = None,
) -> Diagnosis:
    """Diagnoses a finished training run from its saved networks, the first one at the start.

    Like `js.diagnose`, but without the optimizer: stability is that of gradient descent, and the crossover is estimated
    from the parameters' displacement so far, which in the kernel regime equals that of linearized training.

    Arguments:
        checkpoints: networks of one structure and shape, in the order of training.
        x, y, loss, test, centered, state: as for `js.diagnose`.
        steps: the steps of the checkpoints, ascending; None takes 0, 1, 2, ...

    Other Arguments:
        probes, projections, products, key: as for `js.diagnose`.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=4, out_size=1, width_size=64, depth=2, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(1)
        ... )
        >>> x = jax.random.normal(jax.random.key(0), (32, 4))
        >>> problem = js.Problem(net, x, 0.01 * x[:, :1], centered=True)
        >>> run = js.solve(problem, js.GradientFlow(), 10.0)
        >>> report = js.diagnose_checkpoints([net, run.final.net], x, 0.01 * x[:, :1], centered=True)
        >>> print(report.regime.label)
        kernel

    Raises:
        TypeError: as `js.diagnose`; or checkpoints is not a list.
        ValueError: as `js.diagnose`; fewer than two checkpoints, checkpoints of different shapes, or steps that do not
            ascend.
    """
    networks = same_shapes(checkpoints, state)
    key = read_key(key)
    places = list(range(len(networks))) if steps is None else [int(step) for step in steps]
    if len(places) != len(networks) or any(b <= a for a, b in zip(places[:-1], places[1:], strict=True)):
        raise ValueError(f"steps must ascend, one for each of {len(networks)} checkpoints; got {places}")
    problem = read_problem(networks[0], x, y, loss, test, centered, state)
    # Adapters such as `from_linen` may make a new function each time; structures may differ in this alone.
    structure = jax.tree.structure(problem.params)
    params = [jax.tree.unflatten(structure, jax.tree.leaves(nets.partition(network)[0])) for network in networks]
    for index, later in enumerate(params[1:], 1):
        check_finite(problem, later, f"in checkpoint {index}")
    return _of_parameters(problem, params, places, probes, projections, require_size(products, "products"), key)


def diagnose_parameters(problem: Problem, params: Sequence[PyTree], steps: Sequence[int]) -> Diagnosis:
    """Diagnoses parameters of a problem's network, the first ones at its start, on all its samples."""
    check_network(problem.net, problem.state)
    for place, later in zip(steps, params, strict=True):
        check_finite(problem, later, f"at step {place}")
    return _of_parameters(problem, list(params), list(steps), samples_in(problem.x), None, MOST, jax.random.key(0))


def _of_parameters(
    problem: Problem,
    params: list[PyTree],
    places: list[int],
    probes: int | None,
    projections: int | None,
    products: int,
    key: Any,
) -> Diagnosis:
    probe, few = _probes(problem, probes, key)
    trace = _trace(problem, projections, key)
    named = ["at the start", *(f"in checkpoint {index}" for index in range(1, len(params)))]
    looks = [checked_look(probe, network, when, trace) for network, when in zip(params, named, strict=True)]
    eta, frozen = moving_rates(probe, params, [look.slope.gradient for look in looks], None)
    examined = examine(probe, eta, places, params, looks, trace, products, _said())
    displacement = jax.tree.map(jnp.subtract, params[-1], params[0])
    ahead = Before.from_displacement(few, eta, displacement, float(examined.history["progress"][-1]), trace)
    verdict = decide(examined, False, ahead.linearized_change)
    stable = StepStability.of_descent(probe, eta, params, products)
    findings = regime_findings(examined, verdict) | ahead.findings | stable.findings
    return Diagnosis(
        verdict.regime,
        verdict.near,
        paragraph(examined, verdict, findings, ahead.words, []),
        findings,
        examined.history | stable.history,
        examined.groups.names,
        examined.by_group,
        examined.pairs,
        examined.by_pair,
        ahead.by_scale,
        tuple([*_chosen(problem, probe, examined, None, trace, products), *frozen, *ahead.notes, *stable.notes]),
    )


def _probes(problem: Problem, probes: int | None, key: Any) -> tuple[Problem, Problem]:
    """The problem on the probe samples, and on those for the multiplier."""
    count = max(2, min(PROBES, problem.at_once)) if probes is None else require_size(probes, "probes", least=2)
    return choose(problem, count, key), choose(problem, min(FEW, count), key)


@eqx.filter_jit
def _two(key: Any) -> tuple[Any, Any]:
    """Two keys from one, by one program."""
    one, other = jax.random.split(key)
    return one, other


def _trace(problem: Problem, projections: int | None, key: Any) -> Trace:
    given = None if projections is None else require_size(projections, "projections")
    return Trace(projections_for(problem.out_size) if given is None else given, key)


def _said() -> Callable[[str], None]:
    """Returns a function that reports the progress of a diagnosis once it has taken 10 s."""
    write = late("diagnose")
    return lambda words: write(lambda seconds: f"{words}, {seconds:.0f} s so far")


def _at_end(value: float, count: int) -> np.ndarray:
    return np.array([np.nan] * (count - 1) + [value])


def _chosen(
    problem: Problem, probe: Problem, examined: Examined, batch_size: int | None, trace: Trace, products: int
) -> list[str]:
    """Notes on default choices, and on what the numbers were measured on."""
    n, looked = samples_in(problem.x), samples_in(probe.x)
    notes = []
    if looked < n:
        notes.append(f"Kernels, losses and sharpness are measured on {looked} samples, drawn from {n}.")
    if examined.dtype != problem.dtype:
        eps = float(jnp.finfo(examined.dtype).eps)
        notes.append(
            f"The network computes in {examined.dtype}: numbers are accurate to about {eps:.1g} of their size, and "
            f"changes to {eps:.1g} of the numbers compared."
        )
    if trace.projections is not None:
        notes.append(
            f"Kernels are of {trace.projections} random projections of the {problem.out_size} outputs, and on average "
            "equal those of all."
        )
    if products < MOST:
        notes.append(
            f"Largest eigenvalues come from at most {products} products of matrices and vectors, and may be too small."
        )
    if problem.state is not None:
        notes.append(
            "It trains in training mode, which updates its state. Kernels are of the network in inference mode, with "
            "the statistics of the samples measured; everything else is of the network in training mode on these "
            "samples."
        )
    if problem.sampler is not None:
        notes.append(
            f"Trained on {batch_size} new samples at each step; all numbers are measured on samples drawn beforehand."
        )
    elif batch_size is not None:
        notes.append(
            f"Trained in batches of {batch_size}; sharpness is that of the full batch, which batches keep lower."
        )
    return notes
