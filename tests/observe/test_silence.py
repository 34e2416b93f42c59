"""Silent alignment: its times and shares by hand, and its verdict on linear networks of which theory knows it."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import xarray as xr

import jaxsolve as js
from jaxsolve import nets, observe
from tests import cases


TS = np.linspace(0.0, 10.0, 101)
WATCHED = [observe.loss(), observe.kernel_alignment(), observe.kernel_norm()]


def _table(loss, alignment, norm, ts=TS):
    names = ("loss", "kernel_alignment", "kernel_norm")
    return xr.Dataset(
        {name: ("t", curve) for name, curve in zip(names, (loss, alignment, norm), strict=True)}, {"t": ts}
    )


def _ramp(begin, end, low=0.0, high=1.0):
    """From low to high along a line between two times."""
    return low + (high - low) * np.clip((TS - begin) / (end - begin), 0, 1)


def test_times_and_shares_by_hand():
    """The kernel turns from 1 to 3, grows from 4 to 8; the loss falls from 2 to 7."""
    found = observe.silent_alignment(_table(_ramp(2, 7, 3.0, 0.0), _ramp(1, 3, 0.2, 0.7), _ramp(4, 8, 0.01, 5.0)))
    expected = {"turned": 2.8, "grown": 4 + 4 * (0.5 - 0.01) / 4.99, "learnt": 2.5, "share": 0.75, "rise": 0.5}
    for name, value in {**expected, "growth": 500.0}.items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-12)
    assert found.silent is False
    assert "75% of the kernel's turn to the targets (alignment 0.2 to 0.7)" in str(found)
    assert str(found).startswith("Not silently aligned: ")
    assert str(found).endswith("when the loss has fallen by 10%, at t = 2.5.")


EARLY, LATE = _ramp(1, 2, 0.2, 0.7), _ramp(4, 8, 0.2, 0.7)
FALLS, GROWS = _ramp(3, 7, 1.0, 0.0), _ramp(3, 7, 0.01, 1.0)
BACK = np.where(TS < 4, _ramp(1, 2, 0.2, 0.8), _ramp(4, 6, 0.8, 0.6))
CASES = {
    "silent": ((FALLS, EARLY, GROWS), True, "100% of the kernel's turn"),
    "late": ((FALLS, LATE, GROWS), False, "0% of the kernel's turn"),
    "it turns back": ((FALLS, BACK, GROWS), False, "150% of the kernel's turn"),
    "it stands still": ((FALLS, 0.3 + 0.1 * EARLY, GROWS), False, "hardly turns to the targets"),
    "it was large": ((FALLS, EARLY, _ramp(3, 7, 1.0, 1.5)), False, "it grows by a factor of 1.5 only"),
    "nothing learnt": ((_ramp(3, 7, 1.0, 0.95), EARLY, GROWS), None, "has not fallen by 10%"),
    "not at its end": ((_ramp(3, 7, 1.0, 0.5), EARLY, GROWS), None, "by no more than 50%, so that the kernel may"),
    "late before its end": ((_ramp(3, 7, 1.0, 0.5), LATE, GROWS), False, "0% of the kernel's turn"),
    "still before its end": ((_ramp(3, 7, 1.0, 0.5), 0.3 + 0.1 * EARLY, GROWS), None, "so that the kernel may still"),
    "lost": ((FALLS, np.where(TS > 5, np.nan, EARLY), GROWS), None, "NaN or infinite"),
}


@pytest.mark.parametrize("name", CASES)
def test_three_answers(name):
    curves, silent, words = CASES[name]
    found = observe.silent_alignment(_table(*curves))
    assert found.silent is silent
    assert words in str(found)


def test_times_too_far_apart_do_not_tell():
    """Between two times the kernel turns and the loss falls: which came first?"""
    table = _table(FALLS, EARLY, GROWS)
    far = table.sel(t=[0.0, 1.5, 5.0, 10.0], method="nearest")
    found = observe.silent_alignment(far)
    assert found.silent is None
    assert "the times are too far apart: between two of them it goes from 50% to 100%" in str(found)
    assert observe.silent_alignment(table).silent is True


def test_a_table_of_lanes_is_that_of_its_runs():
    both = xr.concat([_table(*CASES[name][0]) for name in ("silent", "late", "nothing learnt")], "lane")
    found = observe.silent_alignment(both)  # t comes last, wherever it stands in the table
    assert list(found.silent) == [True, False, None]
    assert str(found) == "Of 3 runs 1 are silently aligned, 1 are not, and for 1 it is not known."
    for lane in range(3):
        one = observe.silent_alignment(both.isel(lane=lane))
        for name in ("turned", "grown", "learnt", "share", "rise", "growth"):
            np.testing.assert_array_equal(getattr(found, name)[lane], getattr(one, name))


def _run(sigma, d=8, ts=None, dynamics=None):
    """Two linear layers on whitened inputs, with a target of strength 1."""
    scaling = nets.Scaling.standard(sigma=sigma)
    net = nets.TwoLayerLinear(in_size=d, width_size=16, scaling=scaling, key=jr.key(0))
    problem = js.Problem(net, d**0.5 * jnp.eye(d), d**0.5 * jnp.eye(d)[:, :1])
    ts = np.linspace(0.0, 12.0, 121) if ts is None else ts
    return problem, js.solve(problem, dynamics or js.GradientFlow(), ts, observe=WATCHED)


def test_small_starts_are_silent_and_large_ones_are_not():
    """As theory has it, which knows the whole path of small starts (eqs. 16 to 28, corrected)."""
    assert observe.silent_alignment(_run(1.0)[1]).silent is False
    _, run = _run(1e-3)
    found = observe.silent_alignment(run)
    assert found.silent is True
    theory = observe.silent_alignment(_run(1e-3, dynamics=js.theory.SilentAlignment())[1])
    assert theory.silent is True
    for name in ("turned", "learnt", "grown", "share", "rise"):
        np.testing.assert_allclose(getattr(found, name), getattr(theory, name), rtol=0.01)
    # Alignment of two outer products that grow as e^(st) and a rest: its time does not depend on the start, that of
    # learning does, as ln(1/sigma^2)/2.
    smaller = observe.silent_alignment(_run(1e-4)[1])
    np.testing.assert_allclose(smaller.turned, found.turned, rtol=0.01)
    np.testing.assert_allclose(smaller.learnt - found.learnt, np.log(10), rtol=0.01)
    cases.assert_fails(lambda: np.testing.assert_allclose(smaller.learnt, found.learnt, rtol=0.1))


def test_at_infinity_there_is_the_end():
    ts = np.append(np.linspace(0.0, 12.0, 49), np.inf)
    found = observe.silent_alignment(_run(1e-3, ts=ts, dynamics=js.theory.SilentAlignment())[1])
    assert found.silent is True
    assert np.isfinite(found.turned)


def test_what_is_no_run_is_refused():
    problem, run = _run(1e-3, ts=np.array([0.0, 1.0]))
    with pytest.raises(TypeError, match="takes the result of js.solve or js.sweep"):
        observe.silent_alignment(problem)
    bare = js.solve(problem, js.GradientFlow(), [0.0, 1.0], observe=observe.loss())
    for one in (bare, bare.to_xarray()):
        with pytest.raises(ValueError, match=r"needs kernel_alignment\(\), kernel_norm\(\) to be observed"):
            observe.silent_alignment(one)
    with pytest.raises(ValueError, match="two or more times that ascend"):
        observe.silent_alignment(run.to_xarray().isel(t=[0]))
