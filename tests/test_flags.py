"""JAX's flags are no inputs: results have the same numbers under each, or one sentence says why there are none."""

import contextlib
import functools
import multiprocessing
import subprocess
import sys

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsolve as js
from tests.cases import eps, slow_after, X64


FLAGS = {
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "rank_promotion": lambda: jax.numpy_rank_promotion("raise"),
    "dtype_promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "enable_checks": lambda: jax.enable_checks(True),
    "checking_leaks": lambda: jax.check_tracer_leaks(True),
    "default_device": lambda: jax.default_device(jax.devices()[0]),
    "matmul_precision": lambda: jax.default_matmul_precision("highest"),
    "rbg": lambda: jax.default_prng_impl("rbg"),
    "disable_jit": jax.disable_jit,
}
WATCHES = [jax.debug_nans, jax.debug_infs]
TS = [0.0, 1.0]
# A start from which a margin is reached in both precisions. From some no neuron sees two of the samples.
LEARNS = 3


@functools.cache
def _problems(dtype: str = "default"):
    x = np.array([[1.0, 0.5], [-0.3, 1.2], [0.7, -0.9]])
    y = np.array([[1.0], [-1.0], [1.0]])
    kind = jnp.result_type(float) if dtype == "default" else jnp.dtype(dtype)
    x, y = jnp.asarray(x, kind), jnp.asarray(y, kind)
    key, scaling = jax.random.key(0), js.nets.Scaling.ntk()
    net, learner = (
        js.nets.MLP(in_size=2, out_size=1, width_size=4, depth=1, activation="relu", scaling=scaling, key=k, dtype=kind)
        for k in (key, jax.random.key(LEARNS))
    )
    line = js.nets.TwoLayerLinear(in_size=1, width_size=4, scaling=scaling, key=key, dtype=kind)
    return {
        "net": js.Problem(net, x, y, test=(x[:2], y[:2])),
        "margin": js.Problem(learner, x, y, loss=js.losses.Logistic()),
        "line": js.Problem(line, jnp.ones((1, 1), kind), jnp.ones((1, 1), kind)),
    }


def _run(problem, dynamics, ts=TS, **options):
    run = js.solve(problem, dynamics, ts, **options)
    return run.observed, run.t_end


def _lane(gamma):
    net = js.nets.TwoLayerLinear(in_size=1, width_size=4, scaling=js.nets.Scaling.ntk(gamma), key=jax.random.key(0))
    return js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))


def _mlp(width, key):
    return js.nets.MLP(
        in_size=2,
        out_size=1,
        width_size=width,
        depth=1,
        activation="tanh",
        scaling=js.nets.Scaling.ntk(),
        key=key,
        dtype=_problems()["net"].x.dtype,
    )


def _findings(p):
    found = js.diagnose(p.net, p.x, p.y, steps=4, probes=4).findings
    return {name: finding.value for name, finding in found.items()}


