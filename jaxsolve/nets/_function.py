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
    """f(params, x) as a network: all real numbers among its parameters train, at eta = 1, as `jax.grad` trains them.

    Wherever a network goes, such a function goes: `js.Problem`, `js.kernels.empirical`, `js.solve`. Python's floats and
    NumPy's numbers become arrays of the dtype of the other parameters. Modules of Equinox among the parameters keep its
    rule, by which their floating-point arrays train and Python's floats stand still; networks of `js.nets` keep their
    rates, and their hyperparameters stand still.

    Arguments:
        f: maps parameters and one sample to its outputs, shape (c,) or another one. What does not train is closed over.
            One that draws at random takes `key=` too, and gets the key of `net(x, key=key)`.
        params: a pytree of floating-point arrays and numbers; an Equinox module as well.
        kernel_fn: `kernel_fn(x1, x2, ("nngp", "ntk"))` of its infinite width as neural-tangents has it, for
            `js.kernels.infinite`; None where there is none.

    Example:
        >>> params = {"w": jnp.ones((1, 2)), "b": jnp.zeros(1)}
        >>> net = js.nets.Function(lambda p, x: p["w"] @ jnp.tanh(x) + p["b"], params)
        >>> js.kernels.empirical(net, jnp.zeros((1, 2))).ntk.tolist()  # of the bias alone
        [[[[1.0]]]]

    Raises:
        TypeError: f is not callable, or integers or truth values are among the parameters, outside of modules.
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
        """The output for one sample, as f returns it."""
        return self.f(self.params, x) if key is None else self.f(self.params, x, key=key)


def _as_arrays(params: PyTree) -> PyTree:
    """The parameters with arrays in place of numbers, which would stand still in silence."""
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
        # Arrays keep their dtype. A single number has none that was chosen, and takes that of the other parameters.
        return jnp.asarray(leaf) if np.ndim(leaf) > 0 or np.iscomplexobj(leaf) else jnp.asarray(leaf, dtype)

    return jax.tree_util.tree_map_with_path(convert, params, is_leaf=is_module)


def from_linen(module: Any, variables: Any, **options: Any) -> Function:
    """A Flax Linen module as a network of one sample; what is not in the collection "params" stays as it is.

    Arguments:
        module: such as `flax.linen.Dense(3)`, called without an axis of samples.
        variables: what `module.init(key, x)` returned.
        options: for `module.apply`, such as `train=False` or `rngs={"dropout": key}`, a key that stays.

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
    """A Flax NNX model as a network of one sample; what does not train stays as it is.

    Arguments:
        model: called as model(x), without an axis of samples. With dropout or batch statistics, after `model.eval()`:
            `noise=lambda net, x, key: net(x, key=key)` of `js.Descent` and `js.diagnose` trains with dropout, and
            `from_nnx_with_state` is for batch statistics of the training.
        wrt: what trains, a filter as `nnx.Optimizer` takes it, such as `nnx.LoRAParam`. None takes `nnx.Param`.

    Raises:
        ValueError: the model has dropout or batch normalization in training mode.

    Example:
        >>> from flax import nnx
        >>> net = js.nets.from_nnx(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> js.kernels.empirical(net, jnp.ones((4, 2), jnp.float32), trace=True).ntk.shape
        (4, 4)
    """
    from flax import nnx

    # Not by nnx.iter_modules, which Flax 0.12.0 lacks.
    for node in (part for _, part in nnx.iter_graph(model) if isinstance(part, nnx.Module)):
        share = getattr(node, "rate", getattr(node, "dropout_rate", 0))
        drops = share and getattr(node, "deterministic", None) is False
        if drops or getattr(node, "use_running_average", None) is False:
            raise ValueError(
                f"{type(node).__name__} in training mode is no function of one sample: call model.eval(), or give a "
                "model with batch normalization to js.nets.from_nnx_with_state(model)"
            )
    graph, params, rest = nnx.split(model, nnx.Param if wrt is None else wrt, ...)
    # Without their variables, which know the trace that they were made in: calls may count random numbers.
    return Function(Call(_nnx, graph, nnx.to_pure_dict(rest)), nnx.to_pure_dict(params))


