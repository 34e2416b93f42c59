"""The suite of benchmarks: goals, and what is kept of a run."""

import json
import math

import jax
import pytest

from benchmarks import __main__ as suite, foundations
from benchmarks._said import Row


def test_a_goal_that_is_missed_is_called_missed():
    for sense, missed, met in ((">=", 59.9, 60.0), ("<=", 60.1, 60.0)):
        assert str(Row("ratio", missed, sense, 60)).endswith("NOT MET")
        assert str(Row("ratio", met, sense, 60)).endswith(" met")
        assert str(Row("ratio", math.nan, sense, 60)).endswith("NOT MET")
    assert str(Row("seconds", 1.0)).endswith("1")


def test_the_numbers_are_kept(tmp_path, monkeypatch, capsys):
    rows = [Row("ratio", 3.0, ">=", 2.0), Row("not measured", math.nan)]
    monkeypatch.setattr(foundations, "main", lambda *, quick: iter(rows if quick else []))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)  # of the whole process
    kept = tmp_path / "kept.json"
    suite.main(["foundations", "--quick", "--json", str(kept)])
    found = json.loads(kept.read_text())
    assert found["machine"]["versions"]["jax"]
    one, two = found["benchmarks"]["foundations"]["rows"]
    assert one == {"what": "ratio", "measured": 3.0, "sense": ">=", "goal": 2.0, "met": True}
    assert (two["measured"], two["goal"], two["met"]) == (None, None, None)
    assert "ratio" in capsys.readouterr().out


def test_an_unknown_benchmark_is_named(capsys):
    with pytest.raises(SystemExit):
        suite.main(["kernel"])
    assert "there is no benchmark 'kernel': choose from foundations, " in capsys.readouterr().err
