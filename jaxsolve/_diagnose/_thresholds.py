"""The thresholds of a diagnosis and their sources; docs/diagnose.md tests them."""

from typing import NamedTuple

from ..observe import KERNEL_REGIME_LIMIT


class Threshold(NamedTuple):
    """A threshold.

    Attributes:
        value: the number.
        beyond: what it means to be above it.
        source: where it comes from.
    """

    value: float
    beyond: str
    source: str


CALIBRATED = "calibrated in docs/diagnose.md"
KERNEL_CHANGE = Threshold(
    KERNEL_REGIME_LIMIT, "features are learned", "js.observe.KERNEL_REGIME_LIMIT; tested in docs/diagnose.md"
)
NONLINEARITY = Threshold(0.08, "the linearized network is another one", f"the kernel then moves by 0.1; {CALIBRATED}")
CURVATURE = Threshold(0.008, "not lazy", f"the ratio of Chizat et al. 2019; the limit is {CALIBRATED}")
MULTIPLIER = Threshold(
    1.0, "learns features as it is", "the kernel of linearized training moves by 0.1; Chizat et al. 2019"
)
CRITICAL = Threshold(1.0, "the step lowers the loss", "by definition; Kalra and Barkeshli 2024")
STABILITY = Threshold(1.0, "beyond the edge of stability", "linear stability; Cohen et al. 2021 and, for Adam, 2022")
# Runs at the edge hover around 1 (Cohen et al. 2021, section 2).
EDGE = 0.9
# This far beyond the edge, training does not hover but jumps or diverges.
BEYOND = 2.0
# Within this factor of a limit, on either side, seeds and details decide.
NEAR = 3.0
# A loss may rise by up to this factor in the first steps of a successful training run.
GROWN = 10.0
# A run that has removed a smaller share of the loss's gradient has shown nothing yet.
LEAST_PROGRESS = 0.02
# With less progress, the end of linearized training predicts more than the kernel's change, extrapolated.
ENOUGH_PROGRESS = 0.25
