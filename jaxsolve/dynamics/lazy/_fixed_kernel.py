"""Outputs under a fixed kernel: in closed form for MSE, by marching for any other loss."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from ... import kernels
from ..._checks import describe
from ..._core import (
    AbstractChoice,
    AbstractMarching,
    AbstractRandomAccess,
    AbstractSavingState,
    AbstractStandIn,
    AbstractState,
    AbstractStoppable,
    Assumption,
    Certificate,
    condition_of,
    FunctionValues,
    March,
    NotApplicable,
    Observed,
    Problem,
    Quantity,
    Validity,
    View,
)
from ..._numerics import Inputs, nonzero
from ..._results import RESULTS
from ...kernels._internal import beside, FeatureModel
from ...losses import MSE
from ...until import AbstractCondition
from .._approximation import AbstractApproximation
from .._marching import Saves
from ..descent._descent import Descent
from ..flow._choice import in_shapes, is_endless
from ..flow._gradient_flow import GradientFlow


Kernel = Float[Array, "n m"] | Float[Array, "n out m out"]


class AbstractFixedKernel(AbstractApproximation):
    """df(x)/dt = -sum_i K(x, x_i) dL/df_i from the problem's initial outputs.

    It becomes a closed form or a march once the problem is known, by `choose`. Until then it is neither.

    Attributes:
        flow: the dynamics that marches in function space, or None.
    """

    flow: eqx.AbstractVar[AbstractMarching | None]

    @abc.abstractmethod
    def ntk(self, problem: Problem, x1: Inputs, x2: Inputs | None = None) -> Kernel:
        """The kernel between inputs, without output axes if it is the same for every output."""

    @abc.abstractmethod
    def settled(self, problem: Problem) -> "AbstractFixedKernel":
        """The same dynamics, with everything expensive computed once for this problem."""

    @abc.abstractmethod
    def doubt(self, problem: Problem, final: View) -> str:
        """A sentence on what is wrong with the kernel of a finished run; empty if no fault is found."""

    @property
    def name(self) -> str:
        name = type(self).__name__
        return name if self.flow is None else f"{name}({self.flow.name})"

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset({Quantity.OUTPUTS, Quantity.KERNEL})

    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        return ts if self.flow is None else self.flow.times(ts)

    def ways(self, problem: Problem) -> "tuple[KernelSolution] | tuple[KernelMarch, ...]":
        """The closed form for MSE if there is no flow, else marches in function space."""
        if self.flow is None and isinstance(problem.loss, MSE):
            return (KernelSolution(self),)
        flow: Any = GradientFlow() if self.flow is None else self.flow
        flows = (flow,)
        if isinstance(flow, AbstractChoice):
            flows = self._of_model(flow.ways, problem)
        return tuple(KernelMarch(self, one) for one in flows)  # pyright: ignore[reportCallIssue]

    def possible(self, problem: Problem) -> tuple[int, ...]:
        if (flow := self._choosing(problem)) is None:
            return (0,)
        return self._of_model(flow.possible, problem)

    def way(self, problem: Problem, ts: Float[Array, "..."] | None = None) -> Int[ArrayLike, ""]:
        if (flow := self._choosing(problem)) is None:
            return 0
        # Without a last time there is no stiffness to predict from, so shapes decide and no kernel is computed.
        if is_endless(ts):
            return self._of_model(flow.way, problem)
        return _way_in_function_space(self, flow, problem, ts)  # pyright: ignore[reportArgumentType]

    def _of_model(self, asked: Callable[[Problem], Any], problem: Problem) -> Any:
        """The result for the shapes of the flow's model, which has no kinks even if the network has some."""
        return in_shapes(lambda problem: asked(_model(problem, _inputs(self, problem))), problem)

    def _choosing(self, problem: Problem) -> AbstractChoice | None:
        """The flow in function space, if it leaves a choice."""
        flow = GradientFlow() if self.flow is None else self.flow
        closed = self.flow is None and isinstance(problem.loss, MSE)
        return flow if isinstance(flow, AbstractChoice) and not closed else None

    def at(self, problem: Problem, t: Float[Array, ""]) -> View:
        """The problem at time t in [0, inf], in closed form. Raises NotApplicable for a loss other than MSE."""
        return KernelSolution(self).at(problem, t)


