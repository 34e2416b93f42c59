"""Diagnosis of any network: kernel regime or feature learning, and the checks of its scaling with width."""

from ._diagnose import diagnose as diagnose, diagnose_checkpoints as diagnose_checkpoints
from ._diagnosis import Diagnosis as Diagnosis, Finding as Finding
