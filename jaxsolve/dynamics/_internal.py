"""Names of this room that other rooms use, and users do not."""

from .wide import dmft as dmft
