"""Public objects travel: through pickle, copies, other processes, and checkpoints."""

import copy
import dataclasses
import enum
import importlib
import inspect
import math
import multiprocessing
import pickle
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray

import jaxsolve as js
from tests.processes import ROOT


ROOMS = "configs data dynamics integrators kernels losses nets observe papers plot report sweeps theory until".split()
KEY = jax.random.key(0)
X = jnp.sin(jnp.arange(12.0)).reshape(6, 2)
Y = jnp.sign(X[:, :1])
TS = [0.0, 0.5, 1.0]
NTK = js.nets.Scaling.ntk()
COMMON: dict[str, Any] = {"scaling": NTK, "key": KEY}
IMAGE: dict[str, Any] = {"in_shape": (1, 16, 16), "out_size": 2, **COMMON}


def _mlp(activation: Any = "tanh", **options: Any) -> js.nets.MLP:
    return js.nets.MLP(
        **{"in_size": 2, "out_size": 1, "width_size": 4, "depth": 1, "activation": activation, **COMMON, **options}
    )


def _line() -> js.Problem:
    net = js.nets.TwoLayerLinear(in_size=2, width_size=4, **COMMON)
    return js.Problem(net, *js.data.line(6, 2, key=KEY).train, centered=True)


def _problem(net: Any = None, **options: Any) -> js.Problem:
    return js.Problem(_mlp() if net is None else net, X, Y, **options)


def _solved(dynamics: Any = None, problem: Any = None, **options: Any) -> js.Trajectory:
    dynamics = js.GradientFlow() if dynamics is None else dynamics
    return js.solve(_problem() if problem is None else problem, dynamics, TS, **options)


def _affine(params, x):
    return params @ x


def _product(theta, direction, x):
    return (theta[0] * theta[1] * (direction @ x))[None]


def _squared(f, y):
    return (f - y) ** 2


def _law(shape):
    return js.nets.Prescription(1.0, 1 / math.sqrt(shape.fan_in), 1.0)


def _state(dynamics: Any, problem: js.Problem) -> Any:
    return dynamics.init(problem, jnp.asarray(TS))


