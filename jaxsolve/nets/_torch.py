"""PyTorch modules as networks: `torch.export` makes a graph of the module, and JAX runs it."""

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from .._checks import describe, require_flag
from .._extras import needs
from ._function import Call, Function
from ._state import Stateful
from ._torch_operations import batch_moments, BATCH_NORM, CHECKS, DROPOUT, OPERATIONS, WHOLE


# Arguments that say where an array is stored, not what it holds.
_PLACES = ("device", "layout", "pin_memory", "memory_format")


def from_torch(
    module: Any, example: Any, *, dropout: bool = False, operations: Mapping[str, Callable[..., Any]] | None = None
) -> Function:
    """A PyTorch module as a network of one sample, in inference mode; what does not require a gradient stays fixed.

    `torch.export` makes a graph of the module as after `module.eval()`: dropout is off, batch normalization uses its
    running averages, and kernels are those of this function. The module itself does not change. JAX then runs the
    graph with a copy of the parameters under their names: `net.params["fc"]["weight"]` is `module.fc.weight`. Tied
    parameters appear once, under their first name. `torch_params` reads the parameters again.

    The module is called with a leading batch axis, with `batch_first=True` where that is an option. Of several outputs
    the network returns `logits`, as Hugging Face models have them, or else the first. Recurrent layers are unrolled
    step by step.

    Arguments:
        module: a `torch.nn.Module`. In half precision, call `module.float()` first. To train batch normalization with
            the statistics of its batches, use `from_torch_with_state`.
        example: one sample, without a batch axis: a tensor of floats, or of integers such as tokens; a tuple of
            tensors, or a dict of tensors that the module takes by keyword. Samples must have its shape.
        dropout: True exports the graph of `module.train()`, except for its normalization. `net(x)` has no dropout, and
            `net(x, key=key)` draws it, so `noise=lambda net, x, key: net(x, key=key)` in `js.Descent` and
            `js.diagnose` trains with it.
        operations: functions for operations that are not known here, or replacements, by their names in PyTorch's
            graphs: `{"aten.erfc": jax.scipy.special.erfc}`. They receive JAX arrays in place of tensors.

    Raises:
        ModuleNotFoundError: PyTorch is not installed.
        NotImplementedError: the graph has unknown operations; with dropout, recurrent layers have dropout, or the
            module changes its buffers.
        TypeError: module is not a module, or does not return an output for each sample.
        ValueError: batch normalization has no running averages.

    Example:
        >>> import torch  # doctest: +SKIP
        >>> net = js.nets.from_torch(torch.nn.Linear(2, 3), torch.ones(2))  # doctest: +SKIP
        >>> js.kernels.empirical(net, jnp.ones((4, 2), jnp.float32), trace=True).ntk.shape  # doctest: +SKIP
        (4, 4)
    """
    program, inputs, _ = _written_down(module, example, "js.nets.from_torch", dropout, operations, by_batch=False)
    return Function(Call(_run, program, inputs), torch_params(module))


def from_torch_with_state(
    module: Any, example: Any, *, dropout: bool = False, operations: Mapping[str, Callable[..., Any]] | None = None
) -> tuple[Any, eqx.nn.State]:
    """A PyTorch module with batch normalization as a network with state, and its state (cf. `eqx.nn.make_with_state`).

    It trains with the statistics of its batches; see `js.Problem(net, x, y, state=state)` and `js.diagnose`. The
    module's own running averages and momentum are ignored: other inputs are normalized with the mean and the (biased)
    variance of the whole training set at the current parameters. With `dropout=True`,
    `noise=lambda net, x, state, key: net(x, state, key=key)` draws dropout.

    Arguments:
        module: in training mode, PyTorch's default. A layer on which `eval()` was called keeps its averages.
        example, dropout, operations: as for `from_torch`.

    Raises:
        ValueError: the module has no batch normalization in training mode, some without running averages, or instance
            normalization with running averages.
        ModuleNotFoundError, NotImplementedError, TypeError: as for `from_torch`.

    Example:
        >>> import torch  # doctest: +SKIP
        >>> module = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.BatchNorm1d(8))  # doctest: +SKIP
        >>> net, state = js.nets.from_torch_with_state(module, torch.ones(2))  # doctest: +SKIP
        >>> x, y = jnp.eye(2, dtype=jnp.float32), jnp.ones((2, 8), jnp.float32)  # doctest: +SKIP
        >>> problem = js.Problem(net, x, y, state=state)  # doctest: +SKIP
        >>> problem.outputs(problem.params).shape  # doctest: +SKIP
        (2, 8)
    """
    program, inputs, averages = _written_down(
        module, example, "js.nets.from_torch_with_state", dropout, operations, by_batch=True
    )
    make = eqx.nn.make_with_state(Stateful)
    return make(Call(_run_with_statistics, program, inputs), torch_params(module), eqx.nn.StateIndex(averages))


