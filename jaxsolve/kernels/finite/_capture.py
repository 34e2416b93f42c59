"""The operands that parameters meet in a function of a batch, and the cotangents propagated back to them."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..._checks import attempt, describe
from ..._numerics import in_words, Inputs, one_of, take_samples
from ..._programs import depends_on_inputs
from ...nets import partition
from ...nets._internal import FREEZE, takes_state, why_not_called, with_state_words
from ._uses import find, Found, Use


class Record(NamedTuple):
    """The operand and the cotangent at one use of a parameter, for a batch of n samples.

    Without an operand, `back` is the derivative d f_a / d (parameter) itself.
    """

    inputs: Array | None  # shape (n, ...)
    back: Float[Array, "n out ..."]  # d f_a / d (output of the step)


class Capture(NamedTuple):
    """A network as a program in which the uses of its parameters are known.

    Attributes:
        found: the program and the uses.
        values: the values of the parameters, leaf by leaf.
        names: the names of the leaves.
    """

    found: Found
    values: list[Array]
    names: list[str]

    @property
    def out_size(self) -> int:
        return self.found.program.shapes[self.found.program.output].shape[0]

    @property
    def dtype(self) -> Any:
        return self.values[0].dtype

    @property
    def uses(self) -> list[tuple[int, Use | None]]:
        """The captured uses, each with its leaf; None for the derivative with respect to the leaf itself."""
        uses = self.found.uses
        return [(leaf, use) for leaf in self.found.order for use in uses[leaf] or [None]]

    @property
    def fallbacks(self) -> dict[str, str]:
        """The reason for a direct derivative, for each leaf that meets data in a way that has no rule here."""
        return {self.names[leaf]: self.found.reasons[leaf] for leaf in self.found.order if leaf in self.found.reasons}

    def pushed(
        self, values: list[Array], sample: PyTree[Array], pushes: list[Array] | None
    ) -> tuple[Array, list[Any], list]:
        """The output with a push added to the result of every use; the operands and their scales; and the results."""
        program, held = self.found.program, {**self.found.program.values}
        held |= dict(zip(program.leaves, values, strict=True))
        held |= dict(zip(program.sample, jax.tree.leaves(sample), strict=True))
        at: dict[int, list[int]] = {}
        results: list[Any] = [None] * len(self.uses)
        swaps = {}
        for index, (leaf, use) in enumerate(self.uses):
            if use is None:
                slot = program.leaves[leaf]
                results[index] = held[slot]
                held[slot] = held[slot] if pushes is None else held[slot] + pushes[index]
            else:
                # One step may hold several uses: (W + V) x holds one of W and one of V.
                at.setdefault(use.step, []).append(index)
                swaps[use.step] = use.contraction
        for number, step in enumerate(program.steps):
            inputs = [held[slot] for slot in step.inputs]
            contraction = swaps.get(number)
            outputs = list(step.call(*inputs) if contraction is None else contraction.run(step, inputs))
            # The derivative of the output with respect to the push is the cotangent of this step.
            for index in at.get(number, ()):
                results[index] = outputs[0]
                outputs[0] = outputs[0] if pushes is None else outputs[0] + pushes[index]
            held.update(zip(step.outputs, outputs, strict=True))
        operands = [None if use is None else held[use.operand] for _, use in self.uses]
        scales = [None if use is None else _scale(use, held) for _, use in self.uses]
        return held[program.output], [operands, scales], results

    def of_sample(self, values: list[Array], sample: PyTree[Array]) -> list[Record]:
        """The records of one sample, without a sample axis."""
        # Derivatives are taken at pushes of 0, which leave the network's values unchanged.
        zeros = jax.eval_shape(lambda v, s: self.pushed(v, s, None)[2], values, sample)
        zeros = [jnp.zeros(zero.shape, zero.dtype) for zero in zeros]

        def forward(pushes: list[Array]) -> tuple[Array, list[Any]]:
            output, operands, _ = self.pushed(values, sample, pushes)
            return output, operands

        output, pull, (operands, scales) = jax.vjp(forward, zeros, has_aux=True)
        # Row a of the identity gives d f_a: one backward pass per output.
        (backs,) = jax.vmap(pull)(jnp.eye(output.shape[0], dtype=output.dtype))
        # A step sees scale * parameter: by the chain rule, the derivative has another factor of scale.
        scaled = [back if scale is None else scale * back for scale, back in zip(scales, backs, strict=True)]
        # Sums of many half-precision products would not keep a kernel positive semi-definite.
        return [Record(*map(self._cast, pair)) for pair in zip(operands, scaled, strict=True)]

    def _cast(self, value: Any) -> Any:
        """Floats cast to the dtype of the parameters; integers, which are indices of look-ups, unchanged."""
        if value is None or not jnp.issubdtype(value.dtype, jnp.floating):
            return value
        return value.astype(self.dtype)

    def records(self, x: Inputs) -> list[Record]:
        """The records of a batch: one forward pass, and one backward pass per output."""
        return jax.vmap(lambda sample: self.of_sample(self.values, sample))(x)

    def constant(self, x: Inputs) -> list[Record]:
        """For every use, whether its operand and its cotangent are the same for all samples, as for a bias."""
        sample = one_of(x)
        program, sent = jax.make_jaxpr(self.of_sample, return_shape=True)(self.values, sample)
        # Parameters count as fixed: values that depend only on them are the same for all samples.
        moved = depends_on_inputs(program, [*[False] * len(self.values), *[True] * len(jax.tree.leaves(sample))])
        return jax.tree.unflatten(jax.tree.structure(sent), [not moves for moves in moved])


def capture(net: PyTree, x: Any) -> Capture:
    """The network as a program on one sample, with the shape and dtype of those in the batch `x`."""
    params, static = partition(net)
    sample = one_of(x)
    output_of(net, sample)
    found = find(lambda p, s: eqx.combine(p, static)(s).reshape(-1), params, sample)
    if not found.order:
        raise ValueError(f"no parameter of this {type(net).__name__} enters its outputs, so it has no kernel")
    paths = jax.tree_util.tree_leaves_with_path(params)
    names = [jax.tree_util.keystr(path).removeprefix(".") for path, _ in paths]
    return Capture(found, [leaf for _, leaf in paths], names)


class Outline(NamedTuple):
    """The facts about a network that follow from its shapes and the shapes of its inputs.

    Attributes:
        capture: its program and its parameters, as shapes only.
        records: the records of one sample, as shapes only.
    """

    capture: Capture
    records: list[Record]


def outline(net: PyTree, x: Any) -> Outline:
    """The outline of a network, cached for all networks of one kind.

    Tracing a program takes longer than many programs take to run.
    """
    rest, arrays = _split(net)
    # Shapes replace arrays: they can be hashed, and the cache holds no parameters.
    samples, structure = jax.tree.flatten(one_of(x))
    return _outline(rest, tuple(map(_shape, arrays)), tuple(samples), structure)


@functools.lru_cache(maxsize=64)
def _outline(
    rest: Any, shapes: tuple[jax.ShapeDtypeStruct, ...], sample: tuple[jax.ShapeDtypeStruct, ...], structure: Any
) -> Outline:
    found: list[Capture] = []

    def records(arrays: list[Array], samples: Inputs) -> list[Record]:
        captured = capture(_whole(rest, arrays), samples)
        program = captured.found.program._replace(steps=[], values={})  # tracers must not leave here
        # Passed out of the trace in a list, since `eval_shape` returns shapes only.
        outlines = [*map(_shape, captured.values)]
        found.append(captured._replace(found=captured.found._replace(program=program), values=outlines))
        return captured.of_sample(captured.values, take_samples(samples, 0))

    batch = [jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype) for leaf in sample]
    sent = jax.eval_shape(records, list(shapes), jax.tree.unflatten(structure, batch))
    return Outline(found[0], sent)


def _split(tree: Any) -> tuple[Any, list[Any]]:
    """The part of a tree that cannot be traced, in hashable form, and its arrays."""
    leaves, structure = jax.tree.flatten(tree)
    fixed = tuple(None if eqx.is_array(leaf) else (leaf,) for leaf in leaves)
    return (structure, fixed), [leaf for leaf in leaves if eqx.is_array(leaf)]


def _whole(rest: Any, arrays: list[Any]) -> Any:
    """The tree that `_split` took apart."""
    (structure, fixed), given = rest, iter(arrays)
    return jax.tree.unflatten(structure, [next(given) if leaf is None else leaf[0] for leaf in fixed])


def _shape(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def output_of(net: Any, sample: PyTree[jax.ShapeDtypeStruct]) -> jax.ShapeDtypeStruct:
    """The shape and dtype of the output as a vector. Raises ValueError unless net maps one sample to real outputs."""
    given = f"one sample, {in_words(sample)}"
    if takes_state(net):
        raise ValueError(f"this network has state, and no kernel of one sample; {FREEZE}")
    out, error = attempt(eqx.filter_eval_shape, net, sample)
    if isinstance(error, jax.errors.JAXTypeError):
        raise error  # a network that branches on traced values, about which JAX says more
    if error is not None:
        raise ValueError(why_not_called(net, sample, error)) from error
    if not getattr(out, "shape", ()) or not out.size or not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(
            f"the network must map {given}, to an array of real outputs, of shape (c,) with c >= 1 or such as (T, V), "
            f"got {describe(out)}; return one by js.nets.Function(lambda net, x: net(x).reshape(-1), net)"
            f"{with_state_words(out)}"
        )
    return jax.ShapeDtypeStruct((out.size,), out.dtype)


def _scale(use: Use, held: dict[int, Any]) -> Any:
    """The number that the parameter is multiplied by on the way to this use; None if it is 1."""
    if not use.view.scales and use.view.sign == 1:
        return None
    total = use.view.sign
    for slot, power in use.view.scales:
        value = jnp.reshape(held[slot], ())
        total = total * value if power == 1 else total / value
    return total
