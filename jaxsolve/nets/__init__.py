"""Networks with explicit hyperparameters: scalings, initializations, activations."""

from ._activations import (
    Activation as Activation,
    erf as erf,
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
    from_nnx_with_state as from_nnx_with_state,
    from_stax as from_stax,
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
from ._layers import Apply as Apply, Layers as Layers, Residual as Residual
from ._lenet import LeNet as LeNet
from ._linear import DeepLinear as DeepLinear, SingleNeuron as SingleNeuron, TwoLayerLinear as TwoLayerLinear
from ._linear_attention import LinearAttention as LinearAttention
from ._mixed_precision import MixedPrecision as MixedPrecision
from ._mlp import MLP as MLP
from ._network import AbstractNetwork as AbstractNetwork, Conserved as Conserved, partition as partition, rates as rates
from ._neurons import Neurons as Neurons
from ._normalization import BatchNorm as BatchNorm, GroupNorm as GroupNorm, NoNormalization as NoNormalization
from ._padded import Padded as Padded
from ._resnet import ResNet18 as ResNet18, WideResNet as WideResNet
from ._scaling import Optimizers as Optimizers, Scaling as Scaling, ScalingRule as ScalingRule
from ._taylor import taylor_expand as taylor_expand
from ._torch import (
    from_torch as from_torch,
    from_torch_with_state as from_torch_with_state,
    torch_params as torch_params,
)
from ._transformer import Transformer as Transformer
