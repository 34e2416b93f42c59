r"""The kernels of a network of infinite width, with the prefactors of its scaling at its actual width.

A layer maps the covariance $\Sigma$ of its inputs (per feature) and the kernel $\Theta$ of the layers below it. $m W$
gives $d m^2 \sigma^2 \Sigma$ and $d m^2 (\eta \Sigma + \sigma^2 \Theta)$ with $d$ = fan_in (a convolution averages them
over its window). A bias adds $\sigma_b^2$ and $\eta_b$. An activation gives $E[\phi(u) \phi(v)]$ and $E[\phi'(u)
\phi'(v)] \Theta$ over $u, v \sim N(0, \Sigma)$ (Jacot et al. 2018; Lee et al. 2019; Arora et al. 2019).
"""

import math
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..._checks import concrete, describe, see
from ..._numerics import memory_for, nonzero, safe_sqrt
from ...nets import AbstractLayered, Activation, Apply, Layers, Residual
from ...nets._internal import AbstractWeighted, Bias, Conv, Dense, Mask, SpatialMean
from ..finite._empirical import unit_rates
from ..finite._inputs import check_inputs, check_rates
from ._closed_forms import closed_form, jumps
from ._duals import doubt, dual, expand, Sides
from ._neural_tangents import kernel_fn_of, kernels_by, stax


class InfiniteKernels(eqx.Module):
    """Kernels of a network of infinite width. They are the same for every output; different outputs are independent.

    Attributes:
        nngp: covariance of the initial outputs, gamma^2 included.
        error: an estimate of the largest error of `nngp` and `ntk` due to activations without closed form, relative to
            their size sqrt(K[i, i] K[j, j]): a bound for each, summed over the layers. It is 0 if all are in closed
            form, and NaN for kernels from neural-tangents, which has no estimate. Rounding is not included.
    """

    nngp: Float[Array, "n m"]
    error: Float[Array, ""]
    _ntk: Float[Array, "n m"]
    _refused: str = eqx.field(static=True)  # text

    @property
    def ntk(self) -> Float[Array, "n m"]:
        """sum_l eta_l <df/dtheta_l, df/dtheta_l>, gamma^2 included: K[i, a, j, b] = ntk[i, j] if a = b, else 0.

        Raises ValueError if an activation jumps, such as sign or floor.
        """
        if self._refused:
            raise ValueError(self._refused)
        return self._ntk


