"""The main job."""

from ._job import Quickstart as Quickstart, quickstart as quickstart
