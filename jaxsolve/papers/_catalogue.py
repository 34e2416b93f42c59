"""The reproducible figures, one per module of a paper's folder."""

import difflib
import importlib
import re
from importlib import resources

from ._figure import AbstractFigure


PAPERS = {
    "atanasov": "Atanasov, Bordelon & Pehlevan, Neural networks as kernel learners",
    "bordelon": "Bordelon & Pehlevan, Self-consistent dynamical field theory of kernel evolution",
    "geiger": "Geiger, Spigler, Jacot & Wyart, Disentangling feature and lazy learning in deep neural networks",
    "goldt": "Goldt, Advani, Saxe, Krzakala & Zdeborova, Dynamics of stochastic gradient descent in two layers",
    "kunin": "Kunin, Raventos, Domine, Chen, Klindt, Saxe & Ganguli, Get rich quick",
    "rhee": "Rhee, Simon & Karkada, Muon learns balanced solutions in matrix factorization",
    "scaling": "Bordelon, Atanasov & Pehlevan, A dynamical model of neural scaling laws",
    "schedules": "Bordelon & Mori, Theory of optimal learning rate schedules and scaling laws",
    "xu_ziyin": "Xu & Liu Ziyin, Three Mechanisms of Feature Learning in a Linear Network",
    "zhang": "Zhang, Singh, Latham & Saxe, Training dynamics of in-context learning in linear attention",
}
PANEL = re.compile(r"(?P<figure>.*\d)[a-z]")  # fig3a is part of fig3


def names() -> list[str]:
    """The names of all figures, such as "xu_ziyin/table1", paper by paper.

    Example:
        >>> "xu_ziyin/table1" in js.papers.names()
        True
    """
    found = []
    for paper in PAPERS:
        folder = resources.files("jaxsolve.papers").joinpath(paper)
        files = (item.name for item in folder.iterdir())
        found += sorted(f"{paper}/{file[1:-3]}" for file in files if re.fullmatch(r"_[a-z0-9]+\.py", file))
    return found


def figures() -> dict[str, AbstractFigure]:
    """All figures, by name.

    Example:
        >>> sorted(js.papers.figures()) == sorted(js.papers.names())
        True
    """
    return dict(map(find, names()))


def find(name: str) -> tuple[str, AbstractFigure]:
    """The name and the figure, from its name or the name of one of its panels.

    Raises:
        ValueError: no figure has this name; the message suggests the nearest one.
    """
    known = names()
    panel = PANEL.fullmatch(name)
    if name not in known and panel and panel["figure"] in known:
        name = panel["figure"]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.3)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        raise ValueError(f"no figure is called {name!r}{hint}. `jaxsolve reproduce list` shows all")
    return name, figure_of(name)


def figure_of(name: str) -> AbstractFigure:
    """The figure with a known name; imports its module."""
    paper, _, module = name.partition("/")
    return importlib.import_module(f".{paper}._{module}", __package__).Figure()
