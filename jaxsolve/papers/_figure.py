"""A figure or table of a paper: runs, a picture, and claims."""

import abc
import enum
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TYPE_CHECKING, TypeAlias, TypeVar

from ..data import Images
from ..sweeps import sweep
from ._claim import Claim


if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
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


T = TypeVar("T")
# Types of libraries that are loaded only when they are needed.
Values: TypeAlias = "xarray.DataArray"
Table: TypeAlias = "xarray.Dataset"
Picture: TypeAlias = "Figure"
Panel: TypeAlias = "Axes"
Data = Mapping[str, Table]
"""Measurements, by name of the store."""


def by_scale(small: T, medium: T, paper: T | None = None) -> dict[Scale, T]:
    """A setting by scale; the paper's scale takes the medium setting if none is given."""
    return {Scale.SMALL: small, Scale.MEDIUM: medium, Scale.PAPER: medium if paper is None else paper}


def legend_below(figure: Picture, ax: Panel, columns: int, *, fontsize: int = 8) -> None:
    """Names the lines of one panel below all panels."""
    marks = ax.get_legend_handles_labels()
    figure.legend(*marks, loc="outside lower center", ncols=columns, frameon=False, fontsize=fontsize)


class Runs(NamedTuple):
    """The folder in which the runs of a figure are kept, and how they are run.

    Attributes:
        folder: folder of their stores. An interrupted sweep is resumed.
        scale: how much is computed.
        progress: whether to show progress.
    """

    folder: Path
    scale: Scale
    progress: bool

    def sweep(self, name: str, *arguments: Any, **options: Any) -> Table:
        """Runs `js.sweep` with the store `name`.zarr in the folder."""
        return sweep(*arguments, store=self.folder / f"{name}.zarr", progress=self.progress, **options)


class AbstractFigure(abc.ABC):
    """A figure or table of a paper. Each is a class `Figure` in its own module in its paper's folder.

    Attributes:
        title: what it shows. If digits replace the paper's images, titles and claims name the digits instead.
        ours: every setting that is not the paper's, because it is unstated there or smaller here.
        size: width and height of the picture, in inches.
        hours: approximate hours per scale on two cores, measured at the small one.
        images: the images that `papers/_images.py` reads for it.
        shares: the store in its paper's folder that it shares with other figures, which cannot run at the same time.
    """

    title: ClassVar[str]
    ours: ClassVar[str]
    size: ClassVar[tuple[float, float]]
    hours: ClassVar[Mapping[Scale, float]]
    images: ClassVar[tuple[Images, ...]] = ()
    shares: ClassVar[str] = ""

    @abc.abstractmethod
    def run(self, runs: Runs) -> Data:
        """Computes the data with `runs.sweep`, so that it can be interrupted at any time."""

    @abc.abstractmethod
    def draw(self, figure: Picture, data: Data) -> None:
        """Draws on an empty figure with constrained layout."""

    @abc.abstractmethod
    def claims(self, data: Data) -> Iterable[Claim]:
        """The paper's claims about the figure, with measurements."""
