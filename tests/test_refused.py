"""What `solve` refuses, or calls invalid where it is traced."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsolve as js
from jaxsolve import (
    data,
    Descent,
    exact,
    GradientFlow,
    losses,
    nets,
    observe,
    Problem,
    result_names,
    RESULTS,
    solve,
    theory,
    View,
)
from tests import cases
from tests.inside import result_code


def _label(dynamics):
    return dynamics.name


@functools.cache
def _modes():
    return cases.modes([2.0, -1.0], [1.0, 3.0])


@pytest.mark.parametrize("dynamics", [GradientFlow(), Descent(optax.sgd(0.125)), cases.ModesDecay()], ids=_label)
def test_traced_times_that_are_none_are_invalid(dynamics):
    problem = _modes()  # made outside of the trace, as it is kept
    run = jax.jit(jax.vmap(lambda ts: solve(problem, dynamics, ts)))
    found = run(jnp.array([[0.0, 1.0], [-1.0, 1.0], [1.0, 0.5], [0.0, jnp.nan]]))
    assert list(result_names(result_code(found.result))) == ["successful", "invalid", "invalid", "invalid"]
    assert np.all(np.isfinite(found["loss"][0]))
    assert np.all(np.isnan(found["loss"][1:]))


def test_what_a_closed_form_does_not_solve_is_nan():
    refused = eqx.tree_at(lambda p: p.x, _modes(), _modes().x.at[0, 0].set(jnp.nan))

    @jax.jit
    def run(p):
        found = solve(p, cases.ModesDecay(), 1.0)
        return found.result, found["loss"]

    result, losses = run(refused)
    assert result == RESULTS.invalid
    assert np.isnan(losses)


def test_integer_times_do_not_wrap_round():
    run = solve(_modes(), cases.ModesDecay(), [0, 10**10])
    assert run.ts[1] == 1e10


@pytest.mark.parametrize(
    ("options", "message"),
    [({"throw": 0}, "throw must be True or False, got int 0"), ({"progress": "yes"}, "progress must be True or False")],
)
@pytest.mark.usefixtures("as_users")
def test_switches_are_true_or_false(options, message):
    with pytest.raises(TypeError, match=message):
        solve(_modes(), GradientFlow(), 1.0, **options)


def test_a_run_without_a_step_says_so():
    with pytest.warns(UserWarning, match=r"Descent\(sgd\) took no step: .* the last time, 1, .* lower the rate"):
        solve(_modes(), Descent(optax.sgd(1000.0)), 1.0)
    solve(_modes(), Descent(optax.sgd(1000.0)), 0.0)  # nothing was asked for


@pytest.mark.parametrize("dynamics", [GradientFlow(), Descent(optax.sgd(0.125))], ids=_label)
def test_reverse_mode_names_what_serves(dynamics):
    loss = lambda start: solve(cases.modes(start, [1.0, 3.0]), dynamics, 0.5)["loss"]
    start = jnp.array([2.0, -1.0])
    with pytest.raises(RuntimeError, match=r"reverse-mode .* do not go through the steps of .* forward mode"):
        jax.grad(loss)(start)
    slope = jax.jacfwd(loss)(start)
    assert np.all(np.isfinite(slope))
    assert np.all(slope != 0)


def test_accuracy_is_of_classes():
    problem = cases.modes([2.0, -1.0], [1.0, 3.0])
    regression = eqx.tree_at(lambda p: p.y, problem, jnp.array([[0.3], [1.0]]))
    with pytest.raises(ValueError, match=r"accuracy needs targets that are classes.*values \[0.3.*observe loss\(\)"):
        solve(regression, cases.ModesDecay(), 1.0, observe=observe.accuracy())
    view = lambda p: View(p, jnp.zeros(()), p.params)
    assert np.isnan(observe.accuracy()(view(regression)))
    signs = eqx.tree_at(lambda p: p.y, problem, jnp.array([[1.0], [-1.0]]))
    np.testing.assert_allclose(observe.accuracy()(view(signs)), 1.0)


@pytest.mark.usefixtures("as_users")
def test_what_is_no_problem_has_no_closed_form():
    with pytest.raises(TypeError, match="problem must be a jaxsolve.Problem, got Linear"):
        exact(_modes().net)


def test_a_line_search_is_refused():
    with pytest.raises(TypeError, match="from gradients.*optax.lbfgs.* need more"):
        Descent(optax.lbfgs(), rate=0.1)
    with pytest.raises(TypeError, match="from gradients.*optax.lbfgs.* need more"):
        Descent(optax.lbfgs())


def test_what_does_not_fit_into_memory_says_so():
    key = jax.random.key(0)
    with pytest.raises(MemoryError, match="this dataset needs [48] TB, and .* are free"):
        data.gaussian(10**6, 10**6, key=key)
    with pytest.raises(MemoryError, match="this network needs [48] TB, and .* are free"):
        nets.TwoLayerLinear(in_size=10**6, width_size=10**6, scaling=nets.Scaling.ntk(), key=key)
    with pytest.raises(MemoryError, match=r"make it smaller: it has weights of the shape \(1000000000, 1000000000\)"):
        nets.MLP(in_size=4, out_size=1, width_size=10**9, depth=2, scaling=nets.Scaling.ntk(), key=key)
    scaling = nets.Scaling.ntk()
    large = jax.eval_shape(
        lambda: nets.TwoLayerLinear(in_size=10**6, width_size=10**6, scaling=scaling, key=jax.random.key(0))
    )
    assert large.weights[0].shape == (10**6, 10**6)  # what is traced takes no memory


@pytest.mark.parametrize("t", [-1.0, jnp.array([0.0, -2.0])])
def test_reduced_flows_take_no_negative_time(t):
    line = theory.ReducedLine.from_pq(0.4, 0.2, 0.1, 1.0, 1.0)
    with pytest.raises(ValueError, match="t must be a time >= 0"):
        line.f(t)
    assert np.isnan(eqx.filter_jit(line.f)(jnp.array(-1.0)))


@pytest.mark.usefixtures("as_users")
def test_integers_of_data_do_not_wrap_round():
    """NumPy's are of 64 bits, those of JAX of 32 where it is not told otherwise."""
    net = nets.SingleNeuron(in_size=1, scaling=nets.Scaling.ntk(), key=jax.random.key(0), dtype="float32")
    large = Problem(net, np.array([[1], [2]]), np.array([3_000_000_000, -1]))
    assert large.y[:, 0].tolist() == [3e9, -1.0]
    classifier = nets.MLP(
        in_size=1, out_size=3, width_size=2, depth=1, scaling=nets.Scaling.ntk(), key=jax.random.key(0), dtype="float32"
    )
    labels = Problem(classifier, np.ones((2, 1), np.float32), np.array([0, 2]), loss=losses.CrossEntropy())
    assert labels.y.shape == (2, 3)
    with pytest.raises(ValueError, match="integers beyond"):
        Problem(net, np.array([[2**32 + 5]]), np.array([1.0], np.float32))


