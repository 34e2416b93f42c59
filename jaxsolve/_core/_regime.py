"""The four ways in which a network can train."""

import enum


class Regime(enum.IntEnum):
    """The way in which a network trains over a window of times.

    Example:
        >>> print([regime.label for regime in js.observe.Regime])
        ['kernel', 'feature learning', 'frozen', 'unstable']
    """

    KERNEL = 0
    FEATURE_LEARNING = 1
    FROZEN = 2
    UNSTABLE = 3

    @property
    def label(self) -> str:
        """The name in words."""
        return self.name.lower().replace("_", " ")


# Relative change of the kernel below which training counts as linear.
KERNEL_CHANGE = 0.1