def torch_params(module: Any) -> dict[str, Any]:
    """A copy of the trainable parameters of a PyTorch module, in the tree that `from_torch` uses: dicts of JAX arrays.

    In a PyTorch loop, `monitor(step, js.nets.torch_params(module))` passes them to a `js.Monitor`.

    Raises:
        TypeError: a parameter has the dtype bfloat16, which NumPy lacks.

    Example:
        >>> import torch  # doctest: +SKIP
        >>> js.nets.torch_params(torch.nn.Linear(2, 3))["weight"].shape  # doctest: +SKIP
        (3, 2)
    """
    params: dict[str, Any] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            *path, last = name.split(".")
            inner = params
            for key in path:
                inner = inner.setdefault(key, {})
            if str(parameter.dtype) == "torch.bfloat16":
                raise TypeError(f"the parameter {name} is of bfloat16: call module.float() first")
            inner[last] = jnp.asarray(_copied(parameter))
    return params


def _copied(tensor: Any) -> np.ndarray:
    # A copy: PyTorch changes its tensors in place.
    return np.array(tensor.detach().cpu())


def _dtype(dtype: Any) -> np.dtype:
    """The JAX dtype for a PyTorch dtype: of 32 bits unless JAX computes in 64."""
    return jax.dtypes.canonicalize_dtype(str(dtype).removeprefix("torch."))


# --- the graph


def _written_down(
    module: Any, example: Any, caller: str, dropout: bool, operations: Mapping[str, Any] | None, *, by_batch: bool
) -> tuple["_Program", tuple[tuple[int, ...], ...], dict[str, Array]]:
    """The program of a module, the shapes of a sample's arrays, and the running averages to pass to the program."""
    with needs("torch", caller):
        import torch  # pyright: ignore[reportMissingImports]
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {describe(module)}")
    dropout = require_flag(dropout, "dropout")
    averaged = _averages(torch, module, by_batch)
    if dropout:
        _require_plain_dropout(torch, module)
    with _mode(torch, module, dropout):
        exported = _exported(torch, module, example)
    changed = sorted(name.removeprefix("module.") for name in exported.graph_signature.buffers_to_mutate.values())
    if dropout and changed:
        raise NotImplementedError(
            f"in training mode this {type(module).__name__} changes its buffers {', '.join(changed)}, which are "
            "constants here: give it without dropout=True"
        )
    program = _program(torch, module, exported, {**OPERATIONS, **(operations or {})}, averaged)
    inputs = tuple(tuple(leaf.shape) for leaf in jax.tree.leaves(example))
    averages = {name: jnp.asarray(_copied(module.get_buffer(name))) for _, name in program.averages}
    return program, inputs, averages


def _averages(torch: Any, module: Any, by_batch: bool) -> set[str]:
    """The names of the running averages that the statistics of a batch replace; empty unless `by_batch`."""
    norms, found = torch.nn.modules.batchnorm, set()
    for name, part in module.named_modules():
        of_batch = isinstance(part, norms._BatchNorm)
        if of_batch and part.running_mean is None:
            raise ValueError(
                f"{type(part).__name__} {name} has no running averages, so it is not a function of one sample: make "
                "it with track_running_stats=True"
            )
        if not by_batch or not isinstance(part, norms._NormBase) or not part.training:
            continue
        if of_batch:
            found |= {f"{name}.{kind}".removeprefix(".") for kind in ("running_mean", "running_var")}
        elif part.running_mean is not None:
            raise ValueError(
                f"{type(part).__name__} {name} has running averages that change as it trains: call eval() on it to "
                "keep them, or make it with track_running_stats=False"
            )
    if by_batch and not found:
        raise ValueError(
            f"this {type(module).__name__} has no batch normalization in training mode: call module.train() for one "
            "that has, and give js.nets.from_torch(module, example) of one without"
        )
    return found


def _require_plain_dropout(torch: Any, module: Any) -> None:
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.RNNBase) and part.dropout > 0:
            raise NotImplementedError(  # torch.export drops it from the graph
                f"the dropout of {type(part).__name__} {name} cannot be drawn: give layers one by one, with "
                "torch.nn.Dropout between them"
            )


