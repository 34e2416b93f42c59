"""Networks with explicit hyperparameters: scalings, initializations, activations."""

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
from ._convnet import ConvNet as ConvNet
from ._dense import AbstractDense as AbstractDense
from ._function import (
    from_haiku as from_haiku,
    from_linen as from_linen,
    from_nnx as from_nnx,
    Function as Function,
)
from ._init import (
    AbstractInit as AbstractInit,
    Gaussian as Gaussian,
    Given as Given,
    Mirrored as Mirrored,
    NearParallel as NearParallel,
    Shapes as Shapes,
    Sphere as Sphere,
    Start as Start,
)
from ._lambda_balanced import LambdaBalanced as LambdaBalanced
from ._laws import LayerShape as LayerShape, Prescription as Prescription
from ._layered import AbstractLayered as AbstractLayered
from ._layers import (
    AbstractLayer as AbstractLayer,
    Apply as Apply,
    AveragePool as AveragePool,
    Bias as Bias,
    Conv as Conv,
    Dense as Dense,
    Flatten as Flatten,
    Gain as Gain,
    Layers as Layers,
    Residual as Residual,
    run as run,
    SpatialMean as SpatialMean,
    StandardizeBatch as StandardizeBatch,
    StandardizeGroups as StandardizeGroups,
)
from ._lenet import LeNet as LeNet
from ._linear import DeepLinear as DeepLinear, SingleNeuron as SingleNeuron, TwoLayerLinear as TwoLayerLinear
from ._mlp import MLP as MLP
from ._network import AbstractNetwork as AbstractNetwork, Conserved as Conserved, partition as partition, rates as rates
from ._normalization import (
    AbstractNormalization as AbstractNormalization,
    BatchNorm as BatchNorm,
    GroupNorm as GroupNorm,
    NoNormalization as NoNormalization,
)
from ._padded import Padded as Padded
from ._resnet import ResNet18 as ResNet18, WideResNet as WideResNet
from ._scaling import Optimizers as Optimizers, Scaling as Scaling, ScalingRule as ScalingRule
from ._transformer import Transformer as Transformer
