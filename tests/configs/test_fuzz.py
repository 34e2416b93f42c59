"""Wrong configs: the command plans them, or says why not in one line, in seconds and little memory.

`JAXSOLVE_FUZZ_CONFIGS=2000 uv run pytest -n0 -m slow tests/configs/test_fuzz.py` tries more.
"""

import itertools
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, HealthCheck, settings, strategies as st

from jaxsolve.papers import configs
from tests.configs.mutated import mutated


ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30.0  # of processor time; the dearest of the shipped configs takes 13 on a loaded machine
COLD = 60.0  # the same where libraries are imported and programs compiled for the first time
MEMORY = 10**9  # bytes beyond what the process had before
OVERFULL = ("RESOURCE_EXHAUSTED", "Unable to allocate", "bad_alloc", "Out of memory", "Traceback")


class Child:
    """A process that runs the command for one config after another."""

    def __init__(self, folder, seconds):
        folder.mkdir()
        options = [str(MEMORY), str(seconds), *(["--warm"] if seconds == SECONDS else [])]
        program = [sys.executable, str(ROOT / "tests" / "configs" / "child.py"), *options]
        self.process = subprocess.Popen(
            program,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, text):
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(text) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline() or '{"code": "died"}')


class Children:
    """Some of them; one that died is replaced."""

    def __init__(self, folder, count, seconds):
        self.folder, self.seconds, self.made, self.known = folder, seconds, itertools.count(), {}
        self.pool = ThreadPoolExecutor(count)

    def ask(self, texts):
        return list(self.pool.map(self._ask, texts))

    def _ask(self, text):
        me = threading.get_ident()
        child = self.known.get(me)
        if child is None or child.process.poll() is not None:
            child = self.known[me] = Child(self.folder / str(next(self.made)), self.seconds)
        return child.ask(text)

    def close(self):
        self.pool.shutdown()
        for child in self.known.values():
            child.process.kill()
            child.process.communicate()


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    """One that has compiled nothing yet."""
    found = Children(tmp_path_factory.mktemp("child"), 1, COLD)
    yield found
    found.close()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two that have planned the shipped configs."""
    found = Children(tmp_path_factory.mktemp("two"), 2, SECONDS)
    yield found
    found.close()


def _check(text, answer):
    shown = f"{answer}\n{text}"
    assert answer["code"] in (0, 2), shown
    lines = answer["err"].splitlines()
    if answer["code"] == 2:
        assert len(lines) == 1, shown
        assert lines[0].startswith("jaxsolve: "), shown
        assert lines[0].isprintable(), shown
        assert answer["out"] == "", shown
    assert not any(word in answer["err"] for word in OVERFULL), shown
    assert answer["files"] == ["config.toml"], shown


def _all_are_fine(children, texts):
    answers = children.ask(texts)
    for text, answer in zip(texts, answers, strict=True):
        _check(text, answer)
    return [answer["code"] for answer in answers]


SIZES = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)  # a config is large
FEW = settings(max_examples=5, suppress_health_check=SIZES)
MANY = settings(max_examples=int(os.environ.get("JAXSOLVE_FUZZ_CONFIGS", "160")) // 8, suppress_health_check=SIZES)
BATCH = st.lists(mutated(), min_size=8, max_size=8)


def test_the_watch_sees_what_is_wrong():
    good = {"code": 2, "out": "", "err": "jaxsolve: no\n", "files": ["config.toml"]}
    _check("", good)
    bad = ({"code": 1}, {"code": "died"}, {"err": "a\nb\n"}, {"err": "jaxsolve: \x1b\n"}, {"err": ""}, {"out": "x"})
    for change in (*bad, {"files": []}, {"err": "jaxsolve: XlaRuntimeError: RESOURCE_EXHAUSTED\n"}):
        with pytest.raises(AssertionError):
            _check("", good | change)


@FEW
@given(BATCH)
def test_some_configs(child, texts):
    _all_are_fine(child, texts)


@pytest.mark.slow
@MANY
@given(BATCH)
def test_many_configs(two, texts):
    _all_are_fine(two, texts)


@pytest.mark.slow
def test_shipped_configs_pass(two):
    assert _all_are_fine(two, [*configs().values(), "times = 1"]) == [0] * len(configs()) + [2]


class Command:
    """The command itself, in a process for each config."""

    def __init__(self, folder):
        self.folder, self.made, self.pool = folder, itertools.count(), ThreadPoolExecutor(2)

    def ask(self, texts):
        return list(self.pool.map(self._ask, texts))

    def _ask(self, text):
        folder = self.folder / str(next(self.made))
        folder.mkdir()
        (folder / "config.toml").write_text(text, encoding="utf-8", newline="")
        program = [sys.executable, "-c", COMMAND, "sweep", "config.toml", "--dry-run"]
        done = subprocess.run(program, cwd=folder, capture_output=True, text=True, check=False)
        files = sorted(item.name for item in folder.iterdir())
        *lines, peak = done.stderr.splitlines()
        assert int(peak) * 1024 < MEMORY, f"{peak} kB\n{text}"
        err = "".join(f"{line}\n" for line in lines)
        return {"code": done.returncode, "out": done.stdout, "err": err, "files": files}


# Says at its end how much memory it held.
COMMAND = """
import atexit, signal, sys
signal.setitimer(signal.ITIMER_PROF, 60)
status = lambda: dict(line.split(":") for line in open("/proc/self/status"))  # rusage has the peak of the parent, too
atexit.register(lambda: print(status()["VmHWM"].split()[0], file=sys.stderr))
from jaxsolve.cli import main
main()
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    found = Command(tmp_path_factory.mktemp("command"))
    yield found
    found.pool.shutdown()


@pytest.mark.slow
@settings(max_examples=3, suppress_health_check=SIZES)
@given(BATCH)
def test_two_dozen_through_the_command(command, texts):
    _all_are_fine(command, texts)
