"""Closed forms: lanes in one fused kernel, where nothing waits for anything."""

import time
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._dynamics import AbstractRandomAccess
from .._results import result_code
from .._solve import check_applies, observe_random_access, random_access_result
from ..observe import Observable
from ._cells import Builder, Leaves
from ._cost import Waiting
from ._devices import Devices
from ._lanes import Lanes
from ._runner import AbstractLowered, AbstractRunner, Cells, Finished, first, padded, take


# Lanes of a call on a processor: more at once cost more each.
TILE = 1024


@final
class LoweredFused(AbstractLowered):
    """The program of a closed form.

    Arguments:
        builder: makes the problems.
        dynamics, observables, ts: as for the sweep.
        devices: to run on.
        cell: any one of the group.
        size: lanes of a batch, on all devices.

    Raises:
        NotApplicable: the dynamics is for another kind of problem.
    """

    def __init__(
        self,
        builder: Builder,
        dynamics: AbstractRandomAccess,
        observables: tuple[Observable, ...],
        ts: Float[Array, " times"],
        devices: Devices,
        cell: dict[str, Any],
        size: int,
    ):
        # Only the kind of problem matters here; to say what it is takes numbers.
        wrong: list[bool] = []
        jax.eval_shape(
            lambda cell: wrong.append(dynamics.check(builder.problem(builder.leaves(cell))).structural), cell
        )
        if any(wrong):
            check_applies(builder.problem(jax.jit(builder.leaves)(cell)), dynamics, throw=False)
        rows = size // len(devices)
        rows = min(rows, TILE) if devices.on_cpu else rows

        def lane(own: list[Array], shared: list[Array]) -> Lanes:
            problem = builder.problem(Leaves(own, shared))
            observed = observe_random_access(problem, dynamics, observables, ts.astype(problem.x.dtype))
            code = result_code(random_access_result(problem, dynamics))
            return Lanes(observed, ts, ts[-1], code, jnp.zeros((), int))

        def batch(cells: dict[str, Array]) -> Lanes:
            own, shared = jax.vmap(builder.leaves, out_axes=Leaves(0, None), axis_size=rows)(cells)
            return jax.vmap(lane, in_axes=(0, None), axis_size=rows)(own, shared)

        shapes = {name: jax.ShapeDtypeStruct((rows, *v.shape), v.dtype) for name, v in cell.items()}
        self._rows, self._devices = len(devices) * rows, devices
        self._lowered = devices.lower(batch, [shapes], [False, False])

    @property
    def out_info(self) -> Lanes:
        return self._lowered.out_info

    @property
    def refills(self) -> bool:
        return False

    def compile(self) -> "Fused":
        return Fused(self._lowered.compile(), self._rows, self._devices)


@final
class Fused(AbstractRunner):
    """The compiled program of a closed form, which takes a number of rows at each call."""

    def __init__(self, compiled: jax.stages.Compiled, rows: int, devices: Devices):
        self._compiled = compiled
        self._rows = rows
        self._devices = devices

    @property
    def streams(self) -> int:
        return self._devices.streams

    @property
    def programs(self) -> Sequence[jax.stages.Compiled]:
        return [self._compiled]

    def run(self, cells: Cells, waiting: Waiting, hand_over: Callable[[Finished], Any]) -> None:
        while len(places := waiting.take(self._rows)):
            begin = time.perf_counter()
            # Calls are padded, so that a lane's bits do not depend on how many lanes are left.
            rows = first(self._compiled(take(cells, padded(places, self._rows))), len(places))
            hand_over(Finished(places, rows, time.perf_counter() - begin, 0, 0))