@contextlib.contextmanager
def _mode(torch: Any, module: Any, dropout: bool) -> Iterator[None]:
    """Puts a module in inference mode for a while, or in training mode except for its normalization."""
    before = [(part, part.training) for part in module.modules()]
    module.train(dropout)
    for part, _ in before:
        if isinstance(part, torch.nn.modules.batchnorm._NormBase):
            part.training = False
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def _exported(torch: Any, module: Any, example: Any) -> Any:
    """The exported program of a module that is called with one sample and returns one tensor."""
    leaves, structure = jax.tree.flatten(example)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise TypeError(f"example must be one sample: a tensor, or a tuple or dict of tensors, got {describe(example)}")

    class OfOneSample(torch.nn.Module):
        def __init__(self):
            torch.nn.Module.__init__(self)
            self.module = module

        def forward(self, *leaves: Any) -> Any:
            sample = jax.tree.unflatten(structure, leaves)
            if isinstance(sample, Mapping):
                return _tensor(torch, self.module(**sample))
            return _tensor(torch, self.module(*sample) if isinstance(sample, tuple) else self.module(sample))

    samples = tuple(leaf.detach()[None] for leaf in leaves)
    exported = torch.export.export(OfOneSample(), samples, strict=False)
    _stop_gradients(torch, exported.graph_module)
    apart = torch.export.default_decompositions()
    for operation in list(apart):
        if _name(operation) in WHOLE:
            apart.pop(operation)
    return exported.run_decompositions(apart)


def _tensor(torch: Any, output: Any) -> Any:
    """The logits of an output, or its first tensor."""
    if isinstance(output, torch.Tensor):
        return output
    if getattr(output, "logits", None) is not None:
        return output.logits
    if isinstance(output, Mapping) and output:
        return _tensor(torch, output.get("logits", next(iter(output.values()))))
    if isinstance(output, list | tuple) and output:
        return _tensor(torch, output[0])
    raise TypeError(f"module must return a tensor, or several in a tuple or dict, got {describe(output)}")


