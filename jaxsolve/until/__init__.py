"""Conditions that stop a run before its last time."""

from ._conditions import (
    AbstractCondition as AbstractCondition,
    loss_below as loss_below,
    loss_fraction as loss_fraction,
    margin_above as margin_above,
)
