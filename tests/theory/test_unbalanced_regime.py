"""The regimes of unbalanced linear networks by their shape (Kunin et al., section 4), against their gradient flow."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve.theory import unbalanced_regime, UnbalancedRegime


def _moved(sizes: tuple[int, int, int], sign: int, scale: float) -> float:
    """How far the kernel turns until the loss is gone; the heavy layer has weights of this scale, the other of 0.01."""
    d, h, c = sizes
    keys = jr.split(jr.key(sum(sizes)), 4)
    light, heavy = 0.01, scale
    w_scale, a_scale = (light, heavy) if sign > 0 else (heavy, light)
    w, a = w_scale * jr.normal(keys[0], (h, d)), a_scale * jr.normal(keys[1], (c, h))
    rule = js.nets.Scaling.standard()
    net = js.nets.TwoLayerLinear(
        in_size=d, out_size=c, width_size=h, scaling=rule, init=js.nets.Given([w, a]), key=jr.key(0)
    )
    x = jnp.eye(d) * d**0.5
    y = x @ jr.normal(keys[2], (d, c))
    flow, watched = js.GradientFlow(until=js.until.loss_fraction(1e-2)), js.observe.kernel_change()
    run = js.solve(js.Problem(net, x, y), flow, [0.0, np.inf], observe=watched)
    assert bool(run.result == js.RESULTS.event)
    return float(run["kernel_change"][-1])


FUNNEL, INVERTED, WIDE = (5, 2, 2), (2, 2, 5), (3, 6, 3)


@pytest.mark.parametrize("sizes", [FUNNEL, INVERTED, WIDE], ids=["funnel", "inverted", "wide"])
@pytest.mark.parametrize("sign", [1, -1], ids=["upstream", "downstream"])
def test_lazy_runs_are_the_ones_whose_kernel_stays_the_more_unbalanced_they_start(sizes, sign):
    near, far = (_moved(sizes, sign, scale) for scale in (3.0, 6.0))
    d, h, c = sizes
    lazy = unbalanced_regime(d, h, c, float(sign)) is UnbalancedRegime.LAZY
    # A lazy kernel changes by the square of the weights that move over that of those that stay: here a sixteenth.
    assert (far < near / 8) == lazy, (near, far)


def test_the_paper_says_it_of_every_width_between_both_ends():
    lazy, delayed, rich = UnbalancedRegime.LAZY, UnbalancedRegime.DELAYED_RICH, UnbalancedRegime.RICH
    assert [unbalanced_regime(10, h, 4, 1.0) for h in (4, 7, 9, 10)] == [lazy] * 4
    assert [unbalanced_regime(10, h, 4, -1.0) for h in (4, 7, 9, 10)] == [delayed] * 3 + [lazy]
    assert [unbalanced_regime(4, h, 10, -1.0) for h in (4, 7, 9, 10)] == [lazy] * 4
    assert [unbalanced_regime(4, h, 10, 1.0) for h in (4, 7, 9, 10)] == [delayed] * 3 + [lazy]
    assert unbalanced_regime(10, 3, 4, 1.0) is delayed
    assert {unbalanced_regime(3, h, 3, 0.0) for h in (1, 3, 9)} == {rich}


@pytest.mark.usefixtures("as_users")
def test_bad_arguments():
    with pytest.raises(ValueError, match="width must be an integer >= 1, got 0"):
        unbalanced_regime(2, 0, 1, 1.0)
    with pytest.raises(TypeError, match="delta must be a number: all delta_k have one sign"):
        unbalanced_regime(2, 2, 1, "up")  # pyright: ignore
    with pytest.raises(ValueError, match="sign is that of all delta_k, got nan"):
        unbalanced_regime(2, 2, 1, float("nan"))
