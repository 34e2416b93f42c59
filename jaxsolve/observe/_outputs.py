"""Observables of the outputs."""

import jax.numpy as jnp
from jaxtyping import Array

from .._dynamics import Quantity, View
from ._observable import Observable


def _correct(f, y):
    if f.shape[1] == 1:
        return jnp.mean((f * y > 0).astype(f.dtype))
    return jnp.mean((jnp.argmax(f, axis=1) == jnp.argmax(y, axis=1)).astype(f.dtype))


def _loss(view: View):
    return view.loss


def _test_targets(view: View) -> Array:
    if view.problem.y_test is None:
        raise ValueError("this problem has no test set; give Problem(..., test=(x, y))")
    return view.problem.y_test


def _test_loss(view: View):
    return view.problem.loss.value(view.test_outputs, _test_targets(view))


def _accuracy(view: View):
    return _correct(view.outputs, view.problem.y)


def _test_accuracy(view: View):
    return _correct(view.test_outputs, _test_targets(view))


def _outputs(view: View):
    return view.outputs


def _test_outputs(view: View):
    return view.test_outputs


def loss() -> Observable:
    """The training loss."""
    return Observable("loss", _loss, Quantity.OUTPUTS, unit="loss")


def test_loss() -> Observable:
    """The loss on the test set."""
    return Observable("test_loss", _test_loss, Quantity.OUTPUTS, unit="loss")


def accuracy() -> Observable:
    """Share of training samples with the right sign (one output) or the right largest output."""
    return Observable("accuracy", _accuracy, Quantity.OUTPUTS)


def test_accuracy() -> Observable:
    """`accuracy` on the test set."""
    return Observable("test_accuracy", _test_accuracy, Quantity.OUTPUTS)


def outputs() -> Observable:
    """Outputs on the training set, shape (n, c)."""
    return Observable("outputs", _outputs, Quantity.OUTPUTS, ("sample", "output"), "output")


def test_outputs() -> Observable:
    """Outputs on the test set, shape (m, c)."""
    return Observable("test_outputs", _test_outputs, Quantity.OUTPUTS, ("test_sample", "output"), "output")
