"""The coordinate check: how the tensors of a network, and their changes, depend on its width."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from .. import nets
from .._checks import describe, require_size
from .._core import Problem
from .._numerics import unwatched
from ..observe._internal import read_program, root_mean_square, run_program, TappedProgram
from ._dataset import dataset
from ._figure import draw_coordinates
from ._finite import ending, SMALLER
from ._fit import Slope, slope, TOLERANCE
from ._inputs import check_optimizer, read_key, read_problem, require_own
from ._train import train


if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure


_WORDS = {True: "passed", False: "failed", None: "not known"}


@dataclasses.dataclass(frozen=True, repr=False)
class CoordinateCheck:
    """Sizes of tensors against the width. Made by `js.coordinate_check`.

    Attributes:
        tensors: their names, in order of computation.
        read_outs: whether each tensor is an output or part of one: it enters no other product.
        widths: widths of the networks.
        sizes, changes: root mean squares at the start, and of the change by training, shape (tensors, widths, seeds).
        size_slopes, change_slopes: the exponents of the width in them.
        verdicts: one line per tensor.
        passed: whether the size and the change of every tensor do not depend on the width. At the start, read-outs may
            shrink, and tensors may be 0 at every width. False if training diverged. None if unknown: parameters were
            not followed, or a tensor did not move at any width.
        notes: what could not be measured.
    """

    tensors: tuple[str, ...]
    read_outs: tuple[bool, ...]
    widths: np.ndarray
    sizes: np.ndarray
    changes: np.ndarray
    size_slopes: tuple[Slope, ...]
    change_slopes: tuple[Slope, ...]
    verdicts: tuple[str, ...]
    passed: bool | None
    notes: tuple[str, ...]

    def __str__(self) -> str:
        head = "passed: the sizes and changes of all tensors scale in the same way at every width"
        off = [abs(one.value) > TOLERANCE for one in self.change_slopes]
        # A read-out may start smaller.
        sizes = zip(self.size_slopes, self.read_outs, strict=True)
        off += [one.value > TOLERANCE or (one.value < -TOLERANCE and not read_out) for one, read_out in sizes]
        depends = any(off)
        why = "some tensors depend on the width" if depends else "not every tensor could be measured at every width"
        not_known = (
            "not known: all that was measured scales in the same way at every width, but not all could be measured"
        )
        lines = [head if self.passed else not_known if self.passed is None else f"failed: {why}"]
        return "\n".join([*lines, *(f"  {verdict}" for verdict in self.verdicts), *self.notes])

    def __repr__(self) -> str:
        return f"CoordinateCheck {self}"

    def plot(self) -> "Figure":
        """Sizes and changes against the width, as a matplotlib figure."""
        return draw_coordinates(self.tensors, self.widths, self.sizes, self.changes, title=_WORDS[self.passed])

    def to_xarray(self) -> "xarray.Dataset":
        """The sizes and changes, with dimensions `tensor`, `width` and `seed`."""
        axes = ("tensor", "width", "seed")
        data: dict[str, Any] = {"size": (axes, self.sizes), "change": (axes, self.changes)}
        for name, slopes in (("size_slope", self.size_slopes), ("change_slope", self.change_slopes)):
            data[name] = ("tensor", np.array([one.value for one in slopes]))
            data[f"{name}_error"] = ("tensor", np.array([one.error for one in slopes]))
        coords = {"tensor": list(self.tensors), "width": self.widths}
        passed = np.nan if self.passed is None else int(self.passed)
        return dataset(data, coords, {"passed": passed, "text": str(self)})


@unwatched()
def coordinate_check(
    make_net: Callable[[int, Any], Any],
    widths: Sequence[int],
    x: Any,
    y: Any,
    *,
    optimizer: Any = None,
    loss: Any = None,
    steps: int = 4,
    seeds: int = 5,
    key: Any = None,
) -> CoordinateCheck:
    """Measures which tensors of a network grow or shrink with its width, at the start and in training: the muP check.

    It follows every product of data with parameters through the network's program (in attention, also of data with
    data), including multipliers and biases. If a network learns features at any width, the typical entry of each
    product at the start, and its change in a few steps, do not depend on the width; read-outs may start smaller (Yang
    and Hu 2021; Yang et al. 2022, appendix D.1). A slope within 1/4 of 0 counts as 0: exponents are multiples of 1/2.

    Arguments:
        make_net: `make_net(width, key)` returns a network, as for `js.diagnose`.
        widths: two or more, ascending, such as powers of 2 from 32 to 512.
        x, y: a few dozen samples.
        optimizer: an optax transformation, or a function of the width that returns one. None takes Adam at 1e-3.
        loss: as for `js.diagnose`.

    Other Arguments:
        steps: steps of training.
        seeds: networks per width.
        key: random key of the networks; None takes `jax.random.key(0)`.

    Example:
        >>> import optax
        >>> x = jax.random.normal(jax.random.key(0), (16, 4))
        >>> def make(width, key):
        ...     return js.nets.MLP(
        ...         in_size=4, out_size=1, width_size=width, depth=2, activation="tanh",
        ...         scaling=js.nets.Scaling.mup(), key=key
        ...     )
        >>> check = js.coordinate_check(make, [32, 128, 512], x, x[:, :1], optimizer=optax.sgd(0.05))
        >>> print(check.passed, check.tensors)
        True ('weights[0]', 'weights[1]', 'weights[2]')

    Raises:
        TypeError, ValueError: as `js.diagnose`; fewer than two widths; networks of different widths have different
            tensors.
    """
    places, key = read_widths(make_net, widths), read_key(key)
    steps, seeds = require_size(steps, "steps"), require_size(seeds, "seeds")
    optimizer = optax.adam(1e-3) if optimizer is None else optimizer
    names, read_outs, hidden, rows, whys = None, (), (), [], []
    for width in places:
        chosen = optimizer_of(optimizer, int(width))
        row = []
        for seed in range(seeds):
            net = make_net(int(width), jax.random.fold_in(key, seed))
            problem = read_problem(net, x, y, loss, None, False)
            program, sizes, why = _sizes(problem, chosen, steps)
            here, read_outs, hidden = program.names, program.read_outs, program.hidden
            # `SMALLER` alone is left out: it is the default below, given once for all widths.
            whys += [why] if why and not why.endswith(f": {SMALLER}.") else []
            if names is not None and here != names:
                odd = sorted(set(here) ^ set(names)) or list(here)
                raise ValueError(f"the networks of widths {places[0]} and {width} differ in more than width: in {odd}")
            names = here
            row.append(sizes)
        rows.append(row)
    assert names is not None
    values = np.array(rows)  # (widths, seeds, 2, tensors)
    sizes, changes = (np.moveaxis(values[:, :, kind], 2, 0) for kind in (0, 1))
    first, moved = (tuple(slope(places, one) for one in array) for array in (sizes, changes))
    judged = [
        _judge(name, size, change, of_start, of_change, read_out=read_out)
        for name, size, change, of_start, of_change, read_out in zip(
            names, first, moved, sizes, changes, read_outs, strict=True
        )
    ]
    verdicts, fine = tuple(text for text, _ in judged), [one for _, one in judged]
    passed = False if False in fine else None if None in fine or hidden else True
    notes = tuple(f"Parameters inside {name} were not followed: its tensors are missing here." for name in hidden)
    lost = places[np.any(np.isnan(changes), axis=(0, 2))]
    if lost.size:
        passed, where = False, ", ".join(map(str, lost))
        advice = whys[0] if whys else f"{SMALLER.capitalize()}."
        notes += (f"Training diverged at width {where}: changes there are unknown. {advice}",)
    # A tensor that moves at some widths only. Zeros have no logarithm, so its slope silently skips the other widths.
    still = np.all(changes == 0, axis=2) & np.any(changes > 0, axis=(1, 2))[:, None]
    if np.any(still):
        passed, where = False, ", ".join(map(str, places[np.any(still, axis=0)]))
        moveless = ", ".join(name for name, one in zip(names, still, strict=True) if np.any(one))
        notes += (f"Nothing moved at width {where} in {moveless}: slopes are those of the other widths.",)
    return CoordinateCheck(names, read_outs, places, sizes, changes, first, moved, verdicts, passed, notes)


def read_widths(make_net: Any, widths: Any) -> np.ndarray:
    """Validates the widths and returns them as an array."""
    if not callable(make_net):
        raise TypeError(f"make_net must be a function of (width, key) that returns a network, got {describe(make_net)}")
    try:
        given = list(widths)
    except TypeError as error:
        raise TypeError(
            f"widths must be a sequence of integers, such as [32, 64, 128]; got {describe(widths)}"
        ) from error
    found = [require_size(width, "every width") for width in given]
    if len(found) < 2 or sorted(set(found)) != found:
        raise ValueError(f"widths must be two or more, ascending, such as [32, 64, 128]; got {found}")
    return np.array(found)


def optimizer_of(optimizer: Any, width: int) -> optax.GradientTransformation:
    """The optimizer for a width."""
    made: Any = optimizer
    require_own(made)
    if not isinstance(made, optax.GradientTransformation) and callable(made):
        made = made(width)
    check_optimizer(made)
    return made


def _sizes(problem: Problem, optimizer: Any, steps: int) -> tuple[TappedProgram, np.ndarray, str]:
    """The program with its tensors, their sizes and changes, and why training diverged, if it did."""
    program = _program(problem)
    run = train(problem, optimizer, [0, steps], None, None)
    if not program.names:
        raise ValueError("no product of data with parameters was found in this network, so there is nothing to check")
    why = ending(problem, problem, optimizer, run) if run.diverged else ""
    sizes = np.array(_measure(problem, run.checkpoints[-1].params))
    # The checkpoint precedes the step that diverged, so it does not show the change after all steps.
    if run.diverged:
        sizes[1] = np.nan
    return program, sizes, why


def _program(problem: Problem) -> TappedProgram:
    rest = nets.partition(problem.net)[1]
    return read_program(lambda params, x: jax.vmap(eqx.combine(params, rest))(x), problem.params, problem.x)


@eqx.filter_jit
def _measure(problem: Problem, end: PyTree) -> Array:
    """Sizes and changes. The program is read inside, so networks of one width share one compiled program."""
    program = _program(problem)
    before, after = (run_program(program, params, problem.x) for params in (problem.params, end))
    changes = [root_mean_square(b - a) for a, b in zip(before, after, strict=True)]
    return jnp.stack([jnp.stack(list(map(root_mean_square, before))), jnp.stack(changes)])


def _judge(
    name: str, size: Slope, change: Slope, sizes: np.ndarray, changes: np.ndarray, *, read_out: bool
) -> tuple[str, bool | None]:
    """A sentence on a tensor from its two slopes, and whether the tensor passes; None if unknown."""
    said, fine = [], True
    for what, power, values in (("its entries", size, sizes), ("their changes", change, changes)):
        shown, shrinks = f"N^{power.shown()}", read_out and values is sizes
        if values is sizes and not np.any(sizes):
            said.append(f"{what} start at 0 at every width")
        elif values is sizes and not np.all(np.any(sizes, axis=1)):
            said.append(f"{what} are 0 at some widths only")
            fine = False
        elif np.isnan(power.value):
            still = not np.any(values)
            why = "nothing moved" if still else "training diverged"
            said.append(f"{what} could not be measured ({why})")
            fine = None if still and fine else False
        elif abs(power.value) <= TOLERANCE:
            clear = abs(power.value) + power.error < 2 * TOLERANCE  # the next exponent
            doubt = "" if clear else ", unless the error hides that they do not: give more seeds or widths"
            said.append(f"{what} keep their size ({shown}){doubt}")
        elif power.value < 0 and shrinks:
            said.append(f"{what} shrink like {shown}, as those of a read-out may")
        else:
            verb = "grow" if power.value > 0 else "shrink"
            why = _why(power.value, read_out=read_out, change=values is changes)
            clear = abs(power.value) - power.error > TOLERANCE
            doubt = "" if clear else ", unless the error hides that they keep their size: give more seeds or widths"
            said.append(f"{what} {verb} like {shown}: {why}{doubt}")
            fine = False
    return f"{name}: {'; '.join(said)}", fine


def _why(power: float, *, read_out: bool, change: bool) -> str:
    if change and power > 0:
        scaling = "it has the standard scaling; " if read_out else ""
        return f"{scaling}its rate or multiplier is too large for wide networks"
    if change:
        return "it learns no features in wide networks; its rate or multiplier is too small"
    return f"its initial weights or multiplier are too {'large' if power > 0 else 'small'} for wide networks"
