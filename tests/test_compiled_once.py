"""What runs outside of `jax.jit` compiles its loops once: called again with other numbers, it compiles nothing."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array

import jaxsolve as js
from tests import cases


X, Y = jnp.linspace(-1, 1, 15).reshape(5, 3), jnp.linspace(-2, 1, 10).reshape(5, 2)
SPECTRUM = 1 / jnp.arange(1.0, 9.0) ** 2


def _mlp(number):
    return cases.mlp(jr.key(int(number)), depth=1)


def _problem(number):
    return js.Problem(_mlp(number), X, Y)


def _operator(number):
    """Products in batches, which are a loop."""
    return js.kernels.NTKOperator(_mlp(number), X, batch_size=2)


def _curvature(number, kind):
    f, loss = jax.vmap(_mlp(number))(X), js.losses.MSE()
    derivatives = [loss.gradient(f, Y), loss.hessian(f, Y)][-kind:]
    operator = [js.kernels.GaussNewtonOperator, js.kernels.HessianOperator][kind - 1]
    return operator(_mlp(number), X, *derivatives, batch_size=2).mv(js.nets.partition(_mlp(number))[0])


def _kernels(number):
    return number * jnp.stack([jnp.eye(5), 2 * jnp.eye(5)])


def _linen(number):
    linen = pytest.importorskip("flax.linen")
    module = linen.Dense(3, param_dtype=X.dtype)
    return js.nets.from_linen(module, module.init(jr.key(int(number)), X[0]))


def _nnx(number):
    nnx = pytest.importorskip("flax.nnx")
    return js.nets.from_nnx(nnx.Linear(3, 3, param_dtype=X.dtype, rngs=nnx.Rngs(int(number))))


@functools.cache
def _transformed():
    haiku = pytest.importorskip("haiku")
    return haiku.transform(lambda x: haiku.Linear(3)(x))


def _haiku(number):
    return js.nets.from_haiku(_transformed(), _transformed().init(jr.key(int(number)), X[0]))


CALLS = {
    "kernel_regression_error": lambda k: js.theory.kernel_regression_error(SPECTRUM, SPECTRUM, k),
    "transfer_error": lambda k: js.theory.transfer_error(8, k, feature=1.0, alignment=0.5),
    "laziness": lambda k: js.theory.laziness(_problem(k)),
    "curvature_ratio": lambda k: js.theory.curvature_ratio(_problem(k)),
    "deep_preconditioner": lambda k: js.theory.deep_preconditioner(k * jnp.ones(2), 0.1, depth=2),
    "along_path": lambda k: js.kernels.along_path(k * jnp.arange(2.0), _kernels(k), Y),
    "distance_matrix": lambda k: js.kernels.distance_matrix(_kernels(k)),
    "NTKOperator": lambda k: _operator(k).mv(k * Y),
    "GaussNewtonOperator": lambda k: _curvature(k, 1),
    "HessianOperator": lambda k: _curvature(k, 2),
    "from_linen": lambda k: js.kernels.empirical(_linen(k), X),
    "from_nnx": lambda k: js.kernels.empirical(_nnx(k), X),
    "from_haiku": lambda k: js.kernels.empirical(_haiku(k), X),
}


@pytest.fixture
def compilations(caplog):
    """A function that calls another, and returns the programs that are compiled meanwhile."""

    def compiled(call):
        caplog.clear()
        with jax.log_compiles(), caplog.at_level("WARNING"):
            call()
        return [record.getMessage() for record in caplog.records if record.getMessage().startswith("Compiling")]

    return compiled


@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_compiles_nothing(name, compilations):
    CALLS[name](3.0)
    assert not compilations(lambda: CALLS[name](4.0))


def test_a_closure_is_compiled_anew(compilations):
    """The twin: JAX knows the program of a loop by its function."""
    call = lambda k: jax.lax.map(lambda x: k * x, jnp.arange(3.0))
    call(3.0)
    assert compilations(lambda: call(4.0))


def test_functions_of_other_libraries_are_told_apart():
    linen = pytest.importorskip("flax.linen")
    module = linen.Sequential([linen.Dense(3), linen.BatchNorm(use_running_average=True)])
    variables = module.init(jr.key(0), jnp.ones(3, jnp.float32))
    later = variables | {"params": jax.tree.map(lambda leaf: leaf + 1, variables["params"])}
    other = variables | {"batch_stats": jax.tree.map(lambda leaf: leaf + 1, variables["batch_stats"])}
    structure = lambda *args, **options: jax.tree.structure(js.nets.from_linen(*args, **options))
    one = structure(module, variables)
    assert one == structure(module, later)
    assert one != structure(module, other)  # its statistics are part of the function
    assert one != structure(linen.Dense(3), later)
    assert one != structure(module, later, mutable=False)
    assert structure(module, later, capture_intermediates=False) != structure(module, later, capture_intermediates=True)


class Count:
    """How often it was called. Programs are known by it, so that each test needs its own."""

    def __init__(self):
        self.number = 0

    def __call__(self):
        self.number += 1


class Watched(eqx.Module):
    """A layer that says when Python runs it."""

    weight: Array
    factor: Any
    ran: Count = eqx.field(static=True)

    def __call__(self, x):
        self.ran()
        return jnp.asarray(self.factor, x.dtype) * (self.weight @ x)


def _kernel_of_watched(calls, *, weight=1.0, factor: Any = 2.0, x=X):
    """The kernel of outputs factor weight_k . x is factor^2 x . x' for each output k, whatever the weight."""
    net = Watched(weight * jnp.ones((2, 3)), factor, calls)
    expected = float(factor) ** 2 * (x @ x.T)[:, None, :, None] * jnp.eye(2)[None, :, None, :]
    np.testing.assert_allclose(js.kernels.empirical(net, x).ntk, expected, rtol=1e-5, atol=1e-5)


def test_a_second_kernel_of_the_same_kind_does_not_trace_the_network():
    calls = Count()
    _kernel_of_watched(calls)
    first = calls.number
    _kernel_of_watched(calls, weight=3.0)
    assert calls.number == first > 0


@pytest.mark.parametrize("change", [{"factor": 3.0}, {"factor": np.asarray(3)}, {"x": X[:3]}, {"x": 2 * X[:2]}])
def test_a_kernel_of_another_kind_is_that_of_its_own_network(change):
    calls = Count()
    _kernel_of_watched(calls)
    _kernel_of_watched(calls, **change)
