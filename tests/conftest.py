"""Settings shared by all tests. jaxsolve must not be imported here: the shape checks hook into its first import."""

import itertools
import os
import zlib

import hypothesis
import pytest


# Most time goes into compiling programs that run once: optimise them less, as JAX's own tests do. To be set before JAX
# starts; `XLA_FLAGS= uv run pytest` runs what users run.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
# Tests run one per core: a second thread of LAPACK would wait for a core, and spin while it waits.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax  # noqa: E402
import jaxtyping  # noqa: E402


# One float64 run is the default; JAXSOLVE_TEST_X32=1 repeats it in the precision that users get from JAX by default.
X64 = os.environ.get("JAXSOLVE_TEST_X32", "0") in ("", "0")
TESTS_BETWEEN_CLEARS = 100

os.environ.setdefault("MPLBACKEND", "Agg")
# The same examples in every run: what fails once can be looked at again. Compilation makes deadlines meaningless.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")
jax.config.update("jax_enable_x64", X64)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_report_header(config):
    return f"jax {jax.__version__} on {jax.default_backend()}, {'float64' if X64 else 'float32'}"


def pytest_collection_modifyitems(config, items):
    if not X64:
        skip = pytest.mark.skip(reason="needs float64; this is the float32 run (JAXSOLVE_TEST_X32)")
        for item in items:
            if item.get_closest_marker("x64_only"):
                item.add_marker(skip)


_since_clear = itertools.count(1)


def pytest_runtest_teardown(item, nextitem):
    """Drop compiled programs now and then, between files: kept for ever, they fill gigabytes."""
    global _since_clear
    if next(_since_clear) >= TESTS_BETWEEN_CLEARS and (nextitem is None or nextitem.path != item.path):
        jax.clear_caches()
        _since_clear = itertools.count(1)


@pytest.fixture
def getkey(request):
    """A function giving a fresh key at each call: the same keys in every run of a test, other keys in other tests."""
    root = jax.random.key(zlib.crc32(request.node.nodeid.encode()))
    calls = itertools.count()
    return lambda: jax.random.fold_in(root, next(calls))


@pytest.fixture
def as_users():
    """Switches the shape checks off, as they are for users: what jaxsolve itself says of a bad argument."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