# One of every public class, by the name that users know it by. Dynamics, networks and diagnoses in several ways.
INSTANCES: dict[str, Callable[[], Any]] = {
    "Assumption": lambda: _line_validity().assumptions[0],
    "Certificate": lambda: _solved().certificate,
    "March": lambda: js.GradientFlow().finish(_problem(), _state(js.GradientFlow(), _problem())),
    "Monitor": lambda: js.Monitor(_problem()),
    "NotApplicable": lambda: js.NotApplicable("why"),
    "Problem": _problem,
    "Quantity": lambda: js.Quantity.PARAMS,
    "RESULTS": lambda: js.RESULTS.successful,
    "SolveError": lambda: js.SolveError("why"),
    "Trajectory": lambda: _solved(observe=[js.observe.loss(), js.observe.kernel(), js.observe.weight_norms()]),
    "Validity": lambda: _line_validity(),
    "View": lambda: js.View(_problem(), jnp.asarray(0.0), _problem().params),
    "Zip": lambda: js.Zip(a=[1.0, 2.0], b=["tanh", "relu"]),
    # Dynamics
    "CentralFlow": lambda: js.CentralFlow(optax.rmsprop(0.01)),
    "Descent": lambda: js.Descent(optax.adam(1e-2)),
    "EdgeFlow": lambda: js.EdgeFlow(rate=0.1),
    "FrozenKernel": js.FrozenKernel,
    "GradientFlow": lambda: js.GradientFlow(js.integrators.FunctionSpace(), until=js.until.loss_below(0.1)),
    "InfiniteWidth": js.InfiniteWidth,
    "MomentumFlow": lambda: js.MomentumFlow(tau=0.5),
    "AlternatingFlow": js.AlternatingFlow,
    "MuonFlow": lambda: js.MuonFlow(eps=1e-3),
    "RichLimit": lambda: js.RichLimit(),
    "RodFlow": lambda: js.RodFlow(rate=0.1),
    "SoftCommittee": lambda: js.SoftCommittee(0.5),
    "StochasticFlow": lambda: js.StochasticFlow(0.1, key=KEY),
    "dynamics.OrderParameters": lambda: js.dynamics.OrderParameters.of(
        X[:2], jnp.ones(2), teacher=X[2:3], teacher_readout=jnp.ones(1)
    ),
    "dynamics.Drops": lambda: js.dynamics.Drops(jnp.ones(1), jnp.ones(2), jnp.zeros(1, int), jnp.ones((2, 1))),
    "dynamics.RunEnd": lambda: js.dynamics.RunEnd(js.GradientFlow(), 1.0),
    "dynamics.WidthLimit": lambda: js.limits(_problem()).kind,
    # Parts of them
    "integrators.DisplacementController": js.integrators.DisplacementController,
    "integrators.FunctionSpace": js.integrators.FunctionSpace,
    "integrators.InertialFunctionSpace": lambda: js.integrators.InertialFunctionSpace(_problem(), 0.5),
    "integrators.ParameterSpace": js.integrators.ParameterSpace,
    "integrators.RungeKuttaChebyshev": js.integrators.RungeKuttaChebyshev,
    "losses.CrossEntropy": js.losses.CrossEntropy,
    "losses.Hinge": js.losses.Hinge,
    "losses.Logistic": js.losses.Logistic,
    "losses.MSE": js.losses.MSE,
    "losses.QuadraticHinge": js.losses.QuadraticHinge,
    "losses.SoftHinge": js.losses.SoftHinge,
    "observe.Observable": lambda: js.observe.stability(optax.adam(1e-2), count=2),
    "observe.Regime": lambda: js.observe.Regime.KERNEL,
    "kernels.GaussNewtonOperator": lambda: js.kernels.GaussNewtonOperator(_mlp(), X, jnp.ones((6, 1, 1))),
    "kernels.HessianOperator": lambda: js.kernels.HessianOperator(_mlp(), X, Y, jnp.ones((6, 1, 1))),
    "kernels.NTKOperator": lambda: js.kernels.NTKOperator(_mlp(), X),
    "kernels.NeuralTangentsUnavailable": lambda: js.kernels.NeuralTangentsUnavailable("why"),
    "kernels.Projected": lambda: js.kernels.Projected(_mlp(), 2, key=KEY),
    # Networks
    "nets.Activation": lambda: js.nets.softplus(5.0),
    "nets.BatchNorm": js.nets.BatchNorm,
    "nets.Conserved": lambda: js.nets.Conserved(jnp.ones((2, 2)), jnp.eye(2)),
    "nets.ConvNet": lambda: js.nets.ConvNet(width_size=2, **IMAGE),
    "nets.DeepLinear": lambda: js.nets.DeepLinear(in_size=2, width_size=3, depth=2, **COMMON),
    "nets.Function": lambda: js.nets.Function(_affine, jnp.ones((1, 2))),
    "nets.Gaussian": js.nets.Gaussian,
    "nets.Given": lambda: js.nets.Given([jnp.ones((4, 2)), jnp.ones((1, 4))]),
    "nets.GroupNorm": lambda: js.nets.GroupNorm(2),
    "nets.LambdaBalanced": lambda: js.nets.LambdaBalanced(0.5),
    "nets.LayerShape": lambda: js.nets.LayerShape(2, 4, 0, 2, 4, 1.0, None),
    "nets.LeNet": lambda: js.nets.LeNet(**{**IMAGE, "in_shape": (1, 28, 28)}),
    "nets.LinearAttention": lambda: js.nets.LinearAttention(in_shape=(3, 3), heads=2, rank=1, **COMMON),
    "nets.MLP": lambda: _mlp(bias=True),
    "nets.MixedPrecision": lambda: js.nets.MixedPrecision(eqx.nn.Linear(2, 1, key=KEY), jnp.bfloat16),
    "nets.Mirrored": js.nets.Mirrored,
    "nets.NearParallel": lambda: js.nets.NearParallel(0.1),
    "nets.Neurons": lambda: js.nets.Neurons(_product, jnp.ones((3, 2)), degree=2, constants=jnp.ones((3, 2))),
    "nets.NoNormalization": js.nets.NoNormalization,
    "nets.Optimizers": lambda: js.nets.Optimizers.ANY,
    "nets.Padded": lambda: js.nets.Padded(3, 8),
    "nets.Prescription": lambda: js.nets.Prescription(1.0, 1.0, 1.0),
    "nets.ResNet18": lambda: js.nets.ResNet18(width_size=2, normalization=js.nets.GroupNorm(2), **IMAGE),
    "nets.Scaling": lambda: js.nets.Scaling([1.0, 1.0], [0.5, 1.0], [1.0, 1.0]),
    "nets.ScalingRule": lambda: js.nets.ScalingRule(_law),
    "nets.Shapes": lambda: js.nets.Shapes(((4, 2), (1, 4)), True, jnp.dtype("float32")),
    "nets.SingleNeuron": lambda: js.nets.SingleNeuron(in_size=2, **COMMON),
    "nets.Sphere": js.nets.Sphere,
    "nets.Start": lambda: js.nets.Start((jnp.ones((4, 2)), jnp.ones((1, 4))), ()),
    "nets.Transformer": lambda: js.nets.Transformer(in_shape=(3, 2), out_size=2, width_size=4, **COMMON),
    "nets.TwoLayerLinear": lambda: js.nets.TwoLayerLinear(in_size=2, width_size=4, **COMMON),
    "nets.WideResNet": lambda: js.nets.WideResNet(k=1, b=1, normalization=js.nets.GroupNorm(2), **IMAGE),
    "nets.Apply": lambda: js.nets.Apply(js.nets.tanh),
    "nets.Residual": lambda: js.nets.Residual((js.nets.Apply(js.nets.relu),)),
    # Data, configs, pictures, papers
    "data.Affine": lambda: js.data.Affine(jnp.ones(2), jnp.eye(2)),
    "data.Dataset": lambda: js.data.line(6, 2, key=KEY),
    "data.Images": lambda: js.data.Images.MNIST,
    "configs.ConfigError": lambda: js.configs.ConfigError("why"),
    "plot.Boundary": lambda: js.plot.Boundary("b", jnp.ones(2), jnp.ones(3), jnp.ones((3, 2)), "-"),
    "papers.Scale": lambda: next(iter(js.papers.Scale)),
    "papers.Verdict": lambda: js.papers.Verdict.REPRODUCED,
    "sweeps.Hosts": js.sweeps.Hosts,
    # Theory
    "theory.Alignment": lambda: next(iter(js.theory.Alignment)),
    "theory.Balanced": js.theory.Balanced,
    "theory.BalancedModes": lambda: js.theory.BalancedModes(jnp.ones(2), jnp.eye(2), jnp.eye(2), jnp.ones(2)),
    "theory.DecoupledModes": js.theory.DecoupledModes,
    "theory.DeepBalanced": js.theory.DeepBalanced,
    "theory.MuonModes": js.theory.MuonModes,
    "theory.DeepPotential": lambda: js.theory.DeepPotential(jnp.ones(2), 3),
    "theory.Exponents": lambda: js.theory.Exponents(1, 1, 1, 1, 1, 1),
    "theory.HyperbolicEntropy": lambda: js.theory.HyperbolicEntropy(jnp.asarray(0.5)),
    "theory.Interpolants": lambda: js.theory.Interpolants(X[:1], Y[:1, 0]),
    "theory.PhaseOne": js.theory.PhaseOne,
    "theory.ReducedLine": lambda: js.theory.ReducedLine(*jnp.ones(6)),
    "theory.ReducedNeuron": lambda: js.theory.ReducedNeuron(jnp.ones(()), jnp.ones(2), jnp.ones(2), jnp.ones(())),
    "theory.Rescaling": lambda: next(iter(js.theory.Rescaling)),
    "theory.SilentAlignment": js.theory.SilentAlignment,
    "theory.SingleNeuronFlow": js.theory.SingleNeuronFlow,
    "theory.SingleNeuronPotential": lambda: js.theory.SingleNeuronPotential(jnp.ones(2), 0.5, 1.0),
    "theory.TwoLayerLine": js.theory.TwoLayerLine,
    "theory.UnbalancedRegime": lambda: next(iter(js.theory.UnbalancedRegime)),
}
MORE: dict[str, Callable[[], Any]] = {
    "Config": lambda: js.configs.read_config(ROOT / "jaxsolve" / "papers" / "configs" / "kunin_grid.toml"),
    "KROGSTAD": lambda: js.integrators.KROGSTAD,
    "Comparison": lambda: js.compare(_line(), [js.theory.TwoLayerLine(), js.GradientFlow()], TS),
    "Limits": lambda: js.limits(_problem()),
    "Pointwise": lambda: _problem(loss=_squared).loss,
    **{f"MLP {name}": lambda name=name: _mlp(name) for name in "linear relu erf sigmoid swish gelu softplus".split()},
    "MLP leaky_relu(0.2)": lambda: _mlp(js.nets.leaky_relu(0.2)),
    "MLP jnp.sin": lambda: _mlp(jnp.sin),
    "MLP jax.nn.elu": lambda: _mlp(jax.nn.elu),
    "Problem of cross entropy": lambda: js.Problem(
        _mlp(out_size=2), X, jnp.arange(6) % 2, loss=js.losses.CrossEntropy(), test=(X, jnp.arange(6) % 2)
    ),
    "Problem of an Equinox module": lambda: _problem(eqx.nn.Linear(2, 1, key=KEY)),
    "Descent of sgd": lambda: js.Descent(optax.sgd(jnp.asarray(0.1))),
    "Descent of a schedule": lambda: js.Descent(optax.adam(optax.cosine_decay_schedule(0.1, 20)), rate=0.1),
    "Descent by a schedule": lambda: js.Descent(
        optax.sgd(optax.cosine_decay_schedule(0.1, 20)), rate=optax.cosine_decay_schedule(0.1, 20)
    ),
    "Descent of a lambda": lambda: js.Descent(optax.sgd(lambda step: 0.1 / (1 + step)), rate=0.1),
    "Descent on mini-batches": lambda: js.Descent(optax.sgd(0.1), batch_size=3, key=KEY),
    "Trajectory of Descent": lambda: _solved(js.Descent(optax.sgd(0.1, momentum=0.9))),
    "Trajectory of a frozen kernel": lambda: _solved(js.FrozenKernel()),
    "Trajectory of a closed form": lambda: _solved(js.theory.TwoLayerLine(), _line()),
    "diagnose": lambda: js.diagnose(_mlp(), X, Y, steps=3, probes=2),
    "diagnose_checkpoints": lambda: js.diagnose_checkpoints([_mlp(), _mlp(key=jax.random.key(1))], X, Y, probes=2),
    "coordinate_check": lambda: js.coordinate_check(
        lambda width, key: _mlp(width_size=width, key=key), [4, 8], X, Y, steps=1, seeds=1
    ),
}
EVERYTHING = INSTANCES | MORE


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _line_validity() -> js.Validity:
    return js.theory.TwoLayerLine().check(_line())


