"""JAX's flags that look at every number: those that jaxsolve itself puts into programs are exempt."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax


@contextlib.contextmanager
def unwatched() -> Iterator[Callable[[], contextlib.AbstractContextManager[bool]]]:
    """A context, or as `@unwatched()` a function, in which `jax_debug_nans` and `jax_debug_infs` are off.

    They raise for each NaN or infinity that a program returns, also for the NaN in a row that is not saved yet and the
    infinity that stands for no bound. It gives a context in which they are as they were, and which says whether any is
    on: for what the user's network computes.
    """
    config: Any = jax.config
    nans, infs = config.jax_debug_nans, config.jax_debug_infs

    @contextlib.contextmanager
    def watched() -> Iterator[bool]:
        with jax.debug_nans(nans), jax.debug_infs(infs):
            yield nans or infs

    with jax.debug_nans(False), jax.debug_infs(False):
        yield watched
