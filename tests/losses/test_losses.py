import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.losses import CrossEntropy, Hinge, Logistic, MSE, QuadraticHinge, SoftHinge
from tests.cases import assert_fails, eps
from tests.inside import accepts, find_loss


F = np.array([[0.3, -1.2, 2.0], [-0.4, 0.7, 0.1], [1.5, 1.1, -3.0], [0.2, 0.9, 0.6]])
SIGNS = np.array([[1.0, -1, 1], [1, 1, -1], [-1, 1, -1], [1, -1, -1]])
REAL = np.array([[0.5, 0.2, -1.0], [1.5, 0.3, 0.0], [-0.7, 0.8, 2.0], [0.1, -0.2, 0.4]])
PROBABILITIES = np.array([[1.0, 0, 0], [0, 0, 1], [0.2, 0.5, 0.3], [0, 1, 0]])


def _expit(z):
    return scipy.special.expit(z)


def _softmax(f):
    return scipy.special.softmax(f, axis=-1)


def _diagonal(values):
    return values[..., None] * np.eye(values.shape[-1])


# loss: targets, value per sample, gradient per sample, Hessian per sample
FORMULAS = {
    "MSE": (
        MSE(),
        REAL,
        lambda f, y: np.sum((f - y) ** 2, -1) / 2,
        lambda f, y: f - y,
        lambda f, y: _diagonal(np.ones_like(f)),
    ),
    "CrossEntropy": (
        CrossEntropy(),
        PROBABILITIES,
        lambda f, y: -np.sum(y * (f - scipy.special.logsumexp(f, axis=-1, keepdims=True)), -1),
        lambda f, y: _softmax(f) - y,
        lambda f, y: _diagonal(_softmax(f)) - _softmax(f)[..., :, None] * _softmax(f)[..., None, :],
    ),
    "Logistic": (
        Logistic(),
        SIGNS,
        lambda f, y: np.sum(np.logaddexp(0, -f * y), -1),
        lambda f, y: -y * _expit(-f * y),
        lambda f, y: _diagonal(_expit(f) * _expit(-f)),
    ),
    "Hinge": (
        Hinge(),
        SIGNS,
        lambda f, y: np.sum(np.maximum(0, 1 - f * y), -1),
        lambda f, y: np.where(f * y < 1, -y, 0),
        lambda f, y: _diagonal(np.zeros_like(f)),
    ),
    "SoftHinge": (
        SoftHinge(beta=3.0),
        SIGNS,
        lambda f, y: np.sum(np.logaddexp(0, 3 * (1 - f * y)), -1) / 3,
        lambda f, y: -y * _expit(3 * (1 - f * y)),
        lambda f, y: _diagonal(3 * _expit(3 * (1 - f * y)) * _expit(-3 * (1 - f * y))),
    ),
    "SoftHinge by default": (
        SoftHinge(),
        SIGNS,
        lambda f, y: np.sum(np.logaddexp(0, 20 * (1 - f * y)), -1) / 20,
        lambda f, y: -y * _expit(20 * (1 - f * y)),
        lambda f, y: _diagonal(20 * _expit(20 * (1 - f * y)) * _expit(-20 * (1 - f * y))),
    ),
    "QuadraticHinge": (
        QuadraticHinge(),
        SIGNS,
        lambda f, y: np.sum(np.maximum(0, 1 - f * y) ** 2, -1) / 2,
        lambda f, y: -y * np.maximum(0, 1 - f * y),
        lambda f, y: _diagonal(np.where(f * y < 1, 1.0, 0.0)),
    ),
}
EACH = pytest.mark.parametrize("name", FORMULAS)


def _all(loss):
    return jax.jit(lambda f, y: (loss.value(f, y), loss.gradient(f, y), loss.hessian(f, y)))


def _assert_close(a, b):
    np.testing.assert_allclose(a, b, rtol=eps(50), atol=eps(50))


