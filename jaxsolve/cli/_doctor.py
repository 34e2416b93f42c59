"""`jaxsolve doctor`: checks of the installation and the devices, with advice for what is missing or broken."""

import collections
import importlib
import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from .._extras import attempt
from ._kept import ENABLED, FOLDER, programs_folder, SETTINGS, writable
from ._say import say


SHOWN = ("jax", "jaxlib", "equinox", "diffrax", "optax")
OPTIONAL = {"plotly": "jaxsolve report", "distributed": "sweeps on clusters", "pooch": "jaxsolve data fetch"}
LITTLE = 1e9  # bytes of memory, which sweeps and kernels soon exceed
# Largest errors of a matrix product, relative to its norm; TF32 has 5e-4.
LARGEST_ERROR = {"float32": 1e-5, "float64": 1e-13}


class HealthCheck(NamedTuple):
    """The result of one check.

    Attributes:
        what: the name of what was checked.
        state: the finding.
        advice: what to do about it; empty if there is nothing to do.
        broken: whether something that should work does not.
    """

    what: str
    state: str
    advice: str = ""
    broken: bool = False


def doctor() -> None:
    """Check the installation, devices, precision, memory, cache and data, and say how to fix problems.

    The exit code is 1 if something is broken. Optional parts that are missing (data, neural-tangents, a GPU) are only
    noted.
    """
    broken = []
    for look in _PARTS:
        for check in look():
            mark = "BROKEN" if check.broken else "note" if check.advice else "ok"
            say(f"{mark:<6}  {check.what:<15}  {check.state}")
            if check.advice:
                say(f"{'':<6}  {'':<15}  {check.advice}")
            broken += [check.what] if check.broken else []
        if broken and look in _NEEDED:
            break
    if broken:
        say(f"broken: {', '.join(dict.fromkeys(broken))}")
        raise SystemExit(1)
    say("nothing is broken")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _versions() -> Iterator[HealthCheck]:
    """Python and the dependencies: the important ones, and all that are missing, too old or broken."""
    from packaging.requirements import Requirement

    yield HealthCheck("python", f"{platform.python_version()} on {platform.platform()}")
    yield HealthCheck("jaxsolve", f"{_version('jaxsolve')} in {Path(__file__).resolve().parents[1]}")
    for text in metadata.requires("jaxsolve") or ():
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue  # belongs to an extra
        version, again = _version(wanted.name), f'pip install --upgrade "{wanted.name}{wanted.specifier}"'
        if version is None:
            yield HealthCheck(wanted.name, "not installed", again, broken=True)
        elif not wanted.specifier.contains(version, prereleases=True):
            yield HealthCheck(wanted.name, f"{version}, and {wanted.specifier} is needed", again, broken=True)
        elif wanted.name in SHOWN:
            _, error = attempt(importlib.import_module, wanted.name)
            if error is not None:  # any error: another version of a dependency may break it
                yield HealthCheck(wanted.name, f"{version} cannot be imported: {error}", again, broken=True)
            else:
                yield HealthCheck(wanted.name, version)


def _optional() -> Iterator[HealthCheck]:
    """Libraries that only one feature each needs."""
    import jax

    from .. import kernels, nets

    version = _version("neural-tangents")
    net = nets.MLP(in_size=2, out_size=1, width_size=4, depth=1, scaling=nets.Scaling.ntk(), key=jax.random.key(0))
    try:
        kernels.infinite(net, jax.numpy.eye(2))
    except kernels.NeuralTangentsUnavailable as error:
        state = "not installed" if version is None else f"{version} does not work"
        yield HealthCheck("neural-tangents", state, str(error), broken=version is not None)
    else:
        yield HealthCheck("neural-tangents", f"{version}, works")
    for name, purpose in OPTIONAL.items():
        if _version(name) is None:
            yield HealthCheck(name, "not installed", f"{purpose} needs it: pip install {name}")


def _devices() -> Iterator[HealthCheck]:
    """The devices that JAX uses."""
    import jax

    try:
        devices = jax.devices()
    except RuntimeError as error:
        advice = 'unset JAX_PLATFORMS, or install jax for your device, such as pip install "jax[cuda13]"'
        yield HealthCheck("devices", str(error), advice, broken=True)
        return
    counts = collections.Counter(f"{device.device_kind} ({device.platform})" for device in devices)
    idle = devices[0].platform == "cpu" and shutil.which("nvidia-smi") is not None
    advice = 'JAX does not use the NVIDIA GPU of this machine: pip install "jax[cuda13]", and unset JAX_PLATFORMS'
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    yield HealthCheck("devices", f"{said}; {os.cpu_count()} processor cores", advice if idle else "")


