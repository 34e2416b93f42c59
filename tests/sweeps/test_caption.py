"""What a dataset says of its dynamics."""

from typing import Any

import diffrax
import jax.numpy as jnp
import jax.random as jr
import optax
import pytest

from jaxsolve import Descent, FrozenKernel, GradientFlow, MomentumFlow, StochasticFlow, theory, until
from jaxsolve.integrators import FunctionSpace, RungeKuttaChebyshev
from tests import cases
from tests.sweeps.inside import caption, resolve


HELD = "rtol=1e-06, atol=1e-09" if cases.X64 else "rtol=0.0001, atol=1e-07"
STABILISED = "rtol=1e-05, atol=1e-07" if cases.X64 else "rtol=0.0001, atol=1e-06"
BATCHES = Descent(optax.sgd(0.1), batch_size=2, key=jr.key(0), until=until.loss_below(1e-3))


@pytest.mark.parametrize(
    ("dynamics", "said"),
    [
        (theory.TwoLayerLine(), "TwoLayerLine"),
        (GradientFlow(), f"GradientFlow(integrator=Tsit5, {HELD})"),
        (
            GradientFlow(diffrax.Dopri5(), rtol=1e-3),
            f"GradientFlow(integrator=Dopri5, rtol=0.001, {HELD.split(', ')[1]})",
        ),
        (GradientFlow(FunctionSpace()), "GradientFlow(integrator=FunctionSpace, rtol=0.0001)"),
        (
            GradientFlow(RungeKuttaChebyshev(), max_steps=7, land_on_ts=True),
            f"GradientFlow(integrator=RungeKuttaChebyshev, {STABILISED}, max_steps=7, land_on_ts=True)",
        ),
        (MomentumFlow(tau=2.0), f"MomentumFlow(tau=2, integrator=Tsit5, {HELD})"),
        (BATCHES, "Descent(optimizer=sgd, rate=0.1, batch_size=2, until=LossBelow(threshold=0.001))"),
        (StochasticFlow(0.5, key=jr.key(0), change=(0.0, 0.1)), "StochasticFlow(temperature=0.5, change=(0, 0.1))"),
        (FrozenKernel(), "FrozenKernel"),
        (FrozenKernel(flow=GradientFlow(rtol=1e-8)), "FrozenKernel(flow=GradientFlow(rtol=1e-08))"),
    ],
)
def test_a_dynamics_in_a_line(dynamics: Any, said: str):
    problem = cases.modes(jnp.ones(2), jnp.array([1.0, 2.0]))
    assert caption(dynamics, resolve(dynamics, problem), problem) == said


def test_what_the_problem_chooses_is_said():
    """The same dynamics is another one where there are more outputs."""
    many = cases.modes(jnp.ones(20), jnp.ones(20))
    assert (
        caption(GradientFlow(), resolve(GradientFlow(), many), many)
        == "GradientFlow(integrator=ParameterSpace, rtol=0.0001)"
    )
