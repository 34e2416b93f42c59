"""Networks that take several arrays at once: every number is that of a network that takes them as one."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js


class Joined(eqx.Module):
    """A network of one array, given its parts."""

    net: eqx.nn.MLP

    def __call__(self, x):
        parts = x.values() if isinstance(x, dict) else x
        return self.net(jnp.concatenate([part.reshape(-1) for part in parts]))


class Looked(eqx.Module):
    """Tokens looked up, averaged where a mask says so."""

    table: jax.Array
    out: eqx.nn.Linear

    def __call__(self, x):
        seen = x["mask"][:, None].astype(self.table.dtype) * self.table[x["ids"]]
        return self.out(jnp.tanh(jnp.mean(seen, axis=0)))


def mlp():
    return eqx.nn.MLP(3, 1, 6, 2, activation=jnp.tanh, key=jr.key(0), dtype=float)


def data(n=7, key=1):
    x = jr.normal(jr.key(key), (n, 3), float)
    return x, jnp.sin(x[:, :1] - x[:, 1:2])


def apart(x, kind):
    return {"a": x[:, 0], "b": x[:, 1:]} if kind == "dict" else (x[:, 0], x[:, 1:])


@pytest.fixture(params=["dict", "tuple"])
def pair(request):
    """The same problem twice: by one array, and by its parts."""
    (x, y), (x_test, y_test) = data(), data(4, 2)
    one = js.Problem(mlp(), x, y, test=(x_test, y_test))
    kind = request.param
    return one, js.Problem(Joined(mlp()), apart(x, kind), y, test=(apart(x_test, kind), y_test)), kind


def same(found, wanted, rtol=1e-12):
    # Not so where XLA sums in another order.
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-14)


@pytest.mark.representative
def test_problem(pair):
    one, several, kind = pair
    same(several.outputs(several.params), one.outputs(one.params))
    same(several.test_outputs(several.params), one.test_outputs(one.params))
    same(several.kernel(several.params, several.x_test, several.x), one.kernel(one.params, one.x_test, one.x))
    new = data(5, 3)[0]
    same(several.predict(several.params, apart(new, kind)), one.predict(one.params, new))


@pytest.mark.parametrize(
    "dynamics",
    [
        js.Descent(optax.adam(0.05)),
        js.Descent(optax.sgd(0.1), batch_size=3, key=jr.key(4)),
        js.GradientFlow(),
        js.GradientFlow(integrator=js.integrators.FunctionSpace()),
        js.FrozenKernel(),
    ],
    ids=lambda dynamics: type(dynamics).__name__,
)
def test_dynamics(pair, dynamics):
    one, several, _ = pair
    # Adaptive steps end where errors fall below a tolerance: another rounding may be one more step.
    observe = [js.observe.loss(), js.observe.test_loss()]
    found, wanted = (js.solve(p, dynamics, jnp.asarray([0.0, 0.5, 2.0]), observe=observe) for p in (several, one))
    for name in ("loss", "test_loss"):
        same(found[name], wanted[name], 1e-7)


def test_observables(pair):
    one, several, _ = pair
    observe = [
        js.observe.kernel_change(),
        js.observe.sharpness(),
        js.observe.nonlinearity(),
        js.observe.update_alignment(),
        js.observe.update_size(),
        js.observe.dormant_units(),
        js.observe.traced(js.observe.kernel_trace(), projections=3),
    ]
    run = lambda p: js.solve(p, js.Descent(optax.sgd(0.1)), jnp.asarray([0.0, 1.0]), observe=observe)
    found, wanted = run(several), run(one)
    for watched in observe:
        same(found[watched.name], wanted[watched.name], 1e-9)


def test_kernels(pair):
    one, several, _ = pair
    net, x, x_test = several.net, several.x, several.x_test
    options = {"trace": True, "diagonal": False}
    same(js.kernels.empirical(net, x, **options).ntk, js.kernels.empirical(one.net, one.x, **options).ntk)
    tiled = js.kernels.empirical(net, x, memory=6000).ntk
    same(tiled, js.kernels.empirical(one.net, one.x).ntk)
    assert js.kernels.memory_estimate(net, x, x_test) == js.kernels.memory_estimate(one.net, one.x, one.x_test)
    assert js.kernels.check(net, x, tiled, key=jr.key(0)).holds
    v = jr.normal(jr.key(5), (7, 1), float)
    for size in (None, 2):
        operators = [js.kernels.NTKOperator(p.net, p.x, batch_size=size) for p in (several, one)]
        same(operators[0].mv(v), operators[1].mv(v))
        same(operators[0].cross(x_test, v), operators[1].cross(one.x_test, v))


def test_diagnosis(pair):
    one, several, _ = pair
    found, wanted = (
        js.diagnose(p.net, p.x, p.y, test=(p.x_test, p.y_test), optimizer=optax.adam(0.02), steps=12)
        for p in (several, one)
    )
    assert found.findings.keys() == wanted.findings.keys()
    for name, finding in wanted.findings.items():
        np.testing.assert_allclose(found.findings[name].value, finding.value, rtol=1e-5, err_msg=name)


def test_a_loop_and_its_loader(pair):
    one, several, kind = pair
    monitors = [js.Monitor(p, every=1) for p in (several, one)]
    for monitor, problem in zip(monitors, (several, one), strict=True):
        monitor(0, problem.net)
        monitor(1, jax.tree.map(lambda a: 0.9 * a if eqx.is_array(a) else a, problem.net))
    for name, row in monitors[1].history.items():
        np.testing.assert_allclose(monitors[0].history[name], row, rtol=1e-9, err_msg=name)

    x, y = (np.asarray(part) for part in data())
    batches = [(apart(x[i : i + 2], kind), y[i : i + 2]) for i in (0, 2, 4)]
    joined = [(x[i : i + 2], y[i : i + 2]) for i in (0, 2, 4)]
    ts, sgd = jnp.asarray([0.0, 0.6]), optax.sgd(0.1)
    same(
        js.solve(several, js.Descent(sgd, batches=batches), ts).final.params,
        js.solve(one, js.Descent(sgd, batches=joined), ts).final.params,
    )
    with pytest.raises(TypeError, match="must be such as those of the problem"):
        js.solve(several, js.Descent(sgd, batches=joined), ts)


@pytest.mark.parametrize("x64", [False, True])
def test_tokens_and_a_mask(x64):
    """Integers and truth values stay what they are; the kernel is J J^T by `jacrev`."""
    with jax.enable_x64(x64):
        one, two, three, four = jr.split(jr.key(0), 4)
        net = Looked(jr.normal(one, (11, 4)), eqx.nn.Linear(4, 2, key=two))
        ids = jr.randint(three, (6, 5), 0, 11)
        x = {"ids": ids, "mask": (ids % 3 > 0).at[:, 0].set(True)}
        problem = js.Problem(net, x, jnp.arange(6) % 2, loss=js.losses.CrossEntropy())
        assert [leaf.dtype for leaf in jax.tree.leaves(problem.x)] == [ids.dtype, bool]
        params, static = eqx.partition(net, eqx.is_inexact_array)
        jacobian = jax.jacrev(lambda p: jax.vmap(eqx.combine(p, static))(x))(params)
        rows = jnp.concatenate([leaf.reshape(12, -1) for leaf in jax.tree.leaves(jacobian)], axis=1)
        found = js.kernels.empirical(net, x).ntk
        np.testing.assert_allclose(found.reshape(12, 12), rows @ rows.T, rtol=0, atol=3e-6 if not x64 else 1e-14)
        report = js.diagnose(
            net, x, jnp.arange(6) % 2, loss=js.losses.CrossEntropy(), optimizer=optax.adam(0.1), steps=5
        )
        assert np.isfinite(report.findings["kernel_change"].value)


@pytest.mark.parametrize("verb", [js.Problem, lambda *a: js.diagnose(*a, optimizer=optax.sgd(0.1), steps=2)])
def test_what_does_not_fit_is_named(verb):
    x, y = data()
    net = Joined(mlp())
    with pytest.raises(ValueError, match="equally many samples"):
        verb(net, (x[:, 0], x[:3, 1:]), y)
    with pytest.raises(ValueError, match=r"here of float64\[\] at \[0\], float64\[3\] at \[1\], and fails"):
        verb(net, (x[:, 0], x), y)
    with pytest.raises(ValueError, match="float32"):
        verb(net, (x[:, 0].astype(jnp.float32), x[:, 1:]), y)
    with pytest.raises(ValueError, match="NaN"):
        verb(net, (x[:, 0].at[2].set(jnp.nan), x[:, 1:]), y)


def test_two_arguments():
    """The sentence names what works."""

    class TwoArguments(eqx.Module):
        net: eqx.nn.MLP

        def __call__(self, t, x):
            return self.net(jnp.append(x, t))

    x, y = data()
    net, parts = TwoArguments(mlp()), (x[:, 0], x[:, 1:])
    with pytest.raises(ValueError, match=r"js.nets.Function\(lambda net, x: net\(\*x\), net\)"):
        js.Problem(net, parts, y)
    problem = js.Problem(js.nets.Function(lambda net, x: net(*x), net), parts, y)
    assert problem.outputs(problem.params).shape == (7, 1)
