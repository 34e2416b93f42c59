from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve import kernels, nets, Problem
from jaxsolve.losses import CrossEntropy, Hinge, Logistic, MSE
from tests.cases import ACTIVATIONS, assert_fails, eps, forward, inputs, mlp, problem, randomized, scaling, X64


TANH = ACTIVATIONS["tanh"][1]


def _numpy(net, params, x):
    """f(params) by the plain loop."""
    moved = eqx.tree_at(lambda n: (n.weights, n.biases), net, (params.weights, params.biases))
    return np.stack([forward(moved, one, TANH) for one in np.asarray(x)])


@pytest.mark.parametrize("centered", [False, True])
def test_predict_outputs_and_objective_are_the_formulas(centered, getkey):
    net = mlp(getkey())
    start = problem(net, getkey(), test=4, centered=centered)
    params, fresh = randomized(start.params, getkey()), inputs(getkey())
    offset = lambda x: _numpy(net, net, x) if centered else 0
    expected = {
        "predict": _numpy(net, params, fresh) - offset(fresh),
        "outputs": _numpy(net, params, start.x) - offset(start.x),
        "test_outputs": _numpy(net, params, start.x_test) - offset(start.x_test),
    }
    expected["objective"] = np.sum((expected["outputs"] - np.asarray(start.y)) ** 2) / (2 * 4)
    all_of = jax.jit(
        lambda p: {
            "predict": start.predict(p, fresh),
            "outputs": start.outputs(p),
            "test_outputs": start.test_outputs(p),
            "objective": start.objective(p),
        }
    )
    found = all_of(params)
    # The twin leaves what one layer has learned out.
    unlearned = all_of(eqx.tree_at(lambda p: p.weights[1], params, start.params.weights[1]))
    for name, value in expected.items():
        check = lambda found, value=value: np.testing.assert_allclose(found, value, rtol=eps(100), atol=eps(50))
        check(found[name])
        assert_fails(lambda name=name, check=check: check(unlearned[name]))
    np.testing.assert_allclose(start.predict(params, start.x), found["outputs"], atol=eps(50))
    np.testing.assert_allclose(start.outputs(start.params), 0 if centered else _numpy(net, net, start.x), atol=eps(50))
    assert eqx.tree_equal(jax.tree.leaves(start.network(params).weights), list(params.weights))


def test_params_and_eta(getkey):
    net = mlp(getkey())
    start = problem(net, getkey())
    assert eqx.tree_equal(jax.tree.leaves(start.params), [*net.weights, *net.biases])
    assert jax.tree.structure(start.params) == jax.tree.structure(start.eta)
    np.testing.assert_allclose(jax.tree.leaves(start.eta), [1.7, 0.4, 2.3, 0.65, 0.65, 0.65], rtol=eps(2))
    assert eqx.tree_equal(start.network(start.params), net)


@pytest.mark.parametrize("centered", [False, True])
def test_kernel_is_weighted_by_eta_and_drives_the_outputs(centered, getkey):
    """df/dt = -K dL/df along theta' = -eta dL/dtheta."""
    start = problem(mlp(getkey()), getkey(), centered=centered)
    params = randomized(start.params, getkey())
    velocity = jax.tree.map(lambda rate, g: -rate * g, start.eta, jax.grad(start.objective)(params))
    speed = jax.jvp(start.outputs, (params,), (velocity,))[1]
    kernel = jax.jit(lambda p: start.kernel(p, start.x))(params)
    driven = -jnp.einsum("namb,mb->na", kernel, MSE().gradient(start.outputs(params), start.y))
    size = np.max(np.abs(speed))
    np.testing.assert_allclose(speed, driven, atol=eps(100) * size)
    plain = eqx.tree_at(lambda p: p.net.scaling.eta, start, jnp.ones_like(start.net.scaling.eta))
    unweighted = -jnp.einsum(
        "namb,mb->na", plain.kernel(params, start.x), MSE().gradient(start.outputs(params), start.y)
    )
    assert_fails(lambda: np.testing.assert_allclose(speed, unweighted, atol=eps(100) * size))
    fresh = inputs(getkey(), 6)
    direct = kernels.empirical(start.network(params), start.x, fresh, eta=nets.rates(start.net)).ntk
    assert start.kernel(params, start.x, fresh).shape == (4, 2, 6, 2)
    np.testing.assert_allclose(start.kernel(params, start.x, fresh), direct, rtol=eps(10))