def _stop_gradients(torch: Any, graph_module: Any) -> None:
    """Detaches what is computed under `torch.no_grad()`, which the decompositions would lose."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if _name(node.target) == "wrap_with_set_grad_enabled" and node.args[0] is False:
            for part in list(node.users):
                with graph.inserting_after(part):
                    stopped = graph.call_function(torch.ops.aten.detach.default, (part,))
                stopped.meta.update(part.meta)
                part.replace_all_uses_with(stopped, delete_user_cb=lambda user, stopped=stopped: user is not stopped)
    graph_module.recompile()


def _name(target: Any) -> str:
    """The name of an operation without its overload, such as "aten.add", or the name of a function."""
    return str(getattr(target, "overloadpacket", getattr(target, "__name__", target)))


# --- the program


class _Value(NamedTuple):
    """A reference by name to a value that exists when the program runs."""

    name: str


class _Step(NamedTuple):
    name: str  # of its result
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    averages: tuple[str, ...]  # the mean and the variance, if the statistics of a batch replace them
    draw: int | None  # how many steps draw before this one; None if it does not draw


class _Program(NamedTuple):
    """A graph without PyTorch.

    Attributes:
        inputs: the names of a sample's arrays.
        params: the names of the trainable parameters, with their paths.
        averages: the names of the buffers that are passed at each call, with their names in PyTorch.
        fixed: the names of the other buffers, the constants and the parameters that do not train, with their values.
        steps: in the order of execution.
        output: the name of the output, which has a batch axis of size 1.
    """

    inputs: tuple[str, ...]
    params: tuple[tuple[str, tuple[str, ...]], ...]
    averages: tuple[tuple[str, str], ...]
    fixed: tuple[tuple[str, "_Constant"], ...]
    steps: tuple[_Step, ...]
    output: str


class _Constant:
    """An array that compares equal to arrays with the same contents."""

    def __init__(self, tensor: Any):
        known = _copied(tensor)
        self.value = jnp.asarray(known)
        self._key = known.shape, known.dtype, hashlib.sha256(known.tobytes()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _program(
    torch: Any, module: Any, exported: Any, operations: Mapping[str, Callable[..., Any]], averaged: set[str]
) -> _Program:
    signature = exported.graph_signature
    first: dict[int, str] = {}  # tied parameters are one tensor under several names
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first.setdefault(id(parameter), name)
    of_parameters, params, averages, fixed = signature.inputs_to_parameters, [], {}, []
    for node, name in of_parameters.items():
        parameter = module.get_parameter(name.removeprefix("module."))
        if parameter.requires_grad:
            params.append((node, tuple(first[id(parameter)].split("."))))
        else:
            fixed.append((node, _Constant(parameter)))
    # Such as PyTorch's count of batches: including unused buffers would force a new program for each value.
    unused = {node.name for node in exported.graph.nodes if not node.users}
    for node, name in (signature.inputs_to_buffers | signature.inputs_to_lifted_tensor_constants).items():
        own = name.removeprefix("module.")
        if own in averaged:
            averages[node] = own
            continue
        if node in unused:
            continue
        held = exported.constants if name in exported.constants else exported.state_dict
        fixed.append((node, _Constant(held[name])))

    def read(part: Any) -> Any:
        if isinstance(part, torch.fx.Node):
            return _Value(part.name)
        if isinstance(part, list | tuple):
            return tuple(map(read, part))
        return _dtype(part) if isinstance(part, torch.dtype) else part

    steps, missing, draws = [], set(), itertools.count()
    for node in exported.graph.nodes:
        name = _name(node.target)
        if node.op != "call_function" or name in CHECKS:
            continue
        call = operations.get(str(node.target), operations.get(name))
        if call is None:
            missing.add(str(node.target))
            continue
        kwargs = {key: read(part) for key, part in node.kwargs.items() if key not in _PLACES}
        if not node.all_input_nodes:
            kwargs["dtype"] = _dtype(node.meta["val"].dtype)  # without inputs, the dtype is PyTorch's default
        of_batch = tuple(part.name for part in node.args[3:5]) if name == BATCH_NORM else ()
        of_batch = of_batch if set(of_batch) <= set(averages) else ()
        steps.append(
            _Step(node.name, call, read(node.args), kwargs, of_batch, next(draws) if name == DROPOUT else None)
        )
    if missing:
        raise NotImplementedError(
            f"this {type(module).__name__} has operations of PyTorch that are not known here: "
            f"{', '.join(sorted(missing))}; give functions of JAX for them, such as operations="
            f"{{{min(missing)!r}: lambda *args: ...}}"
        )
    (output,) = signature.user_outputs
    shape = next(node.meta["val"].shape for node in exported.graph.nodes if node.name == output)
    if not shape or shape[0] != 1:
        raise TypeError(
            f"module must give an output for each sample, and gave one of shape {tuple(shape)} for one sample"
        )
    parts = tuple(params), tuple(averages.items()), tuple(fixed)
    return _Program(tuple(signature.user_inputs), *parts, tuple(steps), output)


def _run(
    params: PyTree, x: Any, program: _Program, inputs: tuple[tuple[int, ...], ...], *, key: Key[Array, ""] | None = None
) -> Array:
    """The output for one sample, with dropout if there is a key."""
    return _run_with_statistics(params, x, program, inputs, statistics={}, inference=True, key=key)[0]


def _run_with_statistics(
    params: PyTree,
    x: Any,
    program: _Program,
    inputs: tuple[tuple[int, ...], ...],
    *,
    statistics: dict[str, Array],
    inference: bool,
    key: Key[Array, ""] | None = None,
) -> tuple[Array, dict[str, Array]]:
    """The output for one sample, and the statistics: the given ones or, in training, those of the batch."""
    if key is not None and not any(step.draw is not None for step in program.steps):
        raise ValueError(
            "this network has no dropout to draw with the key: give js.nets.from_torch dropout=True, and a module "
            "with dropout"
        )
    held: dict[str, Any] = {name: constant.value for name, constant in program.fixed}
    held |= {name: statistics[own] for name, own in program.averages}
    for name, path in program.params:
        part = params
        for name_of_part in path:
            part = part[name_of_part]
        held[name] = part
    leaves = jax.tree.leaves(x)
    if tuple(jnp.shape(leaf) for leaf in leaves) != inputs:
        raise ValueError(
            f"a sample must have the shape of the example, {' and '.join(map(str, inputs))}, got {describe(x)}"
        )
    for name, leaf in zip(program.inputs, leaves, strict=True):
        held[name] = jnp.asarray(leaf)[None]
    is_value = lambda part: isinstance(part, _Value)
    fill = lambda part: held[part.name] if is_value(part) else part
    # PyTorch's rules of broadcasting and dtype promotion.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for step in program.steps:
            if step.averages and not inference:
                held |= zip(step.averages, batch_moments(fill(step.args[0])), strict=True)
            args, kwargs = jax.tree.map(fill, (step.args, step.kwargs), is_leaf=is_value)
            if step.draw is not None and key is not None:
                kwargs["key"] = jax.random.fold_in(key, step.draw)
            held[step.name] = step.call(*args, **kwargs)
        return held[program.output][0], {own: held[name] for name, own in program.averages}
