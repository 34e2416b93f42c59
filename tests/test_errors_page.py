"""docs/errors.md has a section for each name that a message ends with, and none that no message has."""

import re

import jax
import numpy as np
import pytest

import jaxsolve as js
from tests.house import ROOT
from tests.inside import require_size


PAGE = (ROOT / "docs" / "errors.md").read_text("utf-8")
SECTIONS = {name.lower().replace(" ", "-") for name in re.findall(r"^### (.+)$", PAGE, re.MULTILINE)}
ENDINGS = {"max-steps", "diverged", "tolerance", "invalid", "unstable"}  # of `js.RESULTS`, by `js.solve`


def test_messages_and_sections_are_the_same():
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "jaxsolve").rglob("*.py"))
    assert SECTIONS == ENDINGS | set(re.findall(r"\bsee\([\"']([\w-]+)[\"']\)", code))
    assert len(SECTIONS) >= 20


def test_every_way_to_fail_has_a_section():
    failures = js.result_names(np.arange(3, 9))
    assert {name.replace("_", "-") for name in failures} <= SECTIONS


def test_a_traced_width_says_what_to_do():
    with pytest.raises(
        TypeError, match=r"give the values of this axis as a list .* \(see docs/errors.md#a-size-is-traced\)"
    ):
        jax.eval_shape(lambda width: require_size(width, "width_size"), np.int32(4))
