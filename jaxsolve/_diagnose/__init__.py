"""Diagnosis of any network: kernel regime or feature learning, and the checks of its scaling with width."""

from ._coordinates import coordinate_check as coordinate_check
from ._diagnose import diagnose as diagnose, diagnose_checkpoints as diagnose_checkpoints
from ._monitor import Monitor as Monitor
from ._optimal_rate import optimal_rate as optimal_rate
from ._transfer import transfer_check as transfer_check
