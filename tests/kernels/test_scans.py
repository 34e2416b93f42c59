"""How much of a program is read: scans, and parameters without numbers; the kernel is that of the whole Jacobian."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax

from jaxsolve import kernels, nets
from tests.cases import eps
from tests.inside import capture, LayeredJacobian


X = jr.normal(jr.key(0), (5, 3))
DENSE = {"w": jr.normal(jr.key(1), (4, 3)), "v": jr.normal(jr.key(2), (2, 4))}


def _steps(f, params):
    """How many there are of tanh in the program that is read."""
    program = capture(nets.Function(f, params), jnp.ones((2, 12, 3))).found.program
    return sum(step.name == "tanh" for step in program.steps)


@pytest.mark.parametrize(("outer", "inner", "read"), [(8, 1, 8), (9, 1, 0), (2, 4, 8), (3, 3, 0), (8, 8, 0)])
def test_scans_within_scans_count_together(outer, inner, read):
    """Where all steps share parameters; a scan that is not read is right all the same."""

    def f(p, x):
        deeper = lambda h, _: (jnp.tanh(p["u"] @ h), None)
        step = lambda h, _: (lax.scan(deeper, h + x[0], None, length=inner)[0], None)
        return lax.scan(step, x[1], None, length=outer)[0]

    params, x = {"u": jr.normal(jr.key(1), (3, 3)) / 3}, jr.normal(jr.key(2), (2, 2, 3))
    assert _steps(f, params) == read
    found = kernels.empirical(nets.Function(f, params), x)
    assert found.fallbacks == {}
    rows = jax.jacobian(lambda p: jax.vmap(lambda x: f(p, x))(x))(params)["u"].reshape(2, 3, 9)
    np.testing.assert_allclose(found.ntk, np.einsum("nap,mbp->namb", rows, rows), atol=eps(100) * np.max(found.ntk))


@pytest.mark.parametrize(("length", "within", "read"), [(64, 1, 64), (65, 1, 0), (8, 8, 64), (9, 8, 0), (5, 13, 0)])
def test_a_scan_over_layers_may_be_longer(length, within, read):
    """Also with one gain that all share; each layer is passed so many times."""

    def layer(gain, h, w):
        return lax.scan(lambda h, _: (jnp.tanh(gain * (w @ h)), None), h, None, length=within)

    f = lambda p, x: lax.scan(lambda h, w: layer(p["gain"], h, w), x[0], p["stack"])[0]
    params = {"gain": jnp.ones(()), "stack": jr.normal(jr.key(1), (length, 3, 3)) / 3}
    assert _steps(f, params) == read
    found = kernels.empirical(nets.Function(f, params), X[:2, None]).fallbacks
    total = length * within
    reason = f"it enters a scan of {total} steps; at most 64 are read"
    assert found == ({} if total <= 64 else dict.fromkeys(("params['gain']", "params['stack']"), reason))


def test_parameters_and_outputs_without_numbers():
    plain = lambda p, x: p["v"] @ jnp.tanh(p["w"] @ x)
    f = lambda p, x: plain(p, x) + p["none"] @ x[:0]
    params = DENSE | {"none": jnp.zeros((2, 0))}
    expected = kernels.empirical(nets.Function(plain, DENSE), X).ntk
    np.testing.assert_array_equal(kernels.empirical(nets.Function(f, params), X).ntk, expected)
    back = LayeredJacobian(nets.Function(f, params), X).pull(jnp.ones((5, 2)))
    assert back.params["none"].shape == (2, 0)
    with pytest.raises(ValueError, match=r"an array of real outputs.*shape \(0,\)"):
        kernels.empirical(nets.Function(lambda p, x: (p["w"] @ x)[:0], DENSE), X)
