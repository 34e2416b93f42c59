"""Stores that other versions began, of libraries or of the format; and the names by which stores and runs are known."""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxsolve as js
from jaxsolve.sweeps import load, read_manifest
from tests import cases
from tests.sweeps.inside import plan_facts, read_plan


STEPS, TS = js.Descent(optax.sgd(0.1)), (0.0, 1.0)
KINDS = {"rate": [0.5, 1.0], "kind": ["slow", "fast"]}


def _kinds(rate, kind, *, fast: float = 2.0):
    return cases.modes(jnp.ones(1), rate[None] * (fast if kind == "fast" else 1.0))


def _run(path, problem_fn: Any = _kinds, **options):
    return js.sweep(problem_fn, KINDS, STEPS, TS, store=path, batch_size=2, progress=False, **options)


def _change(path: Path, change) -> dict[str, Any]:
    file = path / "_jaxsolve" / "manifest.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return content


def _as_by_others(content):
    """As other versions would have written it: no program is as it was."""
    content["plan"]["versions"]["jax"] = "0.0.1"
    for each in content["plan"]["programs"]:
        each.update(problem="0" * 16, run="0" * 16)


def _forget(path, kind):
    (path / "result" / "c" / "0" / str(kind)).unlink()


@pytest.fixture
def store(tmp_path):
    _run(tmp_path / "run.zarr")
    return tmp_path / "run.zarr"


def test_a_group_whose_program_differs_is_named(store):
    with pytest.raises(ValueError, match="another plan:\n  the problem's program differs in group kind = fast\n"):
        _run(store, functools.partial(_kinds, fast=3.0))


def test_other_versions_carry_on_where_a_lane_agrees(store):
    whole = load(store)
    _change(store, _as_by_others)
    _forget(store, 1)
    assert _run(store)["loss"].equals(whole["loss"])
    plan = read_manifest(store)["plan"]
    assert plan["versions"]["jax"] == jax.__version__
    # From then on it is a store of these versions.
    assert plan["programs"] == plan_facts(read_plan(_kinds, KINDS, STEPS, TS, observe=[js.observe.loss()]))["programs"]


@pytest.mark.parametrize("complete", [True, False])
def test_other_versions_are_refused_where_a_lane_differs(store, complete):
    _change(store, _as_by_others)
    if not complete:
        _forget(store, 1)
    said = (
        r"filled by other versions \(jax 0\.0\.1 -> .*\), and its lane rate = 0\.5, kind = slow, run again, differs in"
    )
    with pytest.raises(ValueError, match=rf"{said} 'loss' by \d\.\de-0\d of the largest value: give another store"):
        _run(store, lambda rate, kind: _kinds(1.01 * rate, kind))
    assert _run(store)["loss"].shape == (2, 2, 2)


def test_a_lane_may_differ_by_rounding_alone(store):
    """Twice and a hundred times the tolerance are on its two sides; steps are not looked at."""
    tolerance = 1e-9 if cases.X64 else 1e-4
    _change(store, _as_by_others)
    with pytest.raises(ValueError, match="differs in 'loss'"):
        _run(store, lambda rate, kind: _kinds((1 + 100 * tolerance) * rate, kind))
    _run(store, lambda rate, kind: _kinds((1 + tolerance / 100) * rate, kind))


def test_other_versions_carry_on_what_has_only_begun(store):
    _change(store, _as_by_others)
    for kind in (0, 1):
        _forget(store, kind)
    _run(store, lambda rate, kind: _kinds(2 * rate, kind))


def test_a_store_of_an_earlier_format_can_be_read_but_not_carried_on(store, tmp_path):
    """As written before: two sums of the first problem, and what the source of functions refers to."""
    whole = load(store)

    def to_format_2(content):
        del content["id"], content["plan"]["programs"], content["plan"]["versions"]
        described = {"function": "_kinds", "code": "0123456789abcdef"}
        content["plan"]["problem_fn"] = described
        content |= {"format": 2, "first_problem": {"x": [1.0, 3.0]}}

    _change(store, to_format_2)
    assert load(store).identical(whole)
    js.report.write(store, tmp_path / "report.html")
    _forget(store, 0)
    for resumed in (lambda: _run(store), lambda: _run(store, retry_failed=True)):
        with pytest.raises(
            ValueError, match=r"is a store of format 2, but .* finish it with the version that began it"
        ):
            resumed()
    (store / "loss" / "c" / "0" / "1" / "0").unlink()
    with pytest.warns(UserWarning, match="1 files of lanes that have run are missing"):
        load(store)


def test_stores_and_runs_have_ids(store, tmp_path):
    """Random ones."""
    _forget(store, 0)
    _run(store)
    _run(tmp_path / "other.zarr")
    one, other = read_manifest(store), read_manifest(tmp_path / "other.zarr")
    ids = [one["id"], other["id"], *(run["id"] for run in (*one["runs"], *other["runs"]))]
    assert len(set(ids)) == len(ids) == 5
    assert all(len(each) == 32 for each in ids)
