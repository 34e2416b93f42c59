"""The empirical neural tangent kernel, by the route that suits the network."""

import enum
import logging
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._checks import require_flag, require_kind, require_size
from .._memory import memory_for
from ..nets import AbstractLayered, partition, rates
from ._contributions import knows, Outputs
from ._cost import jacobian_is_cheaper
from ._inputs import check_inputs, check_network, check_rates
from ._memory import check_room, choose_tiling, estimate, MemoryEstimate
from ._neural_tangents import empirical_ntk, NTKImplementation
from ._signals import parametric_layers, tapped_layers
from ._structured import structured


_log = logging.getLogger("jaxsolve")


class Route(enum.Enum):
    """How an empirical kernel is computed.

    Example:
        >>> net = js.nets.TwoLayerLinear(2, 4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> print(js.kernels.empirical(net, jnp.eye(2)).route.name)
        STRUCTURED
    """

    STRUCTURED = "layer by layer, for networks of layers that jaxsolve knows"
    JACOBIAN_CONTRACTION = "by neural-tangents, for any function: the Jacobian of every sample is held"
    NTK_VECTOR_PRODUCTS = "by neural-tangents, for any function: no Jacobian is held"


class EmpiricalKernel(eqx.Module):
    """An empirical NTK and how it was computed.

    Attributes:
        ntk: sum_l eta_l <df/dtheta_l, df/dtheta_l>, gamma^2 included: (n, c, m, c), or (n, m) if traced, or (c, n, m)
            with `diagonal=True`.
        layers: what every layer adds to it, by names such as `weights[0]`; None without `by_layer=True`.
        route: how it was computed.
    """

    ntk: Float[Array, "..."]
    layers: dict[str, Float[Array, "..."]] | None
    route: Route = eqx.field(static=True)  # decided by the network's layers and shapes


def unit_rates(net: Any) -> PyTree:
    """A learning rate of 1 for every trainable array: with these `js.kernels.empirical` is the plain NTK.

    Any module serves; the network's own rates, which drive f under gradient flow, are `js.nets.rates(net)`.

    Example:
        >>> net = js.nets.TwoLayerLinear(2, 4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> doubled = jax.tree.map(lambda one: 2 * one, js.kernels.unit_rates(net))
        >>> plain, twice = (js.kernels.empirical(net, jnp.eye(2), eta=eta).ntk for eta in (None, doubled))
        >>> bool(jnp.allclose(twice, 2 * plain))
        True
    """
    check_network(net)
    return jax.tree.map(jnp.ones_like, rates(net))


def empirical(
    net: Any,
    x1: Float[Array, "n ..."],
    x2: Float[Array, "m ..."] | None = None,
    *,
    eta: PyTree | None = None,
    trace: bool = False,
    diagonal: bool = False,
    by_layer: bool = False,
    route: Route | None = None,
    memory: int | None = None,
) -> EmpiricalKernel:
    """The NTK of a network at its parameters: sum_l eta_l <df/dtheta_l, df/dtheta_l>, gamma^2 included.

    A network of known layers (`js.nets.AbstractLayered`) goes layer by layer: Grams of its inputs times Grams of the
    signals propagated back, in tiles that fit the memory; with x2 = None half the work, and symmetric to the last bit.
    Every other module goes through neural-tangents, by the cheaper of the two implementations that work on current
    JAX; the reason is logged (logger "jaxsolve", level INFO).

    Arguments:
        net: a network or any Equinox module acting on one sample.
        x1: inputs, shape (n, ...).
        x2: other inputs, shape (m, ...); None takes x1.
        eta: learning rates, a pytree with a scalar at every trainable array (`js.nets.rates(net)` has the network's,
            which drive f under gradient flow). None takes 1 everywhere: the plain NTK.
        trace: sum over equal outputs, shape (n, m). Costs a factor c less.
        diagonal: only pairs of equal outputs, shape (c, n, m).
        by_layer: also return what every layer adds. Structured route only.

    Other Arguments:
        route: forces a route. None chooses.
        memory: bytes that the computation may take. None takes half of what is free on the device.

    Example:
        >>> net = js.nets.MLP(3, 8, 1, 2, "tanh", scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> found = js.kernels.empirical(net, jnp.ones((5, 3)), by_layer=True)
        >>> print(found.ntk.shape, list(found.layers), found.route.name)
        (5, 2, 5, 2) ['weights[0]', 'weights[1]'] STRUCTURED
        >>> js.kernels.empirical(net, jnp.ones((5, 3)), jnp.ones((4, 3)), trace=True).ntk.shape
        (5, 4)

    Raises:
        ValueError: inputs do not fit the network or are not finite, dtypes are mixed, a rate is negative, or the forced
            route does not know a layer.
        MemoryError: the kernel does not fit; names its size and what would fit. Nothing has been allocated then.
        NeuralTangentsUnavailable: the module needs neural-tangents, which is missing or broken.
    """
    check_inputs(net, x1, x2)
    _check_options(by_layer, route, memory)
    outputs = _which_outputs(trace, diagonal)
    if eta is None:
        eta = unit_rates(net)
    else:
        check_rates(net, eta)
    unknown = unknown_layer(net)
    if unknown is None and route in (None, Route.STRUCTURED):
        tiling = choose_tiling(net, x1, x2, outputs, by_layer=by_layer, budget=memory)
        parts = structured(net, eta, x1, x2, outputs=outputs, tiling=tiling, by_layer=by_layer)
        if not by_layer:
            return EmpiricalKernel(parts[0], None, Route.STRUCTURED)
        names = [layer.name for layer in parametric_layers(net)]
        return EmpiricalKernel(sum(parts[1:], parts[0]), dict(zip(names, parts, strict=True)), Route.STRUCTURED)
    if route is Route.STRUCTURED:
        raise ValueError(
            f"the structured route does not know {unknown}; leave route=None to go through neural-tangents"
        )
    if by_layer:
        raise ValueError(f"contributions by layer need the structured route, which does not know {unknown}")
    params, static = partition(net)
    f = lambda p, x: jax.vmap(eqx.combine(p, static))(x)
    if route is None:
        cheaper = jacobian_is_cheaper(f, params, x1, x1 if x2 is None else x2)
        route = Route.JACOBIAN_CONTRACTION if cheaper else Route.NTK_VECTOR_PRODUCTS
        _log.info("the structured NTK does not know %s: taking %s of neural-tangents", unknown, route.name)
    jacobian = route is Route.JACOBIAN_CONTRACTION
    check_room(f, params, x1, x1 if x2 is None else x2, jacobian=jacobian, budget=memory)
    with memory_for("this kernel", "take fewer samples, or kernels.NTKOperator(net, x), which does not hold it"):
        way = NTKImplementation[route.name]
        kernel = empirical_ntk(f, params, eta, x1, x1 if x2 is None else x2, implementation=way)
    return EmpiricalKernel(outputs.of(kernel), None, route)


