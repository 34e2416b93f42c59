"""What a sweep shows while it runs."""

import io
import sys

import pytest
from rich.console import Console

from jaxsolve.sweeps import _progress
from jaxsolve.sweeps._progress import Bar, duration, Lines, rate, show_progress, Silent


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


def test_lines_come_now_and_then(clock):
    """Lanes that ran before tell nothing of the rate, and the time left is that of those that are missing."""
    stream = io.StringIO()
    with Lines(100, stream, seconds=10.0) as shown:
        shown.skip(40)
        clock.now += 9
        shown.advance(10)
        assert stream.getvalue() == ""
        shown.fail(3)
        clock.now += 1
        shown.advance(10)
        assert stream.getvalue() == "sweep: 60/100 runs in 10 s, 2/s, 20 s left, 3 failed\n"
        clock.now += 5
        shown.advance(40)
    assert stream.getvalue().splitlines()[1:] == ["sweep: 100/100 runs in 15 s, 4/s, 3 failed"]


def test_lines_of_long_sweeps_are_rarer(clock):
    stream = io.StringIO()
    with Lines(10**6, stream, seconds=10.0) as shown:
        for _ in range(3600):
            clock.now += 1
            shown.advance(1)
    assert 40 < len(stream.getvalue().splitlines()) < 100


def test_the_last_line_is_not_said_twice(clock):
    stream = io.StringIO()
    with Lines(3, stream, seconds=10.0) as shown:
        clock.now += 20
        shown.advance(3)
    assert stream.getvalue() == "sweep: 3/3 runs in 20 s, 9/min, 0 failed\n"


def test_an_interrupted_sweep_says_how_far_it_came(clock):
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Lines(10, stream):
        raise KeyboardInterrupt
    assert stream.getvalue() == "sweep: 0/10 runs in 0 s, 0 failed\n"


def test_a_bar_on_a_terminal(clock):
    stream = io.StringIO()
    with Bar(100, Console(file=stream, force_terminal=True, color_system=None, width=120)) as shown:
        shown.skip(40)
        clock.now += 10
        shown.advance(20)
        shown.fail(2)
    last = stream.getvalue().splitlines()[-2]
    assert " 60/100 runs, 2/s, 20 s left, 2 failed," in last


def test_where_it_is_shown(monkeypatch, capsys):
    assert isinstance(show_progress(1, shown=False), Silent)
    assert isinstance(show_progress(1, shown=True), Lines)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert isinstance(show_progress(1, shown=True), Bar)
    with show_progress(2, shown=False) as shown:
        shown.skip(1)
        shown.advance(1)
        shown.fail(1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (1.24, "1.2 s"), (59.4, "59 s"), (75.0, "1 min 15 s"), (3600.0, "1 h 0 min"), (9e4, "25 h 0 min")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(1234.5, "1.23e+03/s"), (1.0, "1/s"), (0.5, "30/min"), (0.01, "36/h")])
def test_rates(value, text):
    assert rate(value) == text
