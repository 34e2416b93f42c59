"""Networks that were written elsewhere: any function of parameters and one sample."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._checks import describe
from ._state import Stateful


class Function(eqx.Module):
    """f(params, x) as a network: all real numbers among its parameters train at eta = 1, as under `jax.grad`.

    It is accepted wherever a network is: `js.Problem`, `js.kernels.empirical`, `js.solve`. Python floats and NumPy
    numbers become arrays of the dtype of the other parameters. Equinox modules among the parameters keep the rule of
    Equinox: their floating-point arrays train, and Python floats do not. Networks of `js.nets` keep their rates, and
    their hyperparameters do not train.

    Arguments:
        f: maps parameters and one sample to outputs of shape (c,) or any other. It closes over what does not train.
            A stochastic f also takes `key=`, which is the key of `net(x, key=key)`.
        params: a pytree of floating-point arrays and numbers, or an Equinox module.
        kernel_fn: `kernel_fn(x1, x2, ("nngp", "ntk"))` in the infinite-width limit, as in neural-tangents, for
            `js.kernels.infinite`; None if there is none.

    Example:
        >>> params = {"w": jnp.ones((1, 2)), "b": jnp.zeros(1)}
        >>> net = js.nets.Function(lambda p, x: p["w"] @ jnp.tanh(x) + p["b"], params)
        >>> js.kernels.empirical(net, jnp.zeros((1, 2))).ntk.tolist()  # of the bias alone
        [[[[1.0]]]]

    Raises:
        TypeError: f is not callable, or the parameters hold integers or booleans outside of modules.
    """

    f: Callable[..., Array] = eqx.field(static=True)  # a function
    params: PyTree
    kernel_fn: Callable[..., Any] | None = eqx.field(static=True)  # a function

    def __init__(self, f: Any, params: PyTree, *, kernel_fn: Callable[..., Any] | None = None):
        if not callable(f):
            raise TypeError(f"f must be a function f(params, x) of one sample, got {describe(f)}")
        function: Any = f
        self.f, self.params, self.kernel_fn = function, _as_arrays(params), kernel_fn

    def __call__(self, x: Any, *, key: Any = None) -> Any:
        """The output of f for one sample."""
        return self.f(self.params, x) if key is None else self.f(self.params, x, key=key)


def _as_arrays(params: PyTree) -> PyTree:
    """The parameters with arrays in place of numbers, which would silently not train."""
    is_module = lambda part: isinstance(part, eqx.Module)
    arrays = [leaf for leaf in jax.tree.leaves(params) if eqx.is_inexact_array(leaf) and np.ndim(leaf) > 0]
    dtype = jnp.asarray(arrays[0]).dtype if arrays else jnp.result_type(float)

    def convert(path: Any, leaf: Any) -> Any:
        if is_module(leaf) or isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        kind = jnp.result_type(leaf) if isinstance(leaf, jax.Array | np.ndarray | np.generic) else type(leaf)
        if kind in (int, bool) or jnp.issubdtype(kind, jnp.integer) or jnp.issubdtype(kind, jnp.bool_):
            raise TypeError(
                f"params{jax.tree_util.keystr(path)} is {describe(leaf)}, which jax.grad cannot train: give floats to "
                "train it, such as 1.0 for 1, or close over it in f to leave it as it is"
            )
        if kind not in (float, complex) and not jnp.issubdtype(kind, jnp.inexact):
            return leaf
        # Arrays keep their dtype. A single number has no chosen dtype, and takes the one of the other parameters.
        return jnp.asarray(leaf) if np.ndim(leaf) > 0 or np.iscomplexobj(leaf) else jnp.asarray(leaf, dtype)

    return jax.tree_util.tree_map_with_path(convert, params, is_leaf=is_module)


def from_linen(module: Any, variables: Any, **options: Any) -> Function:
    """A Flax Linen module as a network of one sample; collections other than "params" stay fixed.

    Arguments:
        module: such as `flax.linen.Dense(3)`, called without a batch axis.
        variables: the result of `module.init(key, x)`.
        options: for `module.apply`, such as `train=False` or `rngs={"dropout": key}` with a fixed key.

    Raises:
        TypeError: the module has no `apply`, or the variables hold no "params".

    Example:
        >>> from flax import linen
        >>> module = linen.Dense(3)
        >>> net = js.nets.from_linen(module, module.init(jax.random.key(0), jnp.ones(2, jnp.float32)))
        >>> js.kernels.empirical(net, jnp.ones((4, 2), jnp.float32), trace=True).ntk.shape
        (4, 4)
    """
    _require_apply(module, "module", "a Flax Linen module")
    if not isinstance(variables, Mapping) or "params" not in variables:
        raise TypeError(
            f"variables must be what module.init(key, x) returned, with 'params', got {describe(variables)}"
        )
    fixed = {name: values for name, values in variables.items() if name != "params"}
    return Function(Call(_linen, module, fixed, options), variables["params"])


def from_nnx(model: Any, *, wrt: Any = None) -> Function:
    """A Flax NNX model as a network of one sample; what does not train stays fixed.

    Arguments:
        model: called as model(x), without a batch axis. Call `model.eval()` first if it has dropout or batch
            statistics. To train with dropout, give `noise=lambda net, x, key: net(x, key=key)` to `js.Descent` or
            `js.diagnose`; to train with batch statistics, use `from_nnx_with_state`.
        wrt: what trains: a filter as for `nnx.Optimizer`, such as `nnx.LoRAParam`. None means `nnx.Param`.

    Raises:
        ValueError: the model has dropout or batch normalization in training mode.

    Example:
        >>> from flax import nnx
        >>> net = js.nets.from_nnx(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> js.kernels.empirical(net, jnp.ones((4, 2), jnp.float32), trace=True).ntk.shape
        (4, 4)
    """
    from flax import nnx

    # nnx.iter_modules would be simpler, but Flax 0.12.0 lacks it.
    for node in (part for _, part in nnx.iter_graph(model) if isinstance(part, nnx.Module)):
        share = getattr(node, "rate", getattr(node, "dropout_rate", 0))
        drops = share and getattr(node, "deterministic", None) is False
        if drops or getattr(node, "use_running_average", None) is False:
            raise ValueError(
                f"{type(node).__name__} in training mode is not a function of one sample: call model.eval(), or give "
                "a model with batch normalization to js.nets.from_nnx_with_state(model)"
            )
    graph, params, rest = nnx.split(model, nnx.Param if wrt is None else wrt, ...)
    # As pure dicts: nnx variables are tied to the trace that made them, and calls may advance random counters.
    return Function(Call(_nnx, graph, nnx.to_pure_dict(rest)), nnx.to_pure_dict(params))


def from_nnx_with_state(model: Any, *, wrt: Any = None) -> tuple[Any, eqx.nn.State]:
    """A Flax NNX model with batch normalization as a network with state, and its state (cf. `eqx.nn.make_with_state`).

    It trains with the statistics of its batches; see `js.Problem(net, x, y, state=state)` and `js.diagnose`. The
    model's own running averages and momentum are ignored. Dropout is off, except with
    `noise=lambda net, x, state, key: net(x, state, key=key)`.

    Arguments:
        model: in training mode, called as model(x) with a leading batch axis; as model(x, rngs=...) for dropout if it
            accepts rngs. Layers with `use_running_average=True` keep their averages.
        wrt: as for `from_nnx`.

    Raises:
        ValueError: the model has no `nnx.BatchNorm` in training mode.

    Example:
        >>> from flax import nnx
        >>> rngs = nnx.Rngs(0)
        >>> model = nnx.Sequential(nnx.Linear(2, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs), nnx.relu)
        >>> net, state = js.nets.from_nnx_with_state(model)
        >>> problem = js.Problem(net, jnp.eye(2, dtype=jnp.float32), jnp.ones((2, 8), jnp.float32), state=state)
        >>> problem.outputs(problem.params).shape
        (2, 8)
    """
    from ._nnx import by_batch, nnx, with_statistics

    graph, *parts = nnx.split(by_batch(model), nnx.Param if wrt is None else wrt, nnx.BatchStat, ...)
    params, statistics, rest = map(nnx.to_pure_dict, parts)
    dtype = jnp.result_type(*jax.tree.leaves(params))  # Flax's statistics are float32 whatever the parameters
    index = eqx.nn.StateIndex(jax.tree.map(lambda leaf: leaf.astype(dtype), statistics))
    return eqx.nn.make_with_state(Stateful)(Call(with_statistics, graph, rest), params, index)


def from_haiku(transformed: Any, params: Any, *, key: Any = None) -> Function:
    """A function made pure by `haiku.transform`, as a network of one sample.

    Arguments:
        transformed: the result of `haiku.transform(f)`, perhaps through `haiku.without_apply_rng`; f is called without
            a batch axis.
        params: the result of `transformed.init(key, x)`.
        key: a fixed key for dropout; None for functions without dropout.

    Raises:
        TypeError: there is no `apply`, or the function has a state.

    Example:
        >>> import haiku
        >>> made = haiku.transform(lambda x: haiku.Linear(3)(x))
        >>> net = js.nets.from_haiku(made, made.init(jax.random.key(0), jnp.ones(2)))
        >>> js.kernels.empirical(net, jnp.ones((4, 2)), trace=True).ntk.shape
        (4, 4)
    """
    _require_apply(transformed, "transformed", "what haiku.transform(f) returned")
    if type(transformed).__name__ == "TransformedWithState":
        raise TypeError(
            "the result of haiku.transform_with_state(f) has a state: fix the state, with js.nets.Function(lambda "
            "params, x: transformed.apply(params, state, key, x)[0], params)"
        )
    randomly = "rng" in inspect.signature(transformed.apply).parameters  # not after haiku.without_apply_rng
    return Function(Call(_haiku, transformed, (key,) if randomly else ()), params)


def from_stax(network: Any, params: Any, **options: Any) -> Function:
    """A network of `neural_tangents.stax` as a network of one sample, with its infinite-width kernels.

    `js.kernels.infinite` and `js.InfiniteWidth` then support what neural-tangents does: pooling, any padding,
    attention, layer normalization, products and concatenations of branches. `js.kernels.neural_tangents()` imports it.

    Arguments:
        network: `(init_fn, apply_fn, kernel_fn)`, as returned by a stax layer or `stax.serial`.
        params: from `_, params = init_fn(key, (-1, *shape))`.
        options: for `apply_fn`, such as `rng=key` for dropout, with a fixed key.

    Raises:
        TypeError: the network is not such a triple.

    Example:
        >>> stax = js.kernels.neural_tangents().stax
        >>> network = stax.serial(stax.Flatten(), stax.Dense(8), stax.Erf(), stax.Dense(1))
        >>> _, params = network[0](jax.random.key(0), (-1, 2, 2))
        >>> net = js.nets.from_stax(network, params)
        >>> x = jnp.ones((3, 2, 2))
        >>> js.kernels.empirical(net, x, trace=True).ntk.shape, js.kernels.infinite(net, x).ntk.shape
        ((3, 3), (3, 3))
    """
    if not is_stax(network):
        raise TypeError(
            f"network must be (init_fn, apply_fn, kernel_fn) of neural_tangents.stax, got {describe(network)}"
        )
    return Function(Call(_stax, network[1], options), params, kernel_fn=network[2])


def is_stax(network: Any) -> bool:
    """True for `(init_fn, apply_fn, kernel_fn)`."""
    return isinstance(network, tuple) and len(network) == 3 and all(map(callable, network))


def _linen(params: PyTree, x: Any, module: Any, fixed: dict[str, Any], options: dict[str, Any]) -> Any:
    return module.apply({"params": params, **fixed}, x, **options)


def _nnx(params: PyTree, x: Any, graph: Any, rest: Any, *, key: Any = None) -> Any:
    from ._nnx import called, nnx

    return called(nnx.merge(graph, params, rest), x, key)


def _haiku(params: PyTree, x: Any, transformed: Any, key: tuple[Any, ...]) -> Any:
    return transformed.apply(params, *key, x)


def _stax(params: PyTree, x: Any, apply_fn: Any, options: dict[str, Any]) -> Any:
    # The promotion rules that stax was written for, whatever the user has set.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return apply_fn(params, x[None], **options)[0]


class Call:
    """f(params, x) = function(params, x, *held). Calls with equal function and parts are equal, and share a program.

    Keywords of the call are passed on to the function.
    """

    def __init__(self, function: Callable[..., Any], *held: Any):
        leaves, structure = jax.tree.flatten(held)
        self._function, self._held = function, held
        self._key = function, structure, tuple(map(_identity, leaves))
        self._hash = hash(self._key)  # computed once: JAX asks for it at every call of a program

    def __call__(self, params: PyTree, x: Any, **options: Any) -> Any:
        return self._function(params, x, *self._held, **options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


def _identity(part: Any) -> Any:
    """The key that distinguishes a part: its type and value, or its id if it is unhashable, as arrays are."""
    try:
        hash(part)
    except TypeError:
        return id(part)
    return type(part), part


def _require_apply(value: Any, name: str, what: str) -> None:
    if not callable(getattr(value, "apply", None)):
        raise TypeError(f"{name} must be {what}, which has a method apply, got {describe(value)}")