@pytest.mark.parametrize(
    ("loss", "y", "expected"),
    [
        (CrossEntropy(), np.array([0, 1, 1, 0]), [[1, 0], [0, 1], [0, 1], [1, 0]]),
        (CrossEntropy(), np.eye(2)[[0, 1, 1, 0]], [[1, 0], [0, 1], [0, 1], [1, 0]]),
        (Logistic(), np.array([[1, -1], [1, 1], [-1, 1], [1, 1]]), [[1, -1], [1, 1], [-1, 1], [1, 1]]),
    ],
)
def test_targets_in_the_form_that_the_loss_accepts(loss, y, expected, getkey):
    start = Problem(mlp(getkey()), inputs(getkey()), y, loss=loss)
    np.testing.assert_array_equal(start.y, expected)
    assert start.y.dtype == start.x.dtype
    np.testing.assert_allclose(start.objective(start.params), loss.value(start.outputs(start.params), start.y))


def test_one_column_of_targets_may_be_flat(getkey):
    net = nets.SingleNeuron(in_size=3, scaling=scaling(2), key=getkey())
    start = Problem(net, inputs(getkey(), 3), [1, 0, 2], test=(inputs(getkey(), 2), np.array([1.0, 2.0])))
    np.testing.assert_array_equal(start.y, [[1], [0], [2]])
    assert start.y_test is not None
    np.testing.assert_array_equal(start.y_test, [[1], [2]])


def test_integer_inputs_become_floats(getkey):
    net = nets.SingleNeuron(in_size=3, scaling=scaling(2), key=getkey())
    start = Problem(net, [[1, 2, 3], [0, 0, 1]], [1, 2])
    assert start.x.dtype == start.y.dtype == jnp.result_type(float)


def test_any_module_and_any_function_as_loss(getkey):
    net = eqx.nn.MLP(3, 2, 4, 1, key=getkey())
    start = problem_of(net, lambda f, y: jnp.sum(jnp.abs(f - y)), getkey)
    expected = np.mean(np.sum(np.abs(np.asarray(jax.vmap(net)(start.x)) - np.asarray(start.y)), axis=1))
    np.testing.assert_allclose(start.objective(start.params), expected, rtol=eps(20))
    assert {float(e) for e in jax.tree.leaves(start.eta)} == {1.0}


def problem_of(net, loss, getkey):
    return Problem(net, inputs(getkey()), inputs(getkey(), 4, 2), loss=loss)


def test_inputs_of_any_shape(getkey):
    class Mean(eqx.Module):
        w: jax.Array

        def __call__(self, x):
            return self.w * jnp.mean(x, axis=(1, 2))

    x = jax.random.normal(getkey(), (5, 2, 4, 4))
    start = Problem(Mean(jnp.asarray([1.0, 3.0])), x, np.zeros((5, 2)), test=(x[:2], np.zeros((2, 2))), centered=True)
    assert start.outputs(start.params).shape == (5, 2)
    assert start.test_outputs(start.params).shape == (2, 2)


# --- as a pytree: traced, mapped, differentiated


def test_under_jit_vmap_and_grad(getkey):
    """The loss of a network built inside a trace, and its slope in sigma, against differences of its neighbors."""
    key, x, y = getkey(), inputs(getkey()), inputs(getkey(), 4, 2)

    def objective(factor, gamma):
        values = scaling(3, gamma=gamma)
        values = eqx.tree_at(lambda s: s.sigma, values, values.sigma * factor)
        start = Problem(
            nets.MLP(
                in_size=3, out_size=2, width_size=5, depth=2, activation="tanh", bias=True, scaling=values, key=key
            ),
            x,
            y,
        )
        return start.objective(start.params), start.valid

    step = 1e-5 if X64 else 3e-2
    factors, gammas = jnp.asarray([1.5, 1.0, 1 + step, 1 - step]), jnp.asarray([-0.5, 0.75, 0.75, 0.75])
    (losses, valid), slopes = jax.jit(jax.vmap(jax.value_and_grad(objective, has_aux=True)))(factors, gammas)
    np.testing.assert_allclose(losses[0], objective(1.5, -0.5)[0], rtol=eps(50))
    assert bool(jnp.all(valid))
    assert abs(slopes[1]) > 0.01
    np.testing.assert_allclose(slopes[1], (losses[2] - losses[3]) / (2 * step), rtol=1e-8 if X64 else 2e-2)


