"""The quickstart."""

from ._job import quickstart as quickstart