observables = lambda: [js.observe.loss(), js.observe.kernel_change(), js.observe.test_loss(), js.observe.sharpness()]
# What is asked for, by name; the first are those that every flag meets by default.
VERBS = {
    "Tsit5": lambda p: _run(p["net"], js.GradientFlow(diffrax.Tsit5())),
    "Descent": lambda p: _run(p["net"], js.Descent(optax.sgd(0.25))),
    "FrozenKernel": lambda p: _run(p["net"], js.FrozenKernel(), [0.0, 1.0, np.inf]),
    "exact": lambda p: _run(p["line"], js.exact(p["line"]), [0.0, 1.0, np.inf]),
    "kernels": lambda p: (
        js.kernels.empirical(p["net"].net, p["net"].x),
        js.kernels.spectrum(js.kernels.empirical(p["net"].net, p["net"].x).ntk),
    ),
    "until": lambda p: _run(p["margin"], js.GradientFlow(until=js.until.margin_above(0.1)), [0.0, np.inf]),
    "observables": lambda p: _run(p["net"], js.GradientFlow(diffrax.Tsit5()), observe=observables()),
    "FunctionSpace": lambda p: _run(p["net"], js.GradientFlow(js.integrators.FunctionSpace())),
    "ParameterSpace": lambda p: _run(p["net"], js.GradientFlow(js.integrators.ParameterSpace())),
    "Chebyshev": lambda p: _run(p["net"], js.GradientFlow(js.integrators.RungeKuttaChebyshev())),
    "Adam": lambda p: _run(p["net"], js.Descent(optax.adam(0.1))),
    "MomentumFlow": lambda p: _run(p["net"], js.MomentumFlow(tau=0.3, integrator=js.integrators.FunctionSpace())),
    "StochasticFlow": lambda p: _run(p["net"], js.StochasticFlow(1e-4, key=jax.random.key(1, impl="threefry2x32"))),
    "MuonFlow": lambda p: _run(p["net"], js.MuonFlow(eps=1e-3)),
    "CentralFlow": lambda p: _run(p["net"], js.CentralFlow(optax.sgd(0.5))),
    "RodFlow": lambda p: _run(p["net"], js.RodFlow(rate=0.5)),
    "RichLimit": lambda p: _run(p["line"], js.RichLimit(samples=64, nodes=20, at_any_richness=True), [0.0, 0.5]),
    "InfiniteWidth": lambda p: _run(p["net"], js.InfiniteWidth(), [0.0, 1.0, np.inf]),
    "compare": lambda p: js.compare(p["line"], [js.theory.TwoLayerLine(), js.Descent(optax.sgd(0.1))], TS).errors,
    "limits": lambda p: tuple(js.limits(p["net"]))[1:],
    "kernel_machine": lambda p: js.as_kernel_machine(p["net"], p["net"].params),
    "diagnose": lambda p: _findings(p["net"]),
    "laziness": lambda p: js.theory.laziness(p["net"]),
}
# These make networks of their own, in the precision and with the keys of the moment.
MAKERS = {
    "sweep": lambda p: js.sweep(_lane, {"gamma": [0.5, 2.0]}, js.GradientFlow(), TS, progress=False)["loss"].values,
    "coordinate_check": lambda p: js.coordinate_check(_mlp, [4, 8], p["net"].x, p["net"].y, steps=2, seeds=1).passed,
}
# Not compiled, each operation of each step is a call.
TOO_LONG = ("FunctionSpace", "MomentumFlow", "StochasticFlow", "CentralFlow", "diagnose", *MAKERS)


def _numbers(name):
    found = (VERBS | MAKERS)[name](_problems())
    return [np.asarray(leaf, float) for leaf in jax.tree.leaves(found) if np.ndim(leaf) or np.isreal(leaf)]


_expected = functools.cache(_numbers)


def _cases():
    fast = {"debug_nans": ("Tsit5", "Descent", "FrozenKernel"), "debug_infs": ("Tsit5", "FrozenKernel")}
    for flag in FLAGS:
        for name in VERBS | MAKERS:
            if flag == "disable_jit" and name in TOO_LONG:
                continue
            if flag == "rbg" and name in MAKERS:
                continue  # another key makes another network
            marks = () if name in fast.get(flag, ()) else pytest.mark.slow
            yield pytest.param(flag, name, marks=marks, id=f"{flag}-{name}")


@pytest.mark.filterwarnings("ignore::UserWarning")  # of runs so short that they can hardly be trusted
@pytest.mark.parametrize(("flag", "name"), list(_cases()))
def test_numbers_are_the_same_under_every_flag(flag, name):
    expected = _expected(name)
    with FLAGS[flag]():
        found = _numbers(name)
    # Summed in another order without compiling; draws of ours only say where an iteration starts.
    rounded = flag in ("disable_jit", "rbg", "matmul_precision") or name in ("diagnose", "observables", "CentralFlow")
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=eps(1e3) if rounded else 0, atol=eps(1e3) if rounded else 0)


def _nan_in_gradient(w, x):
    return jnp.sum(w * x, keepdims=True) + jnp.sqrt(0 * jnp.sum(w))


def _nan_at_last(w, x):
    return jnp.sqrt(jnp.sum(w * x, keepdims=True) - 0.5)


def _nan_in_test(w, x):
    return jnp.log(jnp.sum(w * x, keepdims=True))


