"""The empirical neural tangent kernel of any network."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..._checks import require_flag, require_size, warn_of_rounded_products
from ..._numerics import Inputs, samples_in, warn_of_wrong_version
from ...nets import partition
from ._capture import outline
from ._check import certify
from ._inputs import check_inputs, check_network, check_rates
from ._memory import choose_tiling, estimate, MemoryEstimate
from ._outputs import Outputs
from ._structured import structured


class EmpiricalKernel(eqx.Module):
    """An empirical NTK and how it was computed.

    Attributes:
        ntk: sum_l eta_l <df/dtheta_l, df/dtheta_l>, gamma^2 included: (n, c, m, c), or (n, m) with `trace=True`, or (c,
            n, m) with `diagonal=True`.
        layers: the contribution of every parameter that the outputs depend on, by names such as `weights[0]`; None
            without `by_layer=True`.
        fallbacks: the parameters for which the derivative of every output of every sample had to be held, and why.
    """

    ntk: Float[Array, "..."]
    layers: dict[str, Float[Array, "..."]] | None
    fallbacks: dict[str, str] = eqx.field(static=True)  # decided by the program and its shapes


def unit_rates(net: Any) -> PyTree:
    """A learning rate of 1 for every trainable array: with these, `js.kernels.empirical` is the plain NTK.

    Any module works. The network's own rates, which drive f under gradient flow, are `js.nets.rates(net)`.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> doubled = jax.tree.map(lambda one: 2 * one, js.kernels.unit_rates(net))
        >>> plain, twice = (js.kernels.empirical(net, jnp.eye(2), eta=eta).ntk for eta in (None, doubled))
        >>> bool(jnp.allclose(twice, 2 * plain))
        True
    """
    check_network(net)
    return jax.tree.map(lambda leaf: jnp.ones((), leaf.dtype), partition(net)[0])


def empirical(
    net: Any,
    x1: Inputs,
    x2: Inputs | None = None,
    *,
    eta: PyTree | None = None,
    trace: bool = False,
    diagonal: bool = False,
    by_layer: bool = False,
    memory: int | None = None,
) -> EmpiricalKernel:
    """The NTK of a network at its parameters: sum_l eta_l <df/dtheta_l, df/dtheta_l>, gamma^2 included.

    The kernel is computed from the network's jaxpr on one sample. Where a parameter meets data in a product, a
    convolution or a look-up, its derivative is a sum of outer products of its operand and its cotangent, and the kernel
    is a sum of products of their Grams, or a Gram of derivatives if that is less work. It is computed in tiles that fit
    the memory; with x2 = None in half the work, and symmetric to the last bit. A parameter may be transposed, reshaped,
    sliced, cast or scaled by a number first; if it is used several times, all pairs of uses count. Derivatives are held
    for biases, gains, parameters shared by more than 8 steps of a scan, and those that meet data in another way;
    `fallbacks` names the last, and those of scans of more than 64 steps.

    Outside a trace, a kernel of more than 10^8 multiplications is compared with gradients of some samples, as by
    `js.kernels.check`, if that takes a small part of them; a difference beyond rounding gives a warning.

    Arguments:
        net: a network of `js.nets`, an Equinox module that maps one sample, or `js.nets.Function(f, params)`.
        x1: inputs, shape (n, ...), or a dict or tuple of such: real numbers, or integers such as tokens.
        x2: other inputs, shape (m, ...); None takes x1.
        eta: learning rates, a pytree with a scalar for every trainable array, such as `js.nets.rates(net)`, which drive
            f under gradient flow. None takes 1 everywhere, for the plain NTK.
        trace: whether to sum over equal outputs, shape (n, m); costs a factor of c less.
        diagonal: whether to keep only pairs of equal outputs, shape (c, n, m).
        by_layer: whether to return also the contribution of every parameter.

    Other Arguments:
        memory: bytes that the computation may take. None allows 4 GB besides the kernel, on any machine, and raises if
            the total exceeds half of the free memory.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=3, out_size=2, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> found = js.kernels.empirical(net, jnp.ones((5, 3)), by_layer=True)
        >>> print(found.ntk.shape, list(found.layers), found.fallbacks)
        (5, 2, 5, 2) ['weights[0]', 'weights[1]'] {}
        >>> js.kernels.empirical(net, jnp.ones((5, 3)), jnp.ones((4, 3)), trace=True).ntk.shape
        (5, 4)

    Reference:
        @inproceedings{novak2022fast, author={Roman Novak and Jascha Sohl-Dickstein and Samuel S. Schoenholz},
          title={Fast Finite Width Neural Tangent Kernel}, booktitle={ICML}, year={2022}}

    Raises:
        ValueError: inputs do not fit the network or are not finite, dtypes are mixed or of half precision, a rate is
            negative, the network does not map one sample to a vector of outputs, or, outside a trace, the kernel is not
            finite. The message says what to do, and names any samples and parameters whose derivatives are not.
        MemoryError: the kernel does not fit; the message names its size and what would fit. Nothing has been allocated.
    """
    check_inputs(net, x1, x2)
    warn_of_wrong_version()
    _check_options(by_layer, memory)
    outputs = _which_outputs(trace, diagonal)
    if eta is None:
        eta = unit_rates(net)
    else:
        check_rates(net, eta)
    known = outline(net, x1)
    found = known.capture
    warn_of_rounded_products(found.dtype, stacklevel=3)
    tiling = choose_tiling(known, x1, x2, outputs, by_layer=by_layer, budget=memory)
    parts = structured(net, eta, x1, x2, outputs=outputs, tiling=tiling, by_layer=by_layer)
    ntk, layers = sum(parts[1:], parts[0]), None
    if by_layer:
        layers = {found.names[leaf]: part for leaf, part in zip(found.found.order, parts, strict=True)}
    certify(net, eta, x1, x2, ntk, outputs, known)
    return EmpiricalKernel(ntk, layers, found.fallbacks)


def memory_estimate(
    net: Any,
    x1: Inputs,
    x2: Inputs | None = None,
    *,
    trace: bool = False,
    diagonal: bool = False,
    by_layer: bool = False,
    memory: int | None = None,
) -> MemoryEstimate:
    """The memory that `empirical` with these arguments would take; nothing runs.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=64, out_size=1, width_size=512, depth=3,
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0), dtype=jnp.float32
        ... )
        >>> js.kernels.memory_estimate(net, jnp.zeros((5000, 64), jnp.float32))
        MemoryEstimate(170 MB: kernel 100 MB, activations 62.7 MB, work 7.42 MB; tiles of 556 samples)

    Raises:
        ValueError, MemoryError: as `empirical` would.
    """
    check_inputs(net, x1, x2)
    _check_options(by_layer, memory)
    outputs, known = _which_outputs(trace, diagonal), outline(net, x1)
    tiling = choose_tiling(known, x1, x2, outputs, by_layer=by_layer, budget=memory)
    return estimate(known, samples_in(x1), None if x2 is None else samples_in(x2), outputs, tiling, by_layer=by_layer)


def _check_options(by_layer: Any, memory: Any) -> None:
    require_flag(by_layer, "by_layer")
    if memory is not None:
        require_size(memory, "memory")


def _which_outputs(trace: bool, diagonal: bool) -> Outputs:
    trace, diagonal = require_flag(trace, "trace"), require_flag(diagonal, "diagonal")
    if trace and diagonal:
        raise ValueError("trace and diagonal exclude each other: the trace is the sum over the diagonal")
    return Outputs.TRACE if trace else Outputs.DIAGONAL if diagonal else Outputs.ALL
