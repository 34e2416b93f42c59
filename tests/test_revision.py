"""The commit that a manifest notes: the one that git would say, found without running what a repository configures."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.inside import revision


ROOT = Path(__file__).resolve().parent.parent
WHO = {f"GIT_{role}_{what}": "x@example.invalid" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def _git(folder, *command):
    isolated = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **WHO}
    done = subprocess.run(
        ["git", *command], cwd=folder, env=os.environ | isolated, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file.py").write_text("x = 1\n")
    (folder / "other.txt").write_text("text\n")
    _git(folder, "init", "-q", "-b", "main")
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "first")
    return folder


def _said(folder):
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _dirty(said):
    return said is not None and said.endswith("-dirty")


def test_it_says_what_git_says(repository):
    assert revision(repository) == revision(repository / "inner") == _said(repository)
    assert len(_said(repository)) == 40
    (repository / "untracked").write_text("")
    (repository / "other.txt").touch()
    assert revision(repository) == _said(repository)
    (repository / "other.txt").write_text("TEXT\n")  # as long as before
    assert _dirty(revision(repository))
    assert revision(repository) == _said(repository)
    _git(repository, "add", ".")
    assert revision(repository) == _said(repository)
    assert _dirty(revision(repository))
    _git(repository, "commit", "-q", "-m", "second")
    assert revision(repository) == _said(repository)
    _git(repository, "rm", "-q", "other.txt")
    assert revision(repository) == _said(repository)
    assert _dirty(revision(repository))


@pytest.mark.parametrize(
    "commands",
    [
        [["pack-refs", "--all"]],
        [["gc", "-q"]],
        [["checkout", "-q", "--detach"]],
        [["checkout", "-q", "-b", "a/branch/of-several.parts"], ["pack-refs", "--all"]],
        [["symbolic-ref", "refs/heads/alias", "refs/heads/main"], ["symbolic-ref", "HEAD", "refs/heads/alias"]],
    ],
    ids=["packed refs", "packed objects", "detached", "branch", "alias"],
)
def test_where_commits_are_named(repository, commands):
    for command in commands:
        _git(repository, *command)
    assert revision(repository) == _said(repository)
    (repository / "other.txt").write_text("changed")
    assert revision(repository) == _said(repository)


def test_worktrees(repository, tmp_path):
    _git(repository, "worktree", "add", "-q", "-b", "elsewhere", str(tmp_path / "tree"))
    (tmp_path / "tree" / "other.txt").write_text("more\n")
    _git(tmp_path / "tree", "commit", "-q", "-a", "-m", "third")
    assert revision(tmp_path / "tree") == _said(tmp_path / "tree") != revision(repository)
    (tmp_path / "tree" / "other.txt").write_text("changed")
    assert _dirty(revision(tmp_path / "tree"))


def test_without_a_repository(tmp_path, repository):
    assert revision(tmp_path) is None
    _git(tmp_path, "init", "-q", "--object-format=sha256")
    assert revision(tmp_path) is None  # it has no commit
    (tmp_path / ".gitignore").write_text("*\n")
    _git(tmp_path, "add", "-f", ".gitignore")
    _git(tmp_path, "commit", "-q", "-m", "first")
    assert revision(tmp_path) == _git(tmp_path, "rev-parse", "HEAD")
    assert len(revision(tmp_path) or "") == 64


def test_a_file_that_must_be_tracked(repository):
    assert revision(repository / "inner", "file.py") == _said(repository)
    assert revision(repository / "inner", "no_such_file.py") is None
    (repository / "inner" / "new.py").write_text("")
    assert revision(repository / "inner", "new.py") is None


def test_without_git(repository, tmp_path, monkeypatch):
    commit = _said(repository)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision(repository) == f"{commit}-unchecked"
    assert revision(repository / "inner", "file.py") is None
    monkeypatch.setenv("PATH", "")
    shutil.copy("/bin/true", repository / "git")
    monkeypatch.chdir(repository)
    assert revision(repository) == f"{commit}-unchecked"


# What a hostile repository configures


def _armed(repository, tmp_path):
    """Arms a repository with all that git runs by itself: each leaves a note when it runs."""
    note = tmp_path / "sprung"
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\necho $0 $@ >> {note}\ncat\n")
    trap.chmod(0o755)
    for name in ("core.fsmonitor", "filter.evil.clean", "filter.evil.smudge", "core.pager", "diff.external"):
        _git(repository, "config", name, str(trap))
    for name in ("diff.evil.textconv", "core.editor", "core.sshCommand", "core.askPass", "credential.helper"):
        _git(repository, "config", name, str(trap))
    _git(repository, "config", "alias.status", f"!{trap}")
    for name in ("post-index-change", "pre-commit", "post-checkout", "reference-transaction"):
        shutil.copy(trap, repository / ".git" / "hooks" / name)
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")
    (repository / "other.txt").write_text("TEXT\n")  # git must look into it
    return note


def test_nothing_that_a_repository_configures_runs(repository, tmp_path, monkeypatch):
    note = _armed(repository, tmp_path)
    assert _dirty(revision(repository))
    assert _dirty(revision(repository / "inner", "file.py"))
    assert not note.exists()
    for name in ("GIT_DIR", "GIT_CONFIG_PARAMETERS", "GIT_EXTERNAL_DIFF"):
        monkeypatch.setenv(name, "'core.fsmonitor=touch /tmp/never'")
    assert _dirty(revision(repository))
    monkeypatch.undo()
    _said(repository)
    assert note.exists()  # the traps work: this is how it was read before


def test_submodules_run_nothing(repository, tmp_path):
    inner = tmp_path / "inner"
    shutil.copytree(repository, inner)
    _git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    _git(repository, "commit", "-q", "-m", "with a submodule")
    note = tmp_path / "sprung"
    _git(repository / "sub", "config", "core.fsmonitor", f"touch {note}; false")
    commit = _git(repository, "rev-parse", "HEAD")
    assert revision(repository) == commit
    assert not note.exists()


def test_damaged_and_hostile_repositories(tmp_path):
    git = tmp_path / ".git"
    git.mkdir()
    for head in ("", "ref: ../../etc/passwd", "ref: refs/../../../secret", "ref: refs/heads/none", "x" * 40, "0" * 39):
        (git / "HEAD").write_text(head)
        assert revision(tmp_path) is None
    (git / "HEAD").write_text("ref: refs/heads/main")
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text("ref: refs/heads/main")  # for ever
    assert revision(tmp_path) is None
    (git / "HEAD").unlink()
    os.mkfifo(git / "HEAD")  # to open it would wait for ever
    assert revision(tmp_path) is None
    (git / "HEAD").unlink()
    (git / "HEAD").write_text("0" * 40)
    assert revision(tmp_path) == f"{'0' * 40}-unchecked"
    shutil.rmtree(git)
    git.write_text("gitdir: nowhere")
    assert revision(tmp_path) is None
    git.write_bytes(b"\xff\0")
    assert revision(tmp_path) is None


def test_this_repository():
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    assert (revision(ROOT) or "").split("-")[0] == _git(ROOT, "rev-parse", "HEAD")
