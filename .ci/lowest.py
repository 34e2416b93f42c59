# /// script
# requires-python = ">=3.12"
# ///
"""Run tests with the oldest versions of the dependencies that pyproject.toml allows, on the oldest Python.

Usage: `uv run .ci/lowest.py [ARGUMENTS]`, where the arguments go to pytest; without any, it runs the representative
part of the suite (`tests/conftest.py` lists it).

The versions go to an environment of their own, `.venv-lowest`. They are resolved outside of the project, where its list
of pinned versions does not hold. What is not named in pyproject.toml (dependencies of dependencies) is the newest that
goes with them, as it would be for a user.
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from refresh_versions import PYPROJECT, requirements, resolve


PYTHON = "3.12"
ROOT = PYPROJECT.parent
ENVIRONMENT = ROOT / ".venv-lowest"
# Old releases use what newer releases of their own dependencies deprecate; the pinned versions must stay free of it.
PYTEST = ["-m", "pytest", "-W", "default::DeprecationWarning"]
REPRESENTATIVE = ["-m", "representative and not slow"]


def install() -> None:
    """Install the versions, and this working copy, into the environment."""
    project = tomllib.loads(PYPROJECT.read_text())
    overrides = project["tool"]["uv"]["override-dependencies"]
    pins = resolve(requirements(project), overrides, PYTHON, resolution="lowest-direct")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pins.txt").write_text("\n".join(pins.values()))
        into = ["--quiet", "--python", str(ENVIRONMENT)]
        for command in (
            ["venv", "--quiet", "--allow-existing", "--python", PYTHON, str(ENVIRONMENT)],
            ["pip", "sync", *into, "pins.txt"],
            ["pip", "install", *into, "--no-deps", "--editable", str(ROOT)],
        ):
            subprocess.run(["uv", *command], cwd=folder, check=True)


def main() -> int:
    """Install, and run pytest; gives back its exit code."""
    install()
    python = ENVIRONMENT / "bin" / "python"
    return subprocess.run([python, *PYTEST, *(sys.argv[1:] or REPRESENTATIVE)], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
