import sys

import jax
import pytest

from jaxsolve.cli import main


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs a command in an empty folder, and gives back its exit code, output, and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = jax.config.jax_enable_x64

    def run(*arguments):
        code: object = 0
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
        finally:
            jax.config.update("jax_enable_x64", before)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    return run
