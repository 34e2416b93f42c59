"""Conditions that stop a run before its last time."""

from ._conditions import AbstractCondition as AbstractCondition
from ._conditions import loss_below as loss_below
from ._conditions import loss_fraction as loss_fraction
