"""PyTorch modules as networks: the graph that `torch.export` makes of one, run by JAX."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._checks import describe
from .._extras import needs
from ._function import Call, Function
from ._torch_operations import CHECKS, OPERATIONS, WHOLE


# What says where an array lies, and not what it holds.
_PLACES = ("device", "layout", "pin_memory", "memory_format")


def from_torch(module: Any, example: Any, *, operations: Mapping[str, Callable[..., Any]] | None = None) -> Function:
    """A PyTorch module as a network of one sample, in inference mode; what does not require a gradient stays as it is.

    `torch.export` writes the module down as a graph, as after `module.eval()`: dropout is off, batch normalization has
    its running averages, and kernels are those of this function. The module itself stays as it is. JAX then runs the
    graph, with a copy of the parameters by their names: `net.params["fc"]["weight"]` is that of `module.fc`. A tied
    parameter is one, under its first name. `torch_params` reads the parameters anew.

    The module is called with an axis of samples in front, `batch_first=True` where it has a choice. Of several outputs
    it is `logits`, as those of Hugging Face's models have, or the first. Recurrent layers are written down step by
    step.

    Arguments:
        module: a `torch.nn.Module`. Parameters of half precision are for `module.float()` first.
        example: one sample, without an axis of samples: a tensor of floats, or of integers such as tokens; a tuple of
            tensors, or a dict of those that the module takes by keyword. Samples must have its shape.
        operations: functions for operations that are not known here, or others, by their names in PyTorch's
            graphs: `{"aten.erfc": jax.scipy.special.erfc}`. They get arrays of JAX in place of tensors.

    Raises:
        ModuleNotFoundError: PyTorch is not installed.
        NotImplementedError: the graph has operations that are not known.
        TypeError: module is no module, or gives no output for each sample.

    Example:
        >>> import torch  # doctest: +SKIP
        >>> net = js.nets.from_torch(torch.nn.Linear(2, 3), torch.ones(2))  # doctest: +SKIP
        >>> js.kernels.empirical(net, jnp.ones((4, 2), jnp.float32), trace=True).ntk.shape  # doctest: +SKIP
        (4, 4)
    """
    with needs("torch", "js.nets.from_torch"):
        import torch  # pyright: ignore[reportMissingImports]
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {describe(module)}")
    with _inference(module):
        exported = _exported(torch, module, example)
    program = _program(torch, module, exported, {**OPERATIONS, **(operations or {})})
    inputs = tuple(tuple(leaf.shape) for leaf in jax.tree.leaves(example))
    return Function(Call(_run, program, inputs), torch_params(module))


def torch_params(module: Any) -> dict[str, Any]:
    """A copy of the parameters that a PyTorch module trains, in the tree of its `from_torch`: dicts of JAX's arrays.

    In a loop of PyTorch, `monitor(step, js.nets.torch_params(module))` shows them to a `js.Monitor`.

    Raises:
        TypeError: a parameter is of bfloat16, which NumPy does not have.

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
    """The dtype that JAX has for one of PyTorch: of 32 bits unless it computes in 64."""
    return jax.dtypes.canonicalize_dtype(str(dtype).removeprefix("torch."))


# --- the graph


@contextlib.contextmanager
def _inference(module: Any) -> Iterator[None]:
    """A module in inference mode for a while."""
    trained = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in trained:
            part.training = True


def _exported(torch: Any, module: Any, example: Any) -> Any:
    """The exported program of a module, called with one sample, that gives one tensor."""
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
    exported = torch.export.export(OfOneSample().eval(), samples, strict=False)
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
    """Detaches what is computed under `torch.no_grad()`, which decompositions would forget."""
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
    """An operation without its overload: "aten.add"; a function by its name."""
    return str(getattr(target, "overloadpacket", getattr(target, "__name__", target)))


# --- the program


class _Value(NamedTuple):
    """A value that is known by its name when a program runs."""

    name: str


class _Step(NamedTuple):
    name: str  # of what it gives
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Program(NamedTuple):
    """A graph without PyTorch.

    Attributes:
        inputs: the names of the parts of a sample.
        params: the names of the parameters that train, with their paths.
        fixed: the names of buffers, constants and parameters that stand still, with their values.
        steps: in their order.
        output: the name of the output, which has an axis of one sample.
    """

    inputs: tuple[str, ...]
    params: tuple[tuple[str, tuple[str, ...]], ...]
    fixed: tuple[tuple[str, "_Constant"], ...]
    steps: tuple[_Step, ...]
    output: str


class _Constant:
    """An array that is equal to others that hold the same."""

    def __init__(self, tensor: Any):
        known = _copied(tensor)
        self.value = jnp.asarray(known)
        self._key = known.shape, known.dtype, hashlib.sha256(known.tobytes()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _program(torch: Any, module: Any, exported: Any, operations: Mapping[str, Callable[..., Any]]) -> _Program:
    signature = exported.graph_signature
    first: dict[int, str] = {}  # tied parameters are one tensor under several names
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first.setdefault(id(parameter), name)
    of_parameters, params, fixed = signature.inputs_to_parameters, [], []
    for node, name in of_parameters.items():
        parameter = module.get_parameter(name.removeprefix("module."))
        if parameter.requires_grad:
            params.append((node, tuple(first[id(parameter)].split("."))))
        else:
            fixed.append((node, _Constant(parameter)))
    for node, name in (signature.inputs_to_buffers | signature.inputs_to_lifted_tensor_constants).items():
        held = exported.constants if name in exported.constants else exported.state_dict
        fixed.append((node, _Constant(held[name])))

    def read(part: Any) -> Any:
        if isinstance(part, torch.fx.Node):
            return _Value(part.name)
        if isinstance(part, list | tuple):
            return tuple(map(read, part))
        return _dtype(part) if isinstance(part, torch.dtype) else part

    steps, missing = [], set()
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
            kwargs["dtype"] = _dtype(node.meta["val"].dtype)  # what is made of nothing has PyTorch's default
        steps.append(_Step(node.name, call, read(node.args), kwargs))
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
    return _Program(tuple(signature.user_inputs), tuple(params), tuple(fixed), tuple(steps), output)


def _run(params: PyTree, x: Any, program: _Program, inputs: tuple[tuple[int, ...], ...]) -> Array:
    """The output for one sample."""
    held: dict[str, Any] = {name: constant.value for name, constant in program.fixed}
    for name, path in program.params:
        part = params
        for key in path:
            part = part[key]
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
    # PyTorch's rules of broadcasting and of dtypes.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for step in program.steps:
            args, kwargs = jax.tree.map(fill, (step.args, step.kwargs), is_leaf=is_value)
            held[step.name] = step.call(*args, **kwargs)
        return held[program.output][0]
