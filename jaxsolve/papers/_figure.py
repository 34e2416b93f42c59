"""A figure or table of a paper: runs, a picture, and claims."""

import abc
import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TYPE_CHECKING

from ..data import Images
from ..sweeps import sweep
from ._claim import Claim


if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure


class Scale(enum.Enum):
    """The amount of computation: minutes on two cores, an hour on one GPU, or the paper's own setting.

    Example:
        >>> js.papers.Scale("small") is js.papers.Scale.SMALL
        True
    """

    SMALL = "small"
    MEDIUM = "medium"
    PAPER = "paper"


Data = Mapping[str, "xarray.Dataset"]
"""What was measured, by name of the store."""


class Runs(NamedTuple):
    """The folder in which the runs of a figure are kept, and how they are run.

    Attributes:
        folder: for their stores. A sweep that was interrupted is carried on.
        scale: how much is computed.
        progress: whether to show it.
    """

    folder: Path
    scale: Scale
    progress: bool

    def sweep(self, name: str, *arguments: Any, **options: Any) -> "xarray.Dataset":
        """Runs `js.sweep` with the store `name`.zarr in the folder."""
        return sweep(*arguments, store=self.folder / f"{name}.zarr", progress=self.progress, **options)


class AbstractFigure(abc.ABC):
    """A figure or table of a paper. Each has a module of its own, in its paper's folder, that ends in `FIGURE = ...`.

    Attributes:
        title: what it shows. Where digits stand in for the paper's images, they take the name's place, as in claims.
        ours: what the paper does not say, or what is smaller here: every setting that is not the paper's.
        hours: about how long each scale takes on two cores, measured at the small one.
        images: what `papers/_images.py` reads for it.
        shares: the store in its paper's folder that it and other figures read, so that they cannot run at once.
    """

    title: ClassVar[str]
    ours: ClassVar[str]
    hours: ClassVar[Mapping[Scale, float]]
    images: ClassVar[tuple[Images, ...]] = ()
    shares: ClassVar[str] = ""

    @abc.abstractmethod
    def run(self, runs: Runs) -> Data:
        """Computes what is shown, by `runs.sweep`, so that it can be interrupted at any time."""

    @abc.abstractmethod
    def draw(self, data: Data) -> "Figure":
        """The picture."""

    @abc.abstractmethod
    def claims(self, data: Data) -> list[Claim]:
        """The claims of the paper about the figure, measured."""
