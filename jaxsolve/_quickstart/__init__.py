"""The main job."""

from ._job import quickstart as quickstart
