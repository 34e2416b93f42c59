"""A monitor of observables in a user's own training loop."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from .. import observe as observables
from .._checks import concrete, describe, require_size, traced
from .._core import Problem, Quantity, require_problem, View
from .._numerics import unwatched
from ..observe import Observable
from ..observe._internal import require_observables, shared_kernel
from ._dataset import dataset
from ._diagnose import diagnose_parameters
from ._diagnosis import Diagnosis
from ._figure import draw_history
from ._given import given_params
from ._movement import projections_for


if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure


Values = dict[str, Array]


class _Measured(NamedTuple):
    """The state of a measurement: steps so far, and the last row."""

    steps: Int[Array, ""]
    row: dict[str, Array]


class Monitor:
    """A recorder of learning dynamics in your own training loop, every few steps.

    `monitor(step, params, opt_state)` observes the network at multiples of `every` and returns a dict of floats; at
    other steps it returns None. Any loop will do: the call takes the parameters, not the training data. All observables
    share one compiled program. Inside `jax.jit` the same call returns None, and a callback records the rows.

    Arguments:
        problem: the network at its start, and a few dozen samples to measure on.
        observe: one or several observables. None takes the loss, the kernel's change and its alignment with the
            targets, the error of the linearized network, and how far each layer has moved: `js.observe.loss()`,
            `traced(kernel_change())`, `traced(kernel_centered_alignment())`, `nonlinearity()`, `update_size()`. With
            more than 128 outputs, kernels use 16 projections.
        every: number of steps between observations.
        log: a function that is called as `log(row, step)` with every row, such as `wandb.log`; or None.

    Example:
        Ten lines in a loop of optax:

        >>> import equinox as eqx, optax
        >>> x = jax.random.normal(jax.random.key(0), (64, 4))
        >>> net = eqx.nn.MLP(4, 1, 32, 2, jnp.tanh, key=jax.random.key(1))
        >>> monitor = js.Monitor(js.Problem(net, x[:16], x[:16, :1] * x[:16, 1:2]), every=10)
        >>> optimizer = optax.sgd(0.3)
        >>> opt_state = optimizer.init(eqx.filter(net, eqx.is_inexact_array))
        >>> loss = lambda net: jnp.mean((jax.vmap(net)(x) - x[:, :1] * x[:, 1:2]) ** 2)
        >>> for step in range(21):
        ...     row = monitor(step, net, opt_state)
        ...     updates, opt_state = optimizer.update(eqx.filter_grad(loss)(net), opt_state)
        ...     net = eqx.apply_updates(net, updates)
        >>> row["kernel_change"] > 0.1
        True
        >>> monitor.history.sizes["step"]
        3

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: every is below 1, or two observables have the same name.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        observe: Observable | Sequence[Observable] | None = None,
        every: int = 100,
        log: Callable[[dict[str, float], int], Any] | None = None,
    ):
        require_problem(problem)
        if log is not None and not callable(log):
            raise TypeError(f"log must be a function log(row, step), such as wandb.log, or None; got {describe(log)}")
        self.problem = problem
        self.observe = _standard(problem) if observe is None else require_observables(observe)
        for item in self.observe:
            if item.require is not None:
                item.require(problem)
        self.every, self.log = require_size(every, "every"), log
        self._rows: dict[int, dict[str, np.ndarray]] = {}
        self._params: list[np.ndarray] = []  # at the last row
        self._kernel: Array | None = None  # at the start, once it is known
        self._names: dict[str, tuple[str, ...]] = {}

    def __repr__(self) -> str:
        names = ", ".join(item.name for item in self.observe)
        return f"Monitor of {names} every {self.every} steps: {len(self._rows)} rows"

    def __call__(self, step: Any, params: Any, opt_state: Any = None) -> dict[str, float] | None:
        """The row of a step; None at steps that are not a multiple of `every`, and inside `jax.jit`.

        Arguments:
            step: number of steps made, >= 0. A repeated step replaces its row.
            params: the network of the problem at its current parameters, or a pytree of these: an Equinox module,
                `nnx.state(model, nnx.Param)`, `variables["params"]` of Linen, the params of Haiku.
            opt_state: the state of the optimizer, for observables that need it.

        Raises:
            TypeError: step is not an integer.
            ValueError: step is negative, params are not those of the problem's network, or an observable needs an
                opt_state that is missing or belongs to another optimizer.
        """
        if isinstance(step, int) and step > 0 and step % self.every:
            return None  # before anything slow
        if traced((step, params), jnp.zeros(())):
            count = jnp.asarray(step)
            look = lambda: self._record(count, given_params(self.problem, params), _leaves(opt_state))
            jax.lax.cond(count % self.every == 0, lambda: look() and None, lambda: None)
            return None
        number = concrete(step)
        if number is None or number.ndim or number.dtype.kind not in "iu":
            raise TypeError(f"step must be an integer, got {describe(step)}")
        if number < 0:
            raise ValueError(f"step must be >= 0, got {number}")
        if number % self.every:
            return None
        now = given_params(self.problem, params)
        with unwatched():
            values = self._look(now, _leaves(opt_state), jnp.asarray(int(number), self.problem.dtype))
        return self._keep(int(number), values, jax.tree.leaves(now))

    def _look(self, params: PyTree, state: list[Any] | None, t: Float[Array, ""]) -> Values:
        compared = [item for item in self.observe if item.needs is Quantity.KERNEL]
        if self._kernel is None and compared:
            # Computed once, outside the program of a step, which would recompute it every time.
            with jax.ensure_compile_time_eval():
                self._kernel = shared_kernel(compared, self.problem)
        return _observe(self.problem, self.observe, params, self._kernel, state, t)

    def _record(self, count: Int[Array, ""], params: PyTree, state: list[Any] | None) -> dict[str, Array]:
        """Observes inside a traced program, sends the numbers out by a callback, and returns the row."""
        values = self._look(params, state, count.astype(self.problem.dtype))
        keep: Any = self._keep
        jax.debug.callback(keep, count, values, jax.tree.leaves(params))
        return self._flat(values)

    def _keep(self, step: Any, values: dict[str, Any], params: list[Any]) -> dict[str, float]:
        # Copies: a loop may donate its parameters to the next step, and a callback's memory returns to the program.
        number, rows = int(step), {name: np.array(value) for name, value in values.items()}
        if not self._rows or number >= max(self._rows):
            self._params = [np.array(leaf) for leaf in params]
        self._rows[number] = rows
        row = {name: float(value) for name, value in self._flat(rows).items()}
        if self.log is not None:
            self.log(row, number)
        return row

    def _flat(self, values: dict[str, Any]) -> dict[str, Any]:
        """One entry per number; matrices are left out."""
        out = {}
        for item in self.observe:
            value = values[item.name]
            if value.ndim == 0:
                out[item.name] = value
            elif value.ndim == 1:
                out |= {f"{item.name}/{label}": value[k] for k, label in enumerate(self._labels(item, value.shape[0]))}
        return out

    def _labels(self, item: Observable, length: int) -> tuple[str, ...]:
        if item.names is None:
            return tuple(map(str, range(length)))
        if item.name not in self._names:
            self._names[item.name] = item.names(self.problem)
        return self._names[item.name]

    def measure(self) -> optax.GradientTransformationExtraArgs:
        """This monitor as a measurement for `optax.monitor`, which shows the last row in the optimizer's state.

        Steps are those of the optimizer. Rows describe the parameters before the step, which `update` must be given.

        Example:
            >>> import equinox as eqx, optax
            >>> net = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0))
            >>> monitor = js.Monitor(js.Problem(net, jnp.eye(2), jnp.ones((2, 1))), observe=js.observe.loss(), every=1)
            >>> optimizer = optax.chain(optax.monitor({"dynamics": monitor.measure()}), optax.sgd(0.1))
            >>> params = eqx.filter(net, eqx.is_inexact_array)
            >>> _, state = optimizer.update(params, optimizer.init(params), params)
            >>> list(optax.tree.get(state, "dynamics"))
            ['loss']
        """

        def init(params: PyTree) -> _Measured:
            shapes = jax.eval_shape(lambda: self._shapes(params))
            return _Measured(
                jnp.zeros((), int), jax.tree.map(lambda one: jnp.full(one.shape, jnp.nan, one.dtype), shapes)
            )

        def update(updates: PyTree, state: Any, params: PyTree = None, **extra: Any) -> Any:
            del updates, extra
            if params is None:
                raise ValueError("a monitor needs parameters: call optimizer.update(gradient, state, params)")
            now = given_params(self.problem, params)
            look = lambda: self._record(state.steps, now, None)
            row = jax.lax.cond(state.steps % self.every == 0, look, lambda: state.row)
            return row, _Measured(state.steps + 1, row)

        return optax.GradientTransformationExtraArgs(init, update)

    def _shapes(self, params: PyTree) -> dict[str, Array]:
        now = given_params(self.problem, params)
        return self._flat(self._look(now, None, jnp.zeros((), self.problem.dtype)))

    # Recorded rows

    @property
    def history(self) -> "xarray.Dataset":
        """All rows along the dimension `step`; layers and groups of parameters are labeled by name."""
        steps = self._steps()
        data: dict[str, Any] = {}
        coords: dict[str, Any] = {"step": steps}
        for item in self.observe:
            values = self._values(item)
            data[item.name] = (("step", *item.dims), values, {"unit": item.unit})
            if item.names is not None:
                coords[item.dims[0]] = list(self._labels(item, values.shape[1]))
        return dataset(data, coords, {"every": self.every})

    def _steps(self) -> list[int]:
        jax.effects_barrier()  # rows may still be on their way out of a program
        if not self._rows:
            raise ValueError("this monitor has recorded no step yet: call monitor(step, params) in the loop")
        return sorted(self._rows)

    def _values(self, item: Observable) -> np.ndarray:
        return np.stack([self._rows[step][item.name] for step in sorted(self._rows)])

    def diagnosis(self) -> Diagnosis:
        """The diagnosis of the start and the last row, as by `js.diagnose_checkpoints`, on the samples of the problem.

        Raises:
            ValueError: no step after the start was recorded; or as `js.diagnose_checkpoints`.
        """
        last = self._steps()[-1]
        if last == 0:
            raise ValueError("a diagnosis compares a later step with the start, but only step 0 was recorded")
        now = jax.tree.unflatten(jax.tree.structure(self.problem.params), list(map(jnp.asarray, self._params)))
        return diagnose_parameters(self.problem, [self.problem.params, now], [0, last])

    def plot(self) -> "Figure":
        """Every observable against the step, as a matplotlib figure."""
        steps = self._steps()
        panels = []
        for item in self.observe:
            values = self._values(item)
            if values.ndim <= 2:
                labels = self._labels(item, values.shape[1]) if values.ndim == 2 else ()
                panels.append((item.name, item.unit, values, labels))
        return draw_history(np.asarray(steps), panels)

    # Saving and restoring

    @property
    def state(self) -> dict[str, Any]:
        """All rows so far, as a nested dict of arrays that orbax or Equinox can save; `restore` reads it."""
        jax.effects_barrier()
        steps = sorted(self._rows)
        rows = {item.name: self._values(item) for item in self.observe if steps}
        params = {str(index): leaf for index, leaf in enumerate(self._params)}
        return {"step": np.asarray(steps, np.int64), "rows": rows, "params": params}

    def like(self, rows: int, opt_state: Any = None) -> dict[str, Any]:
        """A state of `rows` rows of zeros, for loaders that need shapes, such as `eqx.tree_deserialise_leaves`.

        Arguments:
            rows: number of rows of the saved state, `len(state["step"])`.
            opt_state: state of the optimizer, for observables that need it.
        """
        rows = require_size(rows, "rows")
        begin = self.problem.params, _leaves(opt_state), jnp.zeros((), self.problem.dtype)
        shapes = jax.eval_shape(self._look, *begin)
        return {
            "step": np.zeros(rows, np.int64),
            "rows": {name: np.zeros((rows, *one.shape), one.dtype) for name, one in shapes.items()},
            "params": {str(k): np.zeros(p.shape, p.dtype) for k, p in enumerate(jax.tree.leaves(self.problem.params))},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replaces the rows of this monitor with those of a saved `state`.

        Raises:
            ValueError: the state belongs to a monitor of other observables or of another network.
        """
        try:
            steps = [int(step) for step in state["step"]]
            named = {item.name: np.asarray(state["rows"][item.name]) for item in self.observe if steps}
            params = [np.asarray(state["params"][str(index)]) for index in range(len(state["params"]))]
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is not the state of a monitor of {[item.name for item in self.observe]}") from error
        shapes = [leaf.shape for leaf in jax.tree.leaves(self.problem.params)] if steps else []
        if [leaf.shape for leaf in params] != shapes or any(len(rows) != len(steps) for rows in named.values()):
            raise ValueError("this state is that of a monitor of another network")
        self._rows = {step: {name: rows[k] for name, rows in named.items()} for k, step in enumerate(steps)}
        self._params = list(params)


def _standard(problem: Problem) -> tuple[Observable, ...]:
    loss, missed, moved = observables.loss(), observables.nonlinearity(), observables.update_size()
    of_kernel = observables.kernel_change(), observables.kernel_centered_alignment()
    projections = projections_for(problem.out_size)
    return loss, *(observables.traced(item, projections=projections) for item in of_kernel), missed, moved


def _leaves(state: Any) -> list[Any] | None:
    """The arrays of an optimizer's state, in whatever tree its library keeps them."""
    return None if state is None else jax.tree.leaves(state)


@eqx.filter_jit
def _observe(
    problem: Problem,
    items: tuple[Observable, ...],
    params: PyTree,
    kernel: Array | None,
    state: list[Any] | None,
    t: Float[Array, ""],
) -> Values:
    view = View(problem, t, params, given_initial_kernel=kernel, optimizer_state=state)
    return {item.name: item(view) for item in items}
