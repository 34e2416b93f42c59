"""Runs `jaxsolve sweep CONFIG --dry-run` for one config after another, each with a limit to what memory it may add.

One line of JSON in, the text of a config; one line out, what the command said and took. The process
ends when one takes too much processor time. Costs are not estimated: that takes longer than all the rest.
"""

import contextlib
import io
import json
import resource
import signal
import sys
import time
from pathlib import Path


def _data() -> int:
    """Bytes of memory that this process may write to."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))


def command(text: str) -> dict:
    """What the command says of a config, and takes."""
    from jaxsolve.cli import main

    path = Path("config.toml")
    path.write_text(text, encoding="utf-8", newline="")
    out, err, code = io.StringIO(), io.StringIO(), "none"
    begin = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(["sweep", str(path), "--dry-run"])
        except SystemExit as end:
            code = 0 if end.code is None else end.code
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
    files = sorted(item.name for item in Path().iterdir())
    seconds = time.process_time() - begin
    return {"code": code, "out": out.getvalue(), "err": err.getvalue(), "seconds": seconds, "files": files}


def serve(extra: int, seconds: float, *, warm: bool) -> None:
    """Answers line after line.

    Arguments:
        extra: bytes that each config may add to what there is before it.
        seconds: of processor time that it may take.
        warm: whether to plan the shipped configs before: what is compiled once need not count.
    """
    import jax

    from jaxsolve.papers import configs

    if warm:
        for text in configs().values():
            command(text)
    answers, since = sys.stdout, 0
    for line in sys.stdin:
        if (since := since + 1) > 100:
            jax.clear_caches()
            since = 0
        resource.setrlimit(resource.RLIMIT_DATA, (_data() + extra, resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_PROF, seconds)  # nothing handles its signal, which ends the process
        found = command(json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]), warm="--warm" in sys.argv)
