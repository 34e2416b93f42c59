"""Every claim of the papers can be reproduced, and can differ: else what it accepts would say nothing.

A figure's claims are a function of what its sweeps return. Here sweeps run nothing: they return made-up values in the
datasets that they would, such as power laws, curves that rise or fall, kernels that are positive. Values keep to
what can be: a cosine does not exceed 1. Where a claim has come out on real data, docs/reproduction says that it can.
"""

import json
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve.papers import Scale, Verdict
from tests.inside import (
    best_schedules,
    LaneOutline,
    MemoryStore,
    papers_images,
    read_plan,
    Runs,
    sizes_of_modes,
    SweepBatch,
)


FIGURES = js.papers.figures()
COMMITTED = Path(__file__).parents[2] / "docs" / "reproduction"
DRAWS = 400  # at most: most figures need a dozen
SAMPLED = ("seed", "draw")
SAMPLES = ("sample", "sample_2", "test_sample", "shown", "shown_2", "row", "column")
OWN = ("result", "steps", "wall", "t_saved", "trust", "width", "rank", "mixed", "labels")  # what stays as it is
EXPONENTS = [-2.0, -1.25, -1.0, -0.5, -0.5, 0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 2.0]


def _other_phase(name):
    """The schedules of the other phase, which leave more than constant rates do."""
    best = best_schedules({"easy": "hard", "hard": "easy"}[name])
    return best._replace(losses=best.constant, constant=best.losses)


# Claims of theory alone, which no data change, and one whose data would have to be those of theory: by figure their
# numbers, the name they look up, and another theory.
THEORY = {
    "atanasov/figd3": ([7], "spiked_kernel", lambda *_: SimpleNamespace(alignment=lambda _: 0.5)),
    "atanasov/fige1": ([5], "_theory", lambda samples, feature, task: np.square(feature) - task),
    "goldt/committee": ([1, 2], "_escapes", lambda: np.array([[9.0, 7.0, 4.0, 0.0]] * 3)),
    "rhee/fig1": ([4], "times_of", lambda run: 1 + 0 * sizes_of_modes(run).isel(t=0).fillna(0)),
    "schedules/phases": ([2, 3, 4, 5, 6, 7], "_best", _other_phase),
}


class Twin(Runs):
    """Sweeps that run nothing."""

    def sweep(self, name, *arguments, observe=(js.observe.loss(),), batch_size=None):
        plan = read_plan(*arguments, observe=observe, batch_size=batch_size)
        ts, lanes = np.asarray(plan.ts), np.zeros(plan.lanes)
        rows = {"steps": lanes.astype(int), "t_end": lanes, "t_saved": np.tile(ts, (plan.lanes, 1))}
        seen = LaneOutline(plan, plan.groups[0]).observed
        rows |= {name: np.zeros((plan.lanes, *one.shape), one.dtype) for name, one in seen.items()}
        store = MemoryStore(plan)
        store.write(SweepBatch(np.arange(plan.lanes), rows | {"result": lanes.astype(np.int8)}, 0.0))
        return store.dataset()


def _noise(shape):
    """A reader of images that are noise, of alternating classes."""

    def read(*, flatten, official_split, key, n_train, n_test, task="classes", pca=100):
        x = jax.random.normal(key, (n_train + n_test, pca) if flatten else (n_train + n_test, *shape))
        count = jnp.arange(len(x))
        y = jnp.eye(10)[count % 10] if task == "classes" else (-1.0) ** count[:, None]
        tests = (x[n_train:], y[n_train:]) if n_test else (None, None)
        return js.data.Dataset(x[:n_train], y[:n_train], *tests, source="noise (1 image)")

    return read


@pytest.fixture
def tables(name, monkeypatch):
    """The datasets of a figure, by name of the store, filled with zeros."""
    for collection, shape in papers_images.SHAPES.items():
        monkeypatch.setitem(papers_images.READERS, collection, _noise(shape))
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):  # as the command runs figures
        yield FIGURES[name].run(Twin(Path("nowhere"), Scale.SMALL, False))