def infinite(
    net: Any,
    x1: Float[Array, "n ..."],
    x2: Float[Array, "m ..."] | None = None,
    *,
    eta: PyTree | None = None,
) -> InfiniteKernels:
    """The leading order of the kernels of a wide network, for weights drawn by `js.nets.Gaussian`.

    Multipliers, sigmas, rates, biases and gamma are those of the network's scaling at this width: `Scaling.ntk` gives
    the limit itself, `Scaling.standard` a kernel that grows like the width. The values of the weights do not matter.
    Whether the kernel of a wide network stays constant in training is another question: see `js.InfiniteWidth`.

    erf, gelu and every positively homogeneous function of degree 0 to 8 (relu, abs, relu(z)^2, z^5, sign: any function
    that is a z^k above 0 and b (-z)^k below, however it is written) have closed forms. All others use a series, which
    suits smooth functions: tanh is accurate to 3e-7 for pre-activations with standard deviations up to 3, and to 1e-2
    up to 10. The error due to a kink away from 0, a high frequency or fast growth is estimated in `error`; outside a
    trace, a UserWarning names each activation whose share exceeds 1e-7 in float64 or 3e-5 in float32. Rounding adds to
    this for nearly parallel pairs: an angle is known to eps / angle, and pairs closer than sqrt(16 eps) count as
    parallel. In float32 the NTK of relu is off by up to 2e-4 at angles of 1e-3 with one hidden layer and 4e-3 with 20,
    where it is off by 4e-5 at angles of 0.01; the NTK of erf, gelu and tanh by up to 8 eps s^2 at pre-activations with
    deviation s (1e-4 at 10). Pairs of equal inputs are accurate to some 10 eps per layer. Convolutional networks need
    the kernels between all pairs of pixels: n m (height width)^2 numbers at the largest image between their layers. The
    kernels are differentiable in everything continuous; in the inputs, only where no two are parallel.

    Arguments:
        net: a network of dense and convolutional layers, biases, activations, averages over the image and residual
            branches (`js.nets.AbstractLayered`); or `(init_fn, apply_fn, kernel_fn)` of `neural_tangents.stax`, or
            `js.nets.from_stax` of it, for the kernels that kernel_fn returns, in its own parameterization.
        x1: inputs, shape (n, ...).
        x2: other inputs, shape (m, ...); None takes x1.
        eta: learning rates, as for `js.kernels.empirical`: `js.nets.rates(net)` drive f, None takes 1 everywhere.
            Networks of neural-tangents have rates of 1.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="relu",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> limit = js.kernels.infinite(net, jnp.eye(2))
        >>> print(limit.nngp.shape, f"{limit.ntk[0, 0] / limit.nngp[0, 0]:.2f}")
        (2, 2) 2.00

    Raises:
        TypeError: the network does not name its layers.
        ValueError: inputs do not fit the network, dtypes are mixed, a layer has no limit in closed form (the message
            names it: a normalization, or an activation of non-Gaussian features, as after the blocks of `ResNet18`),
            the network is padded, or eta is given for a network of neural-tangents. From `.ntk` of the result: an
            activation jumps (sign, floor, round).
        NeuralTangentsUnavailable: neural-tangents is missing or broken.
        MemoryError: the kernels do not fit into memory.
    """
    kernel_fn = kernel_fn_of(net)
    if kernel_fn is not None:
        if eta is not None:
            raise ValueError("neural-tangents knows no learning rates: leave eta out")
        with memory_for("this kernel", "take fewer samples"):
            nngp, ntk = jax.block_until_ready(kernels_by(kernel_fn, x1, x2))
        return InfiniteKernels(nngp, jnp.full_like(nngp[0, 0], jnp.nan), ntk, "")
    if not isinstance(net, AbstractLayered):
        raise TypeError(
            f"the infinite width of {type(net).__name__} is not known: net must be one of the networks of "
            f"jaxsolve.nets, another AbstractLayered, or js.nets.from_stax(network, params), got {describe(net)}"
            + see("no-infinite-width")
        )
    _require_limit(net)
    check_inputs(net, x1, x2)
    if eta is not None:
        check_rates(net, eta)
    with memory_for("this kernel", "take fewer samples"):
        eta = unit_rates(net) if eta is None else eta
        # JAX dispatches asynchronously: waiting here raises a lack of memory inside the block.
        nngp, ntk, doubts = jax.block_until_ready(_infinite(net, eta, x1, x2))
    bound = 1e-7 if x1.dtype == jnp.float64 else 3e-5
    for place, error in doubts.items():
        known = concrete(error)
        # `not <=` in place of `>`, so that it warns of NaN as well.
        if known is not None and not known <= bound:
            warnings.warn(
                f"{place} has no closed form, and the series leaves an error of up to {known:.1g} of the size of its "
                f"kernels (more than {bound:g}): take an activation in closed form ('relu', 'leaky_relu', 'erf', "
                "'gelu', any positively homogeneous function), a smooth one, or a smaller sigma below it",
                stacklevel=2,
            )
    return InfiniteKernels(nngp, sum(doubts.values(), jnp.zeros((), x1.dtype)), ntk, _without_ntk(net.layers))


@eqx.filter_jit
def _infinite(net: AbstractLayered, eta: PyTree, x1: Array, x2: Array | None) -> tuple[Array, Array, dict[str, Array]]:
    """The NNGP, the NTK, and the error of each activation without closed form."""
    doubts: dict[str, Array] = {}
    with stax() as library:
        kernel = library.Identity()[2](_channels_last(x1), None if x2 is None else _channels_last(x2))
        # No parameter lies below the inputs.
        kernel = kernel.replace(ntk=jnp.zeros_like(kernel.nngp))
        kernel = _KernelRecursion(net, eta, library).through(net.layers, kernel, doubts)
        found = [net.scaling.gamma**2 * part for part in (kernel.nngp, kernel.ntk)]
    if x2 is None:
        found = [(part + part.T) / 2 for part in found]
    nngp, ntk = (part.astype(x1.dtype) for part in found)
    return nngp, ntk, {place: error.astype(x1.dtype) for place, error in doubts.items()}


