"""Names of the last version."""

import importlib

import pytest

from jaxsolve import nets


RENAMED = {
    "Balanced": "LambdaBalanced",
    "BatchNormalise": "StandardiseBatch",
    "GroupNormalise": "StandardiseGroups",
    "Optimizers": "Optimisers",
}


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_works_and_says_the_new_one(old):
    with pytest.warns(DeprecationWarning, match=f"nets.{old} is now nets.{RENAMED[old]};"):
        assert getattr(nets, old) is getattr(nets, RENAMED[old])
    assert old not in dir(nets)


def test_an_unknown_name_is_no_old_one():
    with pytest.raises(AttributeError, match="module 'jaxsolve.nets' has no attribute 'Unbalanced'"):
        importlib.import_module("jaxsolve.nets").Unbalanced  # noqa: B018