def check_flow(flow: Any) -> AbstractMarching | None:
    """Returns a marching dynamics or None; raises TypeError for anything else, ValueError for augmentation or noise."""
    if isinstance(flow, Descent) and (flow.augmentation is not None or flow.noise is not None):
        raise ValueError(
            "flow moves the outputs themselves and gets no inputs, so it can neither augment them nor add noise to "
            "the network: leave out augmentation and noise"
        )
    if flow is not None and not isinstance(flow, AbstractMarching):
        raise TypeError(f"flow must be a marching dynamics such as GradientFlow(), or None, got {describe(flow)}")
    return flow


def train_and_test(source: AbstractFixedKernel, problem: Problem) -> tuple[Array, Array | None]:
    """The kernel on the training set, and between test and training sets."""
    # So that a run in `at` is solved once for both kernels.
    source = source.settled(problem)
    kernel = source.ntk(problem, problem.x)
    return kernel, None if problem.x_test is None else source.ntk(problem, problem.x_test, problem.x)


def with_outputs(kernel: Kernel, problem: Problem) -> Float[Array, "n out n out"]:
    """A kernel in the form used by observables."""
    if kernel.ndim == 4:
        return kernel
    eye = jnp.eye(problem.out_size, dtype=kernel.dtype)
    return kernel[:, None, :, None] * eye[None, :, None, :]


def _squared(problem: Problem) -> Assumption:
    found = type(problem.loss).__name__
    return Assumption.of_kind("losses.MSE()", isinstance(problem.loss, MSE), found, problem.dtype)


class KernelSolution(AbstractStandIn, AbstractRandomAccess):
    """The closed form for MSE.

    Arguments:
        source: the kernel.
    """

    source: AbstractFixedKernel

    def check(self, problem: Problem) -> Validity:
        return Validity((_squared(problem), *self.source.assumptions(problem)))

    def at(self, problem: Problem, t: Float[Array, ""]) -> View:
        loss = Validity((_squared(problem),))
        if loss.structural:
            raise NotApplicable(
                f"{self.name} has a closed form for {loss.missed()}; `solve` integrates it in steps instead"
            )
        kernel, cross = train_and_test(self.source, problem)
        start = problem.outputs(problem.params)
        flow = kernels.linearized(kernel, problem.y, start=start)
        t = jnp.asarray(t, problem.dtype)
        test = None if cross is None else flow.predict(t, cross, problem.test_outputs(problem.params))
        kernel = with_outputs(kernel, problem)  # constant in time
        certificate = Certificate.of_spectrum(_spectral_error(flow, t, cross, test))
        return View(
            problem, t, None, flow.outputs(t), test, kernel, given_initial_kernel=kernel, certificate=certificate
        )

    def doubt(self, problem: Problem, final: View) -> str:
        return self.source.doubt(problem, final)


def _spectral_error(flow: Any, t: Array, cross: Kernel | None, test: Array | None) -> Float[Array, ""]:
    """The relative error of outputs due to rounding of the kernel, or of test outputs if that is larger."""
    error = flow.spectrum.error(t, flow.ridge, len(flow.y))
    if cross is None or test is None:
        return error
    return jnp.maximum(error, jnp.max(flow.rounding(t, cross)) / nonzero(jnp.max(jnp.abs(test))))


class _Inputs(eqx.Module):
    """The data of a problem for a feature model.

    Attributes:
        train, test: features, followed by the initial outputs.
        spectrum: the decomposition of the initial pull of the loss in the spectrum of the kernel.
    """

    train: Float[Array, "n blocks features_and_columns"]
    test: Float[Array, "m blocks features_and_columns"] | None
    spectrum: Any


class KernelState(AbstractSavingState):
    """The state of a march in function space."""

    inputs: _Inputs
    inner: AbstractState
    done: Bool[Array, ""]
    steps: Int[Array, ""]
    result: RESULTS

    def __init__(self, inputs: _Inputs, inner: AbstractState):
        self.inputs, self.inner = inputs, inner
        self.done, self.steps, self.result = inner.done, inner.steps, inner.result

    @property
    def saves(self) -> Saves | None:
        """The values saved so far; None for a user's own dynamics."""
        return self.inner.saves if isinstance(self.inner, AbstractSavingState) else None


