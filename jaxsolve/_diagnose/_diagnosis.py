"""The result of a diagnosis, with its plot, page and dataset."""

import dataclasses
import os
from pathlib import Path
from typing import Any, TYPE_CHECKING

import numpy as np

from .._checks import require_path
from ..observe import Regime
from ._dataset import dataset
from ._figure import draw
from ._page import body, page, Table
from ._thresholds import Threshold


if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Finding:
    """One number of a diagnosis.

    Attributes:
        value: the number; NaN if unknown, with the reason in `words`.
        limit: its threshold, with its source; None where there is none.
        words: what it says about this network.
    """

    value: float
    limit: Threshold | None
    words: str


def shown(value: float) -> str:
    """A number for a table."""
    return "-" if np.isnan(value) else f"{value:.3g}" if np.isfinite(value) else "infinite"


def about(value: Any) -> str:
    """A number in words: two digits, and no power of ten below a million."""
    return f"{float(f'{value:.1e}'):g}"


@dataclasses.dataclass(frozen=True, repr=False)
class Diagnosis:
    """The regime of a network, with the evidence. Made by `js.diagnose` and `js.diagnose_checkpoints`.

    Attributes:
        regime: the verdict, a `js.observe.Regime`.
        near_boundary: whether the number that decides is within a factor 3 of its limit.
        text: one paragraph in plain words.
        findings: every number by name, with its limit, its source and what it says.
        history: arrays over the checkpoints by name, such as `kernel_change`; `step` holds the steps.
        groups: the names of the groups of parameters.
        by_group: arrays over the groups by name: `kernel_share`, `kernel_share_start`, `kernel_change`, `update`.
        pairs: names of pairs of layers, where one reads the output of the other.
        by_pair: their `alignment` and `alignment_start`.
        by_scale: the kernel's change after linearized training against the output multiplier.
        notes: what could not be measured, and which defaults were chosen.
    """

    regime: Regime
    near_boundary: bool
    text: str
    findings: dict[str, Finding]
    history: dict[str, np.ndarray]
    groups: tuple[str, ...]
    by_group: dict[str, np.ndarray]
    pairs: tuple[str, ...]
    by_pair: dict[str, np.ndarray]
    by_scale: dict[str, np.ndarray]
    notes: tuple[str, ...]

    def __getitem__(self, name: str) -> float:
        if name not in self.findings:
            raise KeyError(f"{name!r} is not among the findings: {sorted(self.findings)}")
        return self.findings[name].value

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        rows = [f"Diagnosis: {self._title}"]
        for name, found in self.findings.items():
            limit = "" if found.limit is None else f" (limit {found.limit.value:g})"
            number = "" if np.isnan(found.value) else f" = {shown(found.value)}"
            rows.append(f"  {name}{number}{limit}: {found.words}")
        return "\n".join(rows)

    @property
    def _title(self) -> str:
        return f"{self.regime.label}{' (near the boundary)' if self.near_boundary else ''}"

    def _repr_html_(self) -> str:
        return body(self._title, self.text, self.plot(), self._tables(), self.notes)

    def _tables(self) -> list[Table]:
        """The findings, and the groups of parameters, as text."""
        numbers = []
        for name, found in self.findings.items():
            limit = ("", "") if found.limit is None else (f"{found.limit.value:g}", found.limit.source)
            numbers.append((name.replace("_", " "), shown(found.value), limit[0], found.words, limit[1]))
        groups = [
            (name, *(shown(float(values[index])) for values in self.by_group.values()))
            for index, name in enumerate(self.groups)
        ]
        return [
            Table(("number", "value", "limit", "what it says", "where the limit comes from"), numbers),
            Table(("parameters", *(column.replace("_", " ") for column in self.by_group)), groups),
        ]

    def plot(self) -> "Figure":
        """One page of panels, as a matplotlib figure."""
        return draw(self._title, self.history, self.groups, self.by_group, self.by_scale)

    def save(self, path: str | os.PathLike) -> Path:
        """Writes one self-contained HTML page and returns its path. An existing file is replaced.

        Raises:
            TypeError: path is not a path.
            FileNotFoundError: its folder does not exist.
        """
        require_path(path, "path", "that of the page, such as 'diagnosis.html'")
        target = Path(path)
        if not target.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {target.parent}; make it first")
        text = page(self._title, self.text, self.plot(), self._tables(), self.notes)
        target.write_text(text, encoding="utf-8")
        return target

    def to_xarray(self) -> "xarray.Dataset":
        """All numbers as an `xarray.Dataset` with dimensions `step`, `group`, `pair` and `multiplier`."""
        data: dict[str, Any] = {}
        for name, values in self.history.items():
            if name != "step":
                data[name] = ("step", values)
        data |= {f"group_{name}": ("group", values) for name, values in self.by_group.items()}
        data |= {f"pair_{name}": ("pair", values) for name, values in self.by_pair.items()}
        coords: dict[str, Any] = {"step": self.history["step"], "group": list(self.groups), "pair": list(self.pairs)}
        if self.by_scale:
            coords["multiplier"] = self.by_scale["multiplier"]
            data["linearized_kernel_change"] = ("multiplier", self.by_scale["kernel_change"])
        if "verified_change" in self.by_scale:
            coords["verified_multiplier"] = self.by_scale["verified_multiplier"]
            data["verified_kernel_change"] = ("verified_multiplier", self.by_scale["verified_change"])
        for name, found in self.findings.items():
            limit = {} if found.limit is None else {"limit": found.limit.value, "source": found.limit.source}
            # Some findings, such as `kernel_change`, share their name with the history along the checkpoints.
            data[f"final_{name}" if name in data else name] = ((), found.value, {"says": found.words, **limit})
        attrs = {"regime": self.regime.label, "near_boundary": int(self.near_boundary), "text": self.text}
        return dataset(data, coords, {**attrs, "notes": "\n".join(self.notes)})
