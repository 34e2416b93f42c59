"""Construction of xarray datasets."""

from typing import Any, TYPE_CHECKING


if TYPE_CHECKING:
    import xarray


def dataset(data: dict[str, Any], coords: dict[str, Any], attrs: dict[str, Any]) -> "xarray.Dataset":
    """A labeled dataset."""
    import xarray

    return xarray.Dataset(data, coords=coords, attrs=attrs)