def from_nnx_with_state(model: Any, *, wrt: Any = None) -> tuple[Any, eqx.nn.State]:
    """A Flax NNX model with batch normalization as a network with state, and its state, as by `eqx.nn.make_with_state`.

    It trains by the statistics of its batches: `js.Problem(net, x, y, state=state)` and `js.diagnose` say how. The
    model's own running averages and momentum do not count. Dropout is off, but in
    `noise=lambda net, x, state, key: net(x, state, key=key)`.

    Arguments:
        model: in training mode, called as model(x) with an axis of samples in front; as model(x, rngs=...) for dropout
            if it takes those. Where `use_running_average=True` was chosen for a layer, its averages stay.
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
    dtype = jnp.result_type(*jax.tree.leaves(params))  # Flax's statistics are float32 beside any parameters
    index = eqx.nn.StateIndex(jax.tree.map(lambda leaf: leaf.astype(dtype), statistics))
    return eqx.nn.make_with_state(Stateful)(Call(with_statistics, graph, rest), params, index)


def from_haiku(transformed: Any, params: Any, *, key: Any = None) -> Function:
    """A function that `haiku.transform` has made pure, as a network of one sample.

    Arguments:
        transformed: what `haiku.transform(f)` returned, also through `haiku.without_apply_rng`, f called without an
            axis of samples.
        params: what `transformed.init(key, x)` returned.
        key: for dropout, one that stays; None for functions without.

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
            "what haiku.transform_with_state(f) returned has a state: give one that stays, by "
            "js.nets.Function(lambda params, x: transformed.apply(params, state, key, x)[0], params)"
        )
    randomly = "rng" in inspect.signature(transformed.apply).parameters  # not after haiku.without_apply_rng
    return Function(Call(_haiku, transformed, (key,) if randomly else ()), params)


def from_stax(network: Any, params: Any, **options: Any) -> Function:
    """A network of `neural_tangents.stax` as a network of one sample, which knows its kernels of infinite width.

    So `js.kernels.infinite` and `js.InfiniteWidth` serve what neural-tangents does: pooling, any padding, attention,
    layer normalization, products and concatenations of branches. `js.kernels.neural_tangents()` imports it.

    Arguments:
        network: `(init_fn, apply_fn, kernel_fn)`, as a layer of stax or `stax.serial` returns it.
        params: of `_, params = init_fn(key, (-1, *shape))`.
        options: for `apply_fn`, such as `rng=key` for dropout, a key that stays.

    Raises:
        TypeError: the network is no such triple.

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
    # The rules of promotion that it was written for, whatever the user's are.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return apply_fn(params, x[None], **options)[0]


class Call:
    """f(params, x) = function(params, x, *held), equal to one of the same function and parts: a program serves both.

    Keywords of the call go to the function, too.
    """

    def __init__(self, function: Callable[..., Any], *held: Any):
        leaves, structure = jax.tree.flatten(held)
        self._function, self._held = function, held
        self._key = function, structure, tuple(map(_identity, leaves))
        self._hash = hash(self._key)  # once: it is asked for at every call of a program

    def __call__(self, params: PyTree, x: Any, **options: Any) -> Any:
        return self._function(params, x, *self._held, **options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


def _identity(part: Any) -> Any:
    """The key that tells a part from others: its type and value, or its id if it has no hash, as arrays."""
    try:
        hash(part)
    except TypeError:
        return id(part)
    return type(part), part


def _require_apply(value: Any, name: str, what: str) -> None:
    if not callable(getattr(value, "apply", None)):
        raise TypeError(f"{name} must be {what}, which has a method apply, got {describe(value)}")
