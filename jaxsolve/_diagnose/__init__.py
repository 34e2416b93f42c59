"""Diagnosis of any network: kernel regime or feature learning, and the checks of its scaling with width."""

from ._coordinates import coordinate_check as coordinate_check, CoordinateCheck as CoordinateCheck
from ._diagnose import diagnose as diagnose, diagnose_checkpoints as diagnose_checkpoints
from ._diagnosis import Diagnosis as Diagnosis, Finding as Finding
from ._transfer import transfer_check as transfer_check, TransferCheck as TransferCheck
