"""The commit of a folder, found without running what its repository configures."""

import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path


SECONDS = 5  # that one call of git may take
MAX_BYTES = 1 << 24  # of a file that names commits
OBJECT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")  # SHA-1 or SHA-256
REFERENCE = re.compile(r"refs/[^\s\\]+")


def revision(folder: Path, tracked: str | None = None) -> str | None:
    """The commit of a folder's repository, with `-dirty` for changes since to files that it tracks.

    The commit is read from the files of the repository. Changes are found by git in a repository that is made for it:
    an empty one, with a copy of the index, that borrows the objects. So git sees no configuration, hook, filter or file
    system monitor of the repository, nor of the user. Submodules count as unchanged; what the configuration would
    excuse (modes of files, line ends) counts as a change once the file has been touched.

    Arguments:
        folder: anywhere in a working tree.
        tracked: a file of the folder that the repository must track, or it is taken for another project's.

    Returns:
        40 or 64 hexadecimal digits, perhaps with the mark, or with `-unchecked` where git is missing, fails, or takes
        too long; None without a repository or a commit, or where it is not known to track the file.
    """
    found = _repository(Path(os.path.realpath(folder)))
    if found is None:
        return None
    tree, git = found
    common = _common(git)
    commit = _commit(git, common)
    if commit is None:
        return None
    with tempfile.TemporaryDirectory() as empty:
        try:
            run = _Git(Path(empty), tree, git, common, commit)
            if tracked is not None and not run(
                "ls-files", "--", os.path.relpath(os.path.realpath(folder / tracked), tree)
            ):
                return None
            changed = run("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all", "--no-renames")
        except (OSError, subprocess.SubprocessError):
            return f"{commit}-unchecked" if tracked is None else None
    return f"{commit}-dirty" if changed else commit


class _Git:
    """Runs git on a working tree, from a repository with nothing of its own."""

    def __init__(self, empty: Path, tree: Path, git: Path, common: Path, commit: str):
        self.tree, self.program = tree, shutil.which("git") or ""
        if not os.path.isabs(self.program):  # a `git` in the working directory is none
            raise FileNotFoundError("git is not installed")
        (empty / "objects").mkdir()
        (empty / "refs").mkdir()
        (empty / "HEAD").write_text(f"{commit}\n")
        extension = "[extensions]\n\tobjectFormat = sha256\n" if len(commit) == 64 else ""
        (empty / "config").write_text(f"[core]\n\trepositoryFormatVersion = {int(len(commit) == 64)}\n{extension}")
        if _is_file(git / "index"):
            shutil.copyfile(git / "index", empty / "index")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
            "GIT_DIR": str(empty),
            "GIT_WORK_TREE": str(tree),
            "GIT_OBJECT_DIRECTORY": str(common / "objects"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "HOME": str(empty),  # older versions know no GIT_CONFIG_GLOBAL
            "XDG_CONFIG_HOME": str(empty),
        }

    def __call__(self, *command: str) -> str:
        return subprocess.run(
            [self.program, "--literal-pathspecs", "--no-pager", *command],
            cwd=self.tree,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=True,
        ).stdout


def _repository(folder: Path) -> tuple[Path, Path] | None:
    """The working tree that holds a folder, and the folder of its repository."""
    for tree in (folder, *folder.parents):
        git = tree / ".git"
        if git.is_dir():
            return tree, git
        if _is_file(git):  # of a worktree or a submodule
            said = _read(git)
            return (tree, tree / said.removeprefix("gitdir:").strip()) if said.startswith("gitdir:") else None
    return None


def _common(git: Path) -> Path:
    """The folder that a worktree shares with the others."""
    said = _read(git / "commondir")
    return git / said if said else git


def _commit(git: Path, common: Path) -> str | None:
    """The commit that is checked out."""
    said = _read(git / "HEAD")
    for _ in range(5):  # a name may stand for another
        if OBJECT.fullmatch(said):
            return said
        name = said.removeprefix("ref:").strip()
        if name == said or not REFERENCE.fullmatch(name) or ".." in name:
            return None
        said = _read(git / name) or _read(common / name) or _packed(common, name)
    return None


def _packed(common: Path, name: str) -> str:
    """What the file of all references says of one."""
    for line in _read(common / "packed-refs").splitlines():
        if line.endswith(f" {name}"):
            return line.split(" ")[0]
    return ""


def _is_file(path: Path) -> bool:
    """Whether something is a plain file: to open a pipe would wait for ever."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _read(path: Path) -> str:
    """The text of a file; empty if there is none."""
    if not _is_file(path):
        return ""
    with path.open("rb") as file:
        return file.read(MAX_BYTES).decode("utf-8", errors="replace").strip()