@pytest.mark.x64_only
@pytest.mark.parametrize("name", [name for name, figure in FIGURES.items() if figure.images])
def test_digits_stand_in_for_images_that_are_not_here(name, monkeypatch):
    def absent(**_):
        raise FileNotFoundError

    for collection in papers_images.SHAPES:
        monkeypatch.setitem(papers_images.READERS, collection, absent)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        assert FIGURES[name].run(Twin(Path("nowhere"), Scale.SMALL, False))


# What is made up


def _law(rng, values, noise):
    """Positive numbers that are powers of the axes, or any numbers of them; the same at all times."""
    logs = np.full([1 if dim == "t" else size for dim, size in values.sizes.items()], rng.normal())
    for axis, dim in enumerate(values.dims):
        if dim != "t" and dim not in SAMPLED:
            x = values[dim].values if values[dim].dtype.kind in "if" else np.arange(values.sizes[dim])
            x = np.log(x / np.median(x)) if np.all(x > 0) else x - np.median(x)
            row = rng.normal(size=len(x)) if rng.random() < 0.2 else rng.choice(EXPONENTS) * x
            logs = logs + row.reshape([-1 if at == axis else 1 for at in range(values.ndim)])
    sampled = [size if dim in SAMPLED else 1 for dim, size in values.sizes.items()]
    logs = logs + noise * sum(rng.spawn(1)[0].normal(size=size) for size in (logs.shape, sampled))
    return np.exp(np.clip(logs, -12, 12))


def _course(rng, values, noise):
    """Such numbers over time: they rise or fall to others, in one or several steps, at times that are laws, too."""
    law = lambda chance: _law(rng, values, noise) if rng.random() < chance else 1.0
    one, t = _law(rng, values, noise), values["t"].values if "t" in values.dims else np.ones(1)
    if len(t) == 1:
        return one
    finite = t[(t > 0) & np.isfinite(t)]
    if not len(finite):
        t, finite = np.where(t > 0, 1.0, 0.0), np.ones(1)
    time = np.exp(rng.uniform(np.log(finite[0]), np.log(finite[-1]))) * law(0.5)
    steepness, steps = rng.choice([0.5, 1.0, 2.0, 8.0]) * law(0.3) ** 0.5, rng.choice([1, 1, 1, 2, 9])
    t = t.reshape([len(t) if dim == "t" else 1 for dim in values.dims])
    done = sum(-np.expm1(-((t / time / 1.6**step) ** steepness)) for step in range(steps)) / steps
    other = one * rng.choice([0.0, 0.1, 1.0]) * law(0.5)
    start, end = (one, other) if rng.random() < 0.5 else (other, one)
    return start + (end - start) * done


def _matrices(rng, values, noise):
    """Sums of three positive matrices between samples, one of them by their classes, each with a course of its own."""
    inner = [dim for dim in values.dims if dim in SAMPLES or dim in ("output", "output_2")]
    rows, columns = (values.sizes[dim] for dim in inner if dim in SAMPLES)
    features = rng.normal(size=(2, 1000, 3))
    features[1, :, 0] = 10 * _classes(1000)
    parts = [*(one[:rows] @ one[:columns].T for one in features), np.eye(rows, columns)]
    lanes = values.isel(dict.fromkeys(inner, 0))
    courses = [_course(rng, lanes, noise) for _ in parts]
    return np.einsum("k...,kij->...ij", np.stack(courses), np.stack(parts)).reshape(values.shape)


def _outputs(rng, values, noise):
    """Targets, times a course, and normal errors, of each start or of all."""
    *_, samples, _ = values.dims
    lanes = values.isel({samples: slice(1)})
    shape = [1 if dim == "t" or (dim == "seed" and rng.random() < 0.5) else size for dim, size in values.sizes.items()]
    errors = rng.normal(size=shape) * _course(rng, lanes, noise)
    return _course(rng, lanes, noise) * (_classes(values.sizes[samples])[:, None] + errors)


def _classes(count):
    return (-1.0) ** np.arange(count)


