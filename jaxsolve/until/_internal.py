"""Internal names that other packages of jaxsolve import."""

from ._conditions import fits as fits
