"""Phases from exponents: Table 1 as printed, the corollaries, and the limits they stand for."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, strategies as st

from jaxsolve.observe import Regime
from jaxsolve.theory import (
    classify_network,
    Exponents,
    feature_learning_scaling,
    kernel_scaling,
    phase,
    ReducedLine,
    stable_eta,
    table_1,
)
from tests.cases import assert_fails, eps


# Columns NTK, mean field, Xavier, Kaiming, lazy of the paper's Table 1 (equations.md A.8).
K, L, F, U = Regime.KERNEL, Regime.FEATURE_LEARNING, Regime.FROZEN, Regime.UNSTABLE
PRINTED = {
    "standard": [(-0.5, 0, K), (-1, 0, F), (0, 0, L), (0, 0, U), (1, 0, U)],
    "Corollary 1": [(-0.5, 0, K), (-1, 1, L), (0, 0, L), (0, -1, K), (1, -2, K)],
    "Corollary 2": [(-1, 1, L), (-1, 1, L), (0, 0, L), (-1, 1, L), (0, 0, L)],
    "Corollary 3": [(-0.5, 0, K), (-0.5, 0, K), (1, -2, K), (0, -1, K), (1, -2, K)],
}


def test_table_1_is_the_printed_one():
    entries = table_1()
    assert len(entries) == 20
    for chosen_by, row in PRINTED.items():
        got = [e for e in entries if e.chosen_by == chosen_by]
        assert [e.scaling for e in got] == ["NTK", "mean field", "Xavier", "Kaiming", "lazy"]
        assert [(e.exponents.gamma, e.exponents.eta_u, e.regime) for e in got] == row
        assert all(e.exponents.eta_u == e.exponents.eta_w for e in got)


def test_without_zero_output_the_lazy_column_is_no_kernel():
    lazy = Exponents(0, 1, 0, 0, -2, -2)
    assert phase(lazy, zero_output=True) is Regime.KERNEL
    assert phase(lazy) is Regime.FEATURE_LEARNING


halves = st.integers(-8, 8).map(lambda n: n / 2)


@given(halves, st.integers(0, 3), halves, halves)
def test_corollary_1_always_learns(gamma, d, u, w):
    eta = stable_eta(d=d, gamma=gamma, u=u, w=w)
    assert phase(Exponents(d, gamma, u, w, eta, eta)) in (Regime.KERNEL, Regime.FEATURE_LEARNING)
    assert phase(Exponents(d, gamma, u, w, eta - 0.5, eta - 0.5)) is Regime.FROZEN
    assert phase(Exponents(d, gamma, u, w, eta + 0.5, eta + 0.5)) is Regime.UNSTABLE


@given(st.integers(0, 3), halves, halves, st.integers(0, 4))
def test_corollary_2_learns_features(d, u, w, more):
    gamma, eta = feature_learning_scaling(d=d, u=u, w=w, eta=d + max(u, w) + more)
    assert phase(Exponents(d, gamma, u, w, eta, eta), zero_output=True) is Regime.FEATURE_LEARNING


@given(st.integers(0, 3), halves, halves, st.integers(1, 5))
def test_corollary_3_is_a_kernel(d, u, w, less):
    eta = d + max(u, w) - less
    gamma = kernel_scaling(d=d, u=u, w=w, eta=eta)
    assert phase(Exponents(d, gamma, u, w, eta, eta), zero_output=True) is Regime.KERNEL


def test_exponents_are_finite():
    with pytest.raises(ValueError, match="u must be a finite exponent, got nan"):
        phase(Exponents(d=1, gamma=-0.5, u=float("nan"), w=0, eta_u=0, eta_w=0))


def test_exponents_without_a_choice_are_refused():
    with pytest.raises(ValueError, match="eta >= d"):
        feature_learning_scaling(d=1, u=0, w=0, eta=0.5)
    with pytest.raises(ValueError, match="eta < d"):
        kernel_scaling(d=1, u=0, w=0, eta=1.0)


@pytest.mark.parametrize(("u", "w", "expected"), [(1, 0, K), (0, 1, K), (0, 0, L), (1, 1, L)])
def test_third_route_against_the_exact_solution(u, w, expected):
    # Finite width, output of order one: the kernel moves less and less iff the layers are unbalanced.
    gamma, eta = -(u + w) / 2, min(u, w)
    a, b = np.array([0.3, -1.2, 0.8]), np.array([0.9, 0.2, -0.4])
    changes = []
    for kappa in (1e2, 1e4, 1e6):
        e = kappa**eta
        left, right = a * kappa ** (u / 2) / np.sqrt(e), b * kappa ** (w / 2) / np.sqrt(e)
        line = ReducedLine.from_layers(
            jnp.asarray(left), jnp.asarray(right), jnp.asarray(kappa**gamma * e), jnp.array(1.0)
        )
        changes.append(abs(float(line.ntk(jnp.inf) / line.ntk(0.0)) - 1))
    shrinks = changes[2] < 0.1 * changes[0]
    assert shrinks == (expected is K)
    assert phase(Exponents(0, gamma, u, w, eta, eta)) is expected


def test_finite_network_by_both_terms():
    # NTK parametrization at width 1000 with one input: m_u = 1/sqrt(1000).
    ntk = {"sigma_u": 1000**-0.5, "eta_u": 1e-3}
    kernel = classify_network(1000, **ntk)
    assert kernel.regime is Regime.KERNEL
    assert kernel.timescale.kernel > 10 * kernel.timescale.feature
    small = classify_network(1000, sigma_u=1000**-0.5, eta_u=2.5, eta_w=2500.0, gamma=0.02)
    assert small.regime is Regime.FEATURE_LEARNING
    assert small.timescale.feature > small.timescale.kernel
    assert classify_network(1000, **ntk, gamma=1e-4).regime is Regime.FROZEN
    assert classify_network(1000, **ntk, gamma=1e2).regime is Regime.UNSTABLE
    assert classify_network(10, gamma=0.0).regime is Regime.FROZEN


def test_finite_kernel_change_is_that_of_the_closed_form():
    # K_inf/K_0 = sqrt(1 - (a.b)^2/mean^2 + (y/(k mean))^2) for equal layers, whose a.b is z mean/sqrt(width).
    got = classify_network(10, sigma_u=0.3, sigma_w=0.3, gamma=0.5, y=2.0, rho=1.5)
    k, mean = 0.75, 10 * 0.09
    z = scipy.stats.norm.ppf(0.5 + np.array([1, 3, 5, 7]) / 16)
    wanted = np.mean(np.sqrt(1 - z**2 / 10 + (2 / (k * mean)) ** 2)) - 1
    np.testing.assert_allclose(got.kernel_change, wanted, rtol=1e-4)
    np.testing.assert_allclose(got.timescale.t_c, 1 / (2 * k * np.hypot(2.0, k * mean * 0.9**0.5)), rtol=eps(100))
    np.testing.assert_allclose(got.initial_output, 0.75 * 0.09 * 10**0.5, rtol=eps(100))


@pytest.mark.parametrize(
    ("width", "options"),
    [
        (100, {"sigma_u": 1.0, "sigma_w": 1.0, "eta_u": 0.01, "eta_w": 0.01}),  # f(0) about 10, y = 1
        (100, {"sigma_u": 0.1, "sigma_w": 0.1, "gamma": 0.3}),
        (20, {"sigma_u": 2.0, "sigma_w": 0.3, "eta_u": 0.5, "y": -3.0}),
    ],
)
def test_finite_kernel_change_is_that_of_typical_starts(width, options):
    """The median of random starts, from |a|^2 - |b|^2 and |a|^2 |b|^2 - (a.b)^2, which the flow conserves."""
    got = classify_network(width, **options)
    o = {"eta_u": 1.0, "eta_w": 1.0, "gamma": 1.0, "y": 1.0, **options}
    rng = np.random.default_rng(0)
    a, b = (o[f"sigma_{layer}"] / o[f"eta_{layer}"] ** 0.5 * rng.normal(size=(2000, width)) for layer in "uw")
    aa, bb, ab = np.sum(a**2, axis=1), np.sum(b**2, axis=1), np.sum(a * b, axis=1)
    k = o["gamma"] * np.sqrt(o["eta_u"] * o["eta_w"])
    end = np.sqrt((aa - bb) ** 2 + 4 * (aa * bb - ab**2 + (o["y"] / k) ** 2))
    median = np.median(np.abs(end / (aa + bb) - 1))
    assert 1 / 3 < float(got.kernel_change) / median < 3  # a start with f(0) = 0 is 46 times off in the first case
    np.testing.assert_allclose(got.initial_output, np.std(k * ab), rtol=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sigma_u": -1.0}, "sigma_u must be finite and >= 0"),
        ({"eta_w": 0.0}, "both rates must be > 0"),
        ({"gamma": np.nan}, "gamma"),
        ({"window": (2.0, 1.0)}, "window"),
    ],
)
def test_bad_finite_networks_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        classify_network(10, **arguments)
    with pytest.raises(ValueError, match="width"):
        classify_network(0)


@pytest.mark.parametrize("width", [100, 4096, 10**6])
def test_the_kernel_of_a_wide_network_hardly_changes(width):
    """The change is the difference of two kernels, here in float64: in float32 it cancels at width 10^6."""
    start = width**0.5 * np.array([0.1573, 0.4888, 0.8871, 1.5341])  # typical products of the layers
    end = width**0.5  # k = width^(-1/2) times it is the target 1
    root_pq = np.sqrt(width**2 - start**2)
    expected = np.mean(np.abs(np.hypot(end, root_pq) / np.hypot(start, root_pq) - 1))
    close = lambda change: np.testing.assert_allclose(change, expected, rtol=max(eps(100), 1e-9))
    close(classify_network(width, gamma=width**-0.5).kernel_change)
    assert_fails(lambda: close(classify_network(width, gamma=width**-0.5, y=0.5).kernel_change))
