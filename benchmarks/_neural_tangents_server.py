# /// script
# requires-python = "==3.11.*"
# dependencies = ["jax==0.4.23", "jaxlib==0.4.23", "neural-tangents==0.6.5", "numpy<2", "scipy<1.12"]
#
# [tool.uv]
# override-dependencies = ["tensorflow ; python_version < '0'", "tf2jax ; python_version < '0'"]
# ///
"""neural-tangents and how it is timed; run as a script, a server of it on the last JAX on which all of it works.

`uv run --script benchmarks/_neural_tangents_server.py` makes the environment above, in which STRUCTURED_DERIVATIVES
works, and answers one JSON object per line on stdin by one on stdout. Knows nothing of jaxsolve, and must run on both
versions of JAX: both time the same network by the same code.
"""

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np


class Contestant:
    """One compiled function and its arguments.

    Arguments:
        name: as the table prints it.
        function: what is timed.
        arguments: its arrays.
    """

    def __init__(self, name: str, function: Callable[..., Any], *arguments: Any):
        self.name = name
        self._arguments = arguments
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of neural-tangents, which nobody will update
            self._compiled = jax.jit(function).lower(*arguments).compile()
        self.compile_seconds = time.perf_counter() - start
        self._result: Any = None

    @property
    def bytes(self) -> float:
        """Memory that XLA plans for the answer and on the way to it; not a number where XLA does not say."""
        plan = self._compiled.memory_analysis()
        return float("nan") if plan is None else float(plan.temp_size_in_bytes + plan.output_size_in_bytes)

    def call(self) -> float:
        """Seconds of one call, until its answer is there."""
        self._result = None  # its memory is free again before the next answer
        start = time.perf_counter()
        self._result = jax.block_until_ready(self._compiled(*self._arguments))
        return time.perf_counter() - start

    def answer(self) -> np.ndarray:
        """What the last call gave."""
        return np.asarray(self._result)


def network(weights: Sequence[Any], x: Any) -> Any:
    """Relu network in NTK parameterisation; each weight matrix has shape (in, out).

    `x @ w`, not `x @ w.T`: STRUCTURED_DERIVATIVES sees the structure of the first only, and is then 60 times faster.
    """
    z = x
    for index, w in enumerate(weights):
        z = ((jax.nn.relu(z) if index else z) @ w) * w.shape[0] ** -0.5
    return z


def ntk(nt: Any, implementation: str, *, vmap_axes: int | None) -> Callable[[Any, Any], Any]:
    """(weights, x) -> the train/train kernel, shape (n, n, c, c), with all outputs kept."""
    kernel_fn = nt.empirical_ntk_fn(
        network, trace_axes=(), vmap_axes=vmap_axes, implementation=nt.NtkImplementation[implementation]
    )
    return lambda weights, x: kernel_fn(x, None, weights)


# --- the server


def serve(nt: Any) -> None:
    """Answers requests until stdin ends: start (weights and x from a file), call, answer (to a file)."""
    stdout, sys.stdout = sys.stdout, sys.stderr  # what libraries print must not garble the answers
    contestant = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "start":
                contestant = None
                with np.load(request["path"]) as file:
                    x, *weights = (jax.numpy.asarray(file[f"arr_{index}"]) for index in range(len(file.files)))
                contestant = Contestant("", ntk(nt, request["implementation"], vmap_axes=0), weights, x)
                reply = {"compile_seconds": contestant.compile_seconds}
            elif request["do"] == "call" and contestant is not None:
                reply = {"seconds": contestant.call()}
            elif request["do"] == "answer" and contestant is not None:
                np.save(request["path"], contestant.answer())
                reply = {}
            else:
                reply = {"jax": jax.__version__, "neural_tangents": nt.__version__}
        except Exception as error:  # the other side prints it in its table
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=stdout, flush=True)


def main() -> None:
    """The server."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax.config.update("jax_enable_x64", True)
    sys.modules["neural_tangents.experimental"] = types.ModuleType("neural_tangents.experimental")  # TensorFlow
    import neural_tangents

    serve(neural_tangents)


# --- the other side of it


class Remote:
    """A contestant in the server."""

    name = "STRUCTURED_DERIVATIVES (jax 0.4.23)"
    bytes = math.nan

    def __init__(self, server: "Server", compile_seconds: float):
        self._server = server
        self.compile_seconds = compile_seconds

    def call(self) -> float:
        return self._server.ask(do="call")["seconds"]

    def answer(self) -> np.ndarray:
        path = self._server.folder / "answer.npy"
        self._server.ask(do="answer", path=str(path))
        return np.load(path)


class Server:
    """neural-tangents on the last JAX on which all of it works, in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path):
        self._process = process
        self.folder = folder
        versions = self.ask(do="versions")
        self.what = f"jax {versions['jax']}, neural-tangents {versions['neural_tangents']}"

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            reply = json.loads(self._process.stdout.readline() or '{"error": "the process has ended"}')
        except OSError as error:
            reply = {"error": str(error)}
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def contestant(self, weights: Sequence[Any], x: Any) -> Remote:
        path = self.folder / "case.npz"
        np.savez(path, x, *weights)
        reply = self.ask(do="start", path=str(path), implementation="STRUCTURED_DERIVATIVES")
        return Remote(self, reply["compile_seconds"])


@contextlib.contextmanager
def structured_server() -> Iterator[Server | str]:
    """The server, or in words why there is none."""
    uv = shutil.which("uv")
    if uv is None:
        yield "uv, which makes its environment, is not installed"
        return
    if jax.default_backend() != "cpu":
        yield "its environment is one for processors"
        return
    with tempfile.TemporaryDirectory() as name, (Path(name) / "errors").open("w+") as errors:
        process = subprocess.Popen(
            [uv, "run", "--quiet", "--script", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        try:
            server: Server | str = Server(process, Path(name))
        except RuntimeError as error:
            errors.seek(0)
            said = " ".join(errors.read().split())
            server = f"its environment could not be made: {said[:300] or error}"
        try:
            yield server
        finally:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
