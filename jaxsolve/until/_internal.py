"""Names of this room that other rooms use, and users do not."""

from ._conditions import fits as fits