def _public() -> dict[str, type]:
    """Every public class of which users have instances."""
    found: dict[type, str] = {}
    for room in ["", *ROOMS]:
        module = importlib.import_module(f"jaxsolve.{room}".rstrip("."))
        for name in (name for name in dir(module) if not name.startswith("_")):
            cls = getattr(module, name)
            own = inspect.isclass(cls) and cls.__module__.startswith("jaxsolve")
            if own and not inspect.isabstract(cls) and not name.startswith("Abstract"):
                found.setdefault(cls, f"{room}.{name}".lstrip("."))
    return {name: cls for cls, name in found.items()}


def test_every_public_class_is_tried():
    """A class that is new stands here too, or nobody knows whether it travels."""
    assert INSTANCES.keys() == _public().keys()
    for name, cls in _public().items():
        assert isinstance(INSTANCES[name](), cls), name


def _same(one: Any, other: Any) -> None:
    """Of one type, with the same numbers to the last bit, and functions of the same code."""
    assert type(one) is type(other)
    if isinstance(one, enum.Enum):
        assert one is other
    elif isinstance(one, jax.Array) and _is_key(one):
        _same(jax.random.key_data(one), jax.random.key_data(other))
    elif isinstance(one, jax.Array | np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    elif isinstance(one, xarray.Dataset | xarray.DataArray):
        assert one.identical(other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            _same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for each, its in zip(one, other, strict=True):
            _same(each, its)
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            if hasattr(one, field.name):
                _same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, BaseException):
        assert str(one) == str(other)
        assert one.args == other.args
    elif inspect.isfunction(one):
        assert one.__code__ == other.__code__
    elif isinstance(one, float) and math.isnan(one):
        assert math.isnan(other)
    elif hasattr(one, "__dict__") and vars(one) and not inspect.isclass(one) and not callable(one):
        _same(vars(one), vars(other))
    else:
        assert one is other or one == other or type(one).__eq__ is object.__eq__


@pytest.mark.parametrize("name", EVERYTHING)
def test_pickled_and_copied(name):
    thing = EVERYTHING[name]()
    _same(pickle.loads(pickle.dumps(thing)), thing)
    _same(copy.deepcopy(thing), thing)
    _same(copy.copy(thing), thing)


def test_a_network_that_was_pickled_is_the_same_network():
    """To its programs too: nothing is compiled again. This is what people run into first."""
    traced = []

    @eqx.filter_jit
    def outputs(net, x):
        traced.append(net)
        return jax.vmap(net)(x)

    net = _mlp("tanh")
    again = pickle.loads(pickle.dumps(net))
    assert (outputs(again, X) == outputs(net, X)).all()
    assert (outputs(copy.deepcopy(net), X) == outputs(net, X)).all()
    assert len(traced) == 1
    assert again.activation is net.activation


DYNAMICS = {
    "sgd": lambda: js.Descent(optax.sgd(0.1)),
    "adam": lambda: js.Descent(optax.adamw(0.01)),
    "batches": lambda: js.Descent(optax.sgd(0.1), batch_size=3, key=KEY),
    "lambda": lambda: js.Descent(optax.sgd(lambda step: 0.1 / (1 + step)), rate=0.1),
    "flow": lambda: js.GradientFlow(until=js.until.loss_fraction(0.9)),
    "frozen": js.FrozenKernel,
    "central": lambda: js.CentralFlow(rate=0.1),
}


@pytest.mark.parametrize("name", DYNAMICS)
def test_dynamics_that_were_pickled_run_as_before(name):
    dynamics, problem = pickle.loads(pickle.dumps((DYNAMICS[name](), _problem())))
    _same(js.solve(problem, dynamics, TS), js.solve(_problem(), DYNAMICS[name](), TS))


def test_an_optimizer_that_was_pickled_compiles_nothing_anew():
    descent = js.Descent(optax.adam(1e-2))
    again = pickle.loads(pickle.dumps(descent))
    assert jax.tree.structure(again) == jax.tree.structure(descent)
    assert hash(jax.tree.structure(again)) == hash(jax.tree.structure(descent))


def test_without_cloudpickle_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ModuleNotFoundError, match=r"pickling an optimizer needs cloudpickle, .* 'jaxsolve\[sweeps\]'"):
        pickle.dumps(js.Descent(optax.sgd(0.1)))
    copy.deepcopy(js.Descent(optax.sgd(0.1)))


