"""Every kind of layer against the whole Jacobian, on a network that has them all."""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve import kernels, nets
from tests.cases import assert_fails, eps
from tests.inside import (
    Bias,
    capture,
    Conv,
    costs,
    cut_tile,
    Dense,
    even_tile,
    Gain,
    kernel_memory,
    memory,
    Outputs,
    SpatialMean,
    StandardizeGroups,
    structured,
    Tiling,
    tilings,
    written_out,
)
from tests.kernels.stacks import DENSE, TANH, zoo


IMAGE = (2, 6, 6)


STACKS = {
    "dense": (
        DENSE,
        ((5, 4), (6, 5), (3, 6)),
        (5, 6, 3),
        (4,),
    ),
    "convolutions": (
        (
            Conv(0, stride=2),
            Bias(0),
            TANH,
            Conv(1),
            Bias(1),
            TANH,
            SpatialMean(),
            Dense(2),
        ),
        ((4, 2, 3, 3), (3, 4, 2, 2), (3, 3)),
        (4, 3),
        IMAGE,
    ),
    "residual": (
        (
            Conv(0),
            nets.Residual((TANH, Conv(1, stride=2), Bias(0), TANH, Conv(2)), (Conv(3, stride=2),)),
            nets.Residual(
                (
                    TANH,
                    Conv(4),
                )
            ),
            SpatialMean(),
            Dense(5),
        ),
        ((3, 2, 3, 3), (4, 3, 3, 3), (4, 4, 3, 3), (4, 3, 1, 1), (4, 4, 3, 3), (3, 4)),
        (4,),
        IMAGE,
    ),
    "normalized": (
        (Conv(0), StandardizeGroups(2), Gain(0), Bias(0), TANH, SpatialMean(), Dense(1)),
        ((4, 2, 3, 3), (3, 4)),
        (4,),
        IMAGE,
    ),
}


def make(name, key):
    stack, weights, vectors, image = STACKS[name]
    net = zoo(key, stack, weights, vectors, vectors, image)
    # arrays that no layer names would only be in the Jacobian
    used = set(kernels.empirical(net, jnp.ones((1, *net.in_shape)), by_layer=True).layers or {})
    keep = lambda field: tuple(a for i, a in enumerate(getattr(net, field)) if f"{field}[{i}]" in used)
    return eqx.tree_at(lambda n: (n.biases, n.gains), net, (keep("biases"), keep("gains")))


def samples(key, net, n):
    return jax.random.normal(key, (n, *net.in_shape))


@eqx.filter_jit
def brute_force(net, eta, x1, x2):
    """The contribution of every array, from the whole Jacobian."""
    params, rest = nets.partition(net)
    jacobian = lambda x: jax.jacobian(lambda p: jax.vmap(eqx.combine(p, rest))(x))(params)
    rows = lambda leaf: leaf.reshape(*leaf.shape[:2], -1)
    one, two = jacobian(x1), jacobian(x2)
    return jax.tree.map(lambda e, a, b: e * jnp.einsum("nap,mbp->namb", rows(a), rows(b)), eta, one, two)


def close(kernel, reference, units=30):
    size = np.max(np.abs(reference))
    assert kernel.shape == reference.shape
    np.testing.assert_allclose(kernel, reference, rtol=0, atol=eps(units) * size)


@pytest.mark.parametrize("name", STACKS)
def test_every_layer_against_its_jacobian(name, getkey):
    net = make(name, getkey())
    x1, x2 = samples(getkey(), net, 3), samples(getkey(), net, 4)
    eta = jax.tree.map(lambda rate: 1.3 * rate, nets.rates(net))  # some are 1
    found = eqx.filter_jit(kernels.empirical)(net, x1, x2, eta=eta, by_layer=True)
    reference, unrated = (brute_force(net, rates, x1, x2) for rates in (eta, kernels.unit_rates(net)))
    assert not found.fallbacks
    close(found.ntk, np.asarray(sum(jax.tree.leaves(reference))))
    assert found.layers is not None
    assert len(found.layers) == len(jax.tree.leaves(reference))
    for label, kernel in found.layers.items():
        field, index = label.removesuffix("]").split("[")
        expected, twin = (np.asarray(getattr(tree, field)[int(index)]) for tree in (reference, unrated))
        close(kernel, expected, 100)
        assert_fails(lambda kernel=kernel, twin=twin: close(kernel, twin, 100))  # the layer's rate is left out


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("dense", Outputs.ALL),
        pytest.param("dense", Outputs.DIAGONAL, marks=pytest.mark.slow),
        ("dense", Outputs.TRACE),
        pytest.param("convolutions", Outputs.ALL, marks=pytest.mark.slow),
    ],
)
def test_tiles_of_any_size_give_the_same_and_are_symmetric_to_the_last_bit(name, outputs, getkey):
    net = make(name, getkey())
    x1, x2, eta = samples(getkey(), net, 7), samples(getkey(), net, 5), kernels.unit_rates(net)

    def kernel(x2, tile, held):
        (found,) = structured(net, eta, x1, x2, outputs=outputs, tiling=Tiling(tile, held), by_layer=False)
        return found

    for others, cuts in ((None, [(3, True), (2, True), (2, False)]), (x2, [(3, True), (2, False)])):
        whole = kernel(others, 7, True)
        for kind in cuts:
            cut = kernel(others, *kind)
            close(cut, np.asarray(whole))
            if others is None:
                for found in (whole, cut):
                    np.testing.assert_array_equal(found, np.transpose(found, outputs.exchanged))


