"""What decides the bits of a result in a process, to be the same in all that take part in a sweep."""

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any, NamedTuple

import jax
import jax.experimental

from ._manifest import LIBRARIES


SETTINGS = (
    "enable_x64",
    "default_matmul_precision",
    "default_prng_impl",
    "threefry_partitionable",
    "numpy_dtype_promotion",
    "numpy_rank_promotion",
)
FLAGS = "XLA_FLAGS"


class Conditions(NamedTuple):
    """Of one process, to be met by another.

    Attributes:
        settings: of JAX, by name.
        flags: of XLA.
        versions: of libraries, by name.
    """

    settings: dict[str, Any]
    flags: str
    versions: dict[str, str]

    @staticmethod
    def here() -> "Conditions":
        """Those of this process."""
        return Conditions(_settings(), os.environ.get(FLAGS, ""), versions_here())

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """While it is entered, JAX has these settings in this thread."""
        with contextlib.ExitStack() as stack:
            for name, value in self.settings.items():
                if _settings()[name] != value:
                    # JAX before 0.8 has enable_x64 among the experiments.
                    setting: Any = getattr(jax if hasattr(jax, name) else jax.experimental, name)
                    stack.enter_context(setting(value))
            yield

    def adopt_flags(self, where: str, *, fresh: bool) -> None:
        """Takes over the flags of XLA, which reads them once, when a process first computes something.

        Arguments:
            where: what to call this process.
            fresh: whether it has computed nothing yet.

        Raises:
            ValueError: it is too late.
        """
        present = os.environ.get(FLAGS, "")
        if present == self.flags:
            return
        if not fresh:
            raise ValueError(
                f"{where} runs with {FLAGS}={present!r}, the sweep was asked for with {self.flags!r}; restart the "
                "workers, for example by client.restart()"
            )
        os.environ[FLAGS] = self.flags

    def require_versions(self, found: dict[str, str | None], where: str) -> None:
        """Raises ValueError unless another process has the same libraries."""
        wrong = [
            f"{name} {found.get(name) or 'missing'} instead of {version}"
            for name, version in self.versions.items()
            if found.get(name) != version
        ]
        if wrong:
            raise ValueError(
                f"{where} has {', '.join(wrong)}: its results may differ, and it may not understand what it is asked "
                "for. Install the same versions wherever the sweep runs"
            )


def versions_here() -> dict[str, str]:
    """The versions of Python, to its second number, and of the libraries that a manifest names."""
    return {"python": short(sys.version.split()[0]), **{name: metadata.version(name) for name in LIBRARIES}}


def short(version: str) -> str:
    """The first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def _settings() -> dict[str, Any]:
    config: Any = jax.config
    return {name: getattr(config, f"jax_{name}") for name in SETTINGS}