def test_complex_weights_are_to_be_held_as_two_arrays():
    """Beside real ones, as in a Fourier layer: of google-deepmind/optax#287."""
    params = {"w": jax.lax.complex(jnp.ones(2), jnp.ones(2)), "read": jnp.ones(2)}
    net = js.nets.Function(lambda p, x: (p["read"] * jnp.real(p["w"]) * x)[:1], params)
    x, y = jnp.ones((3, 2)), jnp.ones((3, 1))
    for verb in (js.Problem, js.diagnose, lambda net, x, y: js.kernels.empirical(net, x)):
        with pytest.raises(ValueError, match="hold real and imaginary parts as two arrays"):
            verb(net, x, y)


LONG = 5000 * "a"


@pytest.mark.parametrize("text", [LONG, "a\0b", "\ufeffa"], ids=["5000 letters", "NUL", "BOM"])
def test_names_that_no_page_can_show(text):
    """They would make figures of 48,000 pixels, or none."""
    problem = _modes()
    run = solve(problem, js.FrozenKernel(), jnp.array([0.0, 1.0]))
    build = lambda **values: problem
    for draw in (
        lambda: js.plot.trajectory(run, "loss", label=text),
        lambda: observe.Observable(text, lambda view: view.loss),
        lambda: js.sweep(build, {text: [0.5, 1.0]}, js.FrozenKernel(), [1.0]),
    ):
        with pytest.raises(ValueError, match="of at most 200 characters that can be printed, got [0-9]+: ") as refused:
            draw()
        assert len(str(refused.value)) < 250
    assert js.plot.trajectory(run, "loss", label="two\nlines").get_legend() is not None


def test_paths_with_a_nul(tmp_path):
    build = lambda rate: _modes()
    with pytest.raises(ValueError, match="store must be the path of a folder such as 'run.zarr', got one with a NUL"):
        js.sweep(build, {"rate": [0.5, 1.0]}, js.FrozenKernel(), [1.0], store="a\0b")
    with pytest.raises(FileNotFoundError, match="there is no store at"):
        js.sweeps.load("a\0b")
    with pytest.raises(ValueError, match="path must be that of the page, such as 'report.html', got one with a NUL"):
        js.report.write(tmp_path, "a\0b")
