"""Reports: a sweep as one page to look at, to keep and to send."""

from ._write import write as write