@EACH
@pytest.mark.parametrize("size", [1.0, 1e3])
def test_value_gradient_and_hessian_are_the_formulas(name, size):
    """Averages over the four samples, sums over the three outputs; outputs of 1e3 neither overflow nor give NaN."""
    loss, y, value, gradient, hessian = FORMULAS[name]
    f = size * F
    expected = [np.mean(value(f, y)), gradient(f, y) / 4, hessian(f, y) / 4]
    found = _all(loss)(jnp.asarray(f), jnp.asarray(y))
    sums = [np.sum(value(f, y)), gradient(f, y), hessian(f, y)]  # without the average over samples
    for a, b, wrong in zip(found, expected, sums, strict=True):
        _assert_close(a, b)
        if np.max(np.abs(b)) > 1e-3:
            assert_fails(lambda a=a, wrong=wrong: _assert_close(a, wrong))


@pytest.mark.x64_only
@EACH
def test_gradient_and_hessian_are_differences_of_the_value(name):
    loss, y, *_ = FORMULAS[name]
    compute = _all(loss)
    y, step = jnp.asarray(y), 1e-5
    _, gradient, hessian = compute(jnp.asarray(F), y)
    for i, a in np.ndindex(F.shape):
        up, down = (jnp.asarray(F).at[i, a].add(sign * step) for sign in (1, -1))
        slope = (compute(up, y)[0] - compute(down, y)[0]) / (2 * step)
        np.testing.assert_allclose(gradient[i, a], slope, atol=1e-9)
        curvature = (compute(up, y)[1] - compute(down, y)[1]) / (2 * step)
        np.testing.assert_allclose(hessian[i, :, a], curvature[i], atol=1e-8)
        np.testing.assert_array_equal(np.delete(curvature, i, axis=0), 0)  # samples do not mix


@EACH
def test_hessian_is_symmetric_and_not_negative(name):
    loss, y, *_ = FORMULAS[name]
    hessian = np.asarray(_all(loss)(jnp.asarray(F), jnp.asarray(y))[2])
    np.testing.assert_allclose(hessian, np.swapaxes(hessian, 1, 2), atol=eps(4))
    assert np.linalg.eigvalsh(hessian).min() > -eps(10)


def test_cross_entropy_of_two_outputs_is_logistic_of_their_difference():
    f = jnp.asarray(F[:, :2])
    one_hot, sign = jnp.asarray([[1.0, 0], [0, 1], [1, 0], [0, 1]]), jnp.asarray([[1.0], [-1], [1], [-1]])
    np.testing.assert_allclose(
        CrossEntropy().value(f, one_hot), Logistic().value(f[:, :1] - f[:, 1:], sign), rtol=eps(10)
    )


@settings(max_examples=25, deadline=None)
@given(f=st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), shift=st.floats(-1e3, 1e3), label=st.integers(0, 2))
def test_cross_entropy_ignores_a_shift_of_all_outputs(f, shift, label):
    outputs, y = jnp.asarray([f]), jax.nn.one_hot(jnp.asarray([label]), 3, dtype=jnp.result_type(float))
    compute = _CROSS_ENTROPY
    np.testing.assert_allclose(compute(outputs + shift, y)[0], compute(outputs, y)[0], atol=eps(1e5), rtol=eps(100))
    np.testing.assert_allclose(jnp.sum(compute(outputs, y)[1]), 0, atol=eps(10))


_CROSS_ENTROPY = _all(CrossEntropy())


@pytest.mark.parametrize("beta", [10.0, 100.0, 1000.0])
def test_soft_hinge_tends_to_the_hinge(beta):
    f, y = jnp.asarray(F), jnp.asarray(SIGNS)
    gap = SoftHinge(beta).value(f, y) - Hinge().value(f, y)
    assert -eps(10) <= gap <= 3 * np.log(2) / beta  # log(2)/beta per output at most, at the kink


def test_hinge_losses_are_flat_beyond_the_margin():
    f, y = jnp.asarray([[1.5, -2.0]]), jnp.asarray([[1.0, -1.0]])
    for loss in (Hinge(), QuadraticHinge()):
        value, gradient, hessian = _all(loss)(f, y)
        assert (float(value), float(jnp.max(jnp.abs(gradient))), float(jnp.max(jnp.abs(hessian)))) == (0, 0, 0)