def test_one_program_for_all_values(getkey):
    @eqx.filter_jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def objective(start):
        return start.objective(start.params)

    first = problem(mlp(getkey()), getkey(), test=4, centered=True)
    second = problem(mlp(getkey(), gamma=3), getkey(), test=4, centered=True)
    assert objective(first) != objective(second)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(first) if eqx.is_array(leaf))


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        (lambda p: p, True),
        (lambda p: eqx.tree_at(lambda q: q.net.weights[0], p, p.net.weights[0].at[0, 0].set(jnp.nan)), False),
        (lambda p: eqx.tree_at(lambda q: q.x, p, p.x.at[0, 0].set(jnp.inf)), False),
        (lambda p: eqx.tree_at(lambda q: q.y_test, p, p.y_test.at[0, 0].set(jnp.nan)), False),
        (lambda p: eqx.tree_at(lambda q: q.net.scaling.eta, p, p.net.scaling.eta.at[0].set(-1)), False),
        (lambda p: eqx.tree_at(lambda q: q.net.scaling.gamma, p, jnp.asarray(jnp.nan)), False),
    ],
)
def test_valid_tells_inside_a_trace_what_raises_outside(change, valid, getkey):
    start = problem(mlp(getkey()), getkey(), test=4)
    assert bool(_valid(change(start))) is valid


def test_valid_of_test_labels_out_of_range(getkey):
    def valid(labels):
        data = (jnp.ones((2, 3)), labels)
        return Problem(net, jnp.ones((2, 3)), jnp.array([0, 1]), test=data, loss=CrossEntropy()).valid

    net = mlp(getkey())
    assert bool(jax.jit(valid)(jnp.array([1, 0])))
    assert not bool(jax.jit(valid)(jnp.array([1, 2])))  # of two classes


@eqx.filter_jit
def _valid(start):
    return start.valid


def test_bad_numbers_inside_a_trace_do_not_raise(getkey):
    net, y = mlp(getkey()), inputs(getkey(), 4, 2)
    x = jnp.stack([inputs(getkey()), jnp.full((4, 3), jnp.nan)])
    np.testing.assert_array_equal(jax.jit(jax.vmap(lambda x: Problem(net, x, y).valid))(x), [True, False])


def test_valid_with_a_loss_that_has_data(getkey):
    from jaxsolve.losses import SoftHinge

    net = nets.MLP(in_size=3, out_size=1, width_size=5, depth=1, scaling=scaling(2), key=getkey(), dtype="float32")
    start = Problem(net, inputs(getkey()).astype("float32"), [1, -1, 1, 1], loss=SoftHinge(3.0))
    assert bool(start.valid)
    assert start.objective(start.params).dtype == jnp.float32


# --- bad input


X, Y = np.ones((4, 3)), np.ones((4, 2))


def _with(array, value):
    changed = np.array(array)
    changed[1, 0] = value
    return changed


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (_with(X, np.nan), Y, {}, r"x of the training set holds 1 value.* at index \(1, 0\)"),
        (_with(X, np.inf), Y, {}, "x of the training set holds 1 value"),
        (X, _with(Y, np.nan), {}, r"y of the training set holds 1 value.* at index \(1, 0\)"),
        (X[:0], Y[:0], {}, r"the training set is empty: x is an array of shape \(0, 3\)"),
        (np.float64(1.0), Y, {}, "the training set is empty"),
        (X, Y[:3], {}, r"the training set has 4 inputs but its targets are .*\(3, 2\).*; need one per input"),
        (X, np.float64(1.0), {}, "the training set has 4 inputs but its targets are"),
        (X[:, :2], Y, {}, r"each input of the training set has shape \(2,\), the network takes \(3,\)"),
        (X[0], Y, {}, r"the training set has 3 inputs but its targets"),
        (X[:, :, None], Y, {}, r"each input of the training set has shape \(3, 1\), the network takes \(3,\)"),
        (X, Y[:, :1], {}, r"targets must have shape \(n, 2\) for a network with 2 output.*\(4, 1\)"),
        (X, Y[:, 0], {}, r"targets must have shape \(n, 2\)"),
        (X, Y, {"loss": Hinge(), "test": (X, 2 * Y)}, r"Hinge needs targets -1 or \+1, got values \[2.0\]"),
        (X.astype(np.float16), Y, {}, "the inputs of the training set are float16, the network is float.*dtype="),
        (X.astype(complex), Y, {}, "the inputs of the training set are complex"),
        (
            X,
            Y.astype(complex),
            {},
            "targets of the training set must be real numbers, got an array of shape .* and dtype complex",
        ),
        (X, Y, {"test": (X[:, :2], Y)}, r"each input of the test set has shape \(2,\), the network takes \(3,\)"),
        (X, Y, {"test": (X, Y[:1])}, "the test set has 4 inputs but its targets"),
        (X, Y, {"test": (X[:0], Y[:0])}, "the test set is empty"),
        (X, Y, {"test": (X, _with(Y, np.nan))}, "y of the test set holds 1 value"),
        (X, Y, {"test": X}, r"test must be a pair \(x, y\) or None, got an array of shape \(4, 3\)"),
        (X, Y, {"test": (X, Y, Y)}, r"test must be a pair \(x, y\) or None, got tuple"),
    ],
)
def test_bad_data(x, y, options, message):
    with pytest.raises(ValueError, match=message):
        Problem(NET, x, y, **options)