def _memory() -> Iterator[HealthCheck]:
    """The free memory of the device."""
    from .._numerics import free_memory

    free = free_memory()
    if free is None:
        yield HealthCheck("memory", "not reported by the device")
    else:
        advice = "end other programs, or choose smaller batches: a sweep's batch_size, a kernel's batch_size"
        yield HealthCheck("memory", f"{free / 1e9:.3g} GB free", advice if free < LITTLE else "")


def _precision() -> Iterator[HealthCheck]:
    """The error of a matrix product, in both precisions."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    scripts = "float64" if jax.config.read("jax_enable_x64") else "float32"
    jax.config.update("jax_enable_x64", True)  # allowed, since the command owns its process
    yield HealthCheck(
        "precision", f"scripts compute in {scripts} unless they say otherwise, this command line in float64"
    )
    left, right = np.random.default_rng(0).standard_normal((2, 256, 256))
    exact = left @ right
    for name, most in LARGEST_ERROR.items():
        multiply = lambda name=name: np.asarray(jnp.asarray(left, name) @ jnp.asarray(right, name), float)
        product, failed = attempt(multiply)
        if failed is not None:  # plugins of XLA raise their own types of errors
            advice = "compute on another device (JAX_PLATFORMS=cpu), or in the other precision"
            yield HealthCheck(name, f"this device does not compute in it: {failed}", advice, broken=True)
            continue
        error = float(np.linalg.norm(product - exact) / np.linalg.norm(exact))
        advice = "set JAX_DEFAULT_MATMUL_PRECISION=highest: products are rounded to fewer digits, as in TF32"
        yield HealthCheck(name, f"products of matrices err by {error:.1g}", "" if error < most else advice)


def _compiler() -> Iterator[HealthCheck]:
    """Programs with known answers, compiled and run in both precisions."""
    _, error = attempt(lambda: importlib.import_module("jax").devices())
    if error is not None:  # reported by the checks of versions or of devices
        return
    from .._numerics import ADVICE, known_answers

    answers, error = attempt(known_answers)
    if error is not None:  # plugins of XLA raise their own types of errors
        advice = "compute on another device (JAX_PLATFORMS=cpu)"
        yield HealthCheck("compiler", f"programs with known answers do not run: {error}", advice, broken=True)
        return
    missed = [one for one in answers if one.missed]
    if not missed:
        worst = max(one.error / one.bound for one in answers)
        yield HealthCheck("compiler", f"{len(answers)} programs have their known answers, to {worst:.0%} of the bound")
    for one in missed:
        what = f"{one.program.replace('_', ' ')} in {one.dtype} is off by {one.error:.1e}"
        yield HealthCheck("compiler", f"computes wrong numbers: {what}", ADVICE, broken=True)


def _environment() -> Iterator[HealthCheck]:
    """The environment variables that the user has set for JAX and XLA."""
    ours = {FOLDER, ENABLED, *SETTINGS}  # reported by the check of the cache
    told = [f"{n}={v}" for n, v in sorted(os.environ.items()) if n.startswith(("JAX", "XLA_")) and n not in ours]
    yield HealthCheck("environment", ", ".join(told) or "no variable of JAX, XLA or jaxsolve is set")


def _cache() -> Iterator[HealthCheck]:
    """The folder of compiled programs."""
    place = os.environ.get(FOLDER) or str(programs_folder())
    if os.environ.get(ENABLED, "").lower() in ("false", "0"):
        yield HealthCheck("cache", "off: programs are compiled anew each time")
    elif "://" in place:
        yield HealthCheck("cache", place)
    elif not writable(Path(place)):
        advice = "set XDG_CACHE_HOME to a folder that can be written, or give --no-cache; commands start slower without"
        yield HealthCheck("cache", f"{place} cannot be written", advice, broken=True)
    else:
        sizes = [file.stat().st_size for file in Path(place).rglob("*") if file.is_file()]
        yield HealthCheck(
            "cache", f"{place}: {len(sizes)} files, {sum(sizes) / 1e6:.3g} MB; it may be removed at any time"
        )


def _data() -> Iterator[HealthCheck]:
    """Image collections, checked by reading them."""
    import jax

    from .. import data

    for load in (data.mnist, data.fashion_mnist, data.cifar10):
        name = f"data {load.__name__.removesuffix('_mnist')}"
        try:
            found = load(n_train=1, n_test=1, key=jax.random.key(0))
        except FileNotFoundError as error:
            yield HealthCheck(name, "not found", str(error))
        except (ValueError, OSError) as error:
            yield HealthCheck(
                name, str(error), "remove the file, and download it again: jaxsolve data fetch", broken=True
            )
        else:
            yield HealthCheck(name, found.source.partition(", task=")[0])


_NEEDED = (_compiler, _devices)  # if one of these, or something before them, is broken, nothing else can be checked
_PARTS = (_versions, *_NEEDED, _memory, _precision, _environment, _cache, _optional, _data)
