"""The suite of benchmarks: goals, and what is kept of a run."""

import json
import math
import subprocess
import sys

import jax
import pytest

from benchmarks import __main__ as suite, edge, foundations, limits, pytorch
from benchmarks._said import Others, Row


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
    facts = {"what": "ratio", "measured": 3.0, "sense": ">=", "goal": 2.0, "met": True}
    assert {key: one[key] for key in facts} == facts
    assert (two["measured"], two["goal"], two["met"]) == (None, None, None)
    assert "ratio" in capsys.readouterr().out


def test_an_exception_loses_one_benchmark_alone(tmp_path, monkeypatch, capsys):
    def broken(*, quick):
        yield Row("before", 1.0)
        raise ValueError("no such thing")

    monkeypatch.setattr(foundations, "main", broken)
    monkeypatch.setattr(limits, "main", lambda *, quick: iter([Row("after", 2.0)]))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    kept = tmp_path / "made" / "kept.json"
    assert suite.main(["foundations", "limits", "--json", str(kept)]) == 1
    found = json.loads(kept.read_text())["benchmarks"]
    assert [row["what"] for row in found["foundations"]["rows"]] == ["before", "ran to its end"]
    assert (found["foundations"]["failed"], found["limits"]["failed"]) == (True, False)
    assert found["limits"]["rows"][0]["measured"] == 2.0
    assert "ValueError: no such thing" in capsys.readouterr().out
    # One of them again: the other's numbers are still there.
    assert suite.main(["limits", "--json", str(kept)]) == 0
    assert json.loads(kept.read_text())["benchmarks"]["foundations"] == found["foundations"]
    assert suite.main(["limits", "--quick", "--json", str(kept)]) == 0
    again = json.loads(kept.read_text())["benchmarks"]
    assert {name: one["quick"] for name, one in again.items()} == {"foundations": False, "limits": True}


def test_what_was_measured_before_a_kill_is_kept(tmp_path, monkeypatch):
    def killed(*, quick):
        yield Row("before", 1.0)
        raise SystemExit

    monkeypatch.setattr(foundations, "main", killed)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    with pytest.raises(SystemExit):
        suite.main(["foundations", "--json", str(tmp_path / "kept.json")])
    found = json.loads((tmp_path / "kept.json").read_text())["benchmarks"]["foundations"]
    assert ([row["what"] for row in found["rows"]], found["failed"]) == (["before"], True)


def test_without_pytorch_it_says_how_to_have_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    assert list(pytorch.main(quick=True)) == []
    assert "uv run --with torch" in capsys.readouterr().out


def test_what_others_use_is_not_what_we_use(monkeypatch):
    """Of ten seconds of wall time, 1.5 cores were busy, half a core of it by ourselves."""
    moments = iter([(100.0, 7.0, 3.0), (110.0, 22.0, 8.0)])
    monkeypatch.setattr(Others, "_now", lambda _: next(moments))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert Others().busy() == 50.0


def test_what_a_child_of_a_child_uses_is_ours():
    burn = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    server = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); print(flush=True); input()"
    begin = Others()._now()[2]
    with subprocess.Popen([sys.executable, "-c", server], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert Others()._now()[2] - begin > 0.4  # the server lives, its child has ended
        process.communicate(b"\n")


def test_a_device_that_is_not_here_is_named(capsys):
    with pytest.raises(SystemExit):
        suite.main(["first-contact", "--device", "tpu"])
    assert "JAX finds no tpu here: its default device is a cpu" in capsys.readouterr().err


def test_an_unknown_benchmark_is_named(capsys):
    with pytest.raises(SystemExit):
        suite.main(["kernel"])
    assert "there is no benchmark 'kernel': choose from loops, foundations, " in capsys.readouterr().err


def test_the_last_rows_of_the_edge_come_to_their_end(monkeypatch):
    """On smaller networks: the quick part leaves one of them out."""
    large = edge.digits
    monkeypatch.setattr(edge, "digits", lambda activation, width, n: large(activation, width // 8, n // 5))
    monkeypatch.setattr(edge, "REPEATS", 1)
    rows = list(edge.costs(quick=False))
    assert len(rows) == 6
    assert rows[4].what.startswith(f"{65 * 3 + 4 * 3 + 4} parameters: whole Hessians")
    assert all(row.measured > 0 for row in rows)
