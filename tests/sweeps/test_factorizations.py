"""Observables that factorize matrices at several times, on as many threads as there are."""

import jax
import jax.numpy as jnp

from tests.processes import fresh
from tests.sweeps.inside import factorizes_batches


SPECTRA = """
import jax, jax.numpy as jnp, optax
import jaxsolve as js

def spectrum(view):
    return jnp.linalg.eigvalsh(view.params.weights[0].T @ view.params.weights[0])

def problem(seed):
    sizes = {"in_size": 30, "out_size": 1, "width_size": 40, "depth": 1}
    net = js.nets.MLP(**sizes, activation="tanh", scaling=js.nets.Scaling.ntk(), key=jax.random.key(seed))
    return js.Problem(net, jnp.ones((4, 30)), jnp.ones((4, 1)))

look = js.observe.Observable("spectrum", spectrum, js.Quantity.PARAMS, ("mode",))
descent, ts = js.Descent(optax.sgd(0.1)), [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
print(js.sweep(problem, {"seed": range(200)}, descent, ts, observe=look, progress=False)["spectrum"].shape)
"""


def test_a_sweep_that_factorizes_comes_to_its_end():
    """Two threads of it used to wait for each other for ever, on two cores."""
    assert fresh(SPECTRA) == "(200, 6, 30)\n"


def test_one_matrix_at_a_time_stays_in_its_thread():
    """Then a loop on each core is safe; other calls, and products, are none."""
    eigh, qr = jnp.linalg.eigh, jnp.linalg.qr
    program = lambda f, *shape: jax.jit(f).lower(jnp.ones(shape)).compile().as_text() or ""
    for f in (eigh, qr, jnp.linalg.eigvalsh, jnp.linalg.cholesky):
        assert not factorizes_batches(program(f, 5, 5))
        assert not factorizes_batches(program(lambda a, f=f: jax.lax.map(f, a), 3, 5, 5))
        assert factorizes_batches(program(f, 3, 5, 5))
    assert not factorizes_batches(program(lambda a: a @ a, 3, 5, 5))