def test_tiles_on_the_diagonal_are_cut_again(getkey):
    net = make("dense", getkey())
    x = samples(getkey(), net, 339)
    assert not written_out(339, None, 170, net.out_size)
    assert even_tile(170, net.out_size) == 60
    tiling = Tiling(170, True)
    (found,) = structured(net, kernels.unit_rates(net), x, None, outputs=Outputs.ALL, tiling=tiling, by_layer=False)
    close(found, np.asarray(sum(jax.tree.leaves(brute_force(net, kernels.unit_rates(net), x, x)))))
    np.testing.assert_array_equal(found, np.transpose(found, Outputs.ALL.exchanged))


def test_trace_and_diagonal_are_parts_of_the_whole(getkey):
    net = make("convolutions", getkey())
    x = samples(getkey(), net, 4)
    every = np.asarray(kernels.empirical(net, x).ntk)
    close(kernels.empirical(net, x, diagonal=True).ntk, np.einsum("nama->anm", every))
    close(kernels.empirical(net, x, trace=True).ntk, np.einsum("nama->nm", every))


@pytest.mark.parametrize(
    "outputs",
    [Outputs.ALL, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (Outputs.DIAGONAL, Outputs.TRACE))],
)
def test_convolutions_both_ways(outputs, getkey):
    """Few pixels and many filters take Grams of patches, many pixels and few filters the derivative of the filters."""
    for image, filters, by_grams in (((2, 2, 2), 40, True), ((2, 9, 9), 2, False)):
        stack = (Conv(0), TANH, SpatialMean(), Dense(1))
        net = zoo(getkey(), stack, ((filters, 2, 3, 3), (3, filters)), (), (), image)
        x1, x2, eta = samples(getkey(), net, 2), samples(getkey(), net, 3), nets.rates(net)
        pixels = image[1] * image[2]
        contraction = capture(net, x1).found.uses[0][0].contraction
        assert (contraction.positions, contraction.rows, contraction.columns) == (pixels, filters, 18)
        assert costs([contraction], 2, 3, 3, outputs).by_grams == by_grams
        (kernel,) = structured(net, eta, x1, x2, outputs=outputs, tiling=Tiling(3, True), by_layer=False)
        close(kernel, np.asarray(outputs.of(sum(jax.tree.leaves(brute_force(net, eta, x1, x2))))))


def test_over_networks_and_times(getkey):
    nets_apart = [make("dense", key) for key in jax.random.split(getkey(), 3)]
    many = jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *nets_apart)
    x = samples(getkey(), make("dense", getkey()), 3)
    found = eqx.filter_jit(eqx.filter_vmap(lambda net: kernels.empirical(net, x).ntk))(many)
    for one, ntk in zip(nets_apart, found, strict=True):
        close(ntk, np.asarray(kernels.empirical(one, x).ntk), 100)


@pytest.mark.x64_only
@pytest.mark.parametrize("tiling", [Tiling(1, False), Tiling(2, True)])  # in a loop, written out
def test_gradient_of_a_kernel_in_tiles(tiling, getkey):
    net = make("dense", getkey())
    x = samples(getkey(), net, 5)

    def size(gamma):
        scaled = eqx.tree_at(lambda n: n.scaling.gamma, net, gamma)
        (kernel,) = structured(
            scaled, kernels.unit_rates(net), x, None, outputs=Outputs.ALL, tiling=tiling, by_layer=False
        )
        return jnp.sum(kernel**2)

    value, slope = jax.value_and_grad(size)(jnp.asarray(0.8))
    np.testing.assert_allclose(slope, 4 * value / 0.8, rtol=1e-12)  # gamma^2 is in the kernel


# --- memory


def test_estimate_is_known_before_and_tiles_shrink_to_fit(getkey):
    net = make("convolutions", getkey())
    x = samples(getkey(), net, 64)
    free = kernels.memory_estimate(net, x)
    kernel = 64 * 3 * 64 * 3 * x.dtype.itemsize
    assert free.kernel == kernel
    assert "kernel" in repr(free)
    tight = kernels.memory_estimate(net, x, memory=2 * kernel)
    assert tight.total <= 2 * kernel < free.total
    close(kernels.empirical(net, x, memory=2 * kernel).ntk, np.asarray(kernels.empirical(net, x).ntk))
    assert kernels.memory_estimate(net, x, trace=True).kernel == kernel // 9


