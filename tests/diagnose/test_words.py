"""What a diagnosis and the checks of widths say of numbers that are 0, tiny, huge, NaN or infinite."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from jaxsolve.nets import Function
from tests.cases import X64


DTYPE = jnp.result_type(float)
X = jr.normal(jr.key(0), (6, 2))
Y = X[:, :1] * X[:, 1:]
NET = eqx.nn.MLP(2, 1, 4, 1, jnp.tanh, key=jr.key(1))
LINEAR = eqx.nn.Linear(2, 1, use_bias=False, key=jr.key(2))
FITTED = jax.vmap(NET)(X)
TINY, HUGE = (1e-30, 1e30) if not X64 else (1e-200, 1e200)


def _times(tree, factor):
    return jax.tree.map(lambda leaf: leaf * jnp.asarray(factor, leaf.dtype) if eqx.is_array(leaf) else leaf, tree)


def _sgd(rate):
    return optax.sgd(jnp.asarray(rate, DTYPE))  # one program for all rates


def _silent_read_out(net):
    return eqx.tree_at(lambda n: (n.layers[1].weight, n.layers[1].bias), net, replace_fn=jnp.zeros_like)


STEEP = Function(lambda w, x: w * HUGE * x[:1], 0.0)


def _root(w, x):
    return jnp.sqrt(w) * x[:1]


class Unit(eqx.Module):
    """Outputs over their norm, whose derivative at 0 is NaN."""

    inner: eqx.nn.MLP

    def __call__(self, x):
        h = self.inner(x)
        return h / (1e-6 + jnp.linalg.norm(h))


def _unit(width, key):
    return Unit(eqx.nn.MLP(2, 1, width, 1, jnp.tanh, use_bias=False, use_final_bias=False, key=key))


def _readable(text):
    """A sentence names no NaN or infinity as a number, and no absurd share."""
    assert not re.search(r"\bnan\b|\binf\b|nan%|inf%", text), text
    assert not re.search(r"\d{4,}%|(?<!\d)[2-9]\d\d%|-\d+%", text), text
    assert "take a smaller rate" not in text or "uphill: check" not in text, text


CASES = [  # network, inputs, targets, rate; what is said, and what is not
    ("constant targets", NET, X, 0 * Y + 1, 0.1, "the targets are the same for all samples", "or the kernel"),
    ("one sample", NET, X[:1], Y[:1], 0.1, "there is only one sample", "the same for all"),
    ("duplicates", NET, X[:1] + 0 * X, Y, 0.1, "the kernel is the same for all samples", "targets are the same"),
    ("fitted", NET, X, FITTED, 0.1, "nothing to learn", "next step"),
    ("all zero", _times(NET, 0), X, 0 * Y, 0.1, "nothing to learn", "next step"),
    ("zero network", _times(NET, 0), X, Y, 0.1, "layers[1] moved from 0; no other group moves", "infinite"),
    ("zero read-out", _silent_read_out(NET), X, Y, 0.1, "layers[1] moved from 0", "layers[0] least"),
    ("rate 0", NET, X, Y, 0.0, "the optimizer's first steps are zero", "larger rate"),
    ("tiny rate", NET, X, Y, TINY, "with a larger rate", "derivative along"),
    ("large rate", NET, X, Y, 1e4, "diverged after 1 step: take a smaller rate", "% of the loss's gradient"),
    ("huge rate", NET, X, Y, HUGE, "The training diverged at its first step", "moved by"),
    ("infinite rate", NET, X, Y, np.inf, "step is NaN or infinite though the gradient is finite", "uphill"),
    ("NaN rate", NET, X, Y, np.nan, "step is NaN or infinite though the gradient is finite", "uphill"),
    ("rate < 0", NET, X, Y, -0.1, "All steps of the optimizer go uphill", "momentum"),
    ("huge targets", NET, X, 1e15 * Y, 0.1, "learns features", "diverged"),
    ("huge weights", _times(NET, 1e15), X, Y, 0.1, "kernel regime", "diverged"),
    ("linear", LINEAR, X, Y, 0.1, "its kernel moved by 0 of its size", "close to the crossover"),
    ("underflow", _times(LINEAR, TINY), TINY * X, TINY * Y, 0.1, "Its kernel is 0 at the start", "above 0.1"),
    ("saddle", Function(lambda w, x: w**2 * x[:1], 0.0), X, Y, 0.1, "the loss has no gradient at the start", "larger"),
    (
        "to NaN",
        Function(_root, 1.0),
        X,
        -3 * X[:, :1],
        0.05,
        "leads to outputs or a loss that are NaN",
        "close to the crossover",
    ),
]


def _rows(cases, slow=()):
    return [pytest.param(*case, id=name, marks=[pytest.mark.slow] * (name in slow)) for name, *case in cases]


SLOW = ("one sample", "linear", "underflow", "saddle")  # programs of their own


@pytest.mark.parametrize(("net", "x", "y", "rate", "said", "unsaid"), _rows(CASES, SLOW))
def test_what_a_diagnosis_says(net, x, y, rate, said, unsaid):
    report = js.diagnose(net, x, y, optimizer=_sgd(rate), steps=10)
    assert said in report.text
    assert unsaid not in report.text
    for text in (report.text, *(found.words for found in report.findings.values()), *report.notes):
        _readable(text)
    for name, found in report.findings.items():
        assert not np.isnan(found.value) or found.words.startswith("not known: "), (name, found)
    assert "nan" not in repr(report)
    if rate in (HUGE, 0.0, 0.05):  # the picture as well
        assert re.search(r"\bnan\b", re.sub("<img[^>]*>", "", report._repr_html_())) is None


def test_a_schedule_that_ends_at_0():
    """In float32 the last rate of optax.linear_schedule(0.1, 0, 20) is -7e-10: that step goes nowhere, not uphill."""
    report = js.diagnose(NET, X, Y, optimizer=optax.sgd(optax.linear_schedule(0.1, 0.0, 20)), steps=20)
    assert "The critical rate is not known: the optimizer's next step is 0." in report.text
    assert report.findings["stability"].words == "not known: the optimizer's next step is 0"
    assert np.all(report.history["critical_rate"][:-1] > 1)


def test_a_kernel_beyond_its_size_is_not_extrapolated():
    """From little progress, displacements and the kernel would be carried on to numbers that mean nothing."""
    report = js.diagnose(NET, X, 100 * Y, optimizer=_sgd(1e-3), steps=10)
    assert report["progress"] < 0.1
    assert report["expected_kernel_change"] > 1
    assert "which makes more than its size by the end of training" in report.text
    assert "how far, no extrapolation tells" in report.findings["expected_kernel_change"].words


def test_chizats_ratio_knows_no_size_of_the_step():
    ratios = [js.diagnose(NET, X, Y, optimizer=_sgd(rate), steps=10)["chizat_ratio"] for rate in (TINY, 0.1, HUGE)]
    np.testing.assert_allclose(ratios, ratios[1], rtol=1e-9 if X64 else 1e-4)


@pytest.mark.parametrize(
    ("net", "x", "y", "loss", "said"),
    [
        (_unit(4, jr.key(3)), X.at[2].set(0), Y, None, r"derivatives of x\[2\] by inner.layers\[0\].weight"),
        (
            NET,
            X,
            FITTED.at[1].add(1),
            lambda f, y: jnp.sqrt(jnp.sum((f - y) ** 2)),
            "derivative of the loss with respect to the outp",
        ),
        (LINEAR, HUGE * X, Y, None, "loss at the start is inf, of outputs up to .* or it overflows"),
        (NET, X, HUGE * Y, None, "loss at the start is inf, of outputs up to .* or it overflows"),
        (NET, HUGE * X, Y, None, "the tangent kernel or the gradient of the loss overflows float"),
        (STEEP, X, Y, None, r"overflows float.*, for 6 of 6 samples \(0, 1, 2, 3, 4, 5\), in params: scale the inputs"),
    ],
)
def test_what_is_not_finite_at_the_start_is_refused(net, x, y, loss, said):
    with pytest.raises(ValueError, match=f"(?s){said}"):
        js.diagnose(net, x, y, loss=loss, optimizer=_sgd(0.1), steps=10)


def test_derivatives_that_are_not_finite_elsewhere():
    x = X.at[2].set(0)
    for check in (js.coordinate_check, lambda *a, **k: js.transfer_check(a[0], a[1], [0.01, 0.1, 1.0], *a[2:], **k)):
        with pytest.raises(ValueError, match=r"derivatives of x\[2\] by inner"):
            check(_unit, [4, 8], x, Y, seeds=1, steps=2)
    saved = [_unit(4, jr.key(3))] * 2
    with pytest.raises(ValueError, match=r"derivatives of x\[2\] by inner"):
        js.diagnose_checkpoints(saved, x, Y)
    with pytest.raises(js.SolveError, match=r"Found at the start: the derivatives of x\[2\] by inner"):
        js.solve(js.Problem(saved[0], x, Y), js.Descent(_sgd(0.1)), 1.0)


WIDE = [  # factor of the weights and of the targets, rate; what the coordinate check and the transfer check say
    ("rate 0", 1.0, 1.0, 0.0, "nothing moved", "no rate lowers the loss at width 4, 8"),
    ("NaN rate", 1.0, 1.0, np.nan, "step is NaN or infinite", "training diverged at every rate at width 4, 8"),
    ("huge rate", 1.0, 1.0, HUGE, "Take a smaller rate", "training diverged at every rate at width 4, 8"),
    ("all zero", 0.0, 0.0, 0.1, "nothing moved", "no rate lowers the loss at width 4, 8"),
    ("uphill", 1.0, 1.0, -0.1, "failed", "no rate lowers the loss at width 4, 8"),
    ("huge targets", 1.0, 1e15, 0.1, "layers[1]", "error unknown"),
]


@pytest.mark.parametrize(("factor", "targets", "rate", "sizes", "best"), _rows(WIDE))
def test_what_the_checks_of_widths_say(factor, targets, rate, sizes, best):
    make = lambda width, key: _times(eqx.nn.MLP(2, 1, width, 1, jnp.tanh, key=key), factor)
    data = {"x": X, "y": targets * Y, "seeds": 1, "steps": 2}
    check = js.coordinate_check(make, [4, 8], optimizer=_sgd(rate), **data)
    by = lambda given, width: optax.sgd(given * jnp.asarray(rate, DTYPE))
    transfer = js.transfer_check(make, [4, 8], [0.25, 1.0, 4.0], optimizer=by, **data)
    for text, expected in ((str(check), sizes), (str(transfer), best)):
        assert expected in text
        _readable(text)
    transfer.plot()
