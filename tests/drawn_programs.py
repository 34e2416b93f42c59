"""Programs at random for the fuzzer of programs: a structure, which is what is compiled, and numbers for it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import jaxsolve as js


MOST = 4000  # steps
COSINE = optax.cosine_decay_schedule(0.1, 50)

# --- networks: functions of a key, a dtype, the number of outputs and their scale


class Residual(eqx.Module):
    """x + a branch, and a read-out."""

    branch: jax.Array
    read: jax.Array

    def __call__(self, x):
        return self.read @ (x + jnp.tanh(self.branch @ x))


class Tokens(eqx.Module):
    """Outputs at each of 3 positions, for 4 tokens."""

    table: jax.Array
    read: jax.Array

    def __call__(self, x):
        h = self.table[x]
        return jnp.tanh(h + jnp.mean(h, axis=0, keepdims=True)) @ self.read


class OfTwo(eqx.Module):
    """A network of an array and an integer."""

    table: jax.Array
    read: jax.Array

    def __call__(self, x):
        return self.read @ jnp.tanh(x["a"] + self.table[x["b"]])


def _affine(params, x):
    inner, shift, outer = params
    return jnp.tanh(x @ inner + shift) @ outer


def _one(w, x):
    return w * x[:1]


def drawn(make: Callable, *shapes: tuple) -> Callable:
    """A network of arrays of these shapes, of which -1 is the number of outputs."""

    def build(key, dtype, c, scale):
        sizes = [tuple(c if size == -1 else size for size in shape) for shape in shapes]
        normal = lambda place: jr.normal(jr.fold_in(key, place), sizes[place], dtype)
        return make(*(scale**0.5 * normal(place) for place in range(len(sizes))))

    return build


def ours(kind: Callable, rule: Callable = js.nets.Scaling.ntk, **options: Any) -> Callable:
    """A network of `js.nets`, whose output scale is gamma."""
    named = {"in_size": 3, "width_size": 5, **options} if "in_shape" not in options else options
    named = {name: value for name, value in named.items() if value is not None}

    def build(key, dtype, c, scale):
        out = {} if kind in (js.nets.TwoLayerLinear, js.nets.SingleNeuron) else {"out_size": c}
        return kind(**named, **out, scaling=rule(scale), key=key, dtype=dtype)

    return build


def equinox(*middle: Callable) -> Callable:
    """A network of Equinox with layers in its middle."""

    def build(key, dtype, c, scale):
        first, last = (eqx.nn.Linear(*size, key=k, dtype=dtype) for size, k in (((3, 5), key), ((5, c), jr.key(1))))
        last = jax.tree.map(lambda leaf: scale * leaf, last)
        return eqx.nn.Sequential([first, *(make(dtype) for make in middle), eqx.nn.Lambda(jnp.tanh), last])

    return build


def nnx(key, dtype, c, scale):
    """A network of Flax."""
    from flax import nnx

    rngs = nnx.Rngs(int(jr.randint(key, (), 0, 1000)))
    layers = [nnx.Linear(a, b, rngs=rngs, param_dtype=dtype) for a, b in ((3, 5), (5, c))]
    net = js.nets.from_nnx(nnx.Sequential(layers[0], jnp.tanh, layers[1]))
    return jax.tree.map(lambda leaf: scale**0.5 * leaf, net)


SCALING, IMAGE, SENTENCE = js.nets.Scaling, (1, 4, 4), (3, 4)
NETS: dict[str, Callable] = {
    "tanh": ours(js.nets.MLP, depth=2, activation="tanh"),
    "relu": ours(js.nets.MLP, depth=1, activation="relu"),
    "gelu biases": ours(js.nets.MLP, SCALING.standard, depth=2, activation="gelu", bias=True),
    "mup": ours(js.nets.MLP, SCALING.mup, depth=1, activation="tanh"),
    "mean field": ours(js.nets.MLP, SCALING.mean_field, depth=2, activation="erf"),
    "two linear layers": ours(js.nets.TwoLayerLinear, SCALING.mean_field),
    "deep linear": ours(js.nets.DeepLinear, SCALING.xavier, depth=2),
    "single neuron": ours(js.nets.SingleNeuron, width_size=None),
    "transformer": ours(js.nets.Transformer, in_shape=SENTENCE, width_size=4, heads=2),
    "conv": ours(js.nets.ConvNet, SCALING.kaiming, in_shape=IMAGE, width_size=2),
    "LeNet": ours(js.nets.LeNet, in_shape=IMAGE, activation="tanh"),
    "layer norm": equinox(lambda dtype: eqx.nn.LayerNorm(5, dtype=dtype)),
    "dropout": equinox(lambda dtype: eqx.nn.Dropout(0.5, inference=True)),
    "batch norm": equinox(lambda dtype: eqx.nn.BatchNorm(5, "batch", mode="batch", dtype=dtype)),
    "residual": drawn(Residual, (3, 3), (-1, 3)),
    "tokens": drawn(Tokens, (4, 5), (5, 4)),
    "of a dict": drawn(OfTwo, (4, 3), (-1, 3)),
    "function": drawn(lambda *parts: js.nets.Function(_affine, list(parts)), (3, 5), (5,), (5, -1)),
    "one number": drawn(lambda w: js.nets.Function(_one, w), ()),
    "nnx": nnx,
}
ONE_OUTPUT = {"two linear layers", "single neuron", "one number"}
DENSE = ("tanh", "gelu biases", "mup", "mean field", "two linear layers", "deep linear")
KINKED = {"relu", "conv", "transformer", "Hinge", "QuadraticHinge"}
SHAPES = {"transformer": SENTENCE, "conv": IMAGE, "LeNet": IMAGE}

# --- losses: ours, and by hand for one sample


def _near(f, y):
    return jnp.sum(jnp.logaddexp(f - y, y - f))


LOSSES: dict[str, tuple[Any, Callable]] = {
    "MSE": (js.losses.MSE(), lambda f, y: jnp.sum((f - y) ** 2) / 2),
    "CrossEntropy": (js.losses.CrossEntropy(), lambda f, y: jax.nn.logsumexp(f) - f[y]),
    "Logistic": (js.losses.Logistic(), lambda f, y: jnp.sum(jnp.logaddexp(0, -f * y))),
    "Hinge": (js.losses.Hinge(), lambda f, y: jnp.sum(jnp.maximum(1 - f * y, 0))),
    "QuadraticHinge": (js.losses.QuadraticHinge(), lambda f, y: jnp.sum(jnp.maximum(1 - f * y, 0) ** 2) / 2),
    "SoftHinge": (js.losses.SoftHinge(5.0), lambda f, y: jnp.sum(jnp.logaddexp(0, 5 * (1 - f * y))) / 5),
    "a function": (_near, _near),
}

# --- dynamics


class Numbers(NamedTuple):
    """The numbers of a dynamics."""

    rate: Any
    key: Any
    until: Any


def descent(make: Callable, **options: Any) -> Callable:
    """Descent, with a key where it draws."""

    def build(n: Numbers):
        drawing = {"key": n.key} if {"batch_size", "noise"} & set(options) else {}
        rate = {"rate": n.rate} if options.get("rate") == "given" else {}
        return js.Descent(make(n.rate), until=n.until, max_steps=MOST, **{**options, **rate, **drawing})

    return build


def flow(integrator: Callable | None = None, **options: Any) -> Callable:
    """Gradient flow by an integrator."""
    by = None if integrator is None else integrator()
    return lambda n: js.GradientFlow(by, until=n.until, max_steps=MOST, **options)


def _noise(net, x, key):
    return net(x) * (1 + 0.1 * jr.normal(key, (), jnp.float32).astype(jax.tree.leaves(net)[0].dtype))


# Optimizers by the rate of a step, and how often its own a step's time is.
OPTIMIZERS: dict[str, tuple[Callable, float]] = {
    "sgd": (optax.sgd, 1),
    "momentum": (lambda r: optax.sgd(r, 0.9), 10),
    "nesterov": (lambda r: optax.sgd(r, 0.9, nesterov=True), 10),
    "adam": (optax.adam, 1),
    "adamw": (lambda r: optax.adamw(r, weight_decay=0.1), 1),
    "lion": (optax.lion, 1),
    "muon": (optax.contrib.muon, 1),
    "clipped": (lambda r: optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(r)), 1),
}
DYNAMICS: dict[str, Callable] = {
    "flow": flow(),
    "Tsit5": flow(diffrax.Tsit5),
    "Dopri8 landing": flow(diffrax.Dopri8, land_on_ts=True, rtol=1e-5),
    "Kvaerno5": flow(diffrax.Kvaerno5),
    "FunctionSpace": flow(js.integrators.FunctionSpace),
    "ParameterSpace": flow(js.integrators.ParameterSpace),
    "RungeKuttaChebyshev": flow(js.integrators.RungeKuttaChebyshev),
    "tau": lambda n: js.MomentumFlow(tau=n.rate, until=n.until, max_steps=MOST),
    "mu": lambda n: js.MomentumFlow(mu=10 * n.rate / n.rate, until=n.until, max_steps=MOST),
    "stochastic": lambda n: js.StochasticFlow(n.rate, key=n.key, until=n.until, max_steps=MOST),
    "stochastic tau": lambda n: js.StochasticFlow(n.rate, tau=n.rate, key=n.key, until=n.until, max_steps=MOST),
    **{name: descent(make) for name, (make, _) in OPTIMIZERS.items()},
    "rmsprop": descent(optax.rmsprop, rate="given"),
    "schedule": descent(lambda r: optax.adam(COSINE), rate=COSINE),
    "batches": descent(optax.sgd, batch_size=2),
    "noise": descent(optax.adam, noise=_noise),
    "kept": descent(optax.adam, keep_state=True),
    "frozen": lambda n: js.FrozenKernel(),
    "frozen descent": lambda n: js.FrozenKernel(flow=js.Descent(optax.sgd(n.rate), until=n.until, max_steps=MOST)),
    "frozen flow": lambda n: js.FrozenKernel(flow=js.GradientFlow(until=n.until, max_steps=MOST)),
    "infinite": lambda n: js.InfiniteWidth(),
    "central": lambda n: js.CentralFlow(rate=n.rate, until=n.until, max_steps=MOST),
    "rod": lambda n: js.RodFlow(rate=n.rate, until=n.until, max_steps=MOST),
    "rich": lambda n: js.RichLimit(nodes=20, samples=64, at_any_richness=True),
    "rich descent": lambda n: js.RichLimit(rate=n.rate, nodes=50, samples=64, at_any_richness=True),
}
FLOWS = ("flow", "Tsit5", "Dopri8 landing", "Kvaerno5", "FunctionSpace", "ParameterSpace", "RungeKuttaChebyshev")
FALLING = {*FLOWS, "frozen", "frozen flow", "infinite"}
STEPPING = {*OPTIMIZERS, "rmsprop", "schedule", "batches", "noise", "kept", "frozen descent", "rich descent"}
FROM_ZERO = {"rich", "rich descent"}
WITHOUT_PARAMS = {"frozen", "frozen descent", "frozen flow", "infinite", *FROM_ZERO}

# --- observables

NO_OBSERVABLES = {"Observable", "Regime", "KERNEL_REGIME_LIMIT", "classify", "half_loss_time", "regimes", "edge_time"}
OF_A_LAYER = {"feature_kernel", "gradient_kernel", "hidden_kernel", "hidden_cross_kernel", "preactivation_quantiles"}
OF_A_STEP = {"chizat_ratio", "critical_rate", "stability"}
AT_THE_EDGE = {"oscillation", "edge_eigenvalues"}
OF_LAYERS = {*OF_A_LAYER, *("layer_cosine", "layer_alignment", "preactivation_velocity", "weight_norms")}


def observable(name: str) -> js.observe.Observable:
    """The observable of a name; of a kernel summed over outputs after `traced`."""
    if name.startswith("traced "):
        return js.observe.traced(observable(name.removeprefix("traced ")))
    arguments = [1] if name in OF_A_LAYER else [optax.sgd(0.1)] if name in OF_A_STEP else []
    return getattr(js.observe, name)(*arguments)


OBSERVABLES = [name for name in dir(js.observe) if name[0] != "_" and callable(getattr(js.observe, name))]
OBSERVABLES = sorted({*OBSERVABLES} - NO_OBSERVABLES - {"traced"})
OBSERVABLES += [f"traced {name}" for name in ("kernel_change", "kernel_norm", "kernel_effective_rank")]


# --- what is drawn


class Structure(NamedTuple):
    """What is compiled: names of the tables above, and shapes."""

    net: str
    loss: str
    dynamics: str
    watched: tuple[str, ...]
    dtype: str
    n: int
    out: int
    times: int  # 0 is one number
    until: bool
    centered: bool
    test: bool


class Drawn(NamedTuple):
    """What varies in a structure."""

    key: int
    inputs: str
    targets: float  # their size
    scale: float  # of outputs
    natural: bool  # whether times are in units of L/(eta |dL/dw|^2) at the start
    rate: float
    last: float
    times: str
    throw: bool


def pick(draw, options):
    """One of some options."""
    options = list(options)
    return options[draw.integers(len(options))]


def draw_structure(draw) -> Structure:
    net, dynamics = pick(draw, NETS), pick(draw, DYNAMICS)
    net = pick(draw, NETS) if net in SHAPES else net  # they compile longer
    out = 1 if net in ONE_OUTPUT else pick(draw, (1, 2, 3))
    loss = pick(draw, ("MSE", "MSE", *LOSSES))
    watched = {str(name) for name in draw.choice(OBSERVABLES, 2, replace=False)}
    # What does not fit together is refused, again and again: that is drawn less often.
    if draw.random() < 0.8:
        net = pick(draw, DENSE) if watched & OF_LAYERS else net
        dynamics = pick(draw, ("central", "rod")) if watched & AT_THE_EDGE else dynamics
        moving = any(observable(name).needs is js.Quantity.PARAMS for name in watched)
        dynamics = pick(draw, FLOWS) if moving and dynamics in WITHOUT_PARAMS else dynamics
        dynamics = "rod" if net in SHAPES and dynamics == "central" else dynamics
        out = 1 if net in ONE_OUTPUT else out
    if net == "tokens":
        out, loss = 4, pick(draw, ("CrossEntropy", "CrossEntropy", "MSE", "a function"))
    loss = "Logistic" if out == 1 and loss == "CrossEntropy" else loss
    n, times, dtype = pick(draw, (1, 2, 7)), pick(draw, (0, 1, 2, 5)), pick(draw, ("float32", "float64"))
    until, centered, test = (bool(draw.random() < share) for share in (0.25, 0.25, 0.5))
    test |= any(name.startswith(("test", "cross", "hidden_cross")) for name in watched) and draw.random() < 0.9
    return Structure(net, loss, dynamics, tuple(sorted(watched)), dtype, n, out, times, until, centered, test)


def draw_numbers(draw) -> Drawn:
    usual = draw.random() < 0.5
    natural, decades = bool(draw.random() < 0.7), lambda low, high: float(10 ** draw.uniform(low, high))
    return Drawn(
        key=int(draw.integers(2**31)),
        inputs="gaussian" if usual else pick(draw, ("gaussian", "constant", "zero", "twice", "huge", "tiny")),
        targets=1.0 if usual else pick(draw, (0.0, 1.0, 1e-6, 1e6)),
        scale=1.0 if usual else decades(-6, 6),
        natural=natural,
        rate=decades(-3, 0.5) if natural else decades(-8, 4),
        last=decades(-2, 2) if natural else decades(-9, 7),
        times=pick(draw, ("from 0", "from 0", "later", "equal", "zero", "later", "from 0", "to infinity")),
        throw=bool(draw.random() < 0.3),
    )


def draw_samples(s: Structure, d: Drawn, n: int, draw) -> tuple[Any, Any]:
    """Inputs and targets."""
    size = {"zero": 0.0, "huge": 1e8, "tiny": 1e-8}.get(d.inputs, 1.0)
    x = size * draw.normal(size=(n, *SHAPES.get(s.net, (3,))))
    codes = draw.integers(4, size=(n, 3))
    x, codes = (np.ones_like(a) if d.inputs == "constant" else a for a in (x, codes))
    if d.inputs == "twice":
        x[n // 2 :], codes[n // 2 :] = x[0], codes[0]
    x = jnp.asarray(x, s.dtype)
    x = jnp.asarray(codes) if s.net == "tokens" else {"a": x, "b": jnp.asarray(codes[:, 0])} if "dict" in s.net else x
    shape = (n, 3, s.out) if s.net == "tokens" else (n, s.out)
    if s.loss == "CrossEntropy":
        labels = draw.integers(s.out, size=shape[:-1])
        return x, jnp.asarray(np.where(draw.random(shape[:-1]) < 0.2, -1, labels) if s.net == "tokens" else labels)
    y = d.targets * draw.normal(size=shape) if s.loss in ("MSE", "a function") else draw.choice([-1.0, 1.0], shape)
    return x, jnp.asarray(y, s.dtype)


class Program(NamedTuple):
    """A problem, how it moves, and when it is asked."""

    problem: js.Problem
    dynamics: Any
    ts: np.ndarray
    rate: float


def make(s: Structure, d: Drawn, unit_of: Callable[[js.Problem, Any, Any], float]) -> Program:
    """The program of a structure and numbers; `unit_of` says what time is natural for a problem."""
    draw, key, dtype = np.random.default_rng(d.key), jr.key(d.key), jnp.dtype(s.dtype)
    x, y = draw_samples(s, d, s.n, draw)
    net, state = NETS[s.net], None
    if s.net == "batch norm":
        net, state = eqx.nn.make_with_state(net)(key, dtype, s.out, d.scale)
    else:
        net = net(key, dtype, s.out, d.scale)
    test = draw_samples(s, d, 2, draw) if s.test else None
    problem = js.Problem(net, x, y, loss=LOSSES[s.loss][0], test=test, centered=s.centered, state=state)
    unit = unit_of(problem, x, y)
    rate, last = unit * d.rate, unit * d.last
    if s.dynamics in STEPPING and d.natural:
        last = rate * round(d.last)  # up to a hundred steps
    until = js.until.loss_fraction(jnp.asarray(0.5)) if s.until else None
    ts = last * np.sort(draw.random(s.times or 1))
    ts[-1] = {"zero": 0, "to infinity": np.inf}.get(d.times, last)
    ts[0] = 0 if d.times == "from 0" and s.times > 1 else ts[0]
    ts = np.full_like(ts, ts[-1]) if d.times in ("equal", "zero") else ts
    dynamics = DYNAMICS[s.dynamics](Numbers(jnp.asarray(rate), jr.key(1), until))
    return Program(problem, dynamics, ts if s.times else ts[0], rate)
