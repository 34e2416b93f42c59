"""Python in a fresh process, for what depends on what has been imported."""

import subprocess
import sys
from pathlib import Path


ROOT = Path(__file__).resolve().parent.parent


def fresh(code: str, *, timeout: float = 120.0) -> str:
    """What the code prints in a new Python, where warnings are errors. An error there is a failure here."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
