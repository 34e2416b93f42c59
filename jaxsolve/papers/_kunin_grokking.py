"""What the figures on grokking share: transformers that learn to add, from starts of several alpha and tau."""

from typing import NamedTuple, TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from .._problem import Problem
from ..data import Dataset, modular_addition
from ..dynamics import Descent
from ..losses import CrossEntropy
from ..nets import Scaling, Transformer
from ..observe import accuracy, test_accuracy
from ._figure import Runs, Scale


if TYPE_CHECKING:
    import xarray

ALPHAS = {Scale.SMALL: [1.0, 3.0, 10.0]}
EVERY_ALPHA = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
TAUS = {Scale.SMALL: [0.7, 1.0]}
EVERY_TAU = [0.5, 0.75, 1.0, 1.25, 1.5]
SEEDS = {Scale.SMALL: 3, Scale.MEDIUM: 5, Scale.PAPER: 5}
MODULUS = {Scale.SMALL: 23, Scale.MEDIUM: 97, Scale.PAPER: 97}
SHARE = {Scale.SMALL: 0.8, Scale.MEDIUM: 0.5, Scale.PAPER: 0.5}  # of all pairs, for training
WIDTH = {Scale.SMALL: 32, Scale.MEDIUM: 128, Scale.PAPER: 128}
STEPS = {Scale.SMALL: 1500, Scale.MEDIUM: 30_000, Scale.PAPER: 30_000}
GROKKED = {Scale.SMALL: 0.95, Scale.MEDIUM: 0.99, Scale.PAPER: 0.99}  # small scales have few test pairs
RATE, DECAY = 6e-3, 1.0


def grokking(runs: Runs) -> "xarray.Dataset":
    """Accuracies over the steps: kept beside the figures, since two are drawn from them."""
    p = MODULUS[runs.scale]
    pairs = modular_addition(p, round(SHARE[runs.scale] * p**2), key=jax.random.key(0))
    axes = {
        "tau": TAUS.get(runs.scale, EVERY_TAU),
        "alpha": ALPHAS.get(runs.scale, EVERY_ALPHA),
        "seed": range(SEEDS[runs.scale]),
    }
    adam = optax.adamw(RATE, b2=0.98, weight_decay=DECAY)
    shared, steps = runs._replace(folder=runs.folder.parent), np.linspace(0, STEPS[runs.scale], 76)
    problems, descent = Transformers(pairs, WIDTH[runs.scale]), Descent(adam, rate=1.0)  # times are counts of steps
    found = shared.sweep("grokking", problems, axes, descent, steps, observe=[accuracy(), test_accuracy()])
    return found.assign_attrs(grokked=GROKKED[runs.scale])


class Transformers(NamedTuple):
    """The starts of both embeddings over alpha; outputs times tau, rates over tau^2."""

    pairs: Dataset
    width: int

    def __call__(self, tau: Array, alpha: Array, seed: Array) -> Problem:
        single = lambda pair: tuple(part.astype("float32") for part in pair)
        tokens, symbols = self.pairs.x.shape[1:]
        embeddings = jnp.sqrt(jnp.array([symbols, tokens])) / alpha  # one-hot tokens have unit features at alpha = 1
        scaling = Scaling.standard(tau, sigma=jnp.concatenate([embeddings, jnp.ones(7)]), eta=tau**-2)
        classes, options = self.pairs.y.shape[1], {"heads": 2, "scaling": scaling, "dtype": "float32"}
        net = Transformer((tokens, symbols), self.width, classes, key=jax.random.key(seed), **options)
        assert self.pairs.test is not None
        return Problem(net, *single(self.pairs.train), test=single(self.pairs.test), loss=CrossEntropy())


def of_size(scale: Scale) -> str:
    """What was chosen at a scale, in words."""
    several = lambda numbers: ", ".join(f"{number:g}" for number in numbers)
    return (
        f"Not stated, and chosen here so that networks grok in so few steps: addition modulo {MODULUS[scale]}, "
        f"{100 * SHARE[scale]:g} % of the pairs for training, width {WIDTH[scale]}, two heads, AdamW with rate "
        f"{RATE:g}, beta_2 = 0.98 and weight decay {DECAY:g}. At small scale {STEPS[scale]} steps, not up to 30000, "
        f"{SEEDS[scale]} starts in place of 5, tau = {several(TAUS[scale])}, alpha = {several(ALPHAS[scale])}, and a "
        f"network has grokked at {100 * GROKKED[scale]:g} % test accuracy, not 99 %: there are 106 test pairs."
    )


def steps_to(runs: "xarray.Dataset") -> "xarray.DataArray":
    """The first of the recorded steps at which a network has grokked; NaN if it never does."""
    reached = runs["test_accuracy"] >= runs.attrs["grokked"]
    return runs["t"].where(reached).min("t")
