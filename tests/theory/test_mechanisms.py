"""The mechanisms of learning, predicted from the start, against what networks then do."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.theory import Alignment, mechanisms, ReducedLine, Rescaling, TwoLayerLine
from tests.cases import assert_fails


CLOSED = TwoLayerLine()
REFERENCE = js.GradientFlow(diffrax.Dopri8(), rtol=1e-10, atol=1e-14, land_on_ts=True)
WIDTH, IN_SIZE, SAMPLES = 3, 2, 4


def reduced(a, b, k, y):
    return ReducedLine.from_layers(jnp.asarray(a, float), jnp.asarray(b, float), jnp.asarray(k), jnp.asarray(y))


def random_lines(count, seed):
    """Starts of all kinds: scales over several decades, both signs of target and output."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, count, 4)) * 10 ** rng.uniform(-1, 1, (2, count, 1))
    k, y = 10 ** rng.uniform(-1, 1, count), 10 ** rng.uniform(-1.5, 1.5, count) * rng.choice([-1, 1], count)
    return jax.vmap(ReducedLine.from_layers)(jnp.asarray(a), jnp.asarray(b), jnp.asarray(k), jnp.asarray(y))


def direction(curve):
    """+1, -1 or 0 where every step of a curve along the last axis rises, falls, or neither."""
    steps = np.diff(np.asarray(curve), axis=-1)
    small = 1e-12 * np.max(np.abs(curve))
    return np.all(steps > -small, axis=-1).astype(int) - np.all(steps < small, axis=-1)


def assert_agree(said, zeta, norms, turned):
    """`zeta` and `norms` are curves (lanes, times); `turned` is norms' index at the predicted turn, for case 3."""
    np.testing.assert_array_equal(direction(zeta), said.alignment)
    rescaling = np.asarray(said.rescaling)
    np.testing.assert_array_equal(direction(norms)[rescaling == Rescaling.GROW], 1)
    np.testing.assert_array_equal(direction(norms)[rescaling == Rescaling.SHRINK], -1)
    for lane in np.flatnonzero(rescaling == Rescaling.SHRINK_THEN_GROW):
        assert direction(norms[lane, : turned + 1]) == -1
        assert direction(norms[lane, turned:]) == 1


@pytest.mark.slow
@pytest.mark.x64_only
def test_400_random_starts_do_as_predicted():
    line = random_lines(400, 0)
    said = jax.vmap(mechanisms)(line)
    scale = jnp.where(jnp.isinf(said.turn), line.timescale.t_c, said.turn)
    # Ten steps to the turn, then ten more.
    ts = scale[:, None] * jnp.linspace(0, 2, 21)[None, :]
    zeta = jax.vmap(lambda one, t: one.zeta(t))(line, ts)
    norms = jax.vmap(lambda one, t: one.squared_norms(t)[0])(line, ts)
    assert_agree(said, np.asarray(zeta), np.asarray(norms), turned=10)
    counts = np.bincount(np.asarray(said.rescaling), minlength=5)
    assert np.all(counts[1:4] > 50), counts
    np.testing.assert_allclose(said.zeta_start, line.zeta(0.0), rtol=1e-15)
    np.testing.assert_allclose(said.zeta_end, jax.vmap(lambda one: one.zeta(100 * one.timescale.t_c))(line), atol=1e-12)
    np.testing.assert_array_equal(np.sign(said.zeta_end - said.zeta_start), said.alignment)


