"""The commit that a manifest notes, found without running what a repository configures."""

import shutil
import subprocess

import pytest

from tests.sweeps.inside import commit


def _git(folder, *command):
    named = ["-c", "user.name=x", "-c", "user.email=x@example.invalid"]
    done = subprocess.run(["git", *named, *command], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file.py").write_text("x = 1\n")
    _git(folder, "init", "-q", "-b", "main")
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "first")
    return folder


def test_the_commit_is_noted(repository, tmp_path, monkeypatch):
    assert commit(repository / "inner") == _git(repository, "rev-parse", "HEAD")
    assert commit(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(repository) is None  # without git


def test_nothing_that_a_repository_configures_runs(repository, tmp_path):
    note, trap = tmp_path / "sprung", tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\necho $0 $@ >> {note}\ncat\n")
    trap.chmod(0o755)
    named = ("core.fsmonitor", "core.pager", "core.editor", "filter.evil.clean", "diff.external", "core.sshCommand")
    for name in named:
        _git(repository, "config", name, str(trap))
    for name in ("rev-parse", "status"):
        _git(repository, "config", f"alias.{name}", f"!{trap}")
    for name in ("post-index-change", "reference-transaction"):
        shutil.copy(trap, repository / ".git" / "hooks" / name)
    (repository / ".gitattributes").write_text("* filter=evil\n")
    (repository / "inner" / "file.py").write_text("x = 2\n")
    note.unlink(missing_ok=True)
    assert commit(repository) is not None
    assert not note.exists()
    _git(repository, "status")
    assert note.exists()  # the traps work


def test_a_repository_that_does_not_answer(tmp_path):
    git = tmp_path / ".git"
    git.mkdir()
    for head in ("", "ref: ../../etc/passwd", "ref: refs/heads/none", "x" * 40):
        (git / "HEAD").write_text(head)
        assert commit(tmp_path) is None