class KernelMarch(AbstractStandIn, AbstractStoppable, AbstractMarching):
    """A marching dynamics, run on a model that is linear in its weights and has the fixed kernel as its NTK.

    Arguments:
        source: the kernel.
        flow: the dynamics.
    """

    source: AbstractFixedKernel
    flow: AbstractMarching

    @property
    def until(self) -> AbstractCondition | None:
        """The condition that stops the flow."""
        return condition_of(self.flow)

    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        return self.flow.times(ts)

    @property
    def chunk(self) -> int:
        return self.flow.chunk

    def doubt(self, problem: Problem, final: View) -> str:
        return self.source.doubt(problem, final)

    def check(self, problem: Problem) -> Validity:
        """Returns the `Validity` of the kernel for a problem."""
        return self.source.check(problem)

    def init(self, problem: Problem, ts: Float[Array, " times"]) -> KernelState:
        inputs = _inputs(self.source, problem)
        return KernelState(inputs, self.flow.init(_model(problem, inputs), ts))

    def advance(self, problem: Problem, state: KernelState, n: Int[Array, ""]) -> KernelState:
        inner = self.flow.advance(_model(problem, state.inputs), state.inner, n)
        return KernelState(state.inputs, inner)

    def finish(self, problem: Problem, state: KernelState) -> March:
        model = _model(problem, state.inputs)
        run = self.flow.finish(model, state.inner)

        result = self.source.judged(problem, run.result)

        def values(params) -> FunctionValues:
            params = params.params if isinstance(params, Observed) else params
            test = None if model.x_test is None else model.test_outputs(params)
            return FunctionValues(model.outputs(params), test)

        return March(
            times=run.times,
            saved=jax.vmap(values)(run.saved),
            params=values(run.params),
            t_end=run.t_end,
            result=result,
            steps=run.steps,
            rejected=run.rejected,
            evaluations=run.evaluations,
            kernels=run.kernels,
            integrators=run.integrators,
            certificate=_certificate(run, state.inputs.spectrum, len(problem.y)),
            kernel=with_outputs(self.source.ntk(problem, problem.x), problem),
        )


def _certificate(run: March, spectrum: Any, samples: int) -> Certificate:
    """The flow's own certificate, plus the error from rounding of the kernel on the time scale of MSE."""
    error = spectrum.error(run.t_end, jnp.zeros_like(run.t_end), samples)
    if run.certificate is None:
        return Certificate.of_spectrum(error)
    return dataclasses.replace(run.certificate, spectral_error=error)


def _inputs(source: AbstractFixedKernel, problem: Problem) -> _Inputs:
    kernel, cross = train_and_test(source, problem)
    features = kernels.features(kernel, cross)
    # Invalid hyperparameters become NaN features, which the model reports as invalid.
    train = jnp.where(problem.valid, features.train, jnp.nan)
    start = problem.outputs(problem.params)
    # y - f for MSE; for other losses the initial pull of the loss takes its place.
    pull = -len(problem.y) * problem.loss.gradient(start, problem.y)
    spectrum = kernels.linearized(kernel, start + pull, start=start).spectrum  # XLA merges the decompositions
    train = beside(train, start)
    if features.others is None:
        return _Inputs(train, None, spectrum)
    return _Inputs(train, beside(features.others, problem.test_outputs(problem.params)), spectrum)


@eqx.filter_jit
def _way_in_function_space(source: AbstractFixedKernel, flow: AbstractChoice, problem: Problem, ts: Array) -> Array:
    """The index of the flow's way on the model, whose stiffness comes from the problem's own kernel."""
    return jnp.asarray(flow.way(_model(problem, _inputs(source, problem)), ts))


def _model(problem: Problem, inputs: _Inputs) -> Problem:
    """The problem with a feature model as its network."""
    net = FeatureModel.at_start(inputs.train, problem.out_size)
    # Not a new problem, because the loss has already processed its targets.
    fields = lambda p: (p.net, p.x, p.x_test, p.initial, p.initial_test, p.state)
    starts = jax.tree.map(jnp.zeros_like, (problem.initial, problem.initial_test))  # `inputs` are centered already
    return eqx.tree_at(
        fields, problem, (net, inputs.train, inputs.test, *starts, None), is_leaf=lambda leaf: leaf is None
    )
