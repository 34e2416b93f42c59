"""Names of the last version: each works, and says what it is called now."""

import importlib
import warnings

import pytest

import jaxsolve


RENAMED = {
    "kernels.plain": "kernels.unit_rates",
    "nets.Balanced": "nets.LambdaBalanced",
    "nets.BatchNormalise": "nets.StandardiseBatch",
    "nets.GroupNormalise": "nets.StandardiseGroups",
    "nets.Optimizers": "nets.Optimisers",
    "observe.KERNEL_CHANGE": "observe.KERNEL_REGIME_LIMIT",
    "sweeps.Config": "configs.Config",
    "sweeps.ConfigError": "configs.ConfigError",
    "sweeps.read_config": "configs.read_config",
    "sweeps.write": "sweeps.save",
    "theory.SingleNeuron": "theory.SingleNeuronFlow",
}


def _get(path):
    room, _, name = path.partition(".")
    return getattr(importlib.import_module(f"jaxsolve.{room}"), name)


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_works_and_says_the_new_one(old):
    with pytest.warns(DeprecationWarning, match=f"{old} is now {RENAMED[old]}; the old name goes with the next"):
        found = _get(old)
    assert found is _get(RENAMED[old])
    room, _, name = old.partition(".")
    assert name not in dir(getattr(jaxsolve, room))


@pytest.mark.parametrize("room", ["nets", "theory", "sweeps"])
def test_an_unknown_name_is_no_old_one(room):
    with warnings.catch_warnings(), pytest.raises(AttributeError, match=f"'jaxsolve.{room}' has no attribute 'Wrong'"):
        _get(f"{room}.Wrong")
