"""Normalizations of image networks, each with a gain and a bias."""

import abc
from typing import Any

import equinox as eqx

from .._checks import require_number, require_size
from ._layers import AbstractLayer, StandardizeBatch, StandardizeGroups


class AbstractNormalization(eqx.Module):
    """A normalization before every activation, followed by a gain (1 at the start) and a bias (0) per channel.

    Gain and bias are trained. The layers without them are `StandardizeGroups` and `StandardizeBatch`.
    """

    @abc.abstractmethod
    def layer(self, index: int, channels: int) -> AbstractLayer | None:
        """The normalizing layer with index `index`, for an image of `channels` channels; None for no layer."""

    @abc.abstractmethod
    def normalizer(self, channels: int, dtype: Any) -> eqx.nn.BatchNorm | None:
        """The module that keeps the statistics of such a layer between samples; None if each sample has its own."""


class NoNormalization(AbstractNormalization):
    """Leaves signals unchanged, without gains: the default of residual networks.

    Example:
        >>> scaling = js.nets.Scaling.kaiming()
        >>> make = lambda key: js.nets.ResNet18(in_shape=(1, 8, 8), out_size=2, width_size=2, scaling=scaling, key=key)
        >>> jax.eval_shape(make, jax.random.key(0)).gains
        ()
    """

    def layer(self, index: int, channels: int) -> AbstractLayer | None:
        return None

    def normalizer(self, channels: int, dtype: Any) -> eqx.nn.BatchNorm | None:
        return None


class GroupNorm(AbstractNormalization):
    """Mean 0 and variance 1 over each of `groups` equal groups of channels of one sample (Wu & He, 2018).

    `groups=1` is layer normalization; one group per channel is instance normalization.

    Arguments:
        groups: must divide the number of channels of every normalized layer.
        eps: added to the variance, > 0.

    Example:
        >>> scaling, norm = js.nets.Scaling.kaiming(), js.nets.GroupNorm(2)
        >>> make = lambda key: js.nets.ResNet18(
        ...     in_shape=(1, 8, 8), out_size=2, width_size=2, normalization=norm, scaling=scaling, key=key
        ... )
        >>> len(jax.eval_shape(make, jax.random.key(0)).gains)
        20

    Raises:
        ValueError, TypeError: groups is not an integer >= 1, or eps is not positive.
    """

    groups: int = eqx.field(static=True)  # a shape
    eps: float = eqx.field(static=True)  # a property of the layer, as in Equinox

    def __init__(self, groups: int, *, eps: float = 1e-5):
        self.groups = require_size(groups, "groups")
        self.eps = _read_eps(eps)

    def layer(self, index: int, channels: int) -> AbstractLayer | None:
        """Raises ValueError if the groups would not be equal."""
        if channels % self.groups:
            raise ValueError(
                f"GroupNorm({self.groups}) cannot divide {channels} channels into equal groups; "
                "take a number of groups that divides all of the network's widths"
            )
        return StandardizeGroups(self.groups, self.eps)

    def normalizer(self, channels: int, dtype: Any) -> eqx.nn.BatchNorm | None:
        return None


class BatchNorm(AbstractNormalization):
    """Mean 0 and variance 1 of every channel over all samples and pixels of a batch (Ioffe & Szegedy, 2015).

    The network has a state, as in Equinox: `net, state = eqx.nn.make_with_state(nets.ResNet18)(...)`, called as
    `out, state = net(x, state)` under `jax.vmap(..., axis_name="batch")`. There are no running averages: the state
    holds the statistics of the last batch, and `eqx.nn.inference_mode(net)` uses those. `Problem(net, ...,
    state=state)` therefore has one meaning throughout a gradient flow: its outputs, on the training set and on any
    other inputs, use the statistics of the whole training set at the current parameters.

    Arguments:
        eps: added to the variance, > 0.

    Example:
        >>> import equinox as eqx
        >>> scaling, norm = js.nets.Scaling.kaiming(), js.nets.BatchNorm()
        >>> make = eqx.nn.make_with_state(js.nets.ResNet18)
        >>> made = {"normalization": norm, "scaling": scaling, "key": jax.random.key(0)}
        >>> net, state = make(in_shape=(1, 8, 8), out_size=2, width_size=1, **made)
        >>> len(net.normalizers)
        20

    Raises:
        ValueError: eps is not positive.
    """

    eps: float = eqx.field(static=True)  # a property of the layer, as in Equinox

    def __init__(self, *, eps: float = 1e-5):
        self.eps = _read_eps(eps)

    def layer(self, index: int, channels: int) -> AbstractLayer | None:
        return StandardizeBatch(index)

    def normalizer(self, channels: int, dtype: Any) -> eqx.nn.BatchNorm | None:
        # With momentum 0 the stored statistics are exactly those of the last batch.
        return eqx.nn.BatchNorm(
            channels, "batch", eps=self.eps, channelwise_affine=False, momentum=0.0, mode="batch", dtype=dtype
        )


def _read_eps(eps: Any) -> float:
    return require_number(eps, "eps", "finite and > 0")
