"""The causal pass of linear networks against their closed equations, solved as they are published: by a fixed point."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve.dynamics.wide.dmft import (
    descent_nodes,
    flow_nodes,
    initial_kernel,
    linear_network,
    NormalForm,
    start,
    step,
    TrainingLaw,
)
from tests.cases import assert_fails, eps
from tests.dmft.equations import fixed_point


NODES, INPUTS, OUTPUTS = 7, 2, 2
FORM = NormalForm(jnp.array([0.9, 0.7, 1.2, 0.8]), jnp.array([0.3, 0.5, 0.2, 0.4]))
TARGETS = jnp.array([[0.8, -0.5], [0.3, 1.1]])


def _push(f):
    return TARGETS - f - 0.3 * f**3  # any function of the outputs


class _Found(NamedTuple):
    outputs: jax.Array  # (t, i, a)
    equal: tuple[tuple[jax.Array, ...], ...]  # <h h> and <g g> at equal times, of each hidden layer
    h: tuple[jax.Array, ...]  # h(t) of each hidden layer in directions of unit length, (t, i, k)
    g: tuple[jax.Array, ...]  # (t, i, a, k)


def _pass(form, nodes, implicit):
    count = nodes.times.size
    law = TrainingLaw(form, lambda h: h, jnp.eye(INPUTS), _push, eps(1e3), implicit)
    known = start(law, linear_network(form, INPUTS, OUTPUTS, 60, form.rate.dtype))

    def one_more(known, k):
        known = step(law, known, nodes, k)
        seen, size = known.fields, known.fields.last.shape[-1] ** 0.5
        h, g = (*seen.below, seen.last / size), (seen.first / size, *seen.above)
        return known, _Found(seen.outputs, (tuple(seen.features[1:]), tuple(seen.gradients[:-1])), h, g)

    return jax.lax.scan(one_more, known, jnp.arange(count))[1]


def _equations(form, nodes, *, response=1.0):
    push = lambda f: np.asarray(TARGETS) - f - 0.3 * f**3
    return fixed_point(form, np.asarray(nodes.weights), np.eye(INPUTS), push, OUTPUTS, response=response)


PASS = jax.jit(_pass, static_argnums=2)


@pytest.mark.parametrize("nodes", [descent_nodes(NODES, jnp.asarray(0.4)), flow_nodes(jnp.linspace(0.0, 1.5, NODES))])
def test_the_pass_solves_the_published_equations(nodes):
    found = PASS(FORM, nodes, bool(nodes.weights[1, 1]))
    f, layers = _equations(FORM, nodes)
    close = eps(2000)
    np.testing.assert_allclose(found.outputs, f, atol=close)
    for equal_h, equal_g, h, g, layer in zip(*found.equal, found.h, found.g, layers, strict=True):
        np.testing.assert_allclose(equal_h, np.einsum("titj->tij", layer.h), atol=close)
        np.testing.assert_allclose(equal_g[:, 0, :, 0], np.einsum("tatb->tab", layer.g), atol=close)
        # At all pairs of times, where the responses of earlier ones are.
        np.testing.assert_allclose(np.einsum("tik,sjk->tisj", h, h), layer.h, atol=close)
        np.testing.assert_allclose(np.einsum("tak,sbk->tasb", g[:, 0], g[:, 0]), layer.g, atol=close)
    without, _ = _equations(FORM, nodes, response=0.0)
    assert_fails(lambda: np.testing.assert_allclose(found.outputs, without, atol=1e-3))


def test_the_kernel_is_what_moves_the_outputs_at_first():
    found = PASS(FORM, descent_nodes(NODES, jnp.asarray(1e-4)), False)
    expected = 1e-4 * initial_kernel(FORM) * _push(jnp.zeros((INPUTS, OUTPUTS)))
    np.testing.assert_allclose(found.outputs[1], expected, rtol=eps(100))


def test_the_flow_is_of_second_order():
    # Repeated times at the end change nothing, and all counts of nodes share a program.
    times = lambda count: jnp.concatenate([jnp.linspace(0.0, 3.0, count), jnp.full(65 - count, 3.0)])
    last = lambda count: np.asarray(PASS(FORM, flow_nodes(times(count)), True).outputs[-1])
    coarse, middle, fine = (last(count) for count in (9, 17, 33))
    order = np.log2(np.abs(coarse - middle).max() / np.abs(middle - fine).max())
    assert 1.7 < order < 2.3
    # Gradient descent in small steps goes the same way.
    euler = lambda count: np.asarray(
        PASS(FORM, descent_nodes(65, jnp.asarray(3.0 / (count - 1))), False).outputs[count - 1]
    )
    close = 10 * np.abs(middle - fine).max()
    np.testing.assert_allclose(2 * euler(65) - euler(33), fine, atol=close)
    assert_fails(lambda: np.testing.assert_allclose(euler(33), fine, atol=close))


def test_nodes_settle_at_a_small_start():
    """Where hidden kernels and outputs are small beside the inputs' kernel and the targets, relative to themselves."""
    nodes, form = flow_nodes(jnp.linspace(0.0, 1.5, NODES)), NormalForm(1e-4 * FORM.variance, FORM.rate)
    found, (f, layers) = PASS(form, nodes, True), _equations(form, nodes)
    close = lambda one, other: np.testing.assert_allclose(one, other, atol=eps(1e4) * np.abs(other).max())
    close(found.outputs, f)
    for equal, layer in zip(found.equal[0], layers, strict=True):
        close(equal, np.einsum("titj->tij", layer.h))


@pytest.mark.x64_only
@pytest.mark.parametrize("flow", [False, True])
def test_derivatives_in_the_hyperparameters(flow):
    nodes = flow_nodes(jnp.linspace(0.0, 1.5, NODES)) if flow else descent_nodes(NODES, jnp.asarray(0.4))
    last = lambda form: _pass(form, nodes, flow).outputs[-1]
    direction = NormalForm(jnp.array([0.3, -0.2, 0.5, 0.1]), jnp.array([-0.1, 0.4, 0.2, -0.3]))
    _, found = jax.jit(lambda: jax.jvp(last, (FORM,), (direction,)))()
    moved = lambda s: PASS(jax.tree.map(lambda one, two: one + s * two, FORM, direction), nodes, flow).outputs[-1]
    np.testing.assert_allclose(found, (moved(1e-5) - moved(-1e-5)) / 2e-5, rtol=1e-7, atol=1e-9)