@pytest.mark.slow
@pytest.mark.x64_only
def test_the_weights_do_as_predicted():
    rng = np.random.default_rng(1)
    count = 40
    cases = {
        "seed": jnp.arange(count),
        "gamma": jnp.asarray(10 ** rng.uniform(-0.5, 0.5, count) * rng.choice([-1, 1], count)),
        "sigma": jnp.asarray(10 ** rng.uniform(-0.3, 0.7, count)),
        "eta": jnp.asarray(10 ** rng.uniform(-1, 1, (count, 2))),
        "slope": jnp.asarray(10 ** rng.uniform(-1, 0.5, count)),
    }

    def lane(case):
        keys = jax.random.split(jax.random.key(case["seed"]), 3)
        n, along = jax.random.normal(keys[0], (IN_SIZE,)), jax.random.normal(keys[1], (SAMPLES,))
        scaling = js.nets.Scaling.ntk(case["gamma"], sigma=case["sigma"], eta=case["eta"])
        net = js.nets.TwoLayerLinear(in_size=IN_SIZE, width_size=WIDTH, scaling=scaling, key=keys[2])
        problem = js.Problem(net, along[:, None] * n[None, :], case["slope"] * along)
        line = CLOSED.reduce(problem)
        said = mechanisms(line)
        scale = jnp.where(jnp.isinf(said.turn), line.timescale.t_c, said.turn)
        ts = scale * jnp.linspace(0, 2, 9)
        watched = [js.observe.layer_alignment(), js.observe.weight_norms(), js.observe.outputs()]
        run = js.solve(problem, REFERENCE, ts, observe=watched, throw=False)
        fine = run.result == js.RESULTS.successful
        return said, run["layer_alignment"][:, 0], run["weight_norms"], run["outputs"], fine

    said, zeta, norms, outputs, fine = eqx.filter_jit(jax.vmap(lane))(cases)
    assert bool(jnp.all(fine))
    for layer in range(2):
        assert_agree(said, np.asarray(zeta), np.asarray(norms[:, :, layer]), turned=4)
    turns = np.asarray(said.rescaling) == Rescaling.SHRINK_THEN_GROW
    assert 5 < turns.sum() < 35

    def output_vanishes(step):
        share = np.max(np.abs(outputs[:, step]), axis=(1, 2, 3)) / np.max(np.abs(outputs), axis=(1, 2, 3))
        assert np.all(share[turns] < 1e-11)  # measured 1.6e-12

    output_vanishes(slice(4, 5))
    assert_fails(lambda: output_vanishes(slice(5, 6)))


@jax.jit
def at_the_turn(P, Q, phi, k, y):
    line = ReducedLine.from_pq(P, Q, phi, k, y)
    said, of_twice_the_target = mechanisms(line), mechanisms(ReducedLine.from_pq(P, Q, phi, k, 2 * y))
    return said.rescaling, line.f(said.turn), line.log_xi(jnp.stack([said.turn, of_twice_the_target.turn]))


logs = lambda low, high: st.floats(low, high).map(lambda e: 10.0**e)
opposed = st.tuples(logs(-6, -0.1), logs(-3, 3), st.floats(-1, 1), logs(-3, 3), logs(-3, 3))


@pytest.mark.x64_only
@settings(max_examples=30, deadline=None)
@given(opposed)
def test_the_turn_is_where_the_output_vanishes(case):
    ratio, Q, share, k, relative = case
    P, y = Q * ratio, k * Q * relative
    rescaling, f, (log_xi, other) = at_the_turn(P, Q, 2 * share * np.sqrt(P * Q), k, y)
    assert int(rescaling) == Rescaling.SHRINK_THEN_GROW
    assert abs(float(f)) < 2e-15 * k * Q  # measured 2.4e-16
    close = lambda log_xi: np.testing.assert_allclose(log_xi, np.log(Q / P) / 4, rtol=8e-15)  # measured 9e-16
    close(log_xi)
    assert_fails(lambda: close(other))


@pytest.mark.x64_only
def test_the_turn_goes_to_infinity_with_the_saddle():
    """For P << Q follow the solution at P = 0 (the degenerate case of the paper) up to xi^2 = sqrt(Q/P)."""
    Q, k, y = 2.0, 0.7, 1.5
    for P in (1e-12, 1e-100, 1e-300):
        turn = mechanisms(ReducedLine.from_pq(P, Q, 0.0, k, y)).turn
        c = k * Q / (2 * y)
        expected = np.log((np.sqrt(Q) / np.sqrt(P) + c) / (1 + c)) / (2 * k * y)
        np.testing.assert_allclose(turn, expected, rtol=max(k * np.sqrt(P * Q) / y, 1e-14))


A = np.array([0.3, -1.2, 0.7])


