"""The same with PyTorch, if installed: the NTK with `torch.func`, and plain loops of gradient descent.

`uv run --with torch python -m benchmarks pytorch`. Both sides start from the same weights, hold the same precision and
run on the same device.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import psutil

import jaxsolve as js

from ._said import rounding, Row
from ._timing import in_turns, timed
from .kernels import Case, CASES, DTYPES, sides


RATE, STEPS, SEEDS = 0.1, 1000, 16
EVERY = 100  # steps, between losses that are kept


def main(*, quick: bool) -> Iterator[Row]:
    """All of them; the quick part is kernel A, one loop and few seeds."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("  PyTorch is not installed, so nothing was measured: uv run --with torch python -m benchmarks pytorch")
        return
    side = Torch(torch)
    for name in ("A",) if quick else CASES:
        yield from _kernel(name, CASES[name], side)
    yield from _descent(side)
    yield from _seeds(side, SEEDS // 4 if quick else SEEDS)


class Torch:
    """PyTorch on the device that JAX has, and relu networks in its terms.

    Arguments:
        torch: the package.
    """

    def __init__(self, torch: Any):
        self.torch = torch
        self.device = "cuda" if jax.default_backend() == "gpu" else "cpu"
        self.name = f"PyTorch {torch.__version__}"

    def tensor(self, array: Any) -> Any:
        """A copy, on the device."""
        return self.torch.tensor(np.asarray(array), device=self.device)

    def ended(self, value: Any) -> Any:
        """The value, once it is there."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        return value

    def network(self, weights: Sequence[Any], x: Any) -> Any:
        """Relu network in NTK parameterisation; each weight matrix has shape (in, out), or (networks, in, out)."""
        for index, weight in enumerate(weights):
            x = (self.torch.relu(x) if index else x) @ weight * weight.shape[-2] ** -0.5
        return x

    def by_jacobian(self, weights: Sequence[Any], x: Any) -> Any:
        """The NTK from the Jacobians of all samples."""
        one = self.torch.func.jacrev(lambda weights, sample: self.network(weights, sample[None])[0])
        jacobian = self.torch.func.vmap(one, (None, 0))(tuple(weights), x)
        flat = [part.flatten(2) for part in jacobian]
        return self.ended(sum(self.torch.einsum("nak,mbk->namb", part, part) for part in flat))

    def by_products(self, weights: Sequence[Any], x: Any) -> Any:
        """The NTK from its products with unit vectors, for each pair of samples."""
        func = self.torch.func

        def pair(one: Any, two: Any) -> Any:
            f = lambda sample: lambda weights: self.network(weights, sample[None])[0]
            output, back = func.vjp(f(one), tuple(weights))
            product = lambda unit: func.jvp(f(two), (tuple(weights),), back(unit))[1]
            return func.vmap(product)(self.torch.eye(len(output), dtype=x.dtype, device=x.device))

        found = func.vmap(func.vmap(pair, (None, 0)), (0, None))(x, x)
        return self.ended(found.permute(0, 2, 1, 3))

    def descend(self, weights: Sequence[Any], x: Any, y: Any) -> list[Any]:
        """Losses along steps of gradient descent, by a plain loop, of one network or of several at once."""
        weights = [weight.clone().requires_grad_() for weight in weights]
        optimizer, losses = self.torch.optim.SGD(weights, lr=RATE), []
        for step in range(STEPS + 1):
            optimizer.zero_grad()
            loss = 0.5 * ((self.network(weights, x) - y) ** 2).sum(-1).mean(-1)
            if step % EVERY == 0:
                losses.append(loss.detach().cpu().numpy())
            loss.sum().backward()
            optimizer.step()
        return losses


def _kernel(name: str, case: Case, side: Torch) -> Iterator[Row]:
    net, matrices, samples = sides(case, "float32")
    weights, x = [side.tensor(one) for one in matrices], side.tensor(samples)
    ours = jax.jit(lambda net, x: js.kernels.empirical(net, x).ntk)
    kernel = np.asarray(ours(net, samples))
    ways: dict[str, Callable[..., Any]] = {"vmap(jacrev)": side.by_jacobian}
    tangents = 4 * case.n**2 * case.c * sum(weight.numel() for weight in weights)  # bytes
    if tangents < 0.5 * psutil.virtual_memory().available:
        ways["vjp and jvp"] = side.by_products
    else:
        print(f"  {name}: vjp and jvp were not measured: torch.func would hold {tangents / 1e9:.0f} GB of tangents")
    seconds = {way: timed(lambda way=way: ways[way](weights, x))[1] for way in ways}
    fastest = min(ways, key=lambda way: seconds[way])
    theirs = lambda: ways[fastest](weights, x)
    worst = float(np.max(np.abs(theirs().cpu().numpy() - kernel)) / np.max(np.abs(kernel)))
    mine, other = map(statistics.median, in_turns([lambda: ours(net, samples), theirs], 9, budget=60))
    what, note = f"NTK {name} float32: torch.func / jaxsolve, time", f"{1e3 * mine:.3g} ms against {1e3 * other:.3g} ms"
    yield Row(what, other / mine, ">=", 1, peer=f"{side.name}, {fastest}", note=note)
    what, most = f"NTK {name} float32: largest relative difference to PyTorch", DTYPES["float32"]
    yield Row(what, worst, "<=", most, ".1e", beside=(rounding("float32"),))


def _problem(key: jax.Array, dtype: str) -> js.Problem:
    data = js.data.digits(n_train=200, key=jax.random.key(0))
    net = js.nets.MLP(
        in_size=64,
        out_size=10,
        width_size=64,
        depth=2,
        activation="relu",
        scaling=js.nets.Scaling.ntk(),
        key=key,
        dtype=dtype,
    )
    return js.Problem(net, data.x.astype(dtype), data.y.astype(dtype))


def _theirs(side: Torch, problem: js.Problem) -> list[float]:
    weights = [side.tensor(weight.T) for weight in problem.net.weights]
    return side.descend(weights, side.tensor(problem.x), side.tensor(problem.y))


def _descent(side: Torch) -> Iterator[Row]:
    ts = RATE * EVERY * np.arange(STEPS // EVERY + 1)
    for dtype, most in (("float32", 1e-3), ("float64", 1e-9)):
        problem = _problem(jax.random.key(1), dtype)
        ours = lambda problem=problem: js.solve(problem, js.Descent(optax.sgd(RATE)), ts)["loss"]
        theirs = lambda problem=problem: _theirs(side, problem)
        found, cold = timed(ours)
        worst = float(np.max(np.abs(theirs() - np.asarray(found)) / np.asarray(found)))
        mine, other = map(statistics.median, in_turns([ours, theirs], 5, budget=60))
        what = f"{STEPS} steps of descent, digits 64-64-64-10, {dtype}: a loop / jaxsolve, time"
        note = f"{1e3 * mine:.3g} ms against {1e3 * other:.3g} ms; {cold:.1f} s with compilation"
        yield Row(what, other / mine, ">=", 1, peer=side.name, note=note)
        what = f"{what.partition(':')[0]}: largest relative difference of losses"
        yield Row(what, worst, "<=", most, ".1e", beside=(rounding(dtype),))


def _seeds(side: Torch, seeds: int) -> Iterator[Row]:
    ts = RATE * EVERY * np.arange(STEPS // EVERY + 1)
    keys = jax.random.split(jax.random.key(2), seeds)
    train = lambda key: js.solve(_problem(key, "float32"), js.Descent(optax.sgd(RATE)), ts)["loss"]
    ours = jax.jit(jax.vmap(train))
    problems = [_problem(key, "float32") for key in keys]
    layers = zip(*(problem.net.weights for problem in problems), strict=True)
    weights = [side.tensor(np.stack([weight.T for weight in layer])) for layer in layers]
    x, y = side.tensor(problems[0].x), side.tensor(problems[0].y)
    theirs = lambda: side.descend(weights, x, y)
    worst = jnp.max(jnp.abs(ours(keys) - jnp.asarray(np.transpose(theirs()))) / ours(keys))
    mine, other = map(statistics.median, in_turns([lambda: ours(keys), theirs], 3, budget=60))
    what = f"the same for {seeds} seeds, float32: a loop over stacked weights / jax.vmap of js.solve, time"
    note = f"{mine:.3g} s against {other:.3g} s, losses {float(worst):.0e} apart"
    yield Row(what, other / mine, ">=", 1, peer=side.name, note=note)