# Other processes


def _solve(problem: js.Problem, dynamics: Any) -> js.Trajectory:
    return js.solve(problem, dynamics, TS)


PROBLEMS = [_problem, lambda: _problem(_mlp("relu"), centered=True)]


def _agree(found: list[Any], dynamics: Any) -> None:
    for trajectory, problem in zip(found, PROBLEMS, strict=True):
        _same(trajectory, js.solve(problem(), dynamics, TS))


@pytest.fixture
def _precision(monkeypatch):
    """Processes that a test starts have the precision of this one."""
    monkeypatch.setenv("JAX_ENABLE_X64", str(int(jax.config.jax_enable_x64)))


ELSEWHERE = pytest.mark.usefixtures("_precision")


@ELSEWHERE
def test_through_multiprocessing():
    dynamics = js.Descent(optax.adam(1e-2))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        _agree(pool.starmap(_solve, [(problem(), dynamics) for problem in PROBLEMS]), dynamics)


@ELSEWHERE
def test_through_joblib():
    import joblib

    dynamics = js.GradientFlow()
    jobs = [joblib.delayed(_solve)(problem(), dynamics) for problem in PROBLEMS]
    with joblib.parallel_config("loky", n_jobs=2):
        found: Any = joblib.Parallel()(jobs)
    _agree(found, dynamics)


