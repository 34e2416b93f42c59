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
    """The training loss.

    Example:
        >>> net = js.nets.TwoLayerLinear(2, 4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> run = js.solve(problem, js.FrozenKernel(), jnp.array([0.0, jnp.inf]), observe=js.observe.loss())
        >>> print(bool(run["loss"][-1] < 1e-6))
        True
    """
    return Observable("loss", _loss, Quantity.OUTPUTS, unit="loss")


def test_loss() -> Observable:
    """The loss on the test set.

    Example:
        >>> net = js.nets.TwoLayerLinear(2, 4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), test=(jnp.ones((3, 2)), jnp.ones((3, 1))))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.test_loss()(view).shape
        ()
    """
    return Observable("test_loss", _test_loss, Quantity.OUTPUTS, unit="loss")


def accuracy() -> Observable:
    """Share of training samples with the right sign (one output) or the right largest output.

    Example:
        >>> net = js.nets.TwoLayerLinear(2, 4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> run = js.solve(problem, js.FrozenKernel(), jnp.inf, observe=js.observe.accuracy())
        >>> print(run["accuracy"])
        1.0
    """
    return Observable("accuracy", _accuracy, Quantity.OUTPUTS)


def test_accuracy() -> Observable:
    """`accuracy` on the test set.

    Example:
        >>> net = js.nets.TwoLayerLinear(2, 4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), test=(jnp.ones((3, 2)), jnp.ones((3, 1))))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.test_accuracy()(view).shape
        ()
    """
    return Observable("test_accuracy", _test_accuracy, Quantity.OUTPUTS)


def outputs() -> Observable:
    """Outputs on the training set, shape (n, c).

    Example:
        >>> net = js.nets.TwoLayerLinear(2, 4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
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
        >>> net = js.nets.TwoLayerLinear(2, 4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), test=(jnp.ones((3, 2)), jnp.ones((3, 1))))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.test_outputs()(view).shape
        (3, 1)
    """
    return Observable("test_outputs", _test_outputs, Quantity.OUTPUTS, ("test_sample", "output"), "output")
