"""Lists of transforms and optimizers, rates that change, networks with state, and kernels that a run has learnt."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from jaxsolve import data, nets
from jaxsolve.configs import ConfigError
from tests import cases
from tests.inside import parse_config


NETWORK = {"type": "MLP", "in_size": 3, "width_size": 4, "depth": 1, "out_size": 1, "scaling": "ntk", "key": "=seed"}
DATA = {"type": "gaussian", "n_train": 8, "in_size": 3, "key": 7}


def _table(**parts):
    problem = {"network": NETWORK, "data": DATA} | parts.pop("problem", {})
    return {"times": [0, 1], "axes": {"seed": [3]}, "dynamics": "GradientFlow", "problem": problem} | parts


def _problem(samples: data.Dataset) -> js.Problem:
    net = nets.MLP(
        in_size=3, out_size=1, width_size=4, depth=1, activation="relu", scaling=nets.Scaling.ntk(), key=jr.key(3)
    )
    return js.Problem(net, *samples.train)


def _equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def test_transforms_are_made_in_their_order():
    samples = data.gaussian(8, 3, key=jr.key(7))
    network = NETWORK | {"activation": "relu"}
    parts = {"network": network, "transform": [{"type": "pca", "k": 3}, {"type": "partial_whiten", "power": "=power"}]}
    config = parse_config(_table(problem=parts, axes={"seed": [3], "power": [0.25, 0.5]}))
    first, second = data.pca(3), data.partial_whiten(0.5)
    found = config.problem_fn(seed=3, power=0.5)
    assert _equal(found, _problem(samples.transform(first).transform(second)))
    assert not _equal(found, _problem(samples.transform(second).transform(first)))
    one = parse_config(_table(problem={"network": network, "transform": "standardize"}))
    assert _equal(one.problem_fn(seed=3), _problem(samples.transform(data.standardize())))


def test_a_list_of_optimizers_is_a_chain():
    rate = {"type": "cosine_decay_schedule", "init_value": 0.1, "decay_steps": 40}
    decay = {"type": "add_decayed_weights", "weight_decay": 0.5}
    chain = {"type": "Descent", "optimizer": [decay, {"type": "sgd", "learning_rate": rate}], "rate": rate}
    config = parse_config(_table(dynamics=chain))
    problem = config.problem_fn(seed=3)
    schedule = optax.cosine_decay_schedule(0.1, 40)
    end = lambda dynamics: js.solve(problem, dynamics, [0.0, 1.0])["loss"][-1]
    expected = end(js.Descent(optax.chain(optax.add_decayed_weights(0.5), optax.sgd(schedule)), rate=schedule))
    np.testing.assert_allclose(end(config.dynamics), expected, rtol=cases.eps(10))
    for other in (optax.sgd(schedule), optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.1))):
        assert abs(end(js.Descent(other, rate=schedule)) / expected - 1) > 1e-3


def test_a_schedule_may_take_millions_of_steps():
    """Nothing of that size is made."""
    warm = {"type": "warmup_cosine_decay_schedule", "init_value": 0.0, "peak_value": 0.1}
    warm |= {"warmup_steps": 1000, "decay_steps": 100_000}
    line = {"type": "linear_schedule", "init_value": 0.1, "end_value": 0.0, "transition_steps": 4_000_000}
    for rate in (warm, line | {"transition_begin": 2_000_000}):
        descent = {"type": "Descent", "optimizer": {"type": "sgd", "learning_rate": rate}, "rate": rate}
        assert isinstance(parse_config(_table(dynamics=descent)).dynamics, js.Descent)


def test_batch_normalization_has_its_state():
    image = np.random.default_rng(0).normal(size=(3, 1, 8, 8)).tolist()
    images = {"type": "Dataset", "x": image, "y": np.eye(3).tolist()}
    network = {"type": "ResNet18", "in_shape": [1, 8, 8], "out_size": 3, "width_size": 2, "normalization": "BatchNorm"}
    parts = {"network": network | {"scaling": "kaiming", "key": "=seed"}, "data": images, "loss": "CrossEntropy"}
    problem = parse_config(_table(problem=parts)).problem_fn(seed=3)
    assert problem.state is not None
    assert problem.outputs(problem.params).shape == (3, 3)


def test_the_kernel_that_a_run_has_learnt():
    run_end = {"type": "RunEnd", "dynamics": {"type": "GradientFlow", "rtol": 1e-4}, "t": 2.0}
    config = parse_config(_table(dynamics={"type": "FrozenKernel", "at": run_end}))
    problem = config.problem_fn(seed=3)
    at = js.dynamics.RunEnd(js.GradientFlow(rtol=1e-4), 2.0)
    kernel = lambda dynamics: js.solve(problem, dynamics, 1.0, observe=js.observe.kernel())["kernel"]
    np.testing.assert_array_equal(kernel(config.dynamics), kernel(js.FrozenKernel(at)))
    assert jnp.max(jnp.abs(kernel(js.FrozenKernel()) - kernel(config.dynamics))) > 1e-3


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"problem": {"transform": ["whitten"]}}, r"transform\[0\]: 'whitten' is not a known transform; .*'whiten'"),
        (
            {"dynamics": {"type": "Descent", "optimizer": ["sgd"]}},
            r"optimizer\[0\]: sgd also needs learning_rate",
        ),
        (
            {"dynamics": {"type": "Descent", "optimizer": [{"type": "chain"}]}},
            r"optimizer\[0\]: 'chain' is not a known optimizer",
        ),
        (
            {"dynamics": {"type": "Descent", "optimizer": {"type": "sgd", "learning_rate": {"type": "cosine"}}}},
            "learning_rate: 'cosine' is not a known schedule of optax",
        ),
        ({"dynamics": {"type": "FrozenKernel", "at": "MLP"}}, "at: 'MLP' is not a known network; .* RunEnd"),
        (
            {"dynamics": {"type": "FrozenKernel", "at": {"type": "RunEnd", "dynamics": "GradientFlow"}}},
            "at: t is inf, which GradientFlow reaches only with a condition",
        ),
    ],
)
def test_what_is_refused(parts, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(_table(**parts))


def test_a_dynamics_depends_on_axes():
    dynamics = {"type": "Descent", "optimizer": {"type": "sgd", "learning_rate": "=rate / 2"}}
    network = {"network": NETWORK | {"key": 3}}
    config = parse_config(_table(dynamics=dynamics, axes={"rate": [0.1, 0.2]}, problem=network))
    found = js.sweep(config.problem_fn, config.axes, config.dynamics, config.ts, progress=False)
    for rate in (0.1, 0.2):
        alone = lambda rate: js.solve(config.problem_fn(), js.Descent(optax.sgd(rate)), [0.0, 1.0])["loss"]
        np.testing.assert_allclose(found["loss"].sel(rate=rate), alone(rate / 2), rtol=cases.eps(1e3))
        assert abs(alone(rate)[-1] / alone(rate / 2)[-1] - 1) > 1e-4


def test_several_dynamics_stand_side_by_side():
    sgd = {"type": "Descent", "optimizer": {"type": "sgd", "learning_rate": "=rate"}}
    several = ["FrozenKernel", sgd | {"name": "steps"}]
    config = parse_config(_table(dynamics=several, axes={"seed": [3], "rate": [0.1, 0.2]}))
    found = js.sweep(config.problem_fn, config.axes, config.dynamics, config.ts, progress=False)
    assert found["dynamics"].values.tolist() == ["FrozenKernel", "steps"]
    problem = config.problem_fn(seed=3)
    for rate in (0.1, 0.2):
        lane = found["loss"].sel(seed=3, rate=rate)
        for name, dynamics in {"FrozenKernel": js.FrozenKernel(), "steps": js.Descent(optax.sgd(rate))}.items():
            alone = js.solve(problem, dynamics, [0.0, 1.0])["loss"]
            np.testing.assert_allclose(lane.sel(dynamics=name), alone, rtol=cases.eps(1e3))
