"""Settings shared by all tests. jaxsolve must not be imported here: the shape checks hook into its first import."""

import collections
import fnmatch
import gc
import itertools
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
import zlib

import hypothesis
import pytest


# Programs are compiled as users' are, but each in one piece: the other core has tests of its own. To be set before JAX
# starts.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_parallel_codegen_split_count=1")
# Tests run one per core: a second thread of LAPACK would wait for a core, and spin while it waits.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Where Python may write no bytecode beside the sources, each of a hundred processes would compile all modules anew, for
# 3 to 10 s each: it goes into the environment.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(pathlib.Path(sys.prefix, "bytecode"))
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Shells start what runs in the background with Ctrl-C ignored, and its children with it: tests of signals need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

import jax  # noqa: E402
import jaxtyping  # noqa: E402


# One float64 run is the default; JAXSOLVE_TEST_X32=1 repeats it in the precision that users get from JAX by default.
TESTS = pathlib.Path(__file__).parent
X64 = os.environ.get("JAXSOLVE_TEST_X32", "0") in ("", "0")
# Files of few tests that take long. They come first, then those of many tests: no worker is left with one at the end.
LONG = {"test_readme.py", "test_cli.py", "test_notebooks.py", "test_function_space.py", "test_cluster.py"}
# What is marked slow beside the tests that say so themselves.
SLOW = {line for line in (TESTS / "slow.txt").read_text("utf-8").splitlines() if not line.startswith("#")}
# What `.ci/run users` repeats in float32, and `.ci/run lowest` with the lowest versions of the dependencies: files that
# meet every room and every dependency, and the examples of all docstrings.
REPRESENTATIVE = (
    "*/test_docstrings.py",
    "test_readme.py",
    "test_solve.py",
    "test_problem.py",
    "test_trajectory.py",
    "test_import.py",
    "test_known_answers.py",
    "nets/test_dense.py",
    "nets/test_scaling.py",
    "losses/test_losses.py",
    "data/test_data_digits.py",  # scikit-learn
    "data/test_data_synthetic.py",
    "kernels/test_empirical.py",
    "kernels/test_neural_tangents.py",  # neural-tangents
    "kernels/test_regression.py",
    "integrators/test_parameter_space.py",  # optimistix, lineax
    "theory/test_balanced.py",
    "theory/test_single_neuron.py",
    "dynamics/test_gradient_flow.py",  # diffrax
    "dynamics/test_descent.py",  # optax
    "observe/test_observables.py",
    "sweeps/test_identity.py",
    "sweeps/test_sweep.py",
    "sweeps/test_store.py",  # xarray, zarr
    "sweeps/test_cluster.py",  # dask
    "plot/test_plot.py",  # matplotlib
    "report/test_write.py",  # plotly
    "cli/test_sweep_command.py",  # cyclopts, rich
)
# After so many seconds, a worker that is crowded drops its compiled programs: few tests may compile very many.
SECONDS_BETWEEN_LOOKS = 5
PROGRAMS = pytest.StashKey[str]()  # the folder of compiled programs

os.environ.setdefault("MPLBACKEND", "Agg")
# The same examples in every run: what fails once can be looked at again. Compilation makes deadlines meaningless.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")
jax.config.update("jax_enable_x64", X64)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_report_header(config):
    return f"jax {jax.__version__} on {jax.default_backend()}, {'float64' if X64 else 'float32'}"


def pytest_configure(config):
    _share_programs(config)
    if absent := [pattern for pattern in REPRESENTATIVE if not any(TESTS.glob(pattern))]:
        raise pytest.UsageError(f"REPRESENTATIVE in tests/conftest.py names what is not there: {absent}")


def _share_programs(config):
    """Keeps compiled programs in a folder while the tests run: two in five are met again, by the other worker or later.

    Processes that tests start do not share it: some are killed, and what they were about to write would stay broken.
    """
    folder = getattr(config, "workerinput", {}).get("programs")
    if folder is None:
        folder = config.stash[PROGRAMS] = tempfile.mkdtemp(prefix="jaxsolve-programs-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Workers are told of the folder."""
    node.workerinput["programs"] = node.config.stash[PROGRAMS]


def pytest_itemcollected(item):
    below = item.path.relative_to(TESTS).as_posix()
    name = f"{below}::{item.nodeid.partition('::')[2]}"
    if name in SLOW or name.partition("[")[0] in SLOW:
        item.add_marker("slow")
    if any(fnmatch.fnmatch(below, pattern) for pattern in REPRESENTATIVE):
        item.add_marker("representative")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    sizes = collections.Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.name not in LONG, -sizes[item.path]))
    if not X64:
        skip = pytest.mark.skip(reason="needs float64; this is the float32 run (JAXSOLVE_TEST_X32)")
        for item in items:
            if item.get_closest_marker("x64_only"):
                item.add_marker(skip)


def pytest_collection_finish():
    """What has been imported stays: the collector of garbage need not look at it again."""
    gc.collect()
    gc.freeze()


def _crowded():
    """Whether this process holds half of its share of the memory, or of the mappings that Linux gives to one (65,530).

    Programs take mappings of memory, and without any left the next one ends in a segmentation fault. Without Linux it
    is said to be so.
    """
    process = pathlib.Path("/proc/self")
    if not process.exists():
        return True
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    share = int((process / "statm").read_text().split()[1]) * workers / os.sysconf("SC_PHYS_PAGES")
    return share > 0.5 or (process / "maps").read_bytes().count(b"\n") > 30_000


_looks = [time.monotonic()]


def pytest_runtest_teardown():
    """Drops compiled programs when they crowd a worker: kept for ever, they fill gigabytes and all mappings."""
    if time.monotonic() - _looks[-1] > SECONDS_BETWEEN_LOOKS:
        if _crowded():
            jax.clear_caches()
        _looks[-1] = time.monotonic()


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
