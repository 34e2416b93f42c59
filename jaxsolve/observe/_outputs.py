"""Observables of the outputs."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._checks import concrete, describe
from .._core import Quantity, View
from ..losses import CrossEntropy
from ..losses._internal import Unflattened
from ._observable import Observable


def _correct(f, y, loss):
    if isinstance(loss, Unflattened):
        found, wanted = jnp.argmax(f.reshape(len(f), *loss.out_shape), axis=-1), y.reshape(len(y), *loss.target_shape)
        labels = wanted if loss.target_shape != loss.out_shape else jnp.argmax(wanted, axis=-1)
        share = jnp.sum(found.astype(labels.dtype) == labels) / jnp.maximum(
            jnp.sum(labels >= 0), 1
        )  # masked ones are negative
        share = share.astype(f.dtype)
    elif f.shape[1] == 1:
        share = jnp.mean((f * y > 0).astype(f.dtype))
    else:
        share = jnp.mean((jnp.argmax(f, axis=1) == jnp.argmax(y, axis=1)).astype(f.dtype))
    # Otherwise NaN outputs would count as right or wrong answers.
    return jnp.where(_are_classes(y, loss) & ~jnp.any(jnp.isnan(f)), share, jnp.nan)


def _are_classes(y, loss):
    """True if targets are classes: two opposite values, or rows with one entry above all others, which are equal."""
    if isinstance(loss, Unflattened):  # the targets of a custom loss may mean anything
        return jnp.array(isinstance(loss.loss, CrossEntropy))
    if isinstance(loss, CrossEntropy):  # its targets may be any probabilities
        return jnp.array(True)
    if y.shape[1] == 1:
        return jnp.all(jnp.abs(y) == jnp.abs(y[0, 0])) & (y[0, 0] != 0)
    ordered = jnp.sort(y, axis=1)
    return jnp.all((ordered[:, -1] > ordered[:, -2]) & (ordered[:, 0] == ordered[:, -2]))


def _require_classes(y, loss):
    known = concrete(_are_classes(y, loss))
    if known is not None and not known:
        raise ValueError(
            "accuracy needs targets that are classes: one column of two opposite values such as -1 and +1, or one "
            "column per class that is larger in the right one and equal in all others; "
            f"got {describe(y)} with values {np.unique(np.asarray(y))[:5].tolist()}. For regression observe loss() and "
            "test_loss()"
        )


def _require_training_classes(problem):
    _require_classes(problem.y, problem.loss)


def _require_test_classes(problem):
    if problem.y_test is not None:
        _require_classes(problem.y_test, problem.loss)


def _loss(view: View):
    return view.loss


def _test_targets(view: View) -> Array:
    if view.problem.y_test is None:
        raise ValueError("this problem has no test set; give Problem(..., test=(x, y))")
    return view.problem.y_test


def _test_loss(view: View):
    return view.problem.loss.value(view.test_outputs, _test_targets(view))


def _accuracy(view: View):
    return _correct(view.outputs, view.problem.y, view.problem.loss)


def _test_accuracy(view: View):
    return _correct(view.test_outputs, _test_targets(view), view.problem.loss)


def _outputs(view: View):
    return view.outputs


def _test_outputs(view: View):
    return view.test_outputs


def loss() -> Observable:
    """The training loss.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> run = js.solve(problem, js.FrozenKernel(), jnp.array([0.0, jnp.inf]), observe=js.observe.loss())
        >>> print(bool(run["loss"][-1] < 1e-6))
        True
    """
    return Observable("loss", _loss, Quantity.OUTPUTS, unit="loss")


def test_loss() -> Observable:
    """The loss on the test set.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), test=(jnp.ones((3, 2)), jnp.ones((3, 1))))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.test_loss()(view).shape
        ()
    """
    return Observable("test_loss", _test_loss, Quantity.OUTPUTS, unit="loss")


def accuracy() -> Observable:
    """The share of training samples with the right sign (one output) or the right largest output.

    Targets must be classes: two opposite values in one column, or rows that are larger in the right column and equal in
    all others. `js.solve` rejects other targets; under a trace, as in a sweep, they give NaN.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> run = js.solve(problem, js.FrozenKernel(), jnp.inf, observe=js.observe.accuracy())
        >>> print(run["accuracy"])
        1.0
    """
    return Observable("accuracy", _accuracy, Quantity.OUTPUTS, require=_require_training_classes)


def test_accuracy() -> Observable:
    """`accuracy` on the test set.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), test=(jnp.ones((3, 2)), jnp.ones((3, 1))))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.test_accuracy()(view).shape
        ()
    """
    return Observable("test_accuracy", _test_accuracy, Quantity.OUTPUTS, require=_require_test_classes)


def outputs() -> Observable:
    """Outputs on the training set, shape (n, c).

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> run = js.solve(problem, js.FrozenKernel(), jnp.inf, observe=js.observe.outputs())
        >>> print(run["outputs"].round(3))
        [[ 1.]
         [-1.]]
    """
    return Observable("outputs", _outputs, Quantity.OUTPUTS, ("sample", "output"), "output")


def test_outputs() -> Observable:
    """Outputs on the test set, shape (m, c).

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), test=(jnp.ones((3, 2)), jnp.ones((3, 1))))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.test_outputs()(view).shape
        (3, 1)
    """
    return Observable("test_outputs", _test_outputs, Quantity.OUTPUTS, ("test_sample", "output"), "output")
