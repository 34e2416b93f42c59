import functools
import json
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve import sweep
from tests import cases
from tests.processes import ROOT
from tests.sweeps.inside import cores, read_devices


# 37 lanes, of which eight devices cannot take equally many: a closed form, and descents in a loop and in lockstep, with
# refill and all at once. The last time is that of an event, so lanes take different numbers of steps.
RATES = np.geomspace(0.1, 5.0, 37)
CODE = """
import json, pathlib, tempfile, warnings
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp, numpy as np, optax
from jaxsolve import Descent, observe, sweep, until
from tests import cases
from tests.sweeps.inside import _execute, Fused, Lockstep, Looped

build = lambda rate: cases.modes(jnp.ones(2), jnp.stack([rate, jnp.ones(())]))
march = Descent(optax.sgd(0.1), until=until.loss_below(1e-3))
ways = [
    (Fused, "fused", cases.ModesDecay(), 20),
    (Looped, "looped", march, 20),
    (Lockstep, "stepped", march, 20),
    (Lockstep, "all stepped", march, 40),
]
found = {}
for kind, name, dynamics, size in ways:
    _execute._kind = lambda *args: kind
    for count in (1, 8):
        devices = jax.local_devices()[:count] if count == 1 else None
        options = {"observe": observe.outputs(), "devices": devices, "batch_size": size, "progress": False}
        data = sweep(build, {"rate": np.geomspace(0.1, 5.0, 37)}, dynamics, [0.3, jnp.inf], **options)
        found[f"{name} {count}"] = [data["outputs"].values[..., 0].tolist(), data["steps"].values.tolist()]
with tempfile.TemporaryDirectory() as folder:
    store = pathlib.Path(folder) / "run.zarr"
    for _ in range(2):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            options = {"store": store, "batch_size": 10, "progress": False}
            sweep(build, {"rate": np.geomspace(0.1, 5.0, 37)}, march, [0.3], **options)
        next(chunk for chunk in (store / "result" / "c").rglob("*") if chunk.is_file()).unlink()
print(json.dumps([len(jax.local_devices()), found, [str(item.message) for item in said]]))
"""

CONSTANTS = """
import jax, jax.numpy as jnp
from tests.sweeps.inside import read_devices

devices, shapes, found = read_devices(None), [jax.ShapeDtypeStruct((64,), jnp.result_type(float))], []
for value in (1.0, 3.0):
    held = value * jnp.arange(64.0)
    found.append(float(devices.compile(devices.lower(lambda x: x + held, shapes))(jnp.zeros(64))[1]))
print(found)
"""


@functools.cache
def _on_eight() -> tuple[dict[str, Any], list[str]]:
    """What a process with eight virtual devices finds on one of them and on all, and of what carrying on warns."""
    flags = "--xla_force_host_platform_device_count=8"
    devices, found, said = _elsewhere(CODE, {"XLA_FLAGS": flags})
    assert devices == 8
    return {name: (np.array(outputs), np.array(steps)) for name, (outputs, steps) in found.items()}, said


def _elsewhere(code: str, settings: dict[str, str]) -> Any:
    """What a process with these settings prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


WAYS = pytest.mark.parametrize("way", ["fused", "looped", "stepped", "all stepped"])


@WAYS
def test_eight_devices_are_as_one(way):
    """To a few units of rounding: measured is 0 for all."""
    (one, steps), (eight, steps_of_eight) = (_on_eight()[0][f"{way} {count}"] for count in (1, 8))
    assert one.shape == (37, 2, 2)
    np.testing.assert_allclose(eight, one, rtol=1e-14)
    np.testing.assert_array_equal(steps_of_eight, steps)
    assert len(np.unique(steps)) == (1 if way == "fused" else 25)


@WAYS
def test_lanes_on_eight_devices_are_exact(way):
    """Each in its place: (1 - 0.1 rate)^3 is what three steps of descent leave."""
    outputs, _ = _on_eight()[0][f"{way} 8"]
    left = np.exp(-0.3 * RATES) if way == "fused" else (1 - 0.1 * RATES) ** 3
    close = lambda found: np.testing.assert_allclose(found[:, 0, 0], np.sqrt(2 * RATES) * left, rtol=1e-13)
    close(outputs)
    cases.assert_fails(lambda: close(np.roll(outputs, 1, axis=0)))  # each in the place of the next


def test_the_same_batch_size_is_not_taken_for_another():
    """Batches of ten are of sixteen on eight devices, at each call."""
    assert _on_eight()[1] == []


# Arguments


def test_default_devices():
    assert read_devices(None).all == tuple(jax.local_devices())
    with jax.default_device(jax.local_devices()[0]):
        assert read_devices(None).all == (jax.local_devices()[0],)
    assert read_devices(jax.local_devices()[:1]).all == (jax.local_devices()[0],)


def test_streams():
    """One device that is the whole processor runs a program per core."""
    assert read_devices(jax.local_devices()[:1]).streams == cores() >= 1


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        ([], ValueError, "devices is empty; give at least one, or None for all local ones"),
        ("cpu", TypeError, r"devices must be a sequence such as jax\.local_devices\(\), or None, got str 'cpu'"),
        ([0], TypeError, r"devices must be a sequence such as jax\.local_devices\(\), or None, got list \[0\]"),
        (jax.local_devices()[:1] * 2, ValueError, "devices names one twice: "),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_bad_devices(devices, error, message):
    with pytest.raises(error, match=message):
        sweep(cases.modes, {"start": [1.0]}, cases.ModesDecay(), [1.0], devices=devices, progress=False)


@pytest.mark.slow
def test_programs_with_other_constants_are_not_taken_for_each_other():
    """With a setting of JAX, which may become its default, constants do not stand in a program's text."""
    for setting in ("False", "True"):
        assert _elsewhere(CONSTANTS, {"JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS": setting}) == [1.0, 3.0]


def test_programs_of_processors_are_for_one_thread_each():
    """XLA by itself cuts a loop over a large array into tasks; every core has lanes of its own."""
    devices = read_devices(None)
    lowered = devices.lower(lambda x: jnp.sin(x) ** 2, [jax.ShapeDtypeStruct((3000, 300), float)])
    cut = '"outer_dimension_partitions":["'
    assert cut not in str(devices.compile(lowered).as_text())
    assert cores() == 1 or cut in str(lowered.compile().as_text())
