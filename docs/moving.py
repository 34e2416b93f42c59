"""The directive `moving`: a picture that moves, made by a script."""

import os
import runpy
from pathlib import Path

import matplotlib as mpl
from docutils import nodes
from docutils.parsers.rst import directives
from matplotlib.animation import PillowWriter
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class ThreeTimes(PillowWriter):
    """Keeps an animation that is shown three times, each with a second of its last frame."""

    def finish(self) -> None:
        """Writes the file."""
        # The last frame comes first, too: it is what readers see who have turned motion off.
        last = self._frames[-1]
        frames = [*self._frames, *[last] * self.fps]
        last.save(self.outfile, save_all=True, append_images=frames, duration=round(1000 / self.fps), loop=3)


class Moving(SphinxDirective):
    """Runs a script of `docs/gallery`, and shows its animation `moving`: three times, then its last frame stays."""

    required_arguments = 1
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """The picture."""
        script = Path(self.env.srcdir) / self.arguments[0]
        self.env.note_dependency(str(script))
        picture = Path(self.env.doctreedir) / f"{script.stem}.webp"
        if not picture.exists() or picture.stat().st_mtime < script.stat().st_mtime:
            mpl.use("agg")
            runpy.run_path(str(script))["moving"].save(picture, writer=ThreeTimes(fps=8), dpi=110)
        here = Path(self.env.doc2path(self.env.docname)).parent
        uri = os.path.relpath(picture, here).replace(os.sep, "/")
        return [nodes.image(uri=uri, alt=self.options["alt"])]


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("moving", Moving)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
