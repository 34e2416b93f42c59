"""Where parameters meet data: every primitive and what may come before it, against the whole Jacobian."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, HealthCheck, settings, strategies as st
from jax import lax

from jaxsolve import kernels, nets
from tests.cases import assert_fails, eps, slow_after
from tests.inside import capture, costs, LayeredJacobian, Outputs, use_gram


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.result_type(float))


def whole(net, x1, x2, eta=None):
    """The contribution of every parameter, from the whole Jacobian."""
    params, rest = nets.partition(net)
    jacobian = jax.jit(jax.jacobian(lambda p, x: jax.vmap(eqx.combine(p, rest))(x)))
    rows = [[leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(jacobian(params, x))] for x in (x1, x2)]
    rates = [1.0] * len(rows[0]) if eta is None else jax.tree.leaves(eta)
    return [r * np.einsum("nap,mbp->namb", a, b) for r, a, b in zip(rates, *rows, strict=True)]


def close(found, expected, units=100):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=eps(units) * max(np.max(np.abs(expected)), 1e-3))


def check(f, params, x, fallbacks=()):
    """All of a function's kernel, and of its products; each parameter counts."""
    net = nets.Function(f, params)
    found = kernels.empirical(net, x, by_layer=True)
    parts = whole(net, x, x)
    close(found.ntk, sum(parts))
    np.testing.assert_array_equal(found.ntk, np.transpose(found.ntk, (2, 3, 0, 1)))
    for part in parts:  # a twin that leaves one out
        if np.max(np.abs(part)) > 0:
            assert_fails(lambda part=part: close(found.ntk - part, sum(parts)))
    assert set(found.fallbacks) == {f"params['{name}']" for name in fallbacks}
    return found


W, V, B, G = draw(0, 4, 3), draw(1, 2, 4), draw(2, 4), draw(3, 4)
X, ROWS, IMAGES = draw(4, 5, 3), draw(5, 4, 6, 3), draw(6, 3, 2, 5, 5)
TOKENS = jnp.asarray(np.random.default_rng(7).integers(0, 6, (5, 4)))
read = lambda p, h: p["v"] @ jnp.tanh(h)
DENSE = {"w": W, "v": V}
CONV = {"k": draw(8, 4, 2, 3, 3), "v": V}
TABLE = {"e": draw(9, 6, 4), "v": V}


GROUPS = {"k": draw(12, 4, 1, 3, 3), "v": V}
LOW_RANK = {"w": W, "a": draw(17, 4, 1), "b": draw(18, 1, 3)}


def _conv(kernel, z, **options):
    options = {"window_strides": (1, 1), "padding": "SAME"} | options
    return jnp.mean(jnp.tanh(lax.conv_general_dilated(z[None], kernel, **options)[0]), (1, 2))


def _last(kernel, z):
    kinds = ("NHWC", "HWIO", "NHWC")
    out = lax.conv_general_dilated(
        jnp.moveaxis(z, 0, 2)[None], kernel, (2, 1), [(1, 0), (2, 1)], dimension_numbers=kinds
    )
    return jnp.mean(jnp.tanh(out[0]), (0, 1))


def _scanned(p, x):
    def step(h, z):
        return jnp.tanh(p["w"] @ z + p["u"] @ h), h

    h, past = lax.scan(step, jnp.zeros(4, x.dtype), x, reverse=True)
    return p["v"] @ (h + past[2])


def _layers(p, x):
    return p["v"] @ lax.scan(lambda h, w: (jnp.tanh(w @ h), None), jnp.pad(x, (0, 1)), p["stack"])[0]


def _called(p, x):
    inner = jax.checkpoint(lambda w, z: jnp.tanh(w @ z))
    return jax.jit(lambda w, h: w @ jax.nn.relu(h))(p["v"], inner(p["w"], x))