def memory_estimate(
    net: AbstractLayered,
    x1: Float[Array, "n ..."],
    x2: Float[Array, "m ..."] | None = None,
    *,
    trace: bool = False,
    diagonal: bool = False,
    by_layer: bool = False,
    memory: int | None = None,
) -> MemoryEstimate:
    """What `empirical` with these arguments would take on the structured route. Nothing runs.

    Example:
        >>> net = js.nets.MLP(64, 512, 3, 1, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0), dtype=jnp.float32)
        >>> js.kernels.memory_estimate(net, jnp.zeros((5000, 64), jnp.float32))
        MemoryEstimate(170 MB: kernel 100 MB, signals 62.7 MB, work 7.42 MB; tiles of 556 samples)

    Raises:
        ValueError: the network has a layer that the structured route does not know.
        MemoryError: as `empirical` would.
    """
    check_inputs(net, x1, x2)
    _check_options(by_layer, None, memory)
    unknown = unknown_layer(net)
    if unknown is not None:
        raise ValueError(f"memory can be estimated for the structured route only, which does not know {unknown}")
    outputs = _which_outputs(trace, diagonal)
    tiling = choose_tiling(net, x1, x2, outputs, by_layer=by_layer, budget=memory)
    return estimate(net, x1.shape[0], None if x2 is None else x2.shape[0], outputs, tiling, by_layer=by_layer)


def unknown_layer(net: Any) -> str | None:
    """Why the structured route does not serve a network, in words; None if it does.

    Example:
        >>> net = js.nets.TwoLayerLinear(2, 4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> print(js.kernels.unknown_layer(net), "|", js.kernels.unknown_layer(jnp.tanh))
        None | the layers of PjitFunction
    """
    if not isinstance(net, AbstractLayered):
        return f"the layers of {type(net).__name__}"
    return next((f"the layer {layer}" for layer in tapped_layers(net) if not knows(layer)), None)


def _check_options(by_layer: Any, route: Any, memory: Any) -> None:
    require_flag(by_layer, "by_layer")
    if route is not None:
        require_kind(route, Route, "route", "a kernels.Route or None")
    if memory is not None:
        require_size(memory, "memory")


def _which_outputs(trace: bool, diagonal: bool) -> Outputs:
    trace, diagonal = require_flag(trace, "trace"), require_flag(diagonal, "diagonal")
    if trace and diagonal:
        raise ValueError("trace and diagonal exclude each other: the trace is the sum over the diagonal")
    return Outputs.TRACE if trace else Outputs.DIAGONAL if diagonal else Outputs.ALL
