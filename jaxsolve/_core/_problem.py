"""The problem: a network at its start, data and a loss."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree, Shaped

from .. import kernels, nets
from .._checks import (
    as_array,
    attempt,
    concrete,
    describe,
    in_float32,
    one_number,
    require_finite,
    require_flag,
    require_settings,
    see,
    warn_of_rounded_products,
)
from .._numerics import (
    all_finite,
    hashable,
    Inputs,
    is_tree,
    map_arrays,
    one_of,
    samples_in,
    take_samples,
    warn_of_wrong_version,
)
from .._programs import both_ways, shape_and_rule
from ..kernels._internal import beside, coarsest, FeatureModel, read_like, rows
from ..losses import AbstractLoss, MSE
from ..losses._internal import accepts, count, find_loss, fit
from ..nets._internal import (
    copy_state,
    FREEZE,
    Frozen,
    in_training,
    networks_in,
    require_adapted,
    takes,
    takes_state,
    why_not_called,
    with_state_words,
)
from ._sampler import Sampler


# The most output values held at once: half a gigabyte in float32, whatever the machine.
HELD = 2**27


class Problem(eqx.Module):
    """A network at its start, training and test data, and a loss.

    Arguments:
        net: a network from `nets`, or any Equinox module that maps one sample to an array of shape (c,), or another
            shape, such as (T, V) for a sequence. Everything measured treats the outputs as one vector. Parameters are
            float32 or float64; the call may cast them, to compute in bfloat16 or float16.
        x: training inputs, shape (n, ...), in the network's dtype; or integers, such as tokens, which stay integers if
            the network takes them. A network that takes several arrays at once, as net((t, y)) or net({"ids": ids,
            "mask": mask}), needs a tuple or a dict of arrays, each with samples first.
        y: training targets, shape (n, c), or whatever the loss accepts (labels, one column, labels at positions).
        test: (x, y) of the test set, or None.
        loss: a loss, or a function of one sample's output and target.
        centered: whether to train f(w) - f(w_0) instead of f(w). The difference is rounded by eps |f(w_0)|, and
            dynamics that move the weights were seen to err by up to 100 times that: in float32 by 1e-2 |y| with
            `Scaling.lazy(1e3)`. Distances between kernels are squares of a change and err by twice as much. Larger
            errors give a warning; under a kernel that does not move, f - f_0 starts from exactly 0.
        weight_decay: lambda >= 0, or None. Training then lowers L + lambda/2 |theta|^2 over all parameters: flows and
            descent follow theta_l' = -eta_l (dL/dtheta_l + lambda theta_l), for SGD the same as
            `optax.add_decayed_weights`. An array leaf, which can be swept. Reported losses are L alone. Closed forms
            and flows under a fixed kernel do not apply.
        state: the state of a network made by `eqx.nn.make_with_state`, `nets.from_nnx_with_state` or
            `from_torch_with_state`; None for others. The network is called as `net(x, state) -> (out, state)` under
            `jax.vmap(..., axis_name="batch")`. With batch normalization the outputs, for any inputs, use the statistics
            of the whole training set at the current parameters: one pass over it in training mode gives the state, and
            other inputs then pass through the network in inference mode. `eqx.nn.Dropout` is off in both.

    Raises:
        ValueError: shapes do not match, data are empty or not finite, dtypes differ, weight_decay is negative, or
            only one of a network with state and its state is given.
        TypeError: net or loss is not callable.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), centered=True)
        >>> problem.outputs(problem.params).shape, problem.kernel(problem.params, problem.x).shape
        ((2, 1), (2, 1, 2, 1))
        >>> print(problem.objective(problem.params))  # the training loss
        0.5

    Solve it with `js.solve`, `js.compare` or `js.sweep`.
    """

    net: Any
    x: Inputs
    y: Shaped[Array, "n target"]
    x_test: Inputs | None
    y_test: Shaped[Array, "m target"] | None
    loss: AbstractLoss
    initial: Float[Array, "n out"] | None  # what `centered` subtracts, on the training and on the test set
    initial_test: Float[Array, "m out"] | None
    state: eqx.nn.State | None
    sampler: Sampler | None  # of a stream, where x and y are a fixed set of samples
    weight_decay: Float[Array, ""] | None
    out_shape: tuple[int, ...] = eqx.field(static=True)  # of the network's output for one sample
    centered: bool = eqx.field(static=True)  # changes the program
    own_rule: bool = eqx.field(static=True)  # whether the network has a custom backward rule

    def __init__(
        self,
        net: Any,
        x: Any,
        y: Any,
        *,
        test: tuple[Any, Any] | None = None,
        loss: AbstractLoss | Callable[[Array, Array], Array] = MSE(),
        centered: bool = False,
        weight_decay: Any = None,
        state: eqx.nn.State | None = None,
    ):
        if not callable(net):
            raise TypeError(f"net must be an Equinox module acting on one sample, got {describe(net)}")
        require_adapted(net)
        self.net, self.state = net, _read_state(net, state)
        self.loss, self.out_shape, self.sampler = find_loss(loss), (), None
        self.centered = require_flag(centered, "centered")
        self.weight_decay = None if weight_decay is None else one_number(weight_decay, "weight_decay", zero=True)
        self.x, self.y = self._read(x, y, "the training set")
        self.x_test, self.y_test = (None, None) if test is None else self._read(*read_pair(test), "the test set")
        warn_of_wrong_version()
        warn_of_rounded_products(self.dtype, stacklevel=5)  # two functions of Equinox are in between
        self.initial = self._forward(self.net) if centered else None
        self.initial_test = None if self.x_test is None or not centered else self._forward(self.net, self.x_test)
        if self.initial is not None:
            _warn_of_cancellation(self, self.initial)

    @classmethod
    def from_kernel(
        cls,
        kernel: Float[ArrayLike, "n n"] | Float[ArrayLike, "n out n out"],
        y: Any,
        *,
        start: Float[ArrayLike, "n out"],
        test: tuple[Any, Any] | None = None,
        start_test: Float[ArrayLike, "m out"] | None = None,
        loss: AbstractLoss | Callable[[Array, Array], Array] = MSE(),
    ) -> "Problem":
        """The problem of a model, linear in its weights, with this kernel: for use when only the kernel is known.

        Any dynamics can train it with any loss: gradient flow is df(x)/dt = -sum_i K(x, x_i) dL/df_i, and momentum,
        noise and finite steps act as in a network. Its inputs are the features K^(1/2) (`js.kernels.features`), so
        optimizers that treat each parameter separately, such as Adam, act on the weights of those. For gradient flow on
        MSE, `js.kernels.linearized` is the closed form.

        Arguments:
            kernel: the kernel on the training points, symmetric and positive semi-definite, of shape (n, n) if it is
                the same for every output, else (n, c, n, c).
            y, loss: as for `Problem`.
            start: outputs at t = 0, shape (n, c).
            test: (kernel between test and training points, test targets), the kernel laid out like `kernel`.
            start_test: outputs at t = 0 on the test points; None means 0.

        Example:
            >>> kernel, labels = jnp.array([[2.0, 1.0], [1.0, 2.0]]), jnp.array([0, 1])
            >>> problem = js.Problem.from_kernel(
            ...     kernel, labels, start=jnp.zeros((2, 2)), loss=js.losses.CrossEntropy()
            ... )
            >>> print(js.solve(problem, js.MomentumFlow(tau=0.1), [0.0, 10.0])["loss"].round(2))
            [0.69 0.11]

        Raises:
            ValueError: shapes or dtypes do not fit, or the kernel is not symmetric or not positive semi-definite.
        """
        cross, y_test = (None, None) if test is None else read_pair(test)
        found = kernels.features(kernel, cross)
        n, blocks, _ = found.train.shape
        start, shared = _array(start, "start"), jnp.ndim(kernel) == 2
        require_finite(start, "start")
        if start.ndim != 2 or len(start) != n or start.shape[1] < 1 or not (shared or blocks == start.shape[1]):
            outputs = "c" if shared else blocks
            raise ValueError(f"start must have shape ({n}, {outputs}) for this kernel, got {describe(start)}")
        x = beside(found.train, read_like(start, start.shape, "start", found.train))
        net = FeatureModel.at_start(x, start.shape[1])
        if found.others is None:
            if start_test is not None:
                raise ValueError("start_test is given without test: give test=(kernel, targets), too")
            return cls(net, x, y, loss=loss)
        require_finite(found.others, "the kernel of test")
        shape = len(found.others), start.shape[1]
        f = jnp.zeros(shape, x.dtype) if start_test is None else read_like(start_test, shape, "start_test", x)
        require_finite(f, "start_test")
        return cls(net, x, y, test=(beside(found.others, f), y_test), loss=loss)

    def _read(self, x: Any, y: Any, which: str) -> tuple[Inputs, Array]:
        leaves = jax.tree.leaves(self.params)
        if not leaves:
            raise ValueError(
                f"net has no trainable arrays (arrays of floats), got {describe(self.net)}; wrap a plain function "
                "with its parameters as js.nets.Function(f, params), where f(params, x) maps one sample to its "
                "outputs and params holds arrays such as jnp.ones(3); wrap a Flax module with js.nets.from_linen or "
                "from_nnx" + see("a-plain-function")
            )
        dtype = leaves[0].dtype
        dtypes = {leaf.dtype for leaf in leaves}
        if len(dtypes) > 1:
            advice = "give all of them one dtype, float32 or float64"
            if any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in dtypes):
                advice = in_float32(dtypes)
            raise ValueError(f"the network's parameters are {' and '.join(sorted(map(str, dtypes)))}; {advice}")
        if dtype not in (jnp.float32, jnp.float64):
            raise ValueError(
                f"the network's parameters are {dtype}; only float32 and float64 are supported, since other dtypes "
                f"cannot resolve the tolerances of flows: {in_float32([dtype])}"
            )
        x, y = self._read_inputs(x, dtype, which), _array(y, f"the targets of {which}")
        n = samples_in(x)
        if jnp.issubdtype(y.dtype, jnp.complexfloating):
            raise ValueError(f"the targets of {which} must be real numbers, got {describe(y)}")
        if y.ndim == 0 or y.shape[0] != n:
            raise ValueError(f"{which} has {n} inputs but its targets are {describe(y)}; need one per input")
        require_finite(y, f"y of {which}")
        shape = self._read_shape(x, which)
        if not self.out_shape:  # the training set comes first
            self.out_shape = shape
        if shape != self.out_shape:
            raise ValueError(f"the network's outputs are of shape {self.out_shape}, but {shape} for inputs of {which}")
        self.loss, y = fit(self.loss, y, shape)
        return x, y.astype(dtype) if jnp.issubdtype(y.dtype, jnp.floating) else y

    def _read_inputs(self, x: Any, dtype: Any, which: str) -> Inputs:
        several = is_tree(x)
        found = map_arrays(lambda given: self._read_input(given, dtype, which, several=several), x)
        if len({len(leaf) for leaf in jax.tree.leaves(found)}) > 1:
            raise ValueError(f"the arrays of the inputs of {which} must hold equally many samples, got {describe(x)}")
        return found

    def _read_input(self, given: Any, dtype: Any, which: str, *, several: bool) -> Array:
        x = _array(given, f"the inputs of {which}")
        integers = jnp.issubdtype(x.dtype, jnp.integer)
        whole = integers or x.dtype == jnp.bool_
        kept = whole and (several or self._takes(x))
        if not kept:
            _require_exact(x if integers else given, dtype, which)
            x = x.astype(dtype) if whole else x
        if x.dtype != dtype and not kept:
            raise ValueError(
                f"the inputs of {which} are {x.dtype}, the network is {dtype}; convert one of them, "
                "for example with x.astype or the network's dtype= argument"
            )
        if x.ndim == 0 or x.shape[0] == 0:
            raise ValueError(f"{which} is empty: x is {describe(x)}, at least one sample is needed")
        require_finite(x, f"x of {which}")
        return x

    def _takes(self, x: Array) -> bool:
        """Returns whether the network takes integers as they are. Networks of `js.nets` take floats."""
        if isinstance(self.net, nets.AbstractNetwork) or x.ndim == 0:
            return False
        if self.state is not None:
            return attempt(eqx.filter_eval_shape, _with_state, in_training(self.net), x[:1], self.state)[1] is None
        return takes(self.net, jax.ShapeDtypeStruct(x.shape[1:], x.dtype))

    def _read_shape(self, x: Inputs, which: str) -> tuple[int, ...]:
        shapes = [leaf.shape[1:] for leaf in jax.tree.leaves(x)]
        if isinstance(self.net, nets.AbstractNetwork) and (is_tree(x) or shapes != [self.net.in_shape]):
            given = " and ".join(map(str, shapes))
            raise ValueError(f"each input of {which} has shape {given}, the network takes {self.net.in_shape}")
        if self.state is None:
            out = self._shape_of_output(x, which)
        else:
            self.own_rule = False  # not looked for in a network with state
            one = take_samples(x, slice(1))
            found, error = attempt(eqx.filter_eval_shape, _with_state, in_training(self.net), one, self.state)
            if error is not None:
                raise ValueError(f"{why_not_called(self.net, one_of(x), error)} (an input of {which})") from error
            batch, _ = found
            out = jax.ShapeDtypeStruct(batch.shape[1:], batch.dtype)
        if not getattr(out, "shape", ()) or not jnp.issubdtype(out.dtype, jnp.floating):
            raise ValueError(
                "net must map one sample to an array of real numbers, of shape (c,) or such as (T, V), got "
                f"{describe(out)}{with_state_words(out)}"
            )
        return out.shape

    def _shape_of_output(self, x: Inputs, which: str) -> Any:
        sample = one_of(x)
        found, error = attempt(shape_and_rule, self.net, sample)
        if isinstance(error, jax.errors.JAXTypeError):
            raise error  # a network that branches on traced values, about which JAX says more
        if error is not None:
            raise ValueError(f"{why_not_called(self.net, sample, error)} (an input of {which})") from error
        out, self.own_rule = found
        return out

    @property
    def dtype(self) -> Any:
        """The dtype of the parameters, used in all computations."""
        # Targets have this dtype unless they are labels; partitioning the network would take a millisecond each time.
        if jnp.issubdtype(self.y.dtype, jnp.floating):
            return self.y.dtype
        return jax.tree.leaves(self.params)[0].dtype

    @property
    def out_size(self) -> int:
        """The number of outputs for one sample, at all positions."""
        return math.prod(self.out_shape)

    @property
    def at_once(self) -> int:
        """The number of samples whose outputs may be held at once."""
        return max(1, HELD // self.out_size)

    @property
    def held(self) -> bool:
        """True if the outputs of all samples are held at once; a network with state always needs all of them."""
        return samples_in(self.x) <= self.at_once or self.state is not None

    @property
    def target_rows(self) -> Float[Array, "n out"]:
        """The training targets as floats; labels at positions become rows of 0 and 1, all 0 where masked."""
        if jnp.issubdtype(self.y.dtype, jnp.floating):
            return self.y
        if self.y[0].size * self.out_shape[-1] == self.out_size:
            return jax.nn.one_hot(self.y, self.out_shape[-1], dtype=self.dtype).reshape(len(self.y), -1)
        return self.y.astype(self.dtype)  # for a user's loss

    @property
    def params(self) -> PyTree:
        """The trainable arrays at the start; hyperparameters are not among them."""
        return nets.partition(self.net)[0]

    @property
    def eta(self) -> PyTree:
        """The learning rates, one scalar per array of `params`."""
        return nets.rates(self.net)

    @property
    def valid(self) -> Bool[Array, ""]:
        """True if all arrays are finite, no sigma, eta or decay is negative, and the loss accepts the targets.

        For use inside traces, where nothing raises.
        """
        finite = all_finite(eqx.filter(self, eqx.is_inexact_array))
        scaling = jnp.all(jnp.array([net.scaling.valid for net in networks_in(self.net)], bool))
        tested = True if self.y_test is None else accepts(self.loss, self.y_test)
        decay = True if self.weight_decay is None else self.weight_decay >= 0
        return finite & scaling & accepts(self.loss, self.y) & tested & decay

    def network(self, params: PyTree) -> Any:
        """The network with these parameters. Raises ValueError if they do not fit the network."""
        try:
            return eqx.combine(params, nets.partition(self.net)[1])
        except ValueError as error:
            raise ValueError(
                f"params must be the parameters of this {type(self.net).__name__}, such as problem.params or "
                f"run.final.params, got {describe(params)}"
            ) from error

    def of_sample(self, params: PyTree, eta: PyTree) -> tuple[Any, PyTree]:
        """The network as a function of one sample, which has a kernel between samples, and learning rates to match.

        A network with state is in inference mode, with the statistics of the training set at these parameters.
        """
        net = self.network(params)
        if self.state is None:
            return net, eta
        _, state = _with_state(in_training(net), self.x, self.state)
        frozen = Frozen(net, state)
        return frozen, frozen.rates(eta)

    def _forward(self, net: Any, x: Inputs | None = None) -> Array:
        """The outputs of a network at inputs x, or on the training set if None: the source of all outputs."""
        if self.state is None:
            # `both_ways` only where needed, since it traces the network once more.
            f = jax.vmap(both_ways(net) if self.own_rule else net)(self.x if x is None else x)
            return rows(f).astype(self.dtype)  # the network may compute in bfloat16
        f, state = _with_state(in_training(net), self.x, self.state)
        return rows(f if x is None else _with_state(eqx.nn.inference_mode(net), x, state)[0]).astype(self.dtype)

    @hashable
    def predict(self, params: PyTree, x: Inputs) -> Float[Array, "n out"]:
        """The trained function on inputs x: f(params), or f(params) - f(start) if centered."""
        f = self._forward(self.network(params), x)
        return f - self._forward(self.net, x) if self.centered else f

    @hashable
    def outputs(self, params: PyTree) -> Float[Array, "n out"]:
        """`predict` on the training set."""
        f = self._forward(self.network(params))
        return f if self.initial is None else f - self.initial

    @hashable
    def test_outputs(self, params: PyTree) -> Float[Array, "m out"]:
        """`predict` on the test set. Raises ValueError if the problem has none."""
        if self.x_test is None:
            raise ValueError("this problem has no test set; give Problem(..., test=(x, y))")
        f = self._forward(self.network(params), self.x_test)
        return f if self.initial_test is None else f - self.initial_test

    @hashable
    def objective(self, params: PyTree) -> Float[Array, ""]:
        """The function that training lowers: `training_loss`, and the `penalty` of weight decay."""
        loss = self.training_loss(params)
        return loss if self.weight_decay is None else loss + self.penalty(params)

    def penalty(self, params: PyTree) -> Float[Array, ""]:
        """lambda/2 |theta|^2; 0 without weight decay."""
        if self.weight_decay is None:
            return jnp.zeros((), self.dtype)
        squares = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)]
        return self.weight_decay.astype(self.dtype) / 2 * sum(squares[1:], squares[0])

    @hashable
    def training_loss(self, params: PyTree) -> Float[Array, ""]:
        """The training loss L.

        Outputs that are too large to hold for all samples, as for language models, are computed for a few samples at a
        time, and recomputed in the backward pass.
        """
        if self.held:
            return self.loss.value(self.outputs(params), self.y)

        def of_sample(x: PyTree, y: Array, initial: Array | None) -> Float[Array, ""]:
            f = self._forward(self.network(params), take_samples(x, None))[0]
            return self.loss.pointwise(f if initial is None else f - initial, y)

        return self._average(of_sample)

    @property
    def loss_of_zero(self) -> Float[Array, ""]:
        """The training loss of f = 0: the scale of the targets."""
        # The barrier hides the zeros of one sample from the compiler: folding them takes 12 s for the outputs of a
        # language model, and computing with them 40 ms.
        zeros = lambda: jax.lax.optimization_barrier(jnp.zeros(self.out_size, self.dtype))
        return self._average(lambda x, y, initial: self.loss.pointwise(zeros(), y))

    def _average(self, of_sample: Callable[..., Float[Array, ""]]) -> Float[Array, ""]:
        """The average of a function of a sample, its target and its initial output, over a few samples at a time."""
        each = lambda sample: of_sample(*sample)
        values = jax.lax.map(jax.checkpoint(each), (self.x, self.y, self.initial), batch_size=self.at_once)
        return jnp.sum(values) / count(self.loss, self.y, values.dtype)

    @hashable
    def kernel(self, params: PyTree, x1: Inputs, x2: Inputs | None = None) -> Float[Array, "n out m out"]:
        """The NTK that drives f: eta-weighted, gamma^2 included.

        For a network with state it is the kernel of the batch function, whose statistics move with the parameters. It
        then needs the Jacobian of all outputs, n c times the number of parameters.
        """
        if self.state is not None:
            return self._batch_kernel(params, x1, x2)
        return kernels.empirical(self.network(params), x1, x2, eta=self.eta).ntk

    def _batch_kernel(self, params: PyTree, x1: Inputs, x2: Inputs | None) -> Array:
        jacobian = jax.jacrev(lambda p, x: self._forward(self.network(p), x))
        rows = jacobian(params, x1)
        columns = rows if x2 is None else jacobian(params, x2)
        # J_1 eta J_2^T, summed over the entries of an array, with one rate per array.
        product = lambda rate, a, b: rate * jnp.tensordot(_by_output(a), _by_output(b), (2, 2))
        terms = jax.tree.map(product, self.eta, rows, columns)
        return sum(jax.tree.leaves(terms), start=jnp.zeros((), self.dtype))


def _by_output(jacobian: Float[Array, "n out ..."]) -> Float[Array, "n out entries"]:
    return jacobian.reshape(*jacobian.shape[:2], -1)


def _array(value: Any, name: str) -> Array:
    try:
        array = as_array(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be an array of numbers, got {describe(value)}") from error
    if not (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == jnp.bool_):
        raise TypeError(f"{name} must be an array of numbers, got {describe(value)}")
    return array


def _warn_of_cancellation(problem: Problem, initial: Array) -> None:
    """Warns if the rounding of the initial outputs is not negligible beside the targets."""
    known, targets = concrete(initial), concrete(problem.y)
    if known is None or targets is None:
        return
    dtype = known.dtype if problem.state is not None else coarsest(problem.net, problem.x)
    # Runs may err by 100 times the rounding (see `centered`): at 1e-4, by 1 % of the targets.
    lost, size = float(jnp.finfo(dtype).eps) * np.max(np.abs(known)), np.max(np.abs(targets))
    if lost > size / 1e4 > 0:
        warnings.warn(
            f"centered: f - f_0 is the difference of outputs of size {np.max(np.abs(known)):.2g}, which {dtype} "
            f"rounds by about {lost:.1g}, for targets of size {size:.2g}; flows and descent may err by 100 times that. "
            "Take float64 (jax.config.update('jax_enable_x64', True)), a smaller output scale, or a kernel that does "
            "not move (js.FrozenKernel, js.InfiniteWidth)",
            stacklevel=5,  # two functions of Equinox call the one that calls this
        )


def _require_exact(x: Any, dtype: Any, which: str) -> None:
    """Raises ValueError for an array of integers that floats of this dtype cannot represent exactly."""
    if getattr(getattr(x, "dtype", None), "kind", None) not in ("i", "u"):
        return
    known, largest = concrete(x), 2 ** (jnp.finfo(dtype).nmant + 1)
    if known is not None and known.size and max(int(known.max()), -int(known.min())) > largest:
        raise ValueError(
            f"the inputs of {which} hold integers beyond {largest}, above which {dtype} cannot represent every "
            "integer; scale them and convert them to the network's dtype"
        )


def _with_state(net: Any, x: Inputs, state: eqx.nn.State) -> tuple[Any, eqx.nn.State]:
    return jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)


def _read_state(net: Any, state: Any) -> eqx.nn.State | None:
    needed = takes_state(net)
    if needed and not isinstance(state, eqx.nn.State):
        raise ValueError(
            "this network has state (such as the statistics of batch normalization): make it with net, state = "
            f"eqx.nn.make_with_state(...)(...) and give Problem(..., state=state); got state={describe(state)}. To "
            f"keep the statistics fixed, {FREEZE}{see('a-network-with-state')}"
        )
    if not needed and state is not None:
        raise ValueError(f"this network has no state, so Problem needs state=None, got {describe(state)}")
    return None if state is None else _without_memory(net, state)


def _without_memory(net: Any, state: eqx.nn.State) -> eqx.nn.State:
    """The state from which one pass in training mode leaves the statistics of that pass, whatever the momentum."""
    state = copy_state(state)  # leaves the user's state unchanged
    is_norm = lambda node: isinstance(node, eqx.nn.BatchNorm)
    for norm in filter(is_norm, jax.tree.leaves(net, is_leaf=is_norm)):
        if norm.mode == "ema":
            state = state.set(norm.ema_first_time_index, jnp.array(True))
        else:  # an unbiased running mean starts with that of the first batch
            state = state.set(norm.batch_state_index, jax.tree.map(jnp.zeros_like, state.get(norm.batch_state_index)))
            state = state.set(norm.batch_counter, jnp.zeros_like(state.get(norm.batch_counter)))
    return state


def read_pair(test: Any) -> tuple[Any, Any]:
    """Inputs and targets of a test set; raises ValueError for anything but a pair."""
    if not isinstance(test, tuple | list) or len(test) != 2:
        raise ValueError(f"test must be a pair (x, y) or None, got {describe(test)}")
    return test[0], test[1]


def centered_anew(problem: Problem) -> Problem:
    """The problem with any initial outputs that it subtracts recomputed: with state, they depend on the batch."""
    if problem.initial is None:
        return problem
    places = lambda p: (p.initial, p.initial_test)
    none = lambda leaf: leaf is None
    plain = eqx.tree_at(places, problem, (None, None), is_leaf=none)
    test = None if plain.x_test is None else plain.test_outputs(plain.params)
    return eqx.tree_at(places, problem, (plain.outputs(plain.params), test), is_leaf=none)


def require_problem(problem: Any) -> None:
    """Raises TypeError for anything but a problem, ValueError for one in float64 while JAX is set to 32 bits."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a jaxsolve.Problem, got {describe(problem)}")
    require_settings(problem, "this problem")


def flat_rates(problem: Problem) -> Float[Array, " params"]:
    """The learning rate of every single parameter."""
    return ravel_pytree(jax.tree.map(lambda rate, p: jnp.broadcast_to(rate, p.shape), problem.eta, problem.params))[0]
