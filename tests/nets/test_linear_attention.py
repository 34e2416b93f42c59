"""Linear attention against attention written out with all its matrices, and what its flow conserves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve.nets import LinearAttention, Scaling
from tests.cases import assert_fails, eps
from tests.nets.images import drifts, velocity
from tests.nets.twins import left_out


CONTEXT, SIZE, HEADS = 6, 3, 4
SCALINGS = {
    None: Scaling([1.2, 0.7], sigma=[0.5, 0.8], eta=[1.7, 0.4], gamma=0.75),
    1: Scaling([1.2, 0.7, 1.1], sigma=[0.5, 0.8, 0.6], eta=[1.7, 0.4, 2.3], gamma=0.75),
    2: Scaling([0.9, 1.3, 0.6], sigma=[0.5, 0.8, 0.6], eta=[0.6, 1.4, 2.3], gamma=-0.75),
}
EACH_RANK = pytest.mark.parametrize("rank", SCALINGS)


def _net(key, rank):
    shape = (CONTEXT + 1, SIZE + 1)
    return LinearAttention(in_shape=shape, heads=HEADS, rank=rank, scaling=SCALINGS[rank], key=key)


def _data(key, n=5):
    return js.data.in_context(n, np.array([0.9, 0.5, 0.3]), CONTEXT, key=key)


def _attention(net, tokens, pairs):
    """X + sum_h V_h X X^T K_h^T Q_h X/N on all tokens, one a column; the answer is where the query's is missing."""
    w = [float(m) * np.asarray(a) for m, a in zip(net.scaling.multiplier, net.weights, strict=True)]
    columns, out = np.asarray(tokens).T, np.asarray(tokens).T
    for head in range(HEADS):
        value, scores = np.zeros((SIZE + 1, SIZE + 1)), np.zeros((SIZE + 1, SIZE + 1))
        value[-1, -1] = w[-1][0, head]
        if net.rank is None:
            scores[:-1, :-1] = w[0][head].reshape(SIZE, SIZE)
        else:
            rows = slice(head * net.rank, (head + 1) * net.rank)
            scores[:-1, :-1] = w[0][rows].T @ w[1][rows]
        out = out + value @ columns @ columns.T @ scores @ columns / pairs
    return float(net.scaling.gamma) * out[-1:, -1]


@EACH_RANK
def test_is_attention_with_all_its_matrices(getkey, rank):
    net, x = _net(getkey(), rank), _data(getkey()).x
    out = jax.jit(jax.vmap(net))(x)

    def check(net, pairs=CONTEXT):
        expected = np.stack([_attention(net, one, pairs) for one in x])
        np.testing.assert_allclose(out, expected, rtol=0, atol=eps(50) * np.max(np.abs(expected)))

    check(net)
    for twin in left_out(net):
        assert_fails(functools.partial(check, twin))
    assert_fails(functools.partial(check, net, CONTEXT + 1))  # the query is no pair of the context


def test_any_length_of_sequence(getkey):
    net, short = _net(getkey(), 1), _data(getkey()).x[0]
    twice = jnp.concatenate([short[:-1], short])  # every pair counts twice, in a mean over twice as many
    np.testing.assert_allclose(net(twice), net(short), rtol=eps(100))


@EACH_RANK
def test_what_the_flow_conserves(getkey, rank):
    data = _data(getkey())
    case = js.Problem(_net(getkey(), rank), *data.train)
    shapes = [quantity.value.shape for quantity in case.net.conserved(case.params, case.eta)]
    assert shapes == ([(HEADS, HEADS)] if rank is None else [(HEADS, rank, rank), (HEADS,)])
    assert np.all(drifts(case.net, case.params, velocity(case), case.eta) < eps(100))
    others = jax.tree.map(jnp.ones_like, case.eta)  # the rates are part of what is conserved
    assert np.all(drifts(case.net, case.params, velocity(case), others) > 1e-3)


def test_merged_is_a_two_layer_linear_network(getkey):
    net, data = _net(getkey(), None), _data(getkey())
    problem, z = js.Problem(net, *data.train), jax.vmap(net.features)(data.x)
    same = js.Problem(net.two_layer, z, data.y)
    close = functools.partial(np.testing.assert_allclose, rtol=eps(100), atol=eps(100))
    close(problem.outputs(problem.params), same.outputs(same.params))
    close(problem.kernel(problem.params, problem.x), same.kernel(same.params, same.x))
    one, two = (case.net.conserved(case.params, case.eta)[0].value for case in (problem, same))
    close(one, two)
    with pytest.raises(ValueError, match="merged into one matrix"):
        _ = _net(getkey(), 2).two_layer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"in_shape": (3,)}, r"in_shape must be \(N \+ 1, D \+ 1\)"),
        ({"in_shape": (1, 4)}, "each of in_shape"),
        ({"heads": 0}, "heads"),
        ({"rank": 0}, "rank"),
        ({"rank": 2}, "3 weight matrices, the Scaling is for 2"),
        ({"rank": 2, "scaling": Scaling.ntk(), "init": js.nets.LambdaBalanced()}, "is for dense networks"),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_what_is_refused(change, message):
    made = {"in_shape": (3, 4), "heads": 2, "scaling": Scaling([1.0, 1.0], [1.0, 1.0], [1.0, 1.0])}
    with pytest.raises(ValueError, match=message):
        LinearAttention(**(made | {"key": jax.random.key(0)} | change))
