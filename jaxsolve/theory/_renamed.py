"""Old names of this room, which work for one more version."""

import warnings
from typing import Any

from ._single_neuron import SingleNeuronFlow


RENAMED = {"SingleNeuron": SingleNeuronFlow}  # it shared its name with the network `nets.SingleNeuron`


def __getattr__(name: str) -> Any:
    if name not in RENAMED:
        raise AttributeError(f"module 'jaxsolve.theory' has no attribute {name!r}")
    new = RENAMED[name]
    message = f"theory.{name} is now theory.{new.__name__}; the old name goes with the next version"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return new
