"""Shared parts of the figures on grokking: transformers that learn to add, at several alpha and tau."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from .._core import Problem
from ..data import Dataset, modular_addition
from ..dynamics import Descent
from ..losses import CrossEntropy
from ..nets import Scaling, Transformer
from ..observe import accuracy, test_accuracy
from ._figure import by_scale, Runs, Scale, Table, Values


ALPHAS = by_scale([1.0, 3.0, 10.0], [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0])
TAUS = by_scale([0.7, 1.0], [0.5, 0.75, 1.0, 1.25, 1.5])
SEEDS = by_scale(3, 5)
MODULUS = by_scale(23, 97)
SHARE = by_scale(0.8, 0.5)  # of all pairs, for training
WIDTH = by_scale(32, 128)
STEPS = by_scale(1500, 30_000)
GROKKED = by_scale(0.95, 0.99)  # small scales have few test pairs
RATE, DECAY = 6e-3, 1.0


def grokking(runs: Runs) -> Table:
    """Accuracies over the steps, stored beside the figures, since two figures use them."""
    p = MODULUS[runs.scale]
    pairs = modular_addition(p, round(SHARE[runs.scale] * p**2), key=jax.random.key(0))
    axes = {
        "tau": TAUS[runs.scale],
        "alpha": ALPHAS[runs.scale],
        "seed": range(SEEDS[runs.scale]),
    }
    adam = optax.adamw(RATE, b2=0.98, weight_decay=DECAY)
    shared, steps = runs._replace(folder=runs.folder.parent), np.linspace(0, STEPS[runs.scale], 76)
    problems, descent = Transformers(pairs, WIDTH[runs.scale]), Descent(adam, rate=1.0)  # times are counts of steps
    found = shared.sweep("grokking", problems, axes, descent, steps, observe=[accuracy(), test_accuracy()])
    return found.assign_attrs(grokked=GROKKED[runs.scale])


class Transformers(NamedTuple):
    """Problems with both initial embeddings divided by alpha, outputs times tau, and rates divided by tau^2."""

    pairs: Dataset
    width: int

    def __call__(self, tau: Array, alpha: Array, seed: Array) -> Problem:
        single = lambda pair: tuple(part.astype("float32") for part in pair)
        tokens, symbols = self.pairs.x.shape[1:]
        embeddings = jnp.sqrt(jnp.array([symbols, tokens])) / alpha  # one-hot tokens have unit features at alpha = 1
        scaling = Scaling.standard(tau, sigma=jnp.concatenate([embeddings, jnp.ones(7)]), eta=tau**-2)
        classes, options = self.pairs.y.shape[1], {"heads": 2, "scaling": scaling, "dtype": "float32"}
        net = Transformer(
            in_shape=(tokens, symbols), out_size=classes, width_size=self.width, key=jax.random.key(seed), **options
        )
        assert self.pairs.test is not None
        return Problem(net, *single(self.pairs.train), test=single(self.pairs.test), loss=CrossEntropy())


def settings() -> str:
    """The settings chosen here, in words."""
    small, several = Scale.SMALL, lambda numbers: ", ".join(f"{number:g}" for number in numbers)
    return (
        f"Not stated, and chosen here: two heads, AdamW with rate {RATE:g}, beta_2 = 0.98 and weight decay {DECAY:g}. "
        f"So that networks grok in few steps, at small scale addition modulo {MODULUS[small]}, not "
        f"{MODULUS[Scale.PAPER]}, {100 * SHARE[small]:g} % of the pairs for training, not "
        f"{100 * SHARE[Scale.PAPER]:g} %, width {WIDTH[small]}, not {WIDTH[Scale.PAPER]}, {STEPS[small]} steps, not up "
        f"to {STEPS[Scale.PAPER]}, {SEEDS[small]} starts in place of {SEEDS[Scale.PAPER]}, "
        f"tau = {several(TAUS[small])}, alpha = {several(ALPHAS[small])}, and a network has grokked at "
        f"{100 * GROKKED[small]:g} % test accuracy, not {100 * GROKKED[Scale.PAPER]:g} %: there are 106 test pairs."
    )


def steps_to(runs: Table) -> Values:
    """The first of the recorded steps at which a network has grokked; NaN if it never does."""
    reached = runs["test_accuracy"] >= runs.attrs["grokked"]
    return runs["t"].where(reached).min("t")


def sooner_upstream(runs: Table) -> Values:
    """The logarithm of the ratio of the steps to grok at the largest alpha to those at 1.

    A run that has not grokked counts as grokking at the end, which is too early. NaN if neither has grokked.
    """
    end = float(runs["t"].max())
    upstream, start = (steps_to(runs).sel(alpha=alpha) for alpha in (float(runs["alpha"].max()), 1.0))
    ratio = (upstream.fillna(end) / start.fillna(end)).where(upstream.notnull() | start.notnull())
    return ratio.copy(data=np.log(ratio.values))
