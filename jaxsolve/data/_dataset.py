"""The result of every data source: training and test arrays, and a line that says where they come from."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped

from .._checks import as_array, describe, require_finite
from ._transforms import AbstractTransform


class Dataset(eqx.Module):
    """Training samples and, optionally, test samples, as every source in `js.data` returns them.

    Pass it to a problem as `js.Problem(net, *data.train, test=data.test)`. It is a pytree whose arrays may be traced,
    so a function that makes a Dataset can be jitted, mapped over its key and differentiated.

    Attributes:
        x: training inputs, shape `(n, *shape)`.
        y: training targets, shape `(n, c)`.
        x_test: test inputs, shape `(m, *shape)`, or None.
        y_test: test targets, shape `(m, c)`, or None.
        source: one line saying what was loaded or drawn.

    Example:
        >>> data = js.data.Dataset(jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, *data.train, test=data.test)
    """

    x: Float[Array, " n *shape"]
    y: Float[Array, "n c"]
    x_test: Float[Array, " m *shape"] | None
    y_test: Float[Array, "m c"] | None
    source: str = eqx.field(static=True)  # text for readers, never data

    def __init__(
        self,
        x: Shaped[ArrayLike, "..."],
        y: Shaped[ArrayLike, "..."],
        x_test: Shaped[ArrayLike, "..."] | None = None,
        y_test: Shaped[ArrayLike, "..."] | None = None,
        *,
        source: str = "arrays given by the user",
    ):
        """Checks the arrays. Integers become floats: inputs in the default dtype, everything else in the inputs' dtype.

        Args:
            x: training inputs, shape `(n, *shape)` with at least one axis after the first.
            y: training targets, shape `(n, c)`.
            x_test: test inputs, shape `(m, *shape)`; give both test arrays or neither.
            y_test: test targets, shape `(m, c)`.
            source: one line saying where the data come from.

        Raises:
            ValueError: an array has the wrong number of axes or is empty, numbers of samples differ, test samples do
                not have the shape of training samples, float dtypes differ, only one test array is given, or (concrete
                arrays only) an entry is NaN or infinite.
        """
        if (x_test is None) != (y_test is None):
            given, missing = ("x_test", "y_test") if y_test is None else ("y_test", "x_test")
            raise ValueError(f"{given} was given without {missing}; give both, or neither for no test set")
        self.x = _floats(x, "x", jnp.result_type(float))
        self.y = _floats(y, "y", self.x.dtype)
        self.x_test = None if x_test is None else _floats(x_test, "x_test", self.x.dtype)
        self.y_test = None if y_test is None else _floats(y_test, "y_test", self.x.dtype)
        self.source = source
        _check_pair(self.x, self.y, "x", "y")
        if self.x_test is not None and self.y_test is not None:
            _check_pair(self.x_test, self.y_test, "x_test", "y_test")
            _check_alike(self.x, self.x_test, "x")
            _check_alike(self.y, self.y_test, "y")
        for name in ("y", "x_test", "y_test"):
            array = getattr(self, name)
            if array is not None and array.dtype != self.x.dtype:
                raise ValueError(
                    f"x has dtype {self.x.dtype} but {name} has dtype {array.dtype}; all arrays of a Dataset share "
                    f"one float dtype: convert one of them, for example {name}.astype(x.dtype)"
                )

    @property
    def train(self) -> tuple[Float[Array, " n *shape"], Float[Array, "n c"]]:
        """Training inputs `(n, *shape)` and targets `(n, c)`."""
        return self.x, self.y

    @property
    def test(self) -> tuple[Float[Array, " m *shape"], Float[Array, "m c"]] | None:
        """Test inputs `(m, *shape)` and targets `(m, c)`, or None if there is no test set."""
        if self.x_test is None or self.y_test is None:
            return None
        return self.x_test, self.y_test

    def transform(self, fit: AbstractTransform) -> "Dataset":
        """Fits a transform on the training inputs alone and applies it to training and test inputs.

        Args:
            fit: for example `js.data.pca(10)`, `js.data.whiten()` or `js.data.standardize()`. The inputs must be
                flat, `(n, d)`.

        Returns:
            A new Dataset with the same targets.

        Example:
            >>> data = js.data.gaussian(20, 3, n_test=5, key=jax.random.key(0)).transform(js.data.pca(2))
            >>> data.x.shape, data.x_test.shape
            ((20, 2), (5, 2))

        Raises:
            ValueError: the inputs are not flat, or the transform cannot be fitted to them.
        """
        affine = fit.fit(self.x)
        x_test = None if self.x_test is None else affine(self.x_test)
        source = f"{self.source}; {eqx.tree_pformat(fit, width=1000)}"
        return Dataset(affine(self.x), self.y, x_test, self.y_test, source=source)

    def __repr__(self) -> str:
        """Shapes, dtypes and source, without values."""
        pair = {name: eqx.tree_pformat(getattr(self, name)) for name in ("x", "y", "x_test", "y_test")}
        test = "none" if self.x_test is None else f"x {pair['x_test']}, y {pair['y_test']}"
        return f"Dataset(train: x {pair['x']}, y {pair['y']}; test: {test}; source: {self.source})"


def _floats(value: Any, name: str, dtype: Any) -> Float[Array, "..."]:
    """A float array with finite entries; integers and Booleans are converted to `dtype`."""
    try:
        array = as_array(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be an array of real numbers, got {describe(value)}") from error
    if jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == jnp.bool_:
        array = array.astype(dtype)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(f"{name} must hold real numbers, got {describe(value)}")
    if array.size == 0:
        raise ValueError(f"{name} is empty: its shape is {array.shape}; at least one sample and feature are needed")
    require_finite(array, name)
    return array


def _check_pair(x: Array, y: Array, x_name: str, y_name: str) -> None:
    if x.ndim < 2:
        raise ValueError(
            f"{x_name} must have shape (n, d) or (n, *shape), got {x.shape}; scalar inputs are {x_name}[:, None]"
        )
    if y.ndim != 2:
        raise ValueError(
            f"{y_name} must have shape (n, c), got {y.shape}; one target per sample is {y_name}[:, None], "
            "class labels are one-hot rows (jax.nn.one_hot)"
        )
    if x.shape[0] != y.shape[0]:
        raise ValueError(
            f"{x_name} has {x.shape[0]} samples and {y_name} has {y.shape[0]} (shapes {x.shape} and {y.shape}); "
            "they must have equally many"
        )


def _check_alike(train: Array, test: Array, name: str) -> None:
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"one sample of {name} has shape {train.shape[1:]} but one of {name}_test has shape {test.shape[1:]}; "
            "training and test samples must be shaped alike"
        )