@pytest.mark.x64_only
@pytest.mark.parametrize(
    ("a", "b", "k", "y", "alignment", "rescaling", "turns"),
    [
        (A, A[::-1], 1.0, 0.0, -1, Rescaling.SHRINK, False),  # y = 0
        (A, [1.2, 0.3, 0.0], 1.0, 2.0, 1, Rescaling.GROW, False),  # f(0) = 0
        (A, [1.2, 0.3, 0.0], 1.0, -2.0, -1, Rescaling.GROW, False),
        (A, [1.2, 0.3, 0.0], 1.0, 0.0, 0, Rescaling.CONSTANT, False),  # already there
        (A, A, 1.0, float(A @ A), 0, Rescaling.CONSTANT, False),
        (A, 3 * A, 1.0, 9.0, 0, Rescaling.GROW, False),  # parallel throughout (eq. 22)
        (A, -3 * A, 1.0, 9.0, 1, Rescaling.SHRINK_THEN_GROW, True),  # parallel, but of the other sign after the turn
        (A, -A, 1.0, 2.0, 0, Rescaling.SHRINK, False),  # into the saddle
        (A, A, 1.0, -2.0, 0, Rescaling.SHRINK, False),
        (A, 0 * A, 1.0, 2.0, 1, Rescaling.GROW, False),  # one layer zero
        (0 * A, 0 * A, 1.0, 2.0, 0, Rescaling.CONSTANT, False),  # stuck
        (A, A[::-1], 0.0, 2.0, 0, Rescaling.CONSTANT, False),  # gamma = 0
        (1e-150 * A, -1e-150 * A[::-1], 1.0, -2.0, -1, Rescaling.GROW, False),
        (A, -A + [1e-9, 0, 0], 1.0, 2.0, 1, Rescaling.SHRINK_THEN_GROW, True),
    ],
)
def test_special_starts(a, b, k, y, alignment, rescaling, turns):
    line = reduced(a, np.asarray(b, float), k, y)
    said = mechanisms(line)
    assert (int(said.alignment), int(said.rescaling)) == (alignment, rescaling)
    assert bool(jnp.isfinite(said.turn)) == turns
    assert np.isclose(said.zeta_end - said.zeta_start, 0, atol=1e-12) == (alignment == 0)


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_an_output_of_rounding_size_counts_as_zero(dtype):
    """A mirrored start has f = 0 up to rounding of either sign: nothing turns."""
    x = jnp.array([[0.6, -0.8], [-0.3, 0.4]], dtype)
    rule = js.nets.Scaling.ntk(sigma=3.0)
    for seed in range(2):
        key = jax.random.key(seed)
        net = js.nets.TwoLayerLinear(
            in_size=2, width_size=30, scaling=rule, init=js.nets.Mirrored(), key=key, dtype=dtype
        )
        said = mechanisms(CLOSED.reduce(js.Problem(net, x, jnp.array([1.0, -0.5], dtype))))
        assert (int(said.alignment), int(said.rescaling)) == (1, Rescaling.GROW)


def test_labels():
    said = mechanisms(reduced([1.0, 0.2], [-1.0, 0.4], 1.0, 2.0))
    assert Alignment(int(said.alignment)).label == "layers align"
    assert Rescaling(int(said.rescaling)).label == "norms first shrink, then grow"
    assert len({case.label for case in (*Alignment, *Rescaling)}) == 7


@pytest.mark.x64_only
def test_gradients_of_the_turn():
    def turn(share, y):
        return mechanisms(ReducedLine.from_pq(share, 2.0, 0.1, 0.8, y)).turn

    h = 1e-6
    for argnum, (up, down) in enumerate((((0.5 + h, 1.3), (0.5 - h, 1.3)), ((0.5, 1.3 + h), (0.5, 1.3 - h)))):
        numeric = (turn(*up) - turn(*down)) / (2 * h)
        np.testing.assert_allclose(jax.jit(jax.grad(turn, argnums=argnum))(0.5, 1.3), numeric, rtol=1e-8)
    assert float(jax.jit(jax.grad(turn))(0.5, -1.3)) == 0  # no turn: no derivative, and no NaN


@pytest.mark.x64_only
def test_float32_keeps_its_digits():
    line = random_lines(400, 0)
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), line)
    fine, rough = jax.vmap(mechanisms)(line), jax.jit(jax.vmap(mechanisms))(single)
    np.testing.assert_array_equal(fine.rescaling, rough.rescaling)
    np.testing.assert_array_equal(fine.alignment, rough.alignment)
    assert rough.turn.dtype == rough.zeta_end.dtype == jnp.float32
    np.testing.assert_allclose(rough.turn, fine.turn, rtol=2e-6)  # measured 3.1e-7
    np.testing.assert_allclose(rough.zeta_end, fine.zeta_end, atol=1e-6)  # measured 1.3e-7


def test_a_problem_is_refused(as_users):
    with pytest.raises(TypeError, match="TwoLayerLine"):
        mechanisms("a problem")  # pyright: ignore[reportArgumentType]
