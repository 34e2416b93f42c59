"""The view of a problem that a dynamics gives at one time."""

import enum
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from ._certificate import Certificate
from ._problem import Problem


class Quantity(enum.Enum):
    """A quantity that a dynamics can provide at a time, and an observable can need.

    Example:
        >>> js.Quantity.PARAMS in js.FrozenKernel().provides
        False
    """

    PARAMS = "parameters"
    OUTPUTS = "outputs"
    KERNEL = "kernel"
    LAYER_KERNELS = "kernels of the hidden layers"


class View(eqx.Module):
    """A problem at one time: what the dynamics provides, and what follows from that.

    Arguments:
        problem: the problem.
        t: gradient-flow time.
        params: the parameters, if the dynamics moves them.
        given_outputs, given_test_outputs, given_kernel: what the dynamics provides directly instead of through params.
        given_initial_kernel: the kernel that the dynamics starts from, if not that of the problem's network.
        from_zero: whether the dynamics starts from f = 0, whatever the outputs of the problem's network.
        given_observations: observables that the dynamics provides directly, by name.
        certificate: how far a closed form can be trusted at this time; None if the dynamics does not say.
        optimizer_state: the state of the optimizer that moves the parameters, if it is kept.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=1, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> view.outputs.shape, view.kernel.shape, bool(view.loss == problem.objective(problem.params))
        ((1, 1), (1, 1, 1, 1), True)
    """

    problem: Problem
    t: Float[Array, ""]
    params: PyTree = None
    given_outputs: Float[Array, "n out"] | None = None
    given_test_outputs: Float[Array, "m out"] | None = None
    given_kernel: Float[Array, "n out n out"] | Float[Array, "n n"] | None = None
    given_observations: dict[str, Array] | None = None
    given_initial_kernel: Float[Array, "n out n out"] | Float[Array, "n n"] | None = None
    from_zero: bool = eqx.field(static=True, default=False)  # changes the program
    certificate: Certificate | None = None
    optimizer_state: PyTree = None

    @property
    def net(self) -> Any:
        """The network at this time."""
        return self.problem.network(self._known_params("the network"))

    @property
    def outputs(self) -> Float[Array, "n out"]:
        """Outputs on the training set."""
        if self.given_outputs is not None:
            return self.given_outputs
        return self.problem.outputs(self._known_params("outputs"))

    @property
    def test_outputs(self) -> Float[Array, "m out"]:
        """Outputs on the test set."""
        if self.given_test_outputs is not None:
            return self.given_test_outputs
        if self.params is None and self.problem.x_test is None:
            raise ValueError(
                "this problem has no test set, give Problem(..., test=(x, y)); and this dynamics does not move "
                "parameters, so it cannot show test outputs of its own"
            )
        return self.problem.test_outputs(self._known_params("test outputs"))

    @property
    def kernel(self) -> Float[Array, "n out n out"] | Float[Array, "n n"]:
        """The eta-weighted NTK on the training set."""
        if self.given_kernel is not None:
            return self.given_kernel
        return self.problem.kernel(self._known_params("the kernel"), self.problem.x)

    @property
    def initial_kernel(self) -> Float[Array, "n out n out"] | Float[Array, "n n"]:
        """The eta-weighted NTK on the training set at the start."""
        known = self.given_initial_kernel
        return self.problem.kernel(self.problem.params, self.problem.x) if known is None else known

    @property
    def loss(self) -> Float[Array, ""]:
        """The training loss."""
        if self.given_outputs is None:
            return self.problem.training_loss(self._known_params("the loss"))
        return self.problem.loss.value(self.given_outputs, self.problem.y)

    def given(self, name: str) -> Array | None:
        """The observable of this name if the dynamics provides it directly, else None."""
        return None if self.given_observations is None else self.given_observations.get(name)

    def _known_params(self, wanted: str) -> PyTree:
        if self.params is None:
            raise ValueError(f"this dynamics does not move parameters, so it cannot show {wanted}")
        return self.params