FUNCTIONS: dict[str, tuple[Any, Any, Any]] = {
    "the parameter on the left": (lambda p, x: read(p, p["w"] @ x), DENSE, X),
    "the parameter on the right": (lambda p, x: read(p, x @ p["w"].T), DENSE, X),
    "bias and gain": (lambda p, x: read(p, p["g"] * (p["w"] @ x - p["b"])), {**DENSE, "b": B, "g": G}, X),
    "division by a gain": (
        lambda p, x: read(p, (p["w"] @ x) / (1 + p["h"])),
        {**DENSE, "h": 2 + G},
        X,
    ),
    "scaled, cut, turned": (
        lambda p, x: read(p, (2.0 * p["w"].T / 3.0).reshape(3, 2, 2)[:, ::-1].reshape(3, 4).T @ x),
        DENSE,
        X,
    ),
    "a row of positions": (lambda p, x: jnp.mean(jnp.tanh(x @ p["w"].T), 0) @ p["v"].T, DENSE, ROWS),
    "columns": (lambda p, x: jnp.sum(p["v"] @ jnp.tanh(p["w"] @ x.T), 1), DENSE, ROWS),
    "batched products": (
        lambda p, x: jnp.sum(jnp.tanh(jnp.einsum("hij,tj->thi", p["w"], x)), (0, 1)),
        {"w": draw(10, 2, 4, 3)},
        ROWS,
    ),
    "one weight per position": (
        lambda p, x: jnp.tanh(jnp.einsum("tij,tj->ti", p["w"], x))[0],
        {"w": draw(11, 6, 4, 3)},
        ROWS,
    ),
    "convolution": (lambda p, x: read(p, _conv(p["k"], x)), CONV, IMAGES),
    "strides and dilation": (
        lambda p, x: read(
            p,
            _conv(p["k"], x, window_strides=(2, 1), padding=((1, 0), (0, 2)), rhs_dilation=(1, 2), lhs_dilation=(2, 1)),
        ),
        CONV,
        IMAGES,
    ),
    "groups": (
        lambda p, x: read(p, _conv(p["k"], x, feature_group_count=2)),
        {"k": draw(12, 4, 1, 3, 3), "v": V},
        IMAGES,
    ),
    "channels last": (lambda p, x: read(p, _last(p["k"], x)), {"k": draw(13, 3, 2, 2, 4), "v": V}, IMAGES),
    "look-up": (lambda p, x: read(p, jnp.mean(jnp.tanh(p["e"][x]), 0)), TABLE, TOKENS),
    "take": (lambda p, x: read(p, jnp.sum(jnp.tanh(jnp.take(p["e"], x, axis=0)), 0)), TABLE, TOKENS),
    "look-ups one by one": (
        lambda p, x: read(p, jnp.sum(jnp.tanh(jax.vmap(lambda t: p["e"][t])(x)), 0)),
        TABLE,
        TOKENS,
    ),
    "one look-up": (lambda p, x: read(p, p["e"][x[0]]), TABLE, TOKENS),
    "one-hot": (
        lambda p, x: read(p, jnp.sum(jnp.tanh(jax.nn.one_hot(x, 6, dtype=V.dtype) @ p["e"]), 0)),
        TABLE,
        TOKENS,
    ),
    "tied read-out": (lambda p, x: p["e"] @ jnp.tanh(jnp.mean(jnp.tanh(p["e"][x]), 0)), {"e": draw(14, 6, 4)}, TOKENS),
    "tied layers": (lambda p, x: p["w"] @ jnp.tanh(p["w"] @ jnp.tanh(p["w"] @ x)), {"w": draw(15, 3, 3)}, X),
    "there and back": (lambda p, x: p["w"].T @ jnp.tanh(p["w"] @ x), {"w": W}, X),
    "overlapping parts": (lambda p, x: p["w"][:3] @ x + jnp.tanh(p["w"][1:] @ x), {"w": W}, X),
    "disjoint parts": (lambda p, x: p["w"][:2] @ x + jnp.tanh(p["w"][2:] @ x), {"w": W}, X),
    "split": (lambda p, x: jnp.multiply(*[part @ x for part in jnp.split(p["w"], 2)]), {"w": W}, X),
    "with its transpose": (lambda p, x: (p["w"] + p["w"].T) @ x, {"w": draw(16, 3, 3)}, X),
    "low rank": (
        lambda p, x: jnp.tanh((p["w"] + p["a"] @ p["b"]) @ x),
        {"w": W, "a": draw(17, 4, 1), "b": draw(18, 1, 3)},
        X,
    ),
    "a gain of data": (lambda p, x: jnp.tanh(jnp.sum(x) * p["w"] @ x), {"w": W}, X),
    "scan": (_scanned, {"w": W, "u": 0.3 * draw(19, 4, 4), "v": V}, ROWS[:, :3]),
    "scanned layers": (_layers, {"stack": draw(20, 3, 4, 4), "v": V}, X),
    "calls": (_called, DENSE, X),
    "stopped": (lambda p, x: read(p, p["w"] @ x + lax.stop_gradient(p["w"]) @ x), DENSE, X),
    "an output of its own": (lambda p, x: p["b"] * 1.0 + jnp.sum(x), {"b": B}, X),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_contraction_against_the_whole_jacobian(name):
    f, params, x = FUNCTIONS[name]
    check(f, params, x)


def test_what_is_not_known_falls_back_by_itself_and_says_why():
    @jax.custom_jvp
    def clipped(w, x):
        return w @ x

    clipped.defjvp(
        lambda primals, tangents: (clipped(*primals), 0.5 * (tangents[0] @ primals[1] + primals[0] @ tangents[1]))
    )

    @jax.custom_vjp
    def halved(w, x):
        return w @ x

    halved.defvjp(lambda w, x: (w @ x, (w, x)), lambda kept, g: (0.5 * jnp.outer(g, kept[1]), kept[0].T @ g))
    length = lambda p, x: lax.scan(lambda h, _: (jnp.tanh(p["u"] @ h + x), None), x, None, length=65)[0]
    cases = {
        "it enters exp": lambda p, x: jnp.exp(p["u"]) @ jnp.tanh(p["w"] @ x),
        "it enters mul": lambda p, x: (p["u"] * jnp.tri(3, dtype=p["u"].dtype)) @ jnp.tanh(p["w"] @ x),
        "it enters concatenate": lambda p, x: jnp.concatenate([p["u"], p["u"]]) @ jnp.tanh(p["w"] @ x),
        "it enters custom_jvp_call, whose derivative is a rule of its own": lambda p, x: clipped(p["u"], p["w"] @ x),
        "it enters custom_vjp_call, whose derivative is a rule of its own": lambda p, x: halved(p["u"], p["w"] @ x),
        "it enters cond": lambda p, x: lax.cond(x[0] > 0, lambda w: w @ x, lambda w: w @ -x, p["u"]) + p["w"] @ x,
        "it enters a scan of 65 steps; at most 64 are read": lambda p, x: length(p, p["w"] @ x),
    }
    for reason, f in cases.items():
        found = check(f, {"w": draw(0, 3, 3), "u": 0.3 * draw(1, 3, 3)}, X, ("u",))
        assert found.fallbacks == {"params['u']": reason}


# --- both ways, all options


KEPT = {Outputs.ALL: {}, Outputs.DIAGONAL: {"diagonal": True}, Outputs.TRACE: {"trace": True}}


@pytest.mark.parametrize("name", ["tied read-out", "there and back", "groups", "a row of positions"])
@pytest.mark.parametrize("outputs", Outputs)
def test_both_ways_and_the_outputs_that_are_kept(name, outputs, monkeypatch):
    """By Grams over all pairs of positions, and through the derivative of every sample."""
    f, params, x = FUNCTIONS[name]
    net, options = nets.Function(f, params), KEPT[outputs]
    expected = np.asarray(outputs.of(jnp.asarray(sum(whole(net, x, x[:2])))))
    contractions = [use.contraction for use in capture(net, x).found.uses[0]]
    ways = set()
    for factor in (0, 10**6):
        known = costs(contractions, 2, 2, 2, outputs)
        forced = type(known)(factor, known.derivative_size, 1000, known.gram_size)
        monkeypatch.setattr(use_gram, "costs", lambda *_, forced=forced: forced)
        close(kernels.empirical(nets.Function(lambda p, x: f(p, x), params), x, x[:2], **options).ntk, expected)
        ways.add(forced.by_grams)
    assert ways == {False, True}


def _mostly_alike(p, x):
    """Two layers of tokens, whose places take a way without data, and the mean as read-out: much is alike."""

    def of_token(token, place):
        own = jnp.tanh(p["a"] @ place + p["c"])
        token = p["embed"] @ token + place + p["mix"] @ own
        return p["u"] @ jnp.tanh(p["w"] @ token + p["b"]) + p["d"] + p["gain"] * token

    return p["v"] @ jnp.mean(jax.vmap(of_token)(x, p["place"]), axis=0) + p["last"]


@pytest.mark.parametrize("outputs", Outputs)
@pytest.mark.parametrize("out_size", [1, 2])
def test_a_batch_of_networks_where_much_is_the_same_for_all_samples(outputs, out_size):
    # XLA's products on CPU went wrong here: in a batch, in one program, where the second factor is a broadcast.
    sizes = {"a": (6, 6), "c": (6,), "place": (4, 6), "embed": (6, 2), "mix": (6, 6), "w": (12, 6), "b": (12,)}
    sizes |= {"u": (6, 12), "d": (6,), "gain": (6,), "v": (out_size, 6), "last": (out_size,)}
    params = {name: draw(30 + k, 2, *shape) / 2 for k, (name, shape) in enumerate(sizes.items())}
    x, others = draw(20, 48, 4, 2), draw(21, 48, 4, 2)
    kernel = lambda p, x2: kernels.empirical(nets.Function(_mostly_alike, p), x, x2, **KEPT[outputs]).ntk
    for x2 in (None, others):
        found = jax.jit(jax.vmap(kernel, (0, None)))(params, x2)
        for index in range(2):
            net = nets.Function(_mostly_alike, {name: value[index] for name, value in params.items()})
            close(found[index], outputs.of(jnp.asarray(sum(whole(net, x, x if x2 is None else x2)))))


def test_rates_and_single_precision_under_jit():
    f, params, x = FUNCTIONS["tied read-out"]
    eta = nets.Function(f, {"e": jnp.asarray(0.7, V.dtype)})
    net = nets.Function(f, params)
    found = eqx.filter_jit(lambda net, x: kernels.empirical(net, x, eta=eta).ntk)(net, x)
    close(found, sum(whole(net, x, x, eta)))
    assert_fails(lambda: close(found, sum(whole(net, x, x))))
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    small = kernels.empirical(nets.Function(f, single), x, eta=nets.Function(f, {"e": jnp.float32(0.7)})).ntk
    assert small.dtype == jnp.float32
    np.testing.assert_allclose(small, found, rtol=0, atol=1e-5 * np.max(np.abs(found)))


@pytest.mark.parametrize("name", slow_after(2, ["tied read-out", "convolution", "scan", "bias and gain"]))
def test_products_with_the_jacobian(name):
    f, params, x = FUNCTIONS[name]
    net = nets.Function(f, params)
    held, outputs = LayeredJacobian(net, x), lambda net: jax.vmap(net)(x)
    v = jax.tree.map(lambda leaf: draw(leaf.size, *leaf.shape), net)
    close(held.push(v), jax.jvp(outputs, (net,), (v,))[1])
    out, back = jax.vjp(outputs, net)
    q = draw(21, *out.shape)
    jax.tree.map(close, held.pull(q), back(q)[0])


def test_tiles_of_a_function_are_symmetric_and_refused_where_they_do_not_fit():
    f, params, x = FUNCTIONS["tied read-out"]
    net, many = nets.Function(f, params), jnp.tile(x, (9, 1))
    whole_room = kernels.memory_estimate(net, many)
    found = kernels.empirical(net, many, memory=whole_room.total // 4).ntk
    assert kernels.memory_estimate(net, many, memory=whole_room.total // 4).tile < whole_room.tile
    np.testing.assert_array_equal(found, np.transpose(found, (2, 3, 0, 1)))
    close(found, np.asarray(kernels.empirical(net, many).ntk))
    with pytest.raises(MemoryError, match="NTKOperator"):
        kernels.empirical(net, many, memory=10**3)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["w", "turned", "bias", "gain", "halves", "tanh"]), min_size=1, max_size=5))
