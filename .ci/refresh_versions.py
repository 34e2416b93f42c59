# /// script
# requires-python = ">=3.12"
# ///
"""Pin the newest versions that work together into `[tool.uv] constraint-dependencies` of pyproject.toml.

Usage: `uv run .ci/refresh_versions.py`, then `uv sync && uv run pytest`.

Resolves what `uv sync` installs by default, and the extras in `EXTRAS`, afresh for the oldest supported Python. Only
names and versions are written: nothing that says from where they came.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path


PYTHON = "3.12"
EXTRAS = ("neural-tangents", "test", "bench", "sweeps", "plot", "data", "cli")

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
PIN = re.compile(r"[a-z0-9-]+==[A-Za-z0-9.!+]+")
LIST = re.compile(r"^constraint-dependencies = \[.*?\]$", re.MULTILINE | re.DOTALL)


def requirements(project: dict) -> list[str]:
    """The dependencies, the extras and the development tools, as one flat list."""
    extras = project["project"]["optional-dependencies"]
    chosen = [line for extra in EXTRAS for line in extras[extra] if not line.startswith("jaxsolve")]
    tools = [line for line in project["dependency-groups"]["dev"] if not line.startswith("jaxsolve")]
    return [*project["project"]["dependencies"], *chosen, *tools]


def resolve(wanted: list[str], overrides: list[str], python: str, *, resolution: str = "highest") -> dict[str, str]:
    """The versions, {name: "name==version"}, that one Python can install together: by default the newest."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "wanted.in").write_text("\n".join(wanted))
        Path(folder, "overrides.txt").write_text("\n".join(overrides))
        command = ["uv", "pip", "compile", "wanted.in", "--override", "overrides.txt", "--python-version", python]
        command += ["--resolution", resolution, "--quiet", "--no-header", "--no-annotate"]
        lines = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n")
    pins = [line.partition(" ;")[0].strip() for line in lines if line.strip()]
    if strange := [pin for pin in pins if not PIN.fullmatch(pin)]:
        sys.exit(f"Expected lines `name==version` from uv, got {strange}; nothing was changed.")
    return {pin.partition("==")[0]: pin for pin in pins}


def main() -> None:
    """Resolve, and rewrite the list in place."""
    text = PYPROJECT.read_text()
    if len(LIST.findall(text)) != 1:
        sys.exit("Expected exactly one `constraint-dependencies = [...]` in pyproject.toml; it is unchanged.")
    project = tomllib.loads(text)
    wanted, overrides = requirements(project), project["tool"]["uv"]["override-dependencies"]
    lines = [pin for _, pin in sorted(resolve(wanted, overrides, PYTHON).items())]
    block = "\n".join(["constraint-dependencies = [", *(f'  "{line}",' for line in lines), "]"])
    new = LIST.sub(lambda _: block, text)
    if tomllib.loads(new)["tool"]["uv"]["constraint-dependencies"] != lines:
        sys.exit("The rewritten list does not read back; pyproject.toml is unchanged.")
    PYPROJECT.write_text(new)
    before = set(project["tool"]["uv"]["constraint-dependencies"])
    for mark, changed in (("-", before - set(lines)), ("+", set(lines) - before)):
        sys.stdout.writelines(f"{mark} {line}\n" for line in sorted(changed))
    sys.stdout.write(f"{len(lines)} versions pinned.\n")


if __name__ == "__main__":
    main()
