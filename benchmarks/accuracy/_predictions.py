"""Predictions without training."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import jaxsolve as js

from ._case import Case, CLOSED, Numbers
from ._theory import on_a_line


def cases(*, small: bool) -> Iterator[Case]:
    """All of them."""
    th = js.theory
    n, d, width = (30, 8, 64) if small else (1000, 64, 4096)

    def one(what: str, inputs: Callable[[], Any], way: Callable[[Any], dict[str, Any]], *, each: bool = False) -> Case:
        return Case(what, inputs, lambda given: Numbers(way(given), CLOSED, each=each))

    deep = lambda: _gaussian(
        js.nets.DeepLinear(
            in_size=d, width_size=width // 8, depth=49, scaling=js.nets.Scaling.standard(), key=jr.key(0)
        ),
        n,
        d,
    )
    yield one(f"alignment_time, 50 layers, n = {n}", deep, lambda p: {"time": th.alignment_time(p)})
    yield one(
        "phase_times, start 1e-20",
        lambda: (jnp.linspace(0.1, 2.0, n), jnp.asarray(1e-20)),
        lambda a: dict(th.phase_times(a[0], start=a[1])._asdict()),
    )
    for layers in (2, 3, 50):
        yield one(
            f"early_mode, {layers} layers",
            lambda layers=layers: (jnp.geomspace(1e-8, 1e-2, 20), jnp.ones(layers)),
            lambda a: {
                "half way": th.early_mode(
                    0.5 * th.escape_time(start=a[0], s=1.0, eta=a[1]), start=a[0], s=1.0, eta=a[1]
                ),
                "near the escape": th.early_mode(
                    0.99 * th.escape_time(start=a[0], s=1.0, eta=a[1]), start=a[0], s=1.0, eta=a[1]
                ),
            },
            each=True,
        )
        yield one(
            f"escape_time, {layers} layers",
            lambda layers=layers: (jnp.geomspace(1e-30, 1e-2, 20), jnp.ones(layers)),
            lambda a: {"time": th.escape_time(start=a[0], s=1.0, eta=a[1])},
            each=True,
        )
    for gamma in (1.0, 1e-3, 1e3):
        for big in (100, 4096, 10**6):
            yield one(
                f"classify_network, width {big}, gamma {gamma:g}",
                lambda: jnp.asarray(0.0),
                lambda _, gamma=gamma, big=big: (
                    lambda f: {"t_c": f.timescale.t_c, "kernel change": f.kernel_change, "f(0)": f.initial_output}
                )(th.classify_network(big, gamma=gamma * big**-0.5)),
            )
    modes = 200 if small else 5000
    for power in (1.0, 2.0, 4.0):
        for ridge in (0.0, 1e-6, 1.0):
            yield one(
                f"kernel_regression_error, {modes} modes, lambda k^-{power:g}, ridge {ridge:g}",
                lambda power=power: (1 / jnp.arange(1.0, modes + 1) ** power, 1 / jnp.arange(1.0, modes + 1)),
                lambda a, ridge=ridge: (lambda g: {"error": g.error, "kappa": g.kappa, "1 - gamma": 1 - g.gamma})(
                    th.kernel_regression_error(a[0], a[1], modes // 5, ridge=ridge)
                ),
            )
    yield one(
        f"kernel_regression_error, {modes} modes, near interpolation",
        lambda: (jnp.ones(modes), jnp.ones(modes) / modes**0.5),
        lambda a: {
            "error": jnp.stack(
                [th.kernel_regression_error(a[0], a[1], modes + k, ridge=1e-3).error for k in (-1, 0, 1)]
            )
        },
        each=True,
    )
    for feature in (0.0, 10.0, 1e6):
        yield one(
            f"transfer_error, dimension {modes}, feature {feature:g}",
            lambda: jnp.asarray(0.9),
            lambda a, feature=feature: {
                "error": th.transfer_error(modes, modes // 2, feature=feature, alignment=a, ridge=0.1).error
            },
        )
    rows, columns = (5, 20) if small else (200, 1000)
    fit = lambda: (
        jr.normal(jr.key(0), (rows, columns)),
        jr.normal(jr.key(1), (rows,)),
        jr.normal(jr.key(2), (columns,)),
    )
    of = f"n = {rows}, d = {columns}"
    for name, potential in (
        *(
            (
                f"HyperbolicEntropy, start {alpha:g}",
                lambda b, alpha=alpha: th.HyperbolicEntropy.of_diagonal_network(
                    alpha * jnp.ones_like(b), alpha * jnp.ones_like(b)
                ),
            )
            for alpha in (1e-8, 1e-4, 1.0, 1e4)
        ),
        *(
            (f"SingleNeuronPotential, delta {delta:g}", lambda b, delta=delta: th.SingleNeuronPotential(b, delta))
            for delta in (0.0, 1.0, -1.0, 1e4, -1e4, 1e8, -1e8)
        ),
        *(
            (f"DeepPotential, depth {depth}", lambda b, depth=depth: th.DeepPotential(1e-3 * b, depth))
            for depth in (1, 3, 50)
        ),
    ):
        yield one(
            f"implicit_bias, {name}, {of}",
            fit,
            lambda a, potential=potential: {"beta": th.implicit_bias(potential(a[2]), a[0], a[1])},
        )
        points = lambda: (
            tuple(jr.normal(jr.key(k), (columns,)) / columns**0.5 for k in (2, 3))
            + (jnp.geomspace(1e-6, 1e3, 10)[:, None], jnp.geomspace(1e-6, 1.0, 10)[:, None])
        )

        def values(a: Any, potential: Any = potential) -> dict[str, Any]:
            found = potential(a[0])
            beta = a[2] * a[1]
            return {
                "value": jax.vmap(found.value)(beta),
                "mirror map": jax.vmap(found.mirror_map)(beta),
                "inverse of the mirror map": jax.vmap(found.inverse_mirror_map)(a[3] * a[1]),
            }

        yield one(f"{name}, d = {columns}", points, values, each=True)
    for delta in (np.inf, 1e6, 1.0, 0.0, -1.0, -1e6, -np.inf):
        yield one(
            f"single_neuron_limit, delta {delta:g}",
            lambda: (jr.normal(jr.key(0), (columns,)), jr.normal(jr.key(2), (columns,))),
            lambda a, delta=delta: {"beta": th.single_neuron_limit(a[0], 3.0, a[1], delta)},
        )
    yield one(
        f"Interpolants, {of}",
        fit,
        lambda a: (lambda s: {"shortest": s.shortest, "across": s.across(a[2])})(th.Interpolants(a[0], a[1])),
    )
    for rule, name in (
        (js.nets.Scaling.ntk(), "ntk"),
        (js.nets.Scaling.lazy(1e4), "lazy"),
        (js.nets.Scaling.mup(), "muP"),
        (js.nets.Scaling.standard(sigma=1e-3), "small"),
    ):
        net = lambda rule=rule: _gaussian(
            js.nets.MLP(
                in_size=d, out_size=1, width_size=width // 8, depth=3, activation="tanh", scaling=rule, key=jr.key(0)
            ),
            n // 5,
            d,
        )
        yield one(f"laziness, {name}, width {width // 8}", net, lambda p: dict(th.laziness(p)._asdict()))
        two = lambda rule=rule: _gaussian(
            js.nets.MLP(
                in_size=d, out_size=1, width_size=width, depth=1, activation="relu", scaling=rule, key=jr.key(0)
            ),
            n,
            d,
        )
        few = lambda rule=rule: _gaussian(
            js.nets.MLP(in_size=4, out_size=1, width_size=16, depth=2, activation="tanh", scaling=rule, key=jr.key(0)),
            5,
            4,
        )  # a column per weight
        yield one(f"curvature_ratio, {name}, width 16", few, lambda p: {"ratio": th.curvature_ratio(p)})
        yield Case(f"neurons, {name}, width {width}", two, _neurons)
        line = lambda rule=rule: on_a_line(n, d, width, rule, {})  # pyright: ignore[reportArgumentType]
        yield one(
            f"mechanisms, {name}, width {width}",
            line,
            lambda p: (
                lambda m: {
                    "alignment": m.alignment,
                    "rescaling": m.rescaling,
                    "turn": m.turn,
                    "zeta": jnp.stack([m.zeta_start, m.zeta_end]),
                }
            )(th.mechanisms(th.TwoLayerLine().reduce(p))),
        )
    h, dd = (4, 3) if small else (64, 8)
    for size in (1e-6, 1.0, 1e3):
        for delta in (0.0, 1.0, -1.0, 1e6, -1e6):
            pair = lambda size=size: (size * jr.normal(jr.key(0), (8 * dd,)), jr.normal(jr.key(1), (8 * dd,)))
            of = f"|beta| ~ {size:g}, delta {delta:g}"
            if delta in (0.0, 1.0):
                yield one(
                    f"deep_preconditioner, 50 layers, {of}",
                    pair,
                    lambda a, delta=delta: {"M": th.deep_preconditioner(a[0], delta, 50)},
                )
            yield one(
                f"neurons_preconditioner, {of}",
                lambda size=size: (
                    size * jr.normal(jr.key(0), (h, dd, 1)) * jr.normal(jr.key(1), (h, 1, 2)),
                    jnp.ones(h),
                ),
                lambda a, delta=delta: {"M": th.neurons_preconditioner(a[0], delta * a[1])},
            )
            wide = lambda size=size: (size * jr.normal(jr.key(0), (8 * dd, dd)), jr.normal(jr.key(1), (8 * dd, dd)))
            yield one(
                f"isotropic_velocity, {of}",
                wide,
                lambda a, delta=delta: {"velocity": th.isotropic_velocity(a[0], a[1], delta)},
            )
            yield one(
                f"spectral_velocity, {of}",
                wide,
                lambda a, delta=delta: {"velocity": th.spectral_velocity(a[0], a[1], delta)},
            )
        yield one(
            f"preconditioner_velocity, |beta| ~ {size:g}",
            pair,
            lambda a: {"rate": th.preconditioner_velocity(a[0], a[1])},
        )
    for layers in (2, 50):
        rates = lambda layers=layers: (jnp.linspace(0.5, 2.0, layers), jr.normal(jr.key(0), (layers - 1,)))
        yield one(
            f"layer_values, {layers} layers",
            rates,
            lambda a: {f"c = {c:g}": th.layer_values(c, a[0], a[1]) for c in (1e-8, 1.0, 1e3)},
        )
        yield one(f"balance_offsets, {layers} layers", rates, lambda a: {"offsets": th.balance_offsets(a[1])})
        yield one(
            f"mean_conserved, {layers} layers",
            rates,
            lambda a, layers=layers: {"conserved": th.mean_conserved([width] * (layers + 1), 1e-3 * a[0], a[0])},
        )
        for name, kernel in (("spiked_kernel", th.spiked_kernel), ("plain_spiked_kernel", th.plain_spiked_kernel)):
            yield one(
                f"{name}, {layers} layers",
                rates,
                lambda a, kernel=kernel: dict(kernel(jnp.geomspace(1e-8, 1e4, 7).astype(a[0].dtype), a[0])._asdict()),
                each=True,
            )
        yield one(
            f"BalancedModes, {layers} layers",
            lambda layers=layers: (jr.normal(jr.key(0), (5, 8)), jnp.linspace(0.5, 2.0, layers)),
            lambda a: (
                lambda m: {
                    "kernel": m.kernel_matrix(),
                    "plain kernel": m.plain_kernel_matrix(),
                    "hidden kernel": m.hidden_kernel(1),
                }
            )(th.BalancedModes.from_map(a[0], a[1])),
        )
    yield one(
        f"start_overlaps, width {width}",
        lambda: jnp.zeros(()),
        lambda _: dict(th.start_overlaps(width, sigma_u=1e-3, sigma_w=1.0)._asdict()),
    )
    yield one(
        "early_overlaps",
        lambda: jr.normal(jr.key(0), (5,)),
        lambda a: {f"t = {t:g}": th.early_overlaps(a, t, s=1.0, a=0.9, b=1.0) for t in (1e-3, 1.0, 10.0)},
    )


def _neurons(problem: js.Problem) -> Numbers:
    state, forces = js.theory.neurons(problem.net), js.theory.neuron_forces(problem)
    values = {"delta": state.delta, "radius": state.radius, "beta": state.beta, "forces": forces}
    values |= {"radius rate": state.radius_rate(forces), "direction rate": state.direction_rate(forces)}
    # By the docs chance decides of a sample at a kink: it may be there or not.
    slopes = problem.loss.gradient(problem.outputs(problem.params), problem.y)
    scaling = problem.net.scaling
    one = scaling.gamma * scaling.multiplier[0] * scaling.multiplier[1] * jnp.max(jnp.abs(slopes * problem.x))
    turn = one * jnp.max(jnp.abs(problem.net.weights[1])) / jnp.min(state.radius)
    return Numbers(values, CLOSED, floors={"forces": float(one), "direction rate": float(2 * turn)})  # pyright: ignore[reportArgumentType]


def _gaussian(net: Any, n: int, d: int) -> js.Problem:
    return js.Problem(net, jr.normal(jr.key(7), (n, d)), jr.normal(jr.key(8), (n,)))