def _made(rng, values, noise):
    """Values that this variable can have."""
    name = values.name
    if name == "targets":
        return np.broadcast_to(_classes(values.shape[-2])[:, None], values.shape)
    if sum(dim in SAMPLES for dim in values.dims) == 2:
        return _matrices(rng, values, noise)
    if name.endswith("outputs"):
        return _outputs(rng, values, noise)
    if name == "neuron_direction":
        angle = 2 * np.pi * _course(rng, values.isel(input=slice(1)), noise)
        return np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)
    found = _course(rng, values, noise)
    if any(part in name for part in ("accuracy", "alignment", "cosine", "hamming")):
        found = found / (1 + found) if rng.random() < 0.5 else np.minimum(found, 1.0)
    if any(part in name for part in ("alignment", "radius", "function", "overlaps")) and rng.random() < 0.5:
        found = found - _made(rng, values, noise)
    return found


def _draw(rng, tables):
    """The same datasets with other values; those of one name may be the same in all of them."""
    noise, alike, seed = rng.choice([0.0, 1e-6, 1e-3, 1e-2]), rng.random() < 0.3, rng.integers(2**32)
    made = lambda name: np.random.default_rng([seed, zlib.crc32(name.encode())]) if alike else rng
    filled = lambda values: values.copy(data=_made(made(values.name), values, noise).astype(values.dtype))
    return {name: table.assign(_each(table, filled)) for name, table in tables.items()}


def _each(table, function):
    """A function of every variable that is measured."""
    return {name: function(values) for name, values in table.data_vars.items() if name not in OWN}


# What is found


def _committed(name):
    """The verdicts of each claim on real data, at one scale or two."""
    files = [COMMITTED / scale / name / "claims.json" for scale in ("small", "medium")]
    claims = [json.loads(file.read_text())["claims"] for file in files if file.is_file()]
    return [[(claim["statement"], Verdict(claim["verdict"])) for claim in some] for some in claims]


def _verdicts(name, claims):
    """Verdicts by claim: by its number, or where one may stand for several, by their names."""
    if name != "xu_ziyin/table1":
        return dict(enumerate(verdict for _, verdict in claims))
    return {one: verdict for said, verdict in claims for one in said.partition(": ")[0].split("; ")}


def _open(seen):
    """The claims that have not come out both ways, and how not."""
    held = {Verdict.REPRODUCED, Verdict.CORRECTED}
    never = {claim: [] for claim in seen}
    for claim, verdicts in seen.items():
        never[claim] += [] if held & verdicts else ["reproduced"]
        never[claim] += [] if Verdict.DIFFERS in verdicts else ["differs"]
    return {claim: ways for claim, ways in never.items() if ways}


def _judged(name, data):
    """The statement and verdict of each claim."""
    return [(claim.statement, claim.verdict) for claim in FIGURES[name].claims(data)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # what divides by what has not moved is NaN
@pytest.mark.x64_only
@pytest.mark.parametrize("name", FIGURES)
def test_claims_come_out_both_ways(name, tables, monkeypatch):
    missing = lambda table: _each(table, lambda values: values * np.nan) | {"result": table["result"] * 0 - 1}
    nothing = {store: table.assign(missing(table)) for store, table in tables.items()}
    decided = [number for number, (_, verdict) in enumerate(_judged(name, nothing)) if verdict is not Verdict.UNDECIDED]
    numbers, attribute, other = THEORY.get(name, ([], "", None))
    assert {*decided} <= {*numbers}  # what has not run decides nothing
    _judged(name, tables)  # nor do zeros raise an error
    first, *others = (_verdicts(name, one) for one in _committed(name))
    seen = {claim: {verdict, *(found[claim] for found in others)} for claim, verdict in first.items()}
    rng = np.random.default_rng(0)
    for _ in range(DRAWS):
        if not _open(seen).keys() - {*numbers}:
            break
        for claim, verdict in _verdicts(name, _judged(name, _draw(rng, tables))).items():
            seen[claim].add(verdict)
    if name in THEORY:
        monkeypatch.setattr(sys.modules[type(FIGURES[name]).__module__], attribute, other)
        for number in numbers:
            seen[number].add(_judged(name, tables)[number][1])
    assert _open(seen) == {}


def test_bands_that_nothing_reaches_or_leaves_are_found():
    never = {"unreached": {Verdict.DIFFERS, Verdict.UNDECIDED}, "unleft": {Verdict.REPRODUCED}}
    both = {"both": {Verdict.CORRECTED, Verdict.DIFFERS}}
    assert _open(never | both) == {"unreached": ["reproduced"], "unleft": ["differs"]}