def test_planned_memory_of_a_small_kernel(getkey):
    """Half of it is the kernel and the inputs of all layers, as kernels that are written out promise."""
    net = nets.MLP(in_size=10, out_size=1, width_size=256, depth=2, scaling=nets.Scaling.ntk(), key=getkey())
    x = jax.random.normal(getkey(), (200, 10))
    arrays, static = eqx.partition(net, eqx.is_array)
    run = jax.jit(lambda a, x: kernels.empirical(eqx.combine(a, static), x).ntk)
    plan = cast(Any, run.lower(arrays, x).compile().memory_analysis())
    needed = x.dtype.itemsize * 200 * (200 + 10 + 256 + 256)
    assert plan.temp_size_in_bytes + plan.output_size_in_bytes <= 2 * needed


@pytest.mark.slow
def test_estimate_bounds_what_is_compiled(getkey):
    """XLA's own account of temporary memory, for a network large enough to count."""
    net = nets.MLP(in_size=10, out_size=3, width_size=64, depth=2, scaling=nets.Scaling.ntk(), key=getkey())
    x = jax.random.normal(getkey(), (300, 10))
    arrays, static = eqx.partition(net, eqx.is_array)
    for room in (None, 8 * 10**6 * x.dtype.itemsize // 8):
        run = jax.jit(lambda a, x, room=room: kernels.empirical(eqx.combine(a, static), x, memory=room).ntk)
        used = cast(Any, run.lower(arrays, x).compile().memory_analysis()).temp_size_in_bytes
        known = kernels.memory_estimate(net, x, memory=room)
        assert used <= 1.5 * known.total
        assert used + known.kernel >= 0.3 * known.total


def test_a_kernel_larger_than_memory_is_refused_before_it_is_allocated(getkey):
    net = nets.MLP(in_size=3, out_size=10, width_size=4, depth=1, scaling=nets.Scaling.ntk(), key=getkey())
    x = jnp.zeros((2000, 3))
    with pytest.raises(MemoryError, match=r"\(2000, 10, 2000, 10\) needs .* 100 MB may be used; trace=True would need"):
        kernels.empirical(net, x, memory=10**8)
    with pytest.raises(MemoryError, match="NTKOperator"):
        kernels.empirical(net, x, memory=10**3)
    free = memory.free_memory()
    assert free is None or free > 10**6


def test_free_memory_refuses_a_kernel_and_chooses_no_tiles(getkey, monkeypatch):
    """Tiles of another size round in another way. The twin: a budget that is given chooses."""
    net, x = (
        nets.MLP(in_size=10, out_size=3, width_size=64, depth=2, scaling=nets.Scaling.ntk(), key=getkey()),
        jnp.zeros((300, 10)),
    )
    monkeypatch.setattr(kernel_memory, "WORK", 4 * 10**6)
    found = []
    for free in (10**8, 10**12, None):
        monkeypatch.setattr(kernel_memory, "free_memory", lambda free=free: free)
        found.append(kernels.memory_estimate(net, x))
    assert found[0] == found[1] == found[2]
    assert found[0].activations + found[0].work <= 4 * 10**6
    less = kernels.memory_estimate(net, x, memory=found[0].kernel + 10**6)
    assert less.tile < found[0].tile
    monkeypatch.setattr(kernel_memory, "free_memory", lambda: 2 * less.total)
    with pytest.raises(MemoryError, match=f"memory={less.total} chooses tiles that fit"):
        kernels.empirical(net, x)


def test_the_fastest_tiling_comes_first_and_one_sample_last():
    found = tilings(300, None, 10)
    assert found[0] == Tiling(60, True)
    assert found[-1] == Tiling(1, False)
    # The first of (64, 136), (100, 200, 200) and (240, 480, 480) is left about half; then all are alike.
    sizes = {199: 199, 200: 136, 500: 200, 1200: 480, 2500: 500}
    assert {n: tilings(n, None, 1)[0].tile for n in sizes} == sizes
    assert [cut_tile(n, 1) for n in (200, 399, 500, 2500)] == [200, 399, 200, 500]
    assert [even_tile(n, 1) for n in (199, 200, 500)] == [199, 100, 168]
    assert tilings(500, 100, 1)[0] == Tiling(500, True)


def test_no_tile_has_more_than_600_rows_unless_a_sample_has():
    assert [tilings(4, None, rows)[0].tile for rows in (300, 350, 601)] == [2, 1, 1]
    for rows in (1, 7, 9, 10, 11, 299):
        assert all(rows * tilings(n, 1, rows)[0].tile <= 600 for n in (1, 54, 55, 109, 2000, 60_000))


# --- bad input


def test_bad_input(getkey):
    net = make("convolutions", getkey())
    x = samples(getkey(), net, 3)
    with pytest.raises(ValueError, match=r"x1 must hold inputs of shape \(2, 6, 6\)"):
        kernels.empirical(net, x[:, :1])
    with pytest.raises(ValueError, match=r"x2 must hold inputs of shape \(2, 6, 6\)"):
        kernels.empirical(net, x, x[:, :, 1:])
    with pytest.raises(ValueError, match="at least one input"):
        kernels.empirical(net, x[:0])
    with pytest.raises(ValueError, match="float16 but the network's parameters are float"):
        kernels.empirical(net, x.astype(jnp.float16))
    with pytest.raises(ValueError, match="exclude each other"):
        kernels.empirical(net, x, trace=True, diagonal=True)
