"""Infinitely wide networks that learn features: dynamical mean-field theory (Bordelon & Pehlevan, 2022)."""

from ._alignment import two_layer_alignment as two_layer_alignment
from ._basis import Basis as Basis, basis as basis
from ._network import (
    Fields as Fields,
    LEVELS as LEVELS,
    Network as Network,
    outputs_at as outputs_at,
    propagate as propagate,
    tangent_kernel as tangent_kernel,
)
from ._normal_form import initial_kernel as initial_kernel, normal_form as normal_form, NormalForm as NormalForm
from ._pass import (
    descent_nodes as descent_nodes,
    flow_nodes as flow_nodes,
    moved as moved,
    Nodes as Nodes,
    Pass as Pass,
    start as start,
    step as step,
    TrainingLaw as TrainingLaw,
)
from ._sampled import GROUPS as GROUPS, sampled as sampled, sampling_error as sampling_error
from ._starts import linear_network as linear_network, sampled_network as sampled_network
