"""Infinitely wide networks that learn features: dynamical mean-field theory (Bordelon & Pehlevan, 2022)."""

from ._basis import Basis as Basis, basis as basis
from ._linear import basis_kernel as basis_kernel, LinearPass as LinearPass, start as start, step as step
from ._nodes import descent_nodes as descent_nodes, flow_nodes as flow_nodes, Nodes as Nodes
from ._normal_form import initial_kernel as initial_kernel, normal_form as normal_form, NormalForm as NormalForm
from ._sampled import GROUPS as GROUPS, sampled as sampled, sampling_error as sampling_error
