"""Networks with explicit hyperparameters: scalings, initialisations, activations."""

from ._activations import (
    Activation as Activation,
    erf as erf,
    find_activation as find_activation,
    gelu as gelu,
    leaky_relu as leaky_relu,
    linear as linear,
    relu as relu,
    sigmoid as sigmoid,
    softplus as softplus,
    swish as swish,
    tanh as tanh,
)
from ._dense import AbstractDense as AbstractDense
from ._init import (
    AbstractInit as AbstractInit,
    Balanced as Balanced,
    Gaussian as Gaussian,
    Given as Given,
    Mirrored as Mirrored,
    NearParallel as NearParallel,
    Shapes as Shapes,
    Sphere as Sphere,
    Start as Start,
)
from ._laws import LayerShape as LayerShape, Prescription as Prescription
from ._linear import DeepLinear as DeepLinear, SingleNeuron as SingleNeuron, TwoLayerLinear as TwoLayerLinear
from ._mlp import MLP as MLP
from ._network import AbstractNetwork as AbstractNetwork, Conserved as Conserved, partition as partition, rates as rates
from ._scaling import Optimizers as Optimizers, Scaling as Scaling, ScalingRule as ScalingRule
