"""Names of this room that other rooms use, and users do not."""

from ._observable import check_observables as check_observables
