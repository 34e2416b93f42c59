"""The operations of PyTorch's graphs as JAX functions."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Key


Ints = Sequence[int]

# --- layers


def _convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Array:
    x, weight = _of_one_dtype(x, weight)
    size = weight.shape[2:]
    pads = [(pad, pad) for pad in padding]
    options: dict[str, Any] = {"window_strides": stride}
    if transposed:
        # The derivative of a convolution: flipped weights, with (in, out/groups, ...) as (out, in/groups, ...).
        backwards = jnp.flip(weight, range(2, weight.ndim))
        split = backwards.reshape(groups, -1, *backwards.shape[1:])
        weight = jnp.swapaxes(split, 1, 2).reshape(-1, split.shape[1], *size)
        reach = [step * (length - 1) for step, length in zip(dilation, size, strict=True)]
        pads = [(r - p, r - p + more) for r, p, more in zip(reach, padding, output_padding, strict=True)]
        options = {"window_strides": (1,) * len(size), "lhs_dilation": stride}
    out = lax.conv_general_dilated(
        x, weight, padding=pads, rhs_dilation=dilation, feature_group_count=groups, **options
    )
    return out if bias is None else out + _along(bias, 1, out.ndim)


def _batch_norm(x: Array, weight: Any, bias: Any, mean: Array, var: Array, momentum: float, eps: float) -> tuple:
    mean, var = (_along(one, 1, x.ndim) for one in (mean, var))
    return _affine((x - mean) * lax.rsqrt(var + eps), weight, bias), None, None


def batch_moments(x: Array) -> tuple[Array, Array]:
    """Mean and biased variance of each channel over all positions and the mapped axis "batch"."""
    axes = (0, *range(2, x.ndim))
    average = lambda values: lax.pmean(jnp.mean(values, axes), "batch")
    mean = average(x)
    return mean, average((x - _along(mean, 1, x.ndim)) ** 2)


def _dropout(x: Array, rate: float, train: bool, *, key: Key[Array, ""] | None = None) -> tuple[Array, None]:
    """No dropout without a key. At rate 1 the result is 0, as in PyTorch."""
    if key is None or not train:
        return x, None
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x * (1 / (1 - rate) if rate < 1 else 0), 0), None


def _instance_norm(x: Array, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> tuple:
    return _affine(_standardized(x, (0, *range(2, x.ndim)), eps), weight, bias), None, None


def _layer_norm(x: Array, shape: Ints, weight: Array | None, bias: Array | None, eps: float) -> tuple:
    out = _standardized(x, tuple(range(-len(shape), 0)), eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, None, None


def _group_norm(x: Array, weight: Any, bias: Any, n: int, c: int, size: int, groups: int, eps: float) -> tuple:
    out = _standardized(x.reshape(n, groups, -1), (-1,), eps).reshape(x.shape)
    return _affine(out, weight, bias), None, None


def _standardized(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    centered = x - jnp.mean(x, axes, keepdims=True)
    return centered * lax.rsqrt(jnp.mean(centered**2, axes, keepdims=True) + eps)


def _affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    out = x if weight is None else x * _along(weight, 1, x.ndim)
    return out if bias is None else out + _along(bias, 1, x.ndim)


def _along(vector: Array, axis: int, ndim: int) -> Array:
    return vector.reshape([-1 if index == axis else 1 for index in range(ndim)])


def _of_one_dtype(*arrays: Array) -> list[Array]:
    dtype = jnp.result_type(*arrays)
    return [array.astype(dtype) for array in arrays]


def _embedding(table: Array, tokens: Array, padding: int = -1, *_: bool) -> Array:
    rows = table[tokens]
    # The row of `padding_idx` has no gradient in PyTorch.
    return rows if padding < 0 else jnp.where((tokens == padding)[..., None], lax.stop_gradient(rows), rows)


# --- pooling


def _window(x: Array, size: Ints, stride: Ints, padding: Ints, ceil: bool) -> tuple[tuple, tuple, list]:
    """Lengths, strides and padding of a window over the last axes; `ceil` lets the last window reach beyond the end."""
    stride = stride or size
    padding = tuple(padding) * (len(size) // len(padding))
    ends = []
    for n, k, s, p in zip(x.shape[-len(size) :], size, stride, padding, strict=True):
        count = -(-(n + 2 * p - k) // s) if ceil else (n + 2 * p - k) // s
        count -= count * s >= n + p  # every window begins within the input or the padding before it
        ends.append((p, max(p, count * s + k - n - p)))
    before = x.ndim - len(size)
    return (1,) * before + tuple(size), (1,) * before + tuple(stride), [(0, 0)] * before + ends


def _max_pool(
    x: Array, size: Ints, stride: Ints = (), padding: Ints = (0,), dilation: Ints = (1,), ceil: bool = False
) -> tuple:
    if set(dilation) != {1}:
        raise NotImplementedError("max pooling with a dilation has no derivative in JAX")
    return lax.reduce_window(x, -jnp.inf, lax.max, *_window(x, size, stride, padding, ceil)), None


def _avg_pool(
    x: Array,
    size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Array:
    lengths, steps, pads = _window(x, size, stride, padding, ceil)
    total = lax.reduce_window(x, 0.0, lax.add, lengths, steps, pads)
    if divisor is not None:
        return total / divisor
    # The divisor counts the input and, by default, the requested padding, but not what `ceil` adds.
    ones = np.ones(x.shape[-len(size) :], x.dtype)
    padding = tuple(padding) * (len(size) // len(padding))
    if count_padding:
        ones = np.pad(ones, [(p, p) for p in padding], constant_values=1)
        pads = [(low - p, high - p) for (low, high), p in zip(pads[-len(size) :], padding, strict=True)]
    rest = len(size)
    return total / lax.reduce_window(jnp.asarray(ones), 0.0, lax.add, lengths[-rest:], steps[-rest:], pads[-rest:])


def _adaptive_avg_pool(x: Array, size: Ints) -> Array:
    """Averages over parts of nearly equal length, which overlap if their number does not divide the axis."""
    for axis, count in enumerate(size, x.ndim - len(size)):
        n = x.shape[axis]
        mean = np.zeros((n, count))
        for part in range(count):
            start, end = part * n // count, -(-(part + 1) * n // count)
            mean[start:end, part] = 1 / (end - start)
        x = jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ jnp.asarray(mean, x.dtype), -1, axis)
    return x


# --- kinks, with PyTorch's derivatives at them


def _clamp(x: Array, low: Any = None, high: Any = None) -> Array:
    clipped = jnp.clip(x, low, high)
    if isinstance(low, Array) or isinstance(high, Array):
        return clipped
    return jnp.where(clipped == x, x, lax.stop_gradient(clipped))


def _hardtanh(x: Array, low: float = -1.0, high: float = 1.0) -> Array:
    return jnp.where((x > low) & (x < high), x, lax.stop_gradient(jnp.clip(x, low, high)))


def _elu(x: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    # Where x > 0 the unused branch must not overflow: its derivative would be 0 times infinity.
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(input_scale * jnp.where(x > 0, 0, x)))


# --- indexing and shapes


def _cut(x: Array, axis: int, start: int | None, end: int | None, step: int) -> tuple[slice, ...]:
    cuts = [slice(None)] * x.ndim
    cuts[axis] = slice(start, end, step)
    return tuple(cuts)


def _slice(x: Array, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    return x[_cut(x, axis, start, end, step)]


def _slice_scatter(x: Array, part: Array, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    return x.at[_cut(x, axis, start, end, step)].set(part)


def _split(x: Array, size: int, axis: int = 0) -> list[Array]:
    return jnp.split(x, range(size, x.shape[axis], size), axis)


def _split_with_sizes(x: Array, sizes: Ints, axis: int = 0) -> list[Array]:
    return jnp.split(x, np.cumsum(sizes)[:-1].tolist(), axis)


def _expand(x: Array, shape: Ints, **_: bool) -> Array:
    own = (1,) * (len(shape) - x.ndim) + x.shape
    return jnp.broadcast_to(x, [n if wanted == -1 else wanted for n, wanted in zip(own, shape, strict=True)])


def _cat(parts: Sequence[Array], axis: int = 0) -> Array:
    return jnp.concatenate([part for part in parts if part.shape != (0,)], axis)  # empty parts may have another rank


def _squeeze(x: Array, axes: Any = None) -> Array:
    axes = range(x.ndim) if axes is None else [axes] if isinstance(axes, int) else axes
    return jnp.squeeze(x, tuple(axis for axis in axes if x.shape[axis] == 1))


def _pad(x: Array, pads: Ints, value: float = 0.0) -> Array:
    pairs = [(low, high, 0) for low, high in zip(pads[::2], pads[1::2], strict=True)]  # last axis first
    return lax.pad(x, jnp.asarray(value, x.dtype), [(0, 0, 0)] * (x.ndim - len(pairs)) + pairs[::-1])


def _places(index: Array, axis: int) -> tuple[Array, ...]:
    """The places that `gather` and `scatter` address: `index` along `axis`, its own coordinates along other axes."""
    places = list(jnp.meshgrid(*map(jnp.arange, index.shape), indexing="ij", sparse=True))
    places[axis] = index
    return tuple(places)


def _gather(x: Array, axis: int, index: Array, **_: bool) -> Array:
    return x[_places(index, axis)]


def _scatter_add(x: Array, axis: int, index: Array, values: Array) -> Array:
    return x.at[_places(index, axis)].add(values[tuple(map(slice, index.shape))])


def _picks(picks: Sequence[Array | None]) -> tuple[Any, ...]:
    return tuple(slice(None) if pick is None else pick for pick in picks)


def _index_put(x: Array, picks: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    place = x.at[_picks(picks)]
    return place.add(values) if accumulate else place.set(values)


def _max(x: Array, axis: int, keepdim: bool = False) -> tuple[Array, ...]:
    index = jnp.argmax(x, axis, keepdims=True)
    both = jnp.take_along_axis(x, index, axis), index
    return both if keepdim else tuple(jnp.squeeze(one, axis) for one in both)


def _sort(x: Array, axis: int = -1, descending: bool = False) -> tuple[Array, Array]:
    order = jnp.argsort(x, axis, descending=descending)
    return jnp.take_along_axis(x, order, axis), order


def _top(x: Array, count: int, axis: int = -1, largest: bool = True, *_: bool) -> tuple[Array, ...]:
    return tuple(lax.slice_in_dim(one, 0, count, axis=axis) for one in _sort(x, axis, largest))


# --- sums


def _over(reduce: Callable[..., Array]) -> Callable[..., Array]:
    """A reduction with PyTorch's arguments, in which empty axes mean all axes."""

    def reduced(x: Array, axes: Any = None, keepdim: bool = False, **options: Any) -> Array:
        axes = tuple(axes) or None if isinstance(axes, Sequence) else axes
        return reduce(x, axis=axes, keepdims=keepdim, **options)

    return reduced


