"""Reports: a sweep as one HTML page to view, keep and send."""

from ._write import write as write