@pytest.mark.parametrize("throw", [True, False])
@pytest.mark.parametrize(
    ("function", "dynamics", "operation"),
    [
        (_nan_in_gradient, js.GradientFlow(diffrax.Tsit5()), "mul"),
        (_nan_in_gradient, js.FrozenKernel(), "mul"),
        (_nan_in_test, js.GradientFlow(diffrax.Tsit5()), "log"),
        (_nan_at_last, js.GradientFlow(diffrax.Tsit5()), "diverged"),
    ],
    ids=["gradient", "frozen", "test", "beyond"],
)
def test_debug_nans_finds_those_of_the_network(function, dynamics, operation, throw):
    x, y = jnp.eye(2), jnp.full((2, 1), 0.1)
    test = (-x, y) if function is _nan_in_test else None
    problem = js.Problem(js.nets.Function(function, jnp.ones(2)), x, y if test else 0 * y, test=test)
    with jax.debug_nans(True), pytest.raises((FloatingPointError, js.SolveError), match=operation):
        js.solve(problem, dynamics, [0.0, 3.0], throw=throw)
    frozen = isinstance(dynamics, js.FrozenKernel)
    said = pytest.warns(UserWarning, match=r"x\[0\], x\[1\] by params") if frozen else contextlib.nullcontext()
    ends = not throw or function is _nan_in_test
    with contextlib.nullcontext() if ends else contextlib.suppress(js.SolveError), said:
        js.solve(problem, dynamics, [0.0, 3.0], throw=throw)  # without the flag there is a trajectory


def test_the_flags_are_on_again_after_a_run():
    with jax.debug_nans(True):
        js.solve(_problems()["net"], js.FrozenKernel(), TS)
        with pytest.raises(FloatingPointError):
            jnp.log(jnp.asarray(-1.0))


@pytest.mark.parametrize("level", ["disallow", "disallow_explicit"])
@pytest.mark.parametrize("name", [name for name in VERBS if name != "StochasticFlow"])  # its key is the test's own
def test_guarded_transfers_are_refused(name, level):
    problems = _problems()
    with jax.transfer_guard(level), pytest.raises(RuntimeError, match=r"jax_transfer_guard is 'dis.*transfer_guard\("):
        VERBS[name](problems)


def test_sweeps_are_refused_under_guarded_transfers():
    with jax.transfer_guard("disallow"), pytest.raises(RuntimeError, match="jax_transfer_guard is 'disallow'"):
        js.plan(_lane, {"gamma": [0.5, 2.0]}, js.GradientFlow(), TS)


@pytest.mark.x64_only
@pytest.mark.parametrize("name", VERBS)
def test_what_was_made_in_float64_is_refused_in_32_bits(name):
    problems = _problems()
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match=r"made in float64.*now set to 32 bits.*jax_enable_x64', True"),
    ):
        VERBS[name](problems)


@pytest.mark.x64_only
@pytest.mark.parametrize("name", slow_after(2, VERBS))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_was_made_in_float32_stays_so_in_64_bits(name):
    with jax.enable_x64(False):
        problems = _problems("float32")
        expected = VERBS[name](problems)
    found = VERBS[name](problems)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if isinstance(one, jax.Array) and jnp.issubdtype(one.dtype, jnp.floating):
            assert one.dtype == two.dtype == jnp.float32
        if name != "diagnose":  # finite differences
            np.testing.assert_allclose(one, two, rtol=3e-5, atol=1e-6)


FORK = """
import multiprocessing, warnings
import jax, jax.numpy as jnp, jaxsolve as js
warnings.simplefilter("ignore")
net = js.nets.TwoLayerLinear(in_size=1, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
def work(t):
    js.solve(problem, js.GradientFlow(), t)
with multiprocessing.get_context("fork").Pool(1) as pool:
    pool.map_async(work, [1.0]).get(100)
"""


@pytest.mark.slow
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork here")
def test_a_fork_is_refused_and_does_not_wait_for_ever():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=False)
    assert "RuntimeError: this process was forked from one that had used JAX" in done.stderr


def test_precision_of_these_tests():
    assert _problems()["net"].x.dtype == (jnp.float64 if X64 else jnp.float32)
