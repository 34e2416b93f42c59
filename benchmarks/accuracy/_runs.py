"""Runs: flows by each integrator, descent, flows at the edge of stability, kernels that stand still, and limits."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import diffrax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import jaxsolve as js

from ._case import Case, centered_rounding, FLOW, KERNEL, KINKED, Numbers, SMOOTH
from ._kernels import digits


def cases(*, small: bool) -> Iterator[Case]:
    """All of them."""
    yield from _flows(small)
    yield from _edge(small)
    yield from _still(small)
    yield from _rich(small)


def _run(
    what: str,
    make: Callable[[], js.Problem],
    dynamics: Callable[[], Any],
    ts: Sequence[float],
    bound: float = FLOW,
    *,
    test: bool = False,
    digits: float = SMOOTH,
) -> Case:
    def way(problem: js.Problem) -> Numbers:
        watched = [js.observe.outputs(), *([js.observe.test_outputs()] if test else [])]
        run = js.solve(problem, dynamics(), jnp.asarray(ts), observe=watched)
        trust = None if run.certificate is None else run.certificate.trust
        # A kernel that stands still moves outputs from exactly 0.
        still = isinstance(dynamics(), js.FrozenKernel | js.InfiniteWidth)
        floors = {} if problem.initial is None or still else {"outputs": centered_rounding(problem)}
        return Numbers({one.name: run[one.name] for one in watched}, bound, trust, digits=digits, floors=floors)  # pyright: ignore[reportArgumentType]

    return Case(what, make, way)


def _mlp(
    n: int,
    width: int,
    phi: str = "tanh",
    depth: int = 2,
    *,
    task: str = "parity",
    rule: Any = None,
    loss: Any = None,
    **options: Any,
) -> Callable[[], js.Problem]:
    def make() -> js.Problem:
        x, y = digits(n, task=task)
        rule_ = js.nets.Scaling.ntk() if rule is None else rule
        net = js.nets.MLP(
            in_size=64,
            out_size=y.shape[1],
            width_size=width,
            depth=depth,
            activation=phi,
            bias=True,
            scaling=rule_,
            key=jr.key(1),
        )
        return js.Problem(net, x, y, loss=js.losses.MSE() if loss is None else loss, **options)

    return make


def _flows(small: bool) -> Iterator[Case]:
    n, width = (12, 8) if small else (1000, 64)
    of, ts = f"n = {n}, width {width}", (0.0, 0.1, 1.0, 10.0, 100.0)
    integrators = js.integrators
    for name, integrator in (
        ("by default", lambda: None),
        ("RungeKuttaChebyshev", integrators.RungeKuttaChebyshev),
        ("FunctionSpace", integrators.FunctionSpace),
    ):
        yield _run(
            f"GradientFlow {name}, tanh, {of}, t = 100",
            _mlp(n, width),
            lambda integrator=integrator: js.GradientFlow(integrator()),
            ts,
        )
    yield _run(
        f"GradientFlow by default, relu, {of}, t = 10", _mlp(n, width, "relu"), js.GradientFlow, ts[:4], digits=KINKED
    )
    m, narrow = (12, 4) if small else (200, 16)
    tight = f"n = {m}, width {narrow}"
    for name, integrator in (
        ("ParameterSpace", integrators.ParameterSpace),
        ("Tsit5", diffrax.Tsit5),
        ("Dopri8", diffrax.Dopri8),
        ("Kvaerno5", diffrax.Kvaerno5),
    ):
        yield _run(
            f"GradientFlow {name}, tanh, {tight}, t = 10",
            _mlp(m, narrow),
            lambda integrator=integrator: js.GradientFlow(integrator()),
            ts[:4],
        )
    yield _run(
        f"GradientFlow by default, tanh, n = {m}, width 4 {width}, t = 1e8",
        _mlp(m, 4 * width),
        js.GradientFlow,
        (1.0, 1e4, 1e8),
    )
    yield _run(
        f"GradientFlow by default, lazy, {tight}, t = 100",
        _mlp(m, 8 * narrow, rule=js.nets.Scaling.lazy(1e4), centered=True),
        js.GradientFlow,
        ts,
    )
    yield _run(
        f"GradientFlow by default, cross entropy, {tight}, t = 1000",
        _mlp(m, narrow, task="classes", loss=js.losses.CrossEntropy()),
        js.GradientFlow,
        (1.0, 30.0, 1000.0),
    )
    deep = lambda: js.Problem(
        js.nets.DeepLinear(in_size=8, width_size=8, depth=49, scaling=js.nets.Scaling.ntk(), key=jr.key(0)),
        jr.normal(jr.key(1), (m, 8)),
        jr.normal(jr.key(2), (m,)),
    )
    yield _run(
        f"GradientFlow RungeKuttaChebyshev, 50 linear layers, n = {m}, t = 10",
        deep,
        lambda: js.GradientFlow(integrators.RungeKuttaChebyshev()),
        ts[:4],
        digits=SMOOTH + float(np.log10(50)),
    )
    tiny = lambda: js.Problem(
        js.nets.TwoLayerLinear(
            in_size=8,
            width_size=32,
            scaling=js.nets.Scaling(multiplier=[1.0, 1.0], sigma=[1e-5, 1e-5], eta=[1.0, 1.0]),
            key=jr.key(0),
        ),
        jr.normal(jr.key(1), (m, 8)),
        jr.normal(jr.key(2), (m,)),
    )
    yield _run(
        f"GradientFlow by default, start 1e-5, n = {m}, t = 100", tiny, js.GradientFlow, (1.0, 10.0, 30.0, 100.0)
    )
    yield _run(f"MomentumFlow, tanh, {tight}, t = 100", _mlp(m, narrow), lambda: js.MomentumFlow(tau=1.0), ts)
    yield _run(
        f"StochasticFlow at temperature 1e-8, tanh, {tight}, t = 10",
        _mlp(m, narrow),
        lambda: js.StochasticFlow(1e-8, key=jr.key(3)),
        ts[:4],
    )
    for name, optimizer in (
        ("sgd", lambda: optax.sgd(0.1)),
        ("momentum", lambda: optax.sgd(0.1, momentum=0.9)),
        ("adam", lambda: optax.adam(1e-3)),
        ("adamw", lambda: optax.adamw(1e-3)),
    ):
        end = 2000 * (1e-3 if "adam" in name else 1.0 if name == "momentum" else 0.1)
        yield _run(
            f"Descent {name}, tanh, {tight}, 2000 steps",
            _mlp(m, narrow),
            lambda optimizer=optimizer: js.Descent(optimizer()),
            (0.01 * end, 0.1 * end, end),
        )
    batches = lambda: js.Descent(optax.sgd(0.1), batch_size=m // 4, key=jr.key(3))
    yield _run(f"Descent sgd in batches, tanh, {tight}, 500 steps", _mlp(m, narrow), batches, (1.0, 10.0, 50.0))


def _edge(small: bool) -> Iterator[Case]:
    def make() -> js.Problem:
        x = jr.normal(jr.key(0), (30, 4))
        net = js.nets.MLP(
            in_size=4,
            out_size=1,
            width_size=7,
            depth=2,
            activation="tanh",
            bias=True,
            scaling=js.nets.Scaling.xavier(),
            key=jr.key(1),
        )
        return js.Problem(net, x, jnp.sign(x[:, :1] * x[:, 1:2] + 0.3 * x[:, 2:3]))

    for name, dynamics in (
        ("CentralFlow", lambda: js.CentralFlow(optax.sgd(0.5))),
        ("RodFlow", lambda: js.RodFlow(rate=0.5)),
    ):
        yield _run(
            f"{name}, tanh 4-7-7-1, n = 30, {20 if small else 200} steps",
            make,
            dynamics,
            (5.0, 10.0) if small else (20.0, 60.0, 100.0),
        )
    if not small:
        rule = js.nets.Scaling.xavier()
        yield _run(
            "CentralFlow, tanh, n = 200, width 32, 400 steps",
            _mlp(200, 32, rule=rule),
            lambda: js.CentralFlow(optax.sgd(0.05)),
            (5.0, 10.0, 20.0),
        )


LATE = (1.0, 1e2, 1e4, 1e6, 1e8, np.inf)


def _still(small: bool) -> Iterator[Case]:
    n, width = (60, 32) if small else (1400, 256)
    m = 60 if small else 400

    def make(n: int, task: str = "parity", loss: Any = None, phi: str = "relu") -> Callable[[], js.Problem]:
        def problem() -> js.Problem:
            x, y, x_test = digits(n, 10 if small else 100, task=task)
            net = js.nets.MLP(
                in_size=64,
                out_size=y.shape[1],
                width_size=width,
                depth=1,
                activation=phi,
                scaling=js.nets.Scaling.ntk(),
                key=jr.key(0),
            )
            test = x_test, y[: len(x_test)]  # whose targets play no part
            return js.Problem(net, x, y, loss=js.losses.MSE() if loss is None else loss, test=test, centered=True)

        return problem

    for name, dynamics in (("FrozenKernel", js.FrozenKernel), ("InfiniteWidth", js.InfiniteWidth)):
        yield _run(f"{name}, digits, n = {n}, t = 1 to inf", make(n), dynamics, LATE, KERNEL, test=True)
        yield _run(
            f"{name}, ten classes, n = {m // 4}, t = 1 to inf",
            make(m // 4, "classes"),
            dynamics,
            LATE,
            KERNEL,
            test=True,
        )
        yield _run(
            f"{name}, logistic loss, n = {m}, t = 1000",
            make(m, loss=js.losses.Logistic()),
            dynamics,
            (1.0, 30.0, 1000.0),
            KERNEL,
            test=True,
        )
    momentum = lambda: js.FrozenKernel(flow=js.MomentumFlow(tau=10.0))
    yield _run(
        f"FrozenKernel with momentum, digits, n = {m // 4}, t = 1e4",
        make(m // 4),
        momentum,
        (1.0, 1e2, 1e4),
        KERNEL,
        test=True,
    )

    def wave() -> js.Problem:
        x = jnp.linspace(-10 * np.pi, 10 * np.pi, 100)[:, None]
        rule = js.nets.Scaling.ntk(sigma=1.5)
        net = js.nets.MLP(
            in_size=1, out_size=1, width_size=512, depth=1, activation="relu", bias=True, scaling=rule, key=jr.key(0)
        )
        return js.Problem(net, x, jnp.sin(x) + jnp.sin(2 * x), centered=True)

    yield _run("InfiniteWidth, oscillating target, n = 100, t = 1 to inf", wave, js.InfiniteWidth, LATE, KERNEL)
    yield _run("FrozenKernel, oscillating target, n = 100, t = 1 to inf", wave, js.FrozenKernel, LATE, KERNEL)


def _rich(small: bool) -> Iterator[Case]:
    def make(phi: str, depth: int) -> Callable[[], js.Problem]:
        def problem() -> js.Problem:
            data = js.data.gaussian(4 if small else 8, 5, key=jr.key(0))
            rule = js.nets.Scaling.mean_field() if depth == 1 else js.nets.Scaling.mup()
            net = js.nets.MLP(
                in_size=5, out_size=1, width_size=256, depth=depth, activation=phi, scaling=rule, key=jr.key(1)
            )
            return js.Problem(net, *data.train)

        return problem

    ts = (0.5, 2.0) if small else (1.0, 5.0, 20.0)
    for phi, depth in (("tanh", 1), ("linear", 2), ("tanh", 2)):
        settings = {"nodes": 20, "samples": 256} if small else {"nodes": 100, "samples": 1024}
        yield _run(
            f"RichLimit, {phi}, depth {depth}",
            make(phi, depth),
            lambda settings=settings: js.RichLimit(**settings),  # pyright: ignore[reportArgumentType]
            ts,
        )

    def limits(problem: js.Problem) -> Numbers:
        found = js.limits(problem)
        return Numbers(
            {
                "richness": found.richness,
                "richness exponent": found.richness_exponent,
                "speed exponent": found.speed_exponent,
            },
            FLOW,
        )

    for name, rule in (
        ("ntk", js.nets.Scaling.ntk()),
        ("muP", js.nets.Scaling.mup()),
        ("lazy", js.nets.Scaling.lazy(1e6)),
    ):
        wide = lambda rule=rule: js.Problem(
            js.nets.MLP(
                in_size=64,
                out_size=1,
                width_size=4096 // (8 if small else 1),
                depth=2,
                activation="tanh",
                scaling=rule,
                key=jr.key(0),
            ),
            *digits(20),
        )
        yield Case(f"js.limits, {name}", wide, limits)