def test_random_programs(steps):
    def f(p, h):
        for step in steps:
            if step in ("w", "turned"):
                h = (p["w"] if step == "w" else p["w"].T) @ h
            elif step == "halves":
                h = jnp.concatenate([p["w"][:1] @ h, 0.5 * p["w"][1:] @ h])
            else:
                h = {"bias": h + p["b"], "gain": p["b"] * h, "tanh": jnp.tanh(h)}[step]
        return h @ p["w"]

    net = nets.Function(f, {"w": draw(22, 3, 3), "b": draw(23, 3)})
    x = X[:2]
    close(kernels.empirical(net, x).ntk, sum(whole(net, x, x)), 1000)


# --- bad input


@pytest.mark.usefixtures("as_users")
def test_what_is_no_function_of_one_sample():
    x, key = jnp.ones((2, 3)), jax.random.key(0)
    refused = lambda f, params, x=x: kernels.empirical(nets.Function(f, params), x)
    with pytest.raises(ValueError, match=r"must map one sample, of shape \(3,\).*shape \(\).*reshape\(-1\)"):
        refused(lambda w, x: jnp.sum(w @ x), jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="array of real outputs.*got tuple"):
        refused(lambda w, x: (w @ x, w), jnp.ones((2, 3)))
    with pytest.raises(ValueError, match=r"net is called as net\(x\) on one sample"):
        refused(lambda w, x: jnp.ones((2, 7)) @ x + w, jnp.ones(2))
    dropout = eqx.nn.Sequential([eqx.nn.Linear(3, 2, key=key), eqx.nn.Dropout(0.5)])
    with pytest.raises(ValueError, match=r"one with dropout in inference mode, by eqx.nn.inference_mode\(net\)"):
        kernels.empirical(dropout, x)
    kept = lambda net, x: net(x, key=key)
    assert kernels.empirical(nets.Function(kept, dropout), x).ntk.shape == (2, 2, 2, 2)
    with pytest.raises(ValueError, match="parameters are bfloat16.*convert them with jax.tree.map"):
        refused(lambda w, x: w @ x, jnp.ones((2, 3), jnp.bfloat16))
    with pytest.raises(ValueError, match="no parameter of this Function enters its outputs"):
        refused(lambda w, x: x, jnp.ones(2))


def test_overlapping_parts_of_a_parameter_are_counted_whole():
    """Derivatives by all of it are held: the estimate bounds what is compiled."""
    size, n = 400, 40
    f = lambda p, x: (p["w"][:2] @ x)[:1] + jnp.sum(jnp.tanh(p["w"] @ x), keepdims=True)
    net = nets.Function(f, {"w": jax.random.normal(jax.random.key(0), (size, size)) / size**0.5})
    x = jax.random.normal(jax.random.key(1), (n, size))
    held = n * size**2 * x.dtype.itemsize
    estimate = kernels.memory_estimate(net, x)
    assert estimate.work >= held
    with pytest.raises(MemoryError):  # not even one sample a tile
        kernels.empirical(net, x, memory=held // n)
