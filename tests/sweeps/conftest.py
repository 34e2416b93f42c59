"""What several tests of sweeps look at."""

import jax
import pytest


@pytest.fixture
def compilations(monkeypatch):
    """The programs that were compiled for sweeps, one entry each."""
    found, compile_it = [], jax.stages.Lowered.compile
    monkeypatch.setattr(
        jax.stages.Lowered,
        "compile",
        lambda self, *args, **options: found.append(self) or compile_it(self, *args, **options),
    )
    return found
