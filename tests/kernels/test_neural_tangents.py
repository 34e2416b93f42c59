import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve import FrozenKernel, kernels, nets, observe, Problem, solve
from tests.cases import assert_fails, eps
from tests.processes import fresh


def test_the_door_opens_without_tensorflow_and_replaces_no_name():
    printed = fresh("""
import sys
import jax, jax.core, jax.interpreters.ad
rooms = (jax.core, jax.interpreters.ad)
before = [{name: getattr(room, name) for name in dir(room)} for room in rooms]
import jaxsolve
assert "neural_tangents" not in sys.modules
nt = jaxsolve.kernels.neural_tangents()
assert jaxsolve.kernels.neural_tangents() is nt
for room, names in zip(rooms, before):
    assert all(getattr(room, name) is names[name] for name in names), room
for name in "Jaxpr JaxprEqn Literal ShapedArray Value Var AbstractValue Primitive eval_context".split():
    assert hasattr(jax.core, name), name
assert hasattr(jax.interpreters.ad, "zeros_like_p")
from jax.util import safe_map, safe_zip
heavy = {"tensorflow", "tf2jax"} & set(sys.modules)
assert not heavy, heavy
print(nt.__name__)
""")
    assert printed == "neural_tangents\n"


def test_without_neural_tangents_all_else_works_and_what_needs_it_says_why():
    """Not installed; installed but not importable; a jax that has lost one more name."""
    printed = fresh("""
import importlib.metadata, sys
import equinox as eqx
import jax, jax.extend.core, jax.numpy as jnp
import jaxsolve as js

key, x = jax.random.key(0), jnp.ones((2, 3))
dense = js.nets.TwoLayerLinear(in_size=3, width_size=4, scaling=js.nets.Scaling.ntk(), key=key)
kernel = eqx.filter_jit(js.kernels.empirical)
reference = kernel(dense, x)

def attempt(reason):
    try:
        js.kernels.infinite(dense, x)
    except js.kernels.NeuralTangentsUnavailable as error:
        print(f"{reason}: {error}")
    assert bool(jnp.all(kernel(dense, x) == reference))

class Blocker:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "neural_tangents":
            raise ModuleNotFoundError(f"no {name} here")

version = importlib.metadata.version
def absent(name):
    if name == "neural-tangents":
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)
importlib.metadata.version = absent
attempt("missing")
importlib.metadata.version = version

sys.meta_path.insert(0, Blocker())
attempt("blocked")
sys.meta_path.pop(0)

sys.modules["neural_tangents"] = None
attempt("forbidden")
del sys.modules["neural_tangents"]

kept = jax.extend.core.Var
del jax.core.Var, jax.extend.core.Var
attempt("broken")
jax.core.Var = jax.extend.core.Var = kept

print(js.kernels.infinite(dense, x).ntk.shape)
""")
    missing, blocked, forbidden, broken, mended = printed.strip().splitlines()
    assert missing.startswith("missing: neural-tangents, which computes kernels of infinite width, is not installed")
    assert "`pip install --no-deps neural-tangents frozendict`" in missing
    versions = f"neural-tangents 0.6.5 does not work with jax {jax.__version__}"
    assert blocked.startswith(f"blocked: {versions}: no neural_tangents here. Everything in jaxsolve but")
    assert forbidden.startswith(f"forbidden: {versions}: ")
    assert broken.startswith(f"broken: {versions}: ")
    assert "Var" in broken
    assert mended == "(2, 2)"  # once it can be imported, the door opens


@pytest.mark.slow
def test_its_kernels_and_predictions_are_those_of_docs_coming_from(getkey):
    """With two outputs: where its axes stand, and that it needs twice the time."""
    x, y = jax.random.normal(getkey(), (5, 3)), jax.random.normal(getkey(), (5, 2))
    net = nets.MLP(
        in_size=3, out_size=2, width_size=8, depth=1, activation="tanh", scaling=nets.Scaling.ntk(), key=getkey()
    )
    problem = Problem(net, x, y)
    start = problem.outputs(problem.params)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        nt = kernels.neural_tangents()
        blocks = nt.empirical_ntk_fn(lambda params, x: problem.predict(params, x), trace_axes=())(
            x, None, problem.params
        )
        predict = nt.predict.gradient_descent_mse(blocks, y, trace_axes=())
        its, its_early = predict(jnp.asarray(2 * 3.0), start), predict(jnp.asarray(3.0), start)
        kernel_fn = nt.stax.serial(nt.stax.Dense(8), nt.stax.Erf(), nt.stax.Dense(2))[2]
        limit = kernel_fn(x, None, ("nngp", "ntk"))
        ensemble = nt.predict.gradient_descent_mse_ensemble(kernel_fn, x, y)
        its_mean = ensemble(jnp.asarray(2 * 3.0), x, "ntk")
    np.testing.assert_allclose(np.transpose(blocks, (0, 2, 1, 3)), kernels.empirical(net, x).ntk, atol=eps(100))
    ours = solve(problem, FrozenKernel(), [3.0], observe=observe.outputs())["outputs"][0]
    np.testing.assert_allclose(its, ours, atol=eps(1e3))
    again = kernels.linearized(blocks.transpose(0, 2, 1, 3), y, start=start).outputs(3.0)
    np.testing.assert_allclose(again, ours, atol=eps(1e3))
    mean = kernels.linearized_ensemble(limit.ntk, limit.nngp, y).outputs(3.0).mean
    np.testing.assert_allclose(its_mean, mean, atol=eps(1e3))
    assert_fails(lambda: np.testing.assert_allclose(its_early, ours, atol=eps(1e3)))


@pytest.mark.skipif("tensorflow" in sys.modules, reason="somebody else has imported TensorFlow")
def test_nothing_here_has_imported_tensorflow():
    kernels.neural_tangents()
    assert "tensorflow" not in sys.modules
