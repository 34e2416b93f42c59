"""Closed forms."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import jaxsolve as js

from ._case import Case, centered_rounding, CHANGES, CLOSED, Numbers


TIMES = (0.0, 1e-3, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 1e4, 1e8, np.inf)
WATCHED = (js.observe.outputs(), js.observe.kernel_norm(), js.observe.kernel_change(), js.observe.kernel_distance())


def cases(*, small: bool) -> Iterator[Case]:
    """All of them."""
    n, d, width = (30, 8, 64) if small else (1000, 64, 4096)
    of = f"n = {n}, width {width}"
    for name, rule, options in (
        ("ntk", js.nets.Scaling.ntk(), {}),
        ("mean field", js.nets.Scaling.mean_field(), {}),
        ("small start", _plain(1e-4, 1e-4), {}),
        ("tiny start", _plain(1e-8, 1e-8), {}),
        ("lazy", js.nets.Scaling.lazy(1e4), {"centered": True}),
        ("first layer small", _plain(1e-3, 1.0), {}),
    ):
        make = lambda rule=rule, options=options: on_a_line(n, d, width, rule, options)  # pyright: ignore[reportArgumentType]
        yield _form(f"TwoLayerLine, {name}, {of}", js.theory.TwoLayerLine(), make)
    for name, sigma in (
        ("", (0.5, 0.5)),
        (", small start", (1e-4, 1e-4)),
        (", upstream", (0.01, 10.0)),
        (", downstream", (10.0, 0.01)),
    ):
        make = lambda sigma=sigma: _neuron(n, d, sigma)
        yield _form(f"SingleNeuronFlow{name}, n = {n}", js.theory.SingleNeuronFlow(), make)
    hidden, out = (12, 3) if small else (512, 10)
    for delta in (0.0, 1.0, -1.0, 1e3):
        for sigma in (0.5, 1e-4):
            h = hidden if delta == 0 else out if delta > 0 else d
            make = lambda delta=delta, sigma=sigma, h=h: _balanced(n if small else 200, d, h, out, delta, sigma)
            yield _form(f"Balanced, lambda {delta:g} sigma^2, sigma {sigma:g}, width {h}", js.theory.Balanced(), make)
    for layers in (2, 3, 8, 50):
        for strength in (0.6, 1e-2) if layers < 50 else (0.9,):
            make = lambda layers=layers, strength=strength: _aligned(
                layers, 4 if small else 32, strength, balanced=True
            )
            yield _form(f"DeepBalanced, {layers} layers, start {strength:g}", js.theory.DeepBalanced(), make)
            way = lambda problem: Numbers(
                {"half-loss times": jnp.sort(js.theory.DeepBalanced().half_loss_times(problem))}, CLOSED
            )
            yield Case(f"DeepBalanced.half_loss_times, {layers} layers, start {strength:g}", make, way, rounded=False)
    for strength in (0.6, 1e-3):
        make = lambda strength=strength: _aligned(2, 4 if small else 32, strength, balanced=False)
        yield _form(f"DecoupledModes, start {strength:g}", js.theory.DecoupledModes(), make)
    for name, form in (("SilentAlignment", js.theory.SilentAlignment()), ("PhaseOne", js.theory.PhaseOne())):
        end = TIMES if name == "SilentAlignment" else TIMES[:5]
        make = lambda: _neuron(n, d, (1e-4, 1e-4), width)
        yield _form(f"{name}, {of}", form, make, end)


def _form(what: str, form: Any, make: Callable[[], js.Problem], times: Sequence[float] = TIMES) -> Case:
    def way(problem: js.Problem) -> Numbers:
        # The kernel of 50 layers takes a minute to compile.
        watched = [js.observe.outputs()] if len(jax.tree.leaves(problem.params)) == 50 else list(WATCHED)
        watched += [js.observe.weight_norms()] if js.Quantity.PARAMS in form.provides else []
        run = js.solve(problem, form, jnp.asarray(times), observe=watched)
        # Outputs that are centered start at 0; changes are relative numbers already.
        each = (
            ("kernel_norm", "weight_norms")
            if problem.initial is not None
            else ("outputs", "kernel_norm", "weight_norms")
        )
        floors = CHANGES if problem.initial is None else CHANGES | {"outputs": centered_rounding(problem)}
        return Numbers({one.name: run[one.name] for one in watched}, CLOSED, each=each, floors=floors)

    return Case(what, make, way, rounded=False)


def _plain(*sigma: float) -> js.nets.Scaling:
    return js.nets.Scaling(multiplier=[1.0] * len(sigma), sigma=list(sigma), eta=[1.0] * len(sigma))


def on_a_line(n: int, d: int, width: int, rule: js.nets.Scaling, options: dict[str, Any]) -> js.Problem:
    net = js.nets.TwoLayerLinear(in_size=d, width_size=width, scaling=rule, key=jr.key(1))
    return js.Problem(net, *js.data.line(n, d, key=jr.key(0)).train, **options)


def _white(n: int, d: int) -> jax.Array:
    return jnp.sqrt(n) * jnp.linalg.qr(jr.normal(jr.key(5), (n, d)))[0]


def _neuron(n: int, d: int, sigma: tuple[float, float], width: int = 1) -> js.Problem:
    x = _white(n, d)
    y = x @ jr.normal(jr.key(3), (d,)) / d**0.5
    if width == 1:
        return js.Problem(js.nets.SingleNeuron(in_size=d, scaling=_plain(*sigma), key=jr.key(0)), x, y)
    return js.Problem(js.nets.TwoLayerLinear(in_size=d, width_size=width, scaling=_plain(*sigma), key=jr.key(0)), x, y)


def _balanced(n: int, d: int, hidden: int, out: int, delta: float, sigma: float) -> js.Problem:
    init = js.nets.LambdaBalanced(delta * sigma**2)
    net = js.nets.TwoLayerLinear(
        in_size=d, out_size=out, width_size=hidden, scaling=_plain(sigma, sigma), init=init, key=jr.key(0)
    )
    x = _white(max(n, d), d)
    return js.Problem(net, x, x @ jr.normal(jr.key(3), (d, out)) / d**0.5)


def _aligned(layers: int, size: int, strength: float, *, balanced: bool) -> js.Problem:
    """Modes of start and target that are the same, and of which the targets are 2 to 0.7."""
    frames = [jnp.linalg.qr(jr.normal(key, (size, size)))[0] for key in jr.split(jr.key(4), layers + 1)]
    sizes = strength * jnp.linspace(0.5, 1.0, size) if layers < 50 else strength * jnp.linspace(0.98, 1.0, size)
    ratio = [1.0 if balanced else 1.5**index for index in range(layers)]
    weights = [frames[i + 1] @ jnp.diag(ratio[i] * sizes) @ frames[i].T for i in range(layers)]
    net = js.nets.DeepLinear(
        in_size=size,
        out_size=size,
        width_size=size,
        depth=layers - 1,
        scaling=_plain(*[1.0] * layers),
        init=js.nets.Given(weights),
        key=jr.key(0),
    )
    x = _white(size + 2, size)
    return js.Problem(net, x, x @ (frames[-1] @ jnp.diag(jnp.linspace(2.0, 0.7, size)) @ frames[0].T).T)
