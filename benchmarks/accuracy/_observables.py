"""Observables of a run, and what `js.diagnose` and `js.coordinate_check` say."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import jaxsolve as js

from ._case import Case, centered_rounding, CHANGES, KERNEL, Numbers
from ._kernels import digits


def cases(*, small: bool) -> Iterator[Case]:
    """All of them."""
    yield from _observed(small)
    yield from _diagnosed(small)


def _problem(
    n: int, width: int, rule: Any, *, phi: str = "tanh", task: str = "parity", depth: int = 2, **options: Any
) -> js.Problem:
    data = js.data.digits(task=task, n_train=n, n_test=max(n // 5, 4), key=jr.key(0))
    net = js.nets.MLP(
        in_size=64, out_size=data.y.shape[1], width_size=width, depth=depth, activation=phi, scaling=rule, key=jr.key(1)
    )
    return js.Problem(net, *data.train, test=data.test, **options)


def _numbers(run: Any, watched: Any, problem: js.Problem) -> Numbers:
    """With what the docs say of changes, and of outputs that are centered."""
    sizes = [float(jnp.linalg.norm(leaf)) for leaf in jax.tree.leaves(problem.params)]
    whole = 1e-6 * float(np.linalg.norm(sizes))
    floors = CHANGES | {"weight_change": 1e-6, "weight_distances": 1e-6 * max(sizes), "parameter_distance": whole}
    bound = KERNEL
    if problem.initial is not None:
        lost = centered_rounding(problem)
        share = lost / float(jnp.max(jnp.abs(problem.y)))
        bound += share
        for name in (one.name for one in watched if one.name.startswith(("kernel", "test_kernel"))):
            if name.endswith("distance"):  # the share of a square is twice that of what is squared
                floors[name] += share * float(jnp.max(jnp.abs(run[name])))
        floors |= dict.fromkeys(("outputs", "test_outputs", "output_change", "test_output_change"), lost)
        for name in ("accuracy", "test_accuracy"):  # of those whose sign is not known
            floors[name] = float(jnp.mean(jnp.abs(run[name.replace("accuracy", "outputs")]) < lost))
    return Numbers({one.name: run[one.name] for one in watched}, bound, floors=floors)


def _observed(small: bool) -> Iterator[Case]:
    n, width = (20, 16) if small else (200, 256)
    o = js.observe
    every = [
        o.loss(),
        o.outputs(),
        o.accuracy(),
        o.test_loss(),
        o.test_outputs(),
        o.test_accuracy(),
        o.kernel_change(),
        o.kernel_distance(),
        o.kernel_centered_distance(),
        o.test_kernel_change(),
        o.test_kernel_distance(),
        o.weight_change(),
        o.weight_distances(),
        o.parameter_distance(),
        o.output_change(),
        o.test_output_change(),
        o.kernel(),
        o.test_kernel(),
        o.cross_kernel(),
        o.hidden_kernel(1),
        o.hidden_cross_kernel(1),
        o.kernel_norm(),
        o.kernel_trace(),
        o.kernel_alignment(),
        o.kernel_centered_alignment(),
        o.kernel_spectrum(),
        o.kernel_effective_rank(),
        o.kernel_entropy(),
        o.kernel_participation_ratio(),
        o.kernel_target_power(),
        o.weight_norms(),
        o.preactivation_velocity(),
        o.feature_kernel(1),
        o.gradient_kernel(1),
        o.preactivation_quantiles(1),
        o.sharpness(),
        o.stability(optax.sgd(0.1)),
    ]
    relu = [
        o.neuron_radius(),
        o.neuron_direction(),
        o.neuron_delta(),
        o.hamming_distance(),
        o.kernel_change(),
        o.kernel_distance(),
    ]
    linear = [o.layer_alignment(), o.conserved(), o.layer_cosine(), o.kernel_change()]
    classes = [
        o.kernel_by_class(),
        o.kernel_within_class(),
        o.kernel_between_classes(),
        o.kernel_target_power(),
        o.kernel_centered_alignment(),
    ]
    for name, rule, alpha in (
        ("ntk", js.nets.Scaling.ntk(), 1.0),
        ("muP", js.nets.Scaling.mup(), 1.0),
        ("lazy, alpha = 100", js.nets.Scaling.lazy(100.0), 100.0),
        ("lazy, alpha = 1e3", js.nets.Scaling.lazy(1e3), 1e3),
    ):
        make = lambda rule=rule, alpha=alpha: _problem(n, width, rule, centered=alpha > 1)

        def way(problem: js.Problem, alpha: float = alpha) -> Numbers:
            watched = [one for one in every if alpha == 1 or one.name not in ("sharpness", "stability")]
            run = js.solve(problem, js.Descent(optax.sgd(0.05)), jnp.asarray([0.5, 1.0]), observe=watched)
            return _numbers(run, watched, problem)

        yield Case(f"20 steps of descent, {name}, n = {n}, width {width}", make, way)
    for name, phi, depth, task, watched in (
        ("relu", "relu", 1, "parity", relu),
        ("linear", "linear", 1, "parity", linear),
        ("ten classes", "tanh", 1, "classes", classes),
    ):
        make = lambda phi=phi, depth=depth, task=task: _problem(
            n // 4 if task == "classes" else n, width, js.nets.Scaling.ntk(), phi=phi, depth=depth, task=task
        )

        def one(problem: js.Problem, watched: Any = watched) -> Numbers:
            run = js.solve(problem, js.Descent(optax.sgd(0.05)), jnp.asarray([0.0, 0.5, 1.0]), observe=watched)
            return _numbers(run, watched, problem)

        yield Case(f"20 steps of descent, {name}, width {width}", make, one)

    def edge() -> js.Problem:
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

    def central(problem: js.Problem) -> Numbers:
        watched = [o.averaged_loss(), o.averaged_squared_gradient(), o.edge_eigenvalues(), o.oscillation()]
        run = js.solve(problem, js.CentralFlow(optax.sgd(0.5)), jnp.asarray([20.0, 60.0]), observe=watched)
        return Numbers({one.name: run[one.name] for one in watched}, KERNEL, run.certificate.trust)  # pyright: ignore[reportArgumentType, reportOptionalMemberAccess]

    yield Case("observables at the edge, tanh 4-7-7-1", edge, central)


def _diagnosed(small: bool) -> Iterator[Case]:
    n, width = (40, 16) if small else (1000, 512)
    make = lambda: (
        js.nets.MLP(
            in_size=64,
            out_size=1,
            width_size=width,
            depth=2,
            activation="tanh",
            bias=True,
            scaling=js.nets.Scaling.ntk(),
            key=jr.key(1),
        ),
        *digits(n),
    )

    def diagnosis(a: Any) -> Numbers:
        net, x, y = a
        found = js.diagnose(net, x, y, optimizer=optax.sgd(0.1), steps=30 if small else 100, probes=50, key=jr.key(2))
        return Numbers({name: finding.value for name, finding in found.findings.items()}, KERNEL)

    yield Case(f"js.diagnose, n = {n}, width {width}", make, diagnosis)

    def check(a: Any) -> Numbers:
        x, y = a

        def make_net(width: int, key: Any) -> Any:
            with jax.enable_x64(True):  # other precisions draw other numbers
                net = js.nets.MLP(
                    in_size=64,
                    out_size=1,
                    width_size=width,
                    depth=2,
                    activation="tanh",
                    scaling=js.nets.Scaling.mup(),
                    key=key,
                    dtype=jnp.float64,
                )
                return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, x.dtype), net)

        found = js.coordinate_check(
            make_net, (16, 32, 64) if small else (64, 256, 1024), x, y, optimizer=optax.sgd(0.1), seeds=2, key=jr.key(3)
        )
        slopes = lambda of: np.asarray([slope.value for slope in of])
        return Numbers(
            {"exponents of sizes": slopes(found.size_slopes), "exponents of changes": slopes(found.change_slopes)},
            KERNEL,
        )

    yield Case("js.coordinate_check, widths 64 to 1024", lambda: digits(n // 4), check)