def test_beta_is_data():
    slope = jax.grad(lambda beta: SoftHinge(beta).value(jnp.asarray(F), jnp.asarray(SIGNS)))(jnp.asarray(3.0))
    value = lambda beta: np.mean(np.sum(np.logaddexp(0, beta * (1 - F * SIGNS)), -1) / beta)
    np.testing.assert_allclose(slope, (value(3 + 1e-5) - value(3 - 1e-5)) / 2e-5, rtol=1e-3)
    many = jax.vmap(lambda beta: SoftHinge(beta).value(jnp.asarray(F), jnp.asarray(SIGNS)))(jnp.asarray([1.0, 3.0]))
    np.testing.assert_allclose(many, [value(1.0), value(3.0)], rtol=eps(20))


# --- targets


def test_targets_take_the_shapes_they_promise():
    np.testing.assert_array_equal(MSE().targets([1, 2], 1), [[1], [2]])
    np.testing.assert_array_equal(MSE().targets(np.ones((2, 3)), 3), np.ones((2, 3)))
    np.testing.assert_array_equal(find_loss(jnp.dot).targets([[1, 2]], 2), [[1, 2]])
    np.testing.assert_array_equal(CrossEntropy().targets(np.array([2, 0]), 3), [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(CrossEntropy().targets(PROBABILITIES, 3), jnp.asarray(PROBABILITIES))
    for loss in (Logistic(), Hinge(), SoftHinge(), QuadraticHinge()):
        np.testing.assert_array_equal(loss.targets(np.array([1, -1]), 1), [[1], [-1]])
        np.testing.assert_array_equal(loss.targets(SIGNS, 3), SIGNS)
    assert {loss.targets(y, c).dtype for loss, y, c in [(MSE(), [1], 1), (CrossEntropy(), np.array([1]), 2)]} == {
        jnp.dtype(jnp.result_type(float))
    }


def test_targets_inside_a_trace_are_not_looked_at():
    labels = jax.jit(lambda y: CrossEntropy().targets(y, 3))(jnp.asarray([0, 2]))
    np.testing.assert_array_equal(labels, [[1, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(jax.jit(lambda y: Hinge().targets(y, 1))(jnp.asarray([1.0, -1.0])), [[1], [-1]])


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    ("loss", "y", "out_size", "message"),
    [
        (MSE(), np.ones(3), 2, r"targets must have shape \(n, 2\) for a network with 2 output.*\(3,\)"),
        (MSE(), np.ones(3, int), 2, r"dtype int\d+; for integer labels take loss=losses.CrossEntropy\(\)"),
        (MSE(), np.ones((3, 1)), 2, r"targets must have shape \(n, 2\).*\(3, 1\)"),
        (MSE(), np.ones((3, 1, 1)), 1, r"targets must have shape \(n, 1\).*\(3, 1, 1\)"),
        (CrossEntropy(), np.array([0, 1]), 1, "CrossEntropy needs a network with at least two outputs; .*Logistic"),
        (CrossEntropy(), np.array([0, 3]), 3, r"labels must lie in 0..2 for 3 outputs, got 0..3"),
        (CrossEntropy(), np.array([-1, 2]), 3, r"labels must lie in 0..2 for 3 outputs, got -1..2"),
        (CrossEntropy(), np.array([0.0, 1.0]), 3, r"CrossEntropy needs integer labels \(n,\) or rows \(n, 3\)"),
        (CrossEntropy(), np.ones((2, 2)), 3, r"targets must have shape \(n, 3\)"),
        (CrossEntropy(), np.ones((2, 3)), 3, "rows of probabilities: non-negative, summing to one"),
        (CrossEntropy(), np.array([[2.0, -1.0]]), 2, "rows of probabilities: non-negative"),
        (Logistic(), [0, 1], 1, r"Logistic needs targets -1 or \+1, got values \[0.0, 1.0\]"),
        (Hinge(), [1, 2], 1, r"Hinge needs targets -1 or \+1, got values \[1.0, 2.0\]"),
        (SoftHinge(), [0.5], 1, r"SoftHinge needs targets -1 or \+1"),
        (QuadraticHinge(), np.zeros((2, 2)), 2, r"QuadraticHinge needs targets -1 or \+1"),
        (Logistic(), [1, -1], 2, r"targets must have shape \(n, 2\)"),
    ],
)
def test_wrong_targets(loss, y, out_size, message):
    with pytest.raises(ValueError, match=message):
        loss.targets(y, out_size)


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan"), float("inf"), [1.0, 2.0]])
def test_soft_hinge_needs_a_positive_beta(beta):
    with pytest.raises(ValueError, match="beta must be one finite number > 0, got"):
        SoftHinge(beta)


# --- losses of one's own


def test_any_function_of_one_sample_is_a_loss():
    huber = find_loss(lambda f, y: jnp.sum(jnp.sqrt(1 + (f - y) ** 2) - 1))
    value, gradient, hessian = _all(huber)(jnp.asarray(F), jnp.asarray(REAL))
    r = F - REAL
    np.testing.assert_allclose(value, np.mean(np.sum(np.sqrt(1 + r**2) - 1, -1)), rtol=eps(10))
    np.testing.assert_allclose(gradient, r / np.sqrt(1 + r**2) / 4, atol=eps(10))
    np.testing.assert_allclose(hessian, _diagonal((1 + r**2) ** -1.5) / 4, atol=eps(20))


def test_find_loss_leaves_losses_alone():
    loss = SoftHinge(2.0)
    assert find_loss(loss) is loss


@pytest.mark.usefixtures("as_users")
def test_what_is_no_loss():
    for bad, found in ((3, "int 3"), ("mse", "str 'mse'"), (MSE, ".*losses._mse.MSE"), (None, "NoneType None")):
        with pytest.raises(TypeError, match=f"loss must be a loss such as losses.MSE.., .*got .*{found}"):
            find_loss(bad)  # pyright: ignore
    vector = find_loss(lambda f, y: (f - y) ** 2)
    for use in (vector.value, vector.gradient, vector.hessian):
        with pytest.raises(ValueError, match=r"loss function must return one number per sample, got .*\(3,\)"):
            use(jnp.asarray(F), jnp.asarray(REAL))


@pytest.mark.x64_only
def test_a_loss_of_ones_own_moves_a_network_as_ours_does():
    """The same flow under MSE and under the same formula given as a function."""
    net = js.nets.MLP(
        in_size=2,
        out_size=1,
        width_size=4,
        depth=1,
        activation="tanh",
        scaling=js.nets.Scaling.ntk(),
        key=jax.random.key(0),
    )
    x, y = jnp.asarray([[1.0, 0.5], [-0.3, 1.0]]), jnp.asarray([[1.0], [-1.0]])
    problems = [js.Problem(net, x, y, loss=loss) for loss in (MSE(), lambda f, y: jnp.sum((f - y) ** 2) / 2)]
    slopes = [jax.grad(p.objective)(p.params) for p in problems]
    for a, b in zip(*map(jax.tree.leaves, slopes), strict=True):
        np.testing.assert_allclose(a, b, atol=eps(10))


@pytest.mark.parametrize(
    ("loss", "good", "bad"),
    [
        (Hinge(), SIGNS, np.abs(SIGNS) - 1),
        (Logistic(), SIGNS, (SIGNS + 1) / 2),
        (SoftHinge(), SIGNS, 2 * SIGNS),
        (CrossEntropy(), PROBABILITIES, 2 * PROBABILITIES),
        (CrossEntropy(), PROBABILITIES, PROBABILITIES - 0.1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_accepts_inside_a_trace_what_targets_accept_outside(loss, good, bad):
    accepted = jax.jit(lambda y: accepts(loss, y))
    assert accepted(good)
    assert not accepted(bad)
    with pytest.raises(ValueError, match="needs"):
        loss.targets(bad, 3)
    assert accepts(MSE(), jnp.asarray(bad))


def test_labels_out_of_range_are_seen_inside_a_trace():
    loss = CrossEntropy()
    accepted = jax.jit(lambda labels: accepts(loss, loss.targets(labels, 3)))
    assert accepted(np.array([0, 2]))
    assert not accepted(np.array([0, 3]))


def test_a_soft_hinge_needs_a_positive_beta_inside_a_trace_too():
    with pytest.raises(ValueError, match=r"beta must be one finite number > 0, got -1.0"):
        jax.jit(lambda: SoftHinge(-1.0).beta)()
    accepted = jax.jit(lambda beta: accepts(SoftHinge(beta), jnp.asarray(SIGNS)))
    assert accepted(2.0)
    assert not accepted(-2.0)