def _channels_last(x: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    return jnp.moveaxis(x, 1, -1)


class _KernelRecursion(eqx.Module):
    """Sends a `neural_tangents.Kernel` through the layers of a network.

    Its `nngp` is (n, m), for images (n, m, h, h, w, w) or (n, m, w, w, h, h). `cov1` and `cov2` are of each sample with
    itself (cov2 is None if x2 is x1). Rates and sigmas stay out of the library, which has one rate for all layers.
    """

    net: AbstractLayered
    eta: PyTree
    library: Any = eqx.field(static=True)  # a module

    def through(self, layers: Layers, kernel: Any, doubts: dict[str, Array], name: str = "layers") -> Any:
        """The kernel after these layers; `doubts` gets the errors of the series."""
        for index, layer in enumerate(layers):
            place = f"{name}[{index}]"
            if isinstance(layer, AbstractWeighted):
                kernel = self._weighted(layer, kernel)
            elif isinstance(layer, Bias):
                # A bias has the derivative 1: its variance adds to all covariances, and its rate to the NTK.
                variance = self.net.scaling.bias_sigma**2
                kernel = _map(lambda part, v=variance: part + v, kernel, kernel.ntk + layer.parameter(self.eta))
            elif isinstance(layer, Apply):
                kernel, error = _apply(layer.activation, kernel)
                if error is not None:
                    doubts[f"the activation {layer.activation} ({place})"] = error
            elif isinstance(layer, SpatialMean):
                kernel = self.library.GlobalAvgPool()[2](kernel)
            elif isinstance(layer, Residual):
                branch = self.through(layer.branch, kernel, doubts, f"{place}.branch")
                kernel = _add(branch, self.through(layer.shortcut, kernel, doubts, f"{place}.shortcut"))
        return kernel

    def _weighted(self, layer: AbstractWeighted, kernel: Any) -> Any:
        shape = self.net.weights[layer.index].shape
        m, sigma = self.net.scaling.multiplier[layer.index], self.net.scaling.sigma[layer.index]
        fan_in = math.prod(shape[1:])
        variance = fan_in * (m * sigma) ** 2
        # d m^2 (eta Sigma + sigma^2 Theta), as above: the term of these weights, and the kernel passed through them.
        ntk = fan_in * m * (layer.parameter(self.eta) * m) * kernel.nngp + variance * kernel.ntk
        kernel = _map(lambda part: variance * part, kernel, ntk)
        if isinstance(layer, Conv):
            # The library is used only to average over windows: its own NTK would set all rates to 1.
            average = self.library.Conv(1, shape[2:], (layer.stride, layer.stride), "SAME")[2]
            ntk = average(kernel.replace(nngp=kernel.ntk, ntk=None)).nngp
            return average(kernel.replace(ntk=None)).replace(ntk=ntk)
        return kernel.replace(is_gaussian=True)


def _map(f: Any, kernel: Any, ntk: Array) -> Any:
    """The kernel with f applied to its covariances, and another NTK."""
    cov2 = None if kernel.cov2 is None else f(kernel.cov2)
    return kernel.replace(nngp=f(kernel.nngp), cov1=f(kernel.cov1), cov2=cov2, ntk=ntk)


def _add(one: Any, two: Any) -> Any:
    """The kernel of the sum of two independent features."""
    # The library swaps height and width along the way; a sum needs both in one order.
    if one.is_reversed != two.is_reversed:
        one = one.reverse()
    cov2 = None if one.cov2 is None else one.cov2 + two.cov2
    total = one.replace(nngp=one.nngp + two.nngp, cov1=one.cov1 + two.cov1, cov2=cov2, ntk=one.ntk + two.ntk)
    return total.replace(is_gaussian=one.is_gaussian and two.is_gaussian)


def _apply(activation: Activation, kernel: Any) -> tuple[Any, Array | None]:
    """The kernel after an activation, and its error if there is no closed form."""
    if activation.linear:
        return kernel, None
    form = closed_form(activation)
    # Otherwise XLA inlines the variances of all layers below into the loop over pairs, and compiles for minutes.
    deviations: tuple[Array, Array] = jax.lax.optimization_barrier(_deviations(kernel))
    points = [expand(activation, s) for s in deviations] if form is None else []

    def pair(covariance, i, j, samples):
        sides = _sides(covariance, samples)
        alone = covariance.ndim == 1  # each with itself
        rho = jnp.ones_like(covariance) if alone else _correlation(covariance, deviations[i], deviations[j], samples)
        if form is not None:
            one, two = (jnp.expand_dims(deviations[k], side) for k, side in zip((i, j), sides, strict=True))
            return form(one, two, rho)
        one, two = points[i], points[j]
        return dual(one.values, two.values, rho, sides), dual(one.slopes, two.slopes, rho, sides)

    nngp, slopes = pair(kernel.nngp, 0, 1, 2)
    cov1 = pair(kernel.cov1, 0, 0, 1)[0]
    cov2 = None if kernel.cov2 is None else pair(kernel.cov2, 1, 1, 1)[0]
    error = None
    if form is None:
        rho, sides = _correlation(kernel.nngp, *deviations, 2), _sides(kernel.nngp, 2)
        error = doubt(activation, deviations, points, rho, sides, slopes=not jumps(activation))
    # E[phi'(u) phi'(v)] Theta: an activation has no parameters, so it only passes on the NTK of the layers below.
    kernel = kernel.replace(nngp=nngp, ntk=kernel.ntk * slopes, cov1=cov1, cov2=cov2, is_gaussian=False)
    return kernel, error


def _correlation(covariance: Array, one: Array, two: Array, samples: int) -> Array:
    """The correlation: 0 where either side does not vary, and exactly 1 or -1 within rounding of it.

    Otherwise the angle between parallel vectors would be of order sqrt(eps), with derivatives of any size.
    """
    left, right = _sides(covariance, samples)
    rho = covariance / nonzero(jnp.expand_dims(one, left)) / nonzero(jnp.expand_dims(two, right))
    parallel = jnp.abs(rho) > 1 - 8 * jnp.finfo(rho.dtype).eps
    # The value is rounded to 1 or -1, but keeps the derivative of rho.
    return rho + jax.lax.stop_gradient(jnp.where(parallel, jnp.sign(rho), rho) - rho)


def _sides(covariance: Array, samples: int) -> Sides:
    """The axes of a covariance that its first and its second vector lack; the first `samples` axes are of samples."""
    # After the samples, axes come in pairs (height, height', width, width'): each vector has one axis of every pair.
    pixels = range(samples, covariance.ndim, 2)
    return (*range(1, samples), *(axis + 1 for axis in pixels)), (*range(samples - 1), *pixels)


def _deviations(kernel: Any) -> tuple[Array, Array]:
    """The standard deviations of the features of every sample and pixel of x1 and x2."""
    # (n,) of (n,), (n, h, w) of (n, h, h, w, w)
    variances = [
        part if part.ndim == 1 else jnp.einsum("nhhww->nhw", part)
        for part in (kernel.cov1, kernel.cov2)
        if part is not None
    ]
    found = [safe_sqrt(variance) for variance in variances]
    # One array serves both sides if x2 is x1.
    return found[0], found[-1]


# --- networks without a limit


def _require_limit(net: AbstractLayered) -> None:
    name = type(net).__name__
    indices = [layer.index for layer in _all_of(net.layers, AbstractWeighted)]
    if len(set(indices)) < len(indices):
        raise ValueError(f"{name} uses one weight array in two layers, whose kernels are then not independent")
    if not _require_gaussian(name, net.layers, False):
        raise ValueError(
            f"the kernel of {name} depends on the draw of its weights, since it does not end in a layer with weights"
        )


def _require_gaussian(name: str, layers: Layers, gaussian: bool) -> bool:
    """Raises ValueError at a layer that has no limit; returns whether features are Gaussian after the last."""
    for layer in layers:
        if isinstance(layer, Dense | Conv):
            gaussian = True
        elif isinstance(layer, Residual):
            # Zero-mean weights at the end of one of the two make them uncorrelated: then covariances and NTKs add.
            if not (_ends_in_weights(layer.branch) or _ends_in_weights(layer.shortcut)):
                raise ValueError(
                    f"{name} adds a branch and a shortcut that depend on each other: in {layer} one of them must end "
                    "in a Dense or Conv layer of its own"
                )
            ends = [_require_gaussian(name, part, gaussian) for part in (layer.branch, layer.shortcut)]
            gaussian = all(ends)
        elif isinstance(layer, Apply):
            if not gaussian and not layer.activation.linear:
                raise ValueError(
                    f"{name} applies {layer.activation} to features that are not Gaussian at infinite width (a Dense "
                    "or Conv layer must come between two activations, on every way): no closed form is known"
                )
            gaussian = gaussian and layer.activation.linear
        elif isinstance(layer, Mask):
            raise ValueError(f"this {name} is padded; for its infinite width make it with an integer as its width")
        elif not isinstance(layer, Bias | SpatialMean):
            raise ValueError(
                f"the infinite width of {name} is not known in closed form: it has the layer {layer}. "
                "kernels.empirical gives the kernel at finite width"
            )
    return gaussian


def _without_ntk(layers: Layers) -> str:
    """The reason why there is no NTK; empty if there is one."""
    for layer in _all_of(layers, Apply):
        if not layer.activation.known and jumps(layer.activation):
            return (
                f"the NTK of infinite width does not exist: the activation {layer.activation} jumps, so that the mean "
                "square of its derivative is infinite (the covariance of outputs, `nngp`, exists)"
            )
    return ""


def _ends_in_weights(layers: Layers) -> bool:
    """True if these layers end in a product with their own weights, which have mean 0."""
    for layer in reversed(layers):
        if isinstance(layer, Dense | Conv):
            return True
        if isinstance(layer, Residual):
            return _ends_in_weights(layer.branch) and _ends_in_weights(layer.shortcut)
        if not isinstance(layer, Bias | SpatialMean) and not (isinstance(layer, Apply) and layer.activation.linear):
            return False
    return False


def _all_of(layers: Layers, kind: Any) -> list[Any]:
    """The layers of a kind, including those in branches."""
    found = []
    for layer in layers:
        if isinstance(layer, kind):
            found.append(layer)
        if isinstance(layer, Residual):
            found += [*_all_of(layer.branch, kind), *_all_of(layer.shortcut, kind)]
    return found
