"""What float32 gives: no number is wrong in silence, and what is wrong in silence is seen."""

import json
import math
import warnings

import jax.numpy as jnp
import pytest

from benchmarks import page, precision
from benchmarks.accuracy._case import Case, Numbers


RESULTS = sorted((page.ROOT / "benchmarks" / "results" / "precision").glob("*.json"))


def cancelled(said: Numbers) -> Case:
    """A small difference of large numbers: its error in float32 is 4.6 %."""
    way = lambda x: said._replace(values={"difference": (1 + x) - 1})
    return Case("difference", lambda: jnp.asarray(1e-6), way)


def test_what_is_lost_in_silence_is_seen():
    row = precision.row(cancelled(Numbers({}, 1e-4)))
    assert row.met is False
    assert row.measured == pytest.approx(0.0463, rel=1e-2)
    assert row.note == "difference"


@pytest.mark.parametrize(
    "said",
    [Numbers({}, 0.1), Numbers({}, 1e-4, trust=1.0), Numbers({}, 1e-4, floors={"difference": 1e-7})],
    ids=["bound", "trust", "floor"],
)
def test_what_is_said_counts(said):
    assert precision.row(cancelled(said)).met


def test_a_trust_that_is_too_high_is_seen():
    row = precision.row(cancelled(Numbers({}, 1.0, trust=3.0)))
    assert row.met is False
    assert row.note == "difference; trust 3.0"


def test_warnings_and_refusals_are_said():
    def warned(x):
        if x.dtype == jnp.float32:
            warnings.warn("rounded", stacklevel=1)
        return Numbers({"difference": (1 + x) - 1}, 1e-4)

    def refused(x):
        raise ValueError("not in float32")

    one, two = (precision.row(Case("difference", lambda: jnp.asarray(1e-6), way)) for way in (warned, refused))
    assert (one.met, one.note) == (None, "difference; warned: rounded")
    assert (two.met, two.note) == (None, "refused: not in float32")
    assert math.isnan(two.measured)


def test_what_has_another_kind_of_value_is_seen():
    """Infinities and NaN must be in the same places."""
    way = lambda x: Numbers({"overflows": 1e200 * x * jnp.ones(2)}, 1.0)
    assert precision.row(Case("overflow", lambda: jnp.asarray(1.0), way)).met is False


# The other parts take minutes to compile.
@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=pytest.mark.slow) if part != "fast" else part
        for part in ("fast", *(name for name in precision.PARTS))
    ],
)
def test_no_row_is_silent(part):
    cases = precision.PARTS["kernels" if part == "fast" else part](small=True)
    kept = ("likeness", "spectral", "nearly equal", "look-ups", "infinite, relu, depth 1")
    rows = [precision.row(case) for case in cases if part != "fast" or any(word in case.what for word in kept)]
    assert len(rows) >= 6
    assert [str(row) for row in rows if row.met is False] == []


def test_the_page_is_that_of_the_committed_runs():
    assert RESULTS
    committed = {path.stem: json.loads(path.read_text("utf-8")) for path in RESULTS}
    written = page.PRECISION.read_text("utf-8")
    assert page.precision_page(committed) == written
    rows = [row for run in committed.values() for row in run["benchmarks"]["precision"]["rows"]]
    assert len(rows) > 100
    assert [row["what"] for row in rows if row["met"] is False] == []


def test_the_page_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "PRECISION", tmp_path / "precision.md")
    path = next(iter(RESULTS))
    page.main([str(path)])
    assert f"| what | {path.stem} | goal | met |" in (tmp_path / "precision.md").read_text("utf-8")
