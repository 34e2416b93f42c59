"""Reads the shape of an image."""

from typing import Any

from .._checks import describe, require_size


def require_image(in_shape: Any, smallest: int) -> tuple[int, int, int]:
    """Returns (channels, height, width), at least `smallest` pixels each way; raises TypeError or ValueError."""
    if not isinstance(in_shape, tuple | list) or len(in_shape) != 3:
        raise ValueError(f"in_shape must be (channels, height, width) of one image, got {describe(in_shape)}")
    sizes = (require_size(size, f"in_shape[{i}]") for i, size in enumerate(in_shape))
    channels, height, width = sizes
    if min(height, width) < smallest:
        raise ValueError(
            f"in_shape {(channels, height, width)} is too small: the strides of this network need images of at least "
            f"{smallest} x {smallest} pixels"
        )
    return channels, height, width
