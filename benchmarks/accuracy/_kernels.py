"""Kernels: empirical and infinite, flows and regression under them, spectra, and products without them."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import jaxsolve as js

from ._case import Case, KERNEL, Numbers


TIMES = (1.0, 1e2, 1e4, 1e6, 1e8, np.inf)
SHARES = (1e-1, 1e-3, 1e-5)


def cases(*, small: bool) -> Iterator[Case]:
    """All of them."""
    yield from _empirical(small)
    yield from _infinite(small)
    yield from _moved(small)
    yield from _numbers(small)
    yield from _operators(small)


def digits(n: int, m: int = 0, *, task: str = "parity") -> tuple[Any, ...]:
    """Inputs and targets, of the test set as well if m > 0."""
    data = js.data.digits(task=task, n_train=n, n_test=m, key=jr.key(0))
    return (*data.train, data.x_test) if m else data.train


def _empirical(small: bool) -> Iterator[Case]:
    n, width = (20, 32) if small else (1000, 1024)
    ntk, key = js.nets.Scaling.ntk(), jr.key(0)
    mlp = lambda phi, depth, h, out=1, rule=ntk: (
        lambda: (
            js.nets.MLP(
                in_size=64, out_size=out, width_size=h, depth=depth, activation=phi, bias=True, scaling=rule, key=key
            ),
            digits(n)[0],
        )
    )
    dense = [(f"MLP {phi}, depth 3, width {width}", mlp(phi, 3, width)) for phi in ("relu", "tanh", "gelu")]
    dense += [(f"MLP tanh, depth 50, width {width // 8}", mlp("tanh", 50, width // 8))]
    dense += [
        (
            f"MLP relu, ten outputs, width {width // 4}",
            lambda: (
                js.nets.MLP(
                    in_size=64, out_size=10, width_size=width // 4, depth=2, activation="relu", scaling=ntk, key=key
                ),
                digits(n // 5)[0],
            ),
        )
    ]
    dense += [
        (f"MLP tanh, {name}, width {width}", mlp("tanh", 2, width, rule=rule))
        for name, rule in (("muP", js.nets.Scaling.mup()), ("lazy", js.nets.Scaling.lazy(1e6)))
    ]
    dense += [
        (
            f"TwoLayerLinear, width {4 * width}",
            lambda: (js.nets.TwoLayerLinear(in_size=64, width_size=4 * width, scaling=ntk, key=key), digits(n)[0]),
        )
    ]
    for name, make in dense:
        yield Case(f"kernels.empirical, {name}", make, lambda a: Numbers({"ntk": js.kernels.empirical(*a).ntk}, KERNEL))
    way = lambda a: Numbers(
        {"trace": js.kernels.empirical(*a, trace=True).ntk, "diagonal": js.kernels.empirical(*a, diagonal=True).ntk},
        KERNEL,
    )
    yield Case(f"kernels.empirical, trace and diagonal, {dense[0][0]}", dense[0][1], way)
    layers = lambda a: Numbers(
        {f"layer {i}": k for i, k in enumerate(jax.tree.leaves(js.kernels.empirical(*a, by_layer=True).ntk))}, KERNEL
    )
    yield Case(f"kernels.empirical by layer, {dense[0][0]}", dense[0][1], layers)
    images = lambda: digits(10 if small else 100)[0].reshape(-1, 1, 8, 8)
    conv = lambda: (
        js.nets.ConvNet(in_shape=(1, 8, 8), out_size=3, width_size=4 if small else 32, scaling=ntk, key=key),
        images(),
    )
    yield Case("kernels.empirical, ConvNet", conv, lambda a: Numbers({"ntk": js.kernels.empirical(*a).ntk}, KERNEL))
    tokens = lambda: js.data.modular_addition(7, 20, key=jr.key(1)).x
    attend = lambda: (
        js.nets.Transformer(in_shape=(3, 8), out_size=7, width_size=16 if small else 128, scaling=ntk, key=key),
        tokens(),
    )
    yield Case(
        "kernels.empirical, Transformer", attend, lambda a: Numbers({"ntk": js.kernels.empirical(*a).ntk}, KERNEL)
    )

    def table() -> Any:
        weights = {"table": jr.normal(key, (50, width)), "last": jr.normal(key, (3, width)) / width**0.5}
        return weights, jr.randint(jr.key(1), (n // 4, 8), 0, 50)

    look = lambda p, x: p["last"] @ jnp.tanh(jnp.sum(p["table"][x], axis=0))
    yield Case(
        "kernels.empirical, look-ups",
        table,
        lambda a: Numbers({"ntk": js.kernels.empirical(js.nets.Function(look, a[0]), a[1]).ntk}, KERNEL),
    )


def _infinite(small: bool) -> Iterator[Case]:
    n, key = 20 if small else 1000, jr.key(0)
    alike = lambda: (lambda x: jnp.concatenate([x, x, -x, (1 + 1e-5) * x, x + 1e-4 * jr.normal(key, x.shape)]))(
        digits(n // 5)[0]
    )
    for phi in ("relu", "erf", "tanh", "gelu"):
        for depth in (1, 3, 20):
            for name, inputs in (("digits", lambda: digits(n)[0]), ("inputs close to one another", alike)):
                if depth == 20 and (name != "digits" or phi not in ("relu", "erf")):
                    continue
                make = lambda phi=phi, depth=depth, inputs=inputs: (
                    js.nets.MLP(
                        in_size=64,
                        out_size=1,
                        width_size=8,
                        depth=depth,
                        activation=phi,
                        bias=True,
                        scaling=js.nets.Scaling.ntk(sigma=1.4),
                        key=key,
                    ),
                    inputs(),
                )
                # Of angles of 1e-3 the docs speak: 2e-4 behind one layer, 4e-3 behind 20.
                bound = 2e-4 * depth if phi == "relu" and name != "digits" else KERNEL
                way = lambda a, bound=bound: (lambda k: Numbers({"ntk": k.ntk, "nngp": k.nngp}, bound))(
                    js.kernels.infinite(*a)
                )
                yield Case(f"kernels.infinite, {phi}, depth {depth}, {name}, n = {n}", make, way)
    size = 5 if small else 40
    conv = lambda: (
        js.nets.ConvNet(in_shape=(1, 8, 8), out_size=1, width_size=4, scaling=js.nets.Scaling.ntk(), key=key),
        digits(size)[0].reshape(-1, 1, 8, 8),
    )
    yield Case("kernels.infinite, ConvNet", conv, lambda a: Numbers({"ntk": js.kernels.infinite(*a).ntk}, KERNEL))


def _kernel(n: int, m: int, out: int = 1) -> Any:
    """The kernel of a network on digits, that of test samples, and targets."""
    x, y, x_test = digits(n, m, task="parity" if out == 1 else "classes")
    net = js.nets.MLP(
        in_size=64, out_size=1, width_size=256, depth=1, activation="relu", scaling=js.nets.Scaling.ntk(), key=jr.key(0)
    )
    kernel = js.kernels.empirical(net, x).ntk[:, 0, :, 0]
    return kernel, y, js.kernels.empirical(net, x_test, x).ntk[:, 0, :, 0]


def _oscillating(n: int) -> Any:
    """A kernel that decays fast: the infinite relu network on points of a line, and a target that oscillates."""
    x = jnp.linspace(-10 * np.pi, 10 * np.pi, n)[:, None]
    net = js.nets.MLP(
        in_size=1,
        out_size=1,
        width_size=8,
        depth=1,
        activation="relu",
        bias=True,
        scaling=js.nets.Scaling.ntk(sigma=1.5),
        key=jr.key(0),
    )
    between = (x[:-1] + x[1:]) / 2
    return js.kernels.infinite(net, x).ntk, jnp.sin(x) + jnp.sin(2 * x), js.kernels.infinite(net, between, x).ntk


def _moved(small: bool) -> Iterator[Case]:
    n, m = (60, 10) if small else (1400, 100)
    sources: tuple[tuple[str, Callable[[], Any]], ...] = (
        (f"digits, n = {n}", lambda: _kernel(n, m)),
        (f"ten classes, n = {n}", lambda: _kernel(n, m, 10)),
        ("oscillating target, n = 100", lambda: _oscillating(100)),
    )
    for name, make in sources:
        for ridge in (0.0, 1e-3):

            def flow(a: Any, ridge: float = ridge) -> Numbers:
                found = js.kernels.linearized(a[0], a[1], ridge=ridge)
                at = lambda t: jnp.asarray(t, a[0].dtype)
                outputs = jnp.stack([found.outputs(at(t)) for t in TIMES])
                test = jnp.stack([found.predict(at(t), cross=a[2]) for t in TIMES])
                expected = max(float(jnp.max(found.rounding(at(t), a[2]))) for t in TIMES)
                return Numbers({"outputs": outputs, "test outputs": test}, KERNEL, floors={"test outputs": expected})

            yield Case(f"kernels.linearized, {name}, ridge {ridge:g}, t = 1 to inf", make, flow)

            def fit(a: Any, ridge: float = ridge) -> Numbers:
                found = js.kernels.regression(a[0], a[1], ridge=ridge)
                return Numbers(
                    {"outputs": found.outputs, "test outputs": found.predict(cross=a[2])},
                    KERNEL,
                    floors={"test outputs": float(jnp.max(found.rounding(a[2])))},
                )

            yield Case(f"kernels.regression, {name}, ridge {ridge:g}", make, fit)

        def ensemble(a: Any) -> Numbers:
            found = js.kernels.linearized_ensemble(a[0], a[0], a[1])
            each = [found.outputs(jnp.asarray(t, a[0].dtype)) for t in TIMES]
            return Numbers(
                {
                    "mean": jnp.stack([one.mean for one in each]),
                    "covariance": jnp.stack([one.covariance for one in each]),
                },
                KERNEL,
                floors={"covariance": 10 * float(jnp.finfo(jnp.float32).eps) * float(jnp.max(a[0]))},
            )

        if "classes" not in name:
            yield Case(f"kernels.linearized_ensemble, {name}, t = 1 to inf", make, ensemble)

        def features(a: Any) -> Numbers:
            found = js.kernels.features(a[0], a[2])
            return Numbers(
                {"train": found.train[:, 0] @ found.train[:, 0].T, "others": found.others[:, 0] @ found.train[:, 0].T},  # pyright: ignore[reportOptionalSubscript]
                KERNEL,
            )

        yield Case(f"kernels.features, {name}", make, features)
    path = lambda: (
        jnp.linspace(0, 100.0, 20),
        jnp.stack([(1 + 0.02 * k) * _kernel(n // 4, m)[0] for k in range(20)]),
        _kernel(n // 4, m)[1],
    )
    yield Case(
        f"kernels.along_path, digits, n = {n // 4}",
        path,
        lambda a: Numbers({"outputs": js.kernels.along_path(*a).outputs}, KERNEL),
    )


def _numbers(small: bool) -> Iterator[Case]:
    n = 60 if small else 1400
    k = js.kernels

    def make() -> Any:
        kernel, y, noise = _kernel(n, 1)[0], _kernel(n, 1, 10)[1], jr.normal(jr.key(3), (n, n))
        return kernel, y, [kernel * (1 + share * (noise + noise.T) / 2) for share in SHARES]

    def spectra(a: Any) -> Numbers:
        kernel, y, _ = a
        power = k.target_power(kernel, y)
        values = {
            "spectrum": k.spectrum(kernel),
            "trace": k.trace(kernel),
            "effective rank": k.effective_rank(kernel),
            "entropy": k.entropy(kernel),
            "participation ratio": k.participation_ratio(kernel),
        }
        values |= {f"target power: {name}": value for name, value in power._asdict().items()}
        return Numbers(values, KERNEL)  # pyright: ignore[reportArgumentType]

    yield Case(f"spectral numbers, n = {n}", make, spectra)

    def likeness(a: Any) -> Numbers:
        kernel, y, others = a
        labels = jnp.argmax(y, axis=1)
        values = {
            "target alignment": k.target_alignment(kernel, y),
            "centered target alignment": k.centered_target_alignment(kernel, y),
            "class kernel": k.class_kernel(kernel, labels, 10),
        }
        for share, other in zip(SHARES, others, strict=True):
            values |= {
                f"distance, {share:g} apart": k.distance(kernel, other),
                f"centered distance, {share:g} apart": k.centered_distance(kernel, other),
                f"relative change, {share:g} apart": k.relative_change(other, kernel),
                f"centered alignment, {share:g} apart": k.centered_alignment(kernel, other),
            }
        values["distance matrix"] = k.distance_matrix(jnp.stack([kernel, *others]))
        floors = {name: 1e-12 if "distance" in name else 1e-6 for name in values if "apart" in name}
        return Numbers(values, KERNEL, floors=floors)  # pyright: ignore[reportArgumentType]

    yield Case(f"likeness of kernels, n = {n}", make, likeness)
    flat = lambda: (jnp.ones((n, n)) + 1e-4 * _kernel(n, 1)[0] + 1e-3 * jnp.eye(n), _kernel(n, 1, 10)[1])
    yield Case(
        f"kernel of nearly equal entries, n = {n}",
        flat,
        lambda a: Numbers(
            {
                "centered target alignment": k.centered_target_alignment(*a),
                "effective rank": k.effective_rank(a[0]),
                "entropy": k.entropy(a[0]),
            },
            KERNEL,
        ),
    )


def _operators(small: bool) -> Iterator[Case]:
    n, width = (20, 16) if small else (1000, 256)
    k, key = js.kernels, jr.key(5)

    def make() -> Any:
        net = js.nets.MLP(
            in_size=64,
            out_size=1,
            width_size=width,
            depth=2,
            activation="tanh",
            bias=True,
            scaling=js.nets.Scaling.standard(),
            key=jr.key(0),
        )
        x, y = digits(n)
        return net, x, y, jr.normal(jr.key(2), y.shape)

    def ntk(a: Any) -> Numbers:
        net, x, _, v = a
        operator = k.NTKOperator(net, x)
        pairs = k.top_eigenpairs(operator, 5, key=key)
        trace, norm = k.estimate_trace(operator, key=key), k.estimate_frobenius_norm(operator, key=key)
        return Numbers(
            {
                "product": operator.mv(v),
                "top eigenvalues": pairs.values,
                "estimate_trace": trace.value,
                "estimate_frobenius_norm": norm.value,
            },
            KERNEL,
            each=("top eigenvalues",),
            # Each precision draws vectors of its own.
            floors={
                "estimate_trace": 5 * float(trace.standard_error),
                "estimate_frobenius_norm": 5 * float(norm.standard_error),
            },
        )

    yield Case(f"NTKOperator, n = {n}", make, ntk)

    def hessian(a: Any) -> Numbers:
        net, x, y, _ = a
        loss = js.losses.MSE()
        outputs = jax.vmap(net)(x)
        first, second = loss.gradient(outputs, y), loss.hessian(outputs, y)
        full, gauss = k.HessianOperator(net, x, first, second), k.GaussNewtonOperator(net, x, second)
        v = js.nets.partition(net)[0]
        found, floors = {}, {}
        for name, operator in (("Hessian", full), ("Gauss-Newton", gauss)):
            pairs, trace = k.top_eigenpairs(operator, 3, key=key), k.estimate_trace(operator, key=key)
            floors[f"{name} trace"] = 5 * float(trace.standard_error)
            found |= {
                f"{name} product": jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(operator.mv(v))]),
                f"{name} top eigenvalues": pairs.values,
                f"{name} trace": trace.value,
            }
        return Numbers(found, KERNEL, floors=floors)

    yield Case(f"HessianOperator and GaussNewtonOperator, n = {n}", make, hessian)
