"""What a sweep shows while it runs."""

import sys

import numpy as np
import pytest
import rich.console

from tests.sweeps.inside import _progress, Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    found = Clock()
    monkeypatch.setattr(_progress, "time", found)
    return found


def _missing(total, before=0):
    return np.arange(total) >= before


def test_lines_come_now_and_then(clock, capsys):
    """Lanes that ran before tell nothing of the rate, and the time left is that of those that are missing."""
    with Progress(_missing(100, 40), shown=True) as bar:
        clock.now += 9
        bar.add(10, 3)
        assert capsys.readouterr().err == ""
        clock.now += 1
        bar.add(10, 0)
        assert capsys.readouterr().err == "sweep: 60/100 runs in 0:00:10, 2/s, 0:00:04 left, 3 failed\n"
        clock.now += 5
        bar.add(40, 0)
    assert capsys.readouterr() == ("", "sweep: 100/100 runs in 0:00:15, 4/s, 3 failed\n")


def test_a_compile_is_no_estimate(clock, capsys):
    """A batch that compiled for a minute, of 2000 that take an eighth of a second: no line speaks of a day."""
    with Progress(_missing(2000), shown=True) as bar:
        clock.now += 60
        bar.add(1, 0)
        for _ in range(200):
            clock.now += 0.125
            bar.add(1, 0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "sweep: 1/2000 runs in 0:01:00, 0.0167/s, 0 failed"
    assert lines[1].startswith("sweep: 81/2000 runs in 0:01:10, 1.16/s, 0:04:00 left")


def test_lines_of_long_sweeps_are_rarer(clock, capsys):
    with Progress(_missing(10**6), shown=True) as bar:
        for _ in range(3600):
            clock.now += 1
            bar.add(1, 0)
    assert 40 < len(capsys.readouterr().err.splitlines()) < 100


def test_the_last_line_is_not_said_twice(clock, capsys):
    with Progress(_missing(3), shown=True) as bar:
        clock.now += 20
        bar.add(3, 0)
    assert capsys.readouterr().err == "sweep: 3/3 runs in 0:00:20, 0.15/s, 0 failed\n"


def test_an_interrupted_sweep_says_how_far_it_came(clock, capsys):
    with pytest.raises(KeyboardInterrupt), Progress(_missing(10), shown=True):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "sweep: 0/10 runs in 0:00:00, 0 failed\n"


def test_a_bar_on_a_terminal(clock, capsys, monkeypatch):
    make = rich.console.Console
    on = lambda **options: make(**options, force_terminal=True, color_system=None, width=120)
    monkeypatch.setattr(rich.console, "Console", on)
    with Progress(_missing(100, 40), shown=True) as bar:
        clock.now += 5
        bar.add(10, 2)
        clock.now += 5
        bar.add(10, 0)
    last = capsys.readouterr().err.splitlines()[-2]
    assert "sweep " in last
    assert " 60/100 runs in 0:00:10, 2/s, 0:00:20 left, 2 failed, " in last


def test_where_it_is_shown(monkeypatch, capsys):
    with Progress(_missing(2), shown=False) as bar:
        bar.add(1, 1)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with Progress(_missing(2), shown=True) as bar:
        bar.add(1, 1)
    assert "\x1b[" in capsys.readouterr().err  # a bar moves the cursor