NET = mlp(jax.random.key(0))


@pytest.mark.usefixtures("as_users")
def test_bad_networks_and_losses():
    class Returns(eqx.Module):
        w: jax.Array
        shape: Any = eqx.field(static=True)

        def __call__(self, x):
            out = self.w * jnp.sum(x)
            return (out, out) if self.shape == "pair" else jnp.broadcast_to(out, self.shape)

    w = jnp.asarray(1.0)
    for shape, found in (((), r"\(\)"), ("pair", "tuple")):
        with pytest.raises(
            ValueError, match=rf"net must map one sample to an array of real numbers, of shape \(c,\) .*, got .*{found}"
        ):
            Problem(Returns(w, shape), X, Y)
    for number in (lambda out: jax.lax.complex(out, out), lambda out: jnp.round(out).astype(int)):
        with pytest.raises(ValueError, match=r"of real numbers, .*, got .* dtype (complex|int)"):
            Problem(jax.tree_util.Partial(lambda w, x, number=number: number(w @ x), jnp.ones((1, 3))), X, Y)
    with pytest.raises(TypeError, match="net must be an Equinox module acting on one sample, got int 3"):
        Problem(3, X, Y)
    with pytest.raises(ValueError, match="net has no trainable arrays"):
        Problem(lambda x: x[:2], X, Y)
    with pytest.raises(TypeError, match="loss must be a loss such as losses.MSE.*, got str 'mse'"):
        Problem(NET, X, Y, loss="mse")  # pyright: ignore
    with pytest.raises(TypeError, match="loss must be a loss such as losses.MSE"):
        Problem(NET, X, Y, loss=MSE)  # pyright: ignore


def test_no_test_set_says_so(getkey):
    start = problem(mlp(getkey()), getkey())
    assert start.x_test is None
    with pytest.raises(ValueError, match=r"this problem has no test set; give Problem\(..., test=\(x, y\)\)"):
        start.test_outputs(start.params)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ("text", Y, "the inputs of the training set must be an array of numbers, got str 'text'"),
        (None, Y, "the inputs of the training set must be an array of numbers, got NoneType None"),
        ([[1.0, 2.0], [3.0]], Y, "the inputs of the training set must be an array of numbers, got list"),
        (X, None, "the targets of the training set must be an array of numbers, got NoneType None"),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_data_that_are_no_numbers(x, y, message):
    with pytest.raises(TypeError, match=message):
        Problem(mlp(jax.random.key(0)), x, y)


def test_precisions_that_flows_do_not_serve():
    net = nets.MLP(
        in_size=3,
        out_size=2,
        width_size=4,
        depth=1,
        scaling=nets.Scaling.ntk(),
        key=jax.random.key(0),
        dtype=jnp.float16,
    )
    with pytest.raises(ValueError, match="parameters are float16; only float32 and float64 are supported"):
        Problem(net, X.astype(np.float16), Y)
    single = nets.MLP(
        in_size=3,
        out_size=2,
        width_size=4,
        depth=1,
        scaling=nets.Scaling.ntk(),
        key=jax.random.key(0),
        dtype=jnp.float32,
    )
    with pytest.raises(ValueError, match="hold integers beyond 16777216, above which float32 cannot represent every"):
        Problem(single, np.full((4, 3), 2**24 + 1), Y)
    assert Problem(single, np.full((4, 3), 2**24), Y).x.dtype == jnp.float32


def test_a_test_set_that_a_module_cannot_take():
    net = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"here of shape \(2,\) .*\(an input of the test set\)"):
        Problem(net, X, Y, test=(X[:, :2], Y))


def test_methods_can_be_compiled_by_jax_and_by_equinox():
    made = problem(mlp(jax.random.key(0)), jax.random.key(1))
    expected = made.objective(made.params)
    for compile in (jax.jit, eqx.filter_jit):
        np.testing.assert_allclose(compile(made.objective)(made.params), expected, rtol=eps(50))
        assert compile(made.outputs)(made.params).shape == (4, 2)


def test_all_parameters_have_one_dtype():
    net = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0), dtype=jnp.float32)
    net = eqx.tree_at(lambda net: net.layers[1].weight, net, replace_fn=lambda w: w.astype(jnp.bfloat16))
    with pytest.raises(ValueError, match="parameters are bfloat16 and float32; give all of them one dtype"):
        Problem(net, jnp.eye(2, dtype=jnp.float32), jnp.ones((2, 1)))