def _variance(x: Array, axis: Any, keepdims: bool, correction: Any = 1) -> Array:
    return jnp.var(x, axis, ddof=1 if correction is None else correction, keepdims=keepdims)


# --- numbers


def _divide(x: Any, y: Any, rounding_mode: str | None = None) -> Array:
    if rounding_mode == "floor":
        return jnp.floor_divide(x, y)
    quotient = jnp.true_divide(x, y)
    return quotient if rounding_mode is None else jnp.trunc(quotient).astype(jnp.result_type(x, y))


def _same(x: Array, *_: Any, **options: Any) -> Array:
    return x


def _cast(x: Array, *, dtype: Any = None, **_: Any) -> Array:
    return x if dtype is None else x.astype(dtype)


def _full_like(x: Array, value: Any, *, dtype: Any = None) -> Array:
    return jnp.full_like(x, value, dtype)


# Names are those of ATen without "aten."; with the overload where overloads differ in their arguments.
_NAMED: dict[str, Callable[..., Any]] = {
    # layers
    "convolution": _convolution,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_native_batch_norm_legit.no_stats": _instance_norm,
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "native_dropout": _dropout,
    "embedding": _embedding,
    "max_pool2d_with_indices": _max_pool,
    "max_pool3d_with_indices": _max_pool,
    "avg_pool2d": _avg_pool,
    "avg_pool3d": _avg_pool,
    "adaptive_avg_pool1d": _adaptive_avg_pool,
    "adaptive_avg_pool2d": _adaptive_avg_pool,
    "adaptive_avg_pool3d": _adaptive_avg_pool,
    "_adaptive_avg_pool2d": _adaptive_avg_pool,
    "_adaptive_avg_pool3d": _adaptive_avg_pool,
    # products
    "mm": jnp.matmul,
    "bmm": jnp.matmul,
    "mv": jnp.matmul,
    "dot": jnp.matmul,
    "addmm": lambda bias, x, y, *, beta=1, alpha=1: beta * bias + alpha * (x @ y),
    # activations
    "relu": jax.nn.relu,
    "leaky_relu": lambda x, slope=0.01: jnp.where(x > 0, x, slope * x),
    "elu": _elu,
    "celu": lambda x, alpha=1.0: _elu(x, alpha, 1.0, 1 / alpha),
    "hardtanh": _hardtanh,
    "sigmoid": jax.nn.sigmoid,
    "softplus": lambda x, beta=1, threshold=20: jax.nn.softplus(beta * x) / beta,
    "mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)),
    "gelu": lambda x, *, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
    "_softmax": lambda x, axis, to_float: jax.nn.softmax(x, axis),
    "_log_softmax": lambda x, axis, to_float: jax.nn.log_softmax(x, axis),
    # numbers
    "add": lambda x, y, alpha=1: x + y if alpha == 1 else x + alpha * y,
    "sub": lambda x, y, alpha=1: x - y if alpha == 1 else x - alpha * y,
    "mul": jnp.multiply,
    "div": _divide,
    "pow": lambda x, y: x**y,
    "neg": jnp.negative,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "log10": jnp.log10,
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "reciprocal": jnp.reciprocal,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "asin": jnp.asin,
    "acos": jnp.acos,
    "atan": jnp.atan,
    "atan2": jnp.atan2,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "tanh": jnp.tanh,
    "erf": jax.scipy.special.erf,
    "hypot": jnp.hypot,
    "floor": jnp.floor,
    "ceil": jnp.ceil,
    "round": jnp.round,
    "trunc": jnp.trunc,
    "fmod": jnp.fmod,
    "remainder": jnp.mod,
    "clamp": _clamp,
    "minimum": jnp.minimum,
    "maximum": jnp.maximum,
    # booleans
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
    "isnan": jnp.isnan,
    "isinf": jnp.isinf,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "logical_not": jnp.logical_not,
    "bitwise_and": jnp.bitwise_and,
    "bitwise_or": jnp.bitwise_or,
    "bitwise_xor": jnp.bitwise_xor,
    "bitwise_not": jnp.bitwise_not,
    "where": jnp.where,
    # sums
    "sum": _over(jnp.sum),
    "mean": _over(jnp.mean),
    "prod": _over(jnp.prod),
    "var": _over(_variance),
    "amax": _over(jnp.max),
    "amin": _over(jnp.min),
    "any": _over(jnp.any),
    "all": _over(jnp.all),
    "linalg_vector_norm": lambda x, order=2, axes=None, keepdim=False, *, dtype=None: jnp.linalg.vector_norm(
        x, axis=tuple(axes) if axes else None, keepdims=keepdim, ord=order
    ),
    "argmax": _over(jnp.argmax),
    "argmin": _over(jnp.argmin),
    "max.dim": _max,
    "cumsum": lambda x, axis, *, dtype=None: jnp.cumsum(x, axis, dtype),
    # indexing and shapes
    "getitem": operator.getitem,
    "view.default": jnp.reshape,
    "_unsafe_view": jnp.reshape,
    "reshape": jnp.reshape,
    "permute": jnp.transpose,
    "transpose.int": jnp.swapaxes,
    "t": jnp.transpose,
    "unsqueeze": jnp.expand_dims,
    "squeeze": _squeeze,
    "expand": _expand,
    "repeat": jnp.tile,
    "flip": jnp.flip,
    "cat": _cat,
    "split.Tensor": _split,
    "split_with_sizes": _split_with_sizes,
    "slice": _slice,
    "slice_scatter": _slice_scatter,
    "select.int": lambda x, axis, index: lax.index_in_dim(x, index, axis, keepdims=False),
    "select_scatter": lambda x, part, axis, index: x.at[_cut(x, axis, index, index % x.shape[axis] + 1, 1)].set(
        jnp.expand_dims(part, axis)
    ),
    "diagonal": lambda x, offset=0, one=0, two=1: jnp.diagonal(x, offset, one, two),
    "constant_pad_nd": _pad,
    "index.Tensor": lambda x, picks: x[_picks(picks)],
    "index_put": _index_put,
    "index_select": lambda x, axis, index: jnp.take(x, index, axis),
    "gather": _gather,
    "scatter_add": _scatter_add,
    "sort": _sort,
    "topk": _top,
    # arrays
    "arange.start_step": lambda start, end, step=1, *, dtype: jnp.arange(start, end, step, dtype),
    "full": lambda shape, value, *, dtype: jnp.full(shape, value, dtype),
    "empty": lambda shape, *, dtype: jnp.zeros(shape, dtype),
    "full_like": _full_like,
    "scalar_tensor": lambda value, *, dtype: jnp.asarray(value, dtype),
    "copy": lambda x, y: jnp.broadcast_to(y, x.shape).astype(x.dtype),
    "_to_copy": _cast,
    "clone": _same,
    "alias": _same,
    "lift_fresh_copy": _same,
    "detach": lax.stop_gradient,
}
OPERATIONS = {name if name == "getitem" else f"aten.{name}": call for name, call in _NAMED.items()}

# The operation that uses the statistics of a batch in training, and the one that draws.
BATCH_NORM, DROPOUT = "aten._native_batch_norm_legit_no_training", "aten.native_dropout"

# Operations that only check their arguments.
CHECKS = ("aten._assert_tensor_metadata", "aten._assert_async", "aten._assert_scalar")

# Operations that PyTorch would decompose into steps that overflow, lose a stopped gradient or fix a memory layout.
WHOLE = (
    "aten.detach",
    "aten.softplus",
    "aten.mish",
    "aten.elu",
    "aten.celu",
    "aten.adaptive_avg_pool1d",
    "aten.adaptive_avg_pool2d",
    "aten.adaptive_avg_pool3d",
)