@ELSEWHERE
def test_through_dask():
    import distributed

    dynamics = js.Descent(optax.sgd(0.1))
    options: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        futures: Any = client.map(_solve, [problem() for problem in PROBLEMS], dynamics=dynamics)
        found: Any = client.gather(futures)
        _agree(found, dynamics)


# Checkpoints


CHECKPOINTS = {
    "net": lambda: _mlp(bias=True),
    "trajectory": lambda: _solved(observe=[js.observe.loss(), js.observe.kernel()]),
    "descent": lambda: _solved(js.Descent(optax.adam(1e-2), batch_size=3, key=KEY)),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_of_equinox(name, tmp_path):
    thing = CHECKPOINTS[name]()
    eqx.tree_serialise_leaves(tmp_path / "run.eqx", thing)
    like = jax.tree.map(lambda leaf: jnp.zeros_like(leaf) if eqx.is_inexact_array(leaf) else leaf, thing)
    _same(eqx.tree_deserialise_leaves(tmp_path / "run.eqx", like), thing)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_of_orbax(name, tmp_path):
    import orbax.checkpoint

    arrays, rest = eqx.partition(CHECKPOINTS[name](), eqx.is_array)
    raw = jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, arrays)
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "run", jax.tree.leaves(raw))
        checkpointer.wait_until_finished()
        found = checkpointer.restore(tmp_path / "run", jax.tree.leaves(raw))
    back = jax.tree.unflatten(jax.tree.structure(raw), found)
    keys = jax.tree.map(lambda leaf, new: jax.random.wrap_key_data(new) if _is_key(leaf) else new, arrays, back)
    _same(eqx.combine(keys, rest), CHECKPOINTS[name]())
