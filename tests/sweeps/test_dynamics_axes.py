"""Dynamics that depend on axes: each lane moves by its own, and several stand side by side."""

import functools
from typing import Any

import jax.random as jr
import numpy as np
import optax
import pytest

from jaxsolve import Descent, FrozenKernel, GradientFlow, observe, plan, solve, StochasticFlow, sweep, until
from tests import cases
from tests.cases import assert_fails
from tests.sweeps.inside import _execute, Lockstep, Looped


QUIET = functools.partial(sweep, progress=False)
RATES = [0.05, 0.1, 0.2]
TS = [0.0, 0.5, 1.0]
OBSERVED = (observe.loss(), observe.outputs())


def _modes(scale: Any = 1.0):
    return cases.modes(scale * np.ones(2), np.array([1.0, 3.0]))


def _descent(rate: Any) -> Descent:
    return Descent(optax.sgd(rate))


@pytest.mark.parametrize("kind", [Looped, Lockstep], ids=["looped", "stepped"])
def test_each_lane_moves_by_its_own_rate(kind, monkeypatch):
    monkeypatch.setattr(_execute, "_kind", lambda *args: kind)
    found = QUIET(_modes, {"scale": [0.5, 1.0], "rate": RATES}, _descent, TS, observe=OBSERVED)
    assert found["loss"].dims == ("scale", "rate", "t")
    for rate in RATES:
        close = lambda scale, rate=rate: np.testing.assert_allclose(
            found["outputs"].sel(scale=0.5, rate=rate),
            solve(_modes(scale), _descent(rate), TS, observe=OBSERVED)["outputs"],
            rtol=cases.eps(1e3),
        )
        close(0.5)
        assert_fails(lambda close=close: close(1.0))
    # Without the rate all lanes would be alike.
    assert_fails(lambda: np.testing.assert_allclose(found["loss"][:, 0], found["loss"][:, 1], rtol=1e-3))
    assert found["steps"].values.tolist() == [[20, 10, 5]] * 2


def test_several_side_by_side_are_sweeps_of_their_own():
    several = {"flow": GradientFlow(), "descent": _descent(0.1), "lazy": FrozenKernel()}
    axes = {"scale": [0.5, 1.0]}
    found = QUIET(_modes, axes | {"dynamics": list(several)}, lambda dynamics: several[dynamics], TS, observe=OBSERVED)
    for name, dynamics in several.items():
        alone = QUIET(_modes, axes, dynamics, TS, observe=OBSERVED)
        for variable in ("loss", "outputs", "steps", "result"):
            lanes = found[variable].sel(dynamics=name).values
            assert lanes.tobytes() == alone[variable].values.tobytes(), (name, variable)
    assert np.isfinite(found["trust"].sel(dynamics="flow")).all()
    assert np.isnan(found["trust"].sel(dynamics="descent")).all()


def test_a_closed_form_and_a_condition_depend_on_axes():
    threshold = lambda threshold: GradientFlow(until=until.loss_below(threshold))
    found = QUIET(_modes, {"threshold": [0.1, 0.2]}, threshold, [0.0, 100.0])
    assert found["t_end"][0] > found["t_end"][1]
    np.testing.assert_allclose(found["loss"][:, -1], [0.1, 0.2], rtol=1e-4)


def test_every_lane_of_a_temperature_draws_numbers_of_its_own():
    make = lambda temperature: StochasticFlow(temperature, key=jr.key(0))
    found = QUIET(_modes, {"temperature": [0.1, 0.1001], "scale": [1.0]}, make, TS, observe=OBSERVED)["outputs"]
    assert abs(found[0] - found[1]).max() > 1e-3
    cold = QUIET(_modes, {"temperature": [1e-12, 2e-12]}, make, TS, observe=OBSERVED)["outputs"]
    flow = solve(_modes(), GradientFlow(rtol=1e-8, atol=1e-10), TS, observe=OBSERVED)["outputs"]
    np.testing.assert_allclose(cold[0], flow, atol=1e-2)


def test_a_store_is_carried_on_and_another_function_refused(tmp_path, monkeypatch):
    arguments, ran, run_group = (_modes, {"rate": RATES}, _descent, TS), [], _execute.run_group
    monkeypatch.setattr(_execute, "run_group", lambda *args: ran.append(args) or run_group(*args))
    whole = QUIET(*arguments, store=tmp_path / "run.zarr")
    assert len(ran) == 1
    for lost in (False, True):
        if lost:
            next(path for path in (tmp_path / "run.zarr" / "result" / "c").rglob("*") if path.is_file()).unlink()
        again = QUIET(*arguments, store=tmp_path / "run.zarr")
        assert len(ran) == 1 + lost  # what is there does not run again
        assert whole["loss"].values.tobytes() == again["loss"].values.tobytes()
    with pytest.raises(ValueError, match="another plan"):
        QUIET(*arguments[:2], lambda rate: Descent(optax.adam(rate)), TS, store=tmp_path / "run.zarr")


def test_a_plan_says_which_axes_the_dynamics_depends_on():
    made = plan(_modes, {"scale": [0.5, 1.0], "rate": RATES}, _descent, TS)
    assert "dynamics of rate at 3 times" in made.describe()
    assert len(made.groups) == 1


@pytest.mark.parametrize(
    ("dynamics", "axes", "message"),
    [
        (GradientFlow, {"scale": [1.0]}, "dynamics must be such as GradientFlow.., or a function of axes"),
        (
            lambda rate: 3,
            {"rate": RATES},
            "function given as dynamics must return one such as .*, got int 3",
        ),
        (lambda rate: GradientFlow(), {"rho": [1.0], "rate": RATES}, r"problem_fn is called with the axes \['rho'\]"),
        (lambda rate: GradientFlow(), {"scale": [1.0]}, r"with \[\] of the axes \['scale'\], but takes \(rate\)"),
        (
            lambda rate: GradientFlow(rtol=float(rate)),
            {"rate": RATES},
            "function given as dynamics. needs the concrete value",
        ),
    ],
    ids=["class", "number", "nobody's axis", "no such axis", "needs a number"],
)
def test_what_is_no_function_of_axes_is_refused(dynamics, axes, message):
    with pytest.raises(TypeError, match=message):
        QUIET(_modes, axes, dynamics, TS)


def test_what_one_of_several_cannot_show_is_refused():
    several = {"flow": GradientFlow(), "lazy": FrozenKernel()}
    with pytest.raises(ValueError, match="FrozenKernel provides only"):
        QUIET(
            _modes, {"dynamics": list(several)}, lambda dynamics: several[dynamics], TS, observe=observe.weight_change()
        )
