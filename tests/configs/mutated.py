"""Configs that people, or those who wish them ill, might write: the shipped ones, changed at random."""

import copy
import datetime
import json
import math
import tomllib
from typing import Any

from hypothesis import strategies as st

from jaxsolve.papers import configs
from tests.configs.small import small


NAMES = """MLP ConvNet DeepLinear ResNet18 line gaussian teacher_student digits mnist Dataset GradientFlow Descent
FrozenKernel TwoLayerLine InfiniteWidth DeepBalanced Euler HalfSolver kernel_spectrum conserved sharpness ntk lazy mup
Given LambdaBalanced adam relu""".split()
TEXTS = [
    "",
    "=",
    "=9**9**9",
    "=1/0",
    "=seed",
    "=width",
    "=tau**(10**10)",
    "=(-1)**0.5",
    "=sigma*'a'",
    "=round(5, -10**10)",
]
TEXTS += [
    "=" + "-" * 700 + "1",
    "=" + "(" * 150,
    "os:system",
    "__import__",
    "../../x",
    "\x1b]0;x\x07",
    "a\nb",
    "\u2028é",
]
TEXTS += ["%9999999d", "=" + "1+" * 30 + "1"]
INTEGERS = [0, 1, -1, 2, 7, 30, 255, 10**4, 10**6, 10**9, 10**12, 2**31, 2**63, 2**70, -(10**10)]
FLOATS = [0.0, -0.0, 0.5, -1.5, 3.0, 1e10, 1e308, 1e-320, math.inf, -math.inf, math.nan]
KEYS = """type key width depth n_train in_size pca path noise x y padded range linspace geomspace until batch_size
optimizer integrator solver t""".split()
KEYS += ["a b", "\x1b[2J", "..", ""]

leaves = st.one_of(
    *(st.sampled_from(values) for values in (INTEGERS, FLOATS, TEXTS, NAMES)),
    st.booleans(),
    st.just(datetime.date(2020, 1, 1)),
)
spacings = st.builds(
    lambda name, first, last, count: {name: [first, last, count] if name != "range" else count},
    st.sampled_from(["linspace", "geomspace", "range", "padded"]),
    st.sampled_from(INTEGERS + FLOATS),
    st.sampled_from(INTEGERS + FLOATS),
    st.sampled_from(INTEGERS),
)
things = st.builds(
    lambda name, key, value: {"type": name, key: value}, st.sampled_from(NAMES), st.sampled_from(KEYS), leaves
)
deep = st.integers(1, 60).map(lambda depth: json.loads("[" * depth + "]" * depth))
values = st.one_of(leaves, leaves, spacings, things, st.lists(leaves, max_size=3), deep)


@st.composite
def mutated(draw) -> str:
    """The text of a config with one to three changes."""
    name = draw(st.sampled_from(sorted(configs())))
    table = small(name) if draw(st.booleans()) else tomllib.loads(configs()[name])
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, table)
    text = "\n".join(f"{_key(key)} = {_written(value)}" for key, value in table.items())
    if draw(st.integers(0, 7)) == 0:
        place = draw(st.integers(0, len(text)))
        added = draw(st.text(st.characters(codec="utf-8"), max_size=4))
        text = text[:place] + added + text[place + draw(st.integers(0, 3)) :]
    return text


def _change(draw: Any, table: dict[str, Any]) -> None:
    places = list(_places(table))
    holder, key = draw(st.sampled_from(places)) if places else (table, "problem")
    kind = draw(st.sampled_from(["value", "value", "value", "remove", "add", "rename", "copy"]))
    if kind == "value":
        holder[key] = draw(values)
    elif kind == "remove":
        del holder[key]
    elif kind == "copy":
        other, at = draw(st.sampled_from(places))
        if at in other if isinstance(other, dict) else True:
            holder[key] = copy.deepcopy(other[at])
    elif isinstance(holder, list):
        holder.insert(int(key), draw(values))
    else:
        holder[draw(st.sampled_from(KEYS))] = holder.pop(key) if kind == "rename" else draw(values)


def _places(value: Any):
    """All tables and lists, with the keys of what they hold."""
    pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for key, part in pairs:
        yield value, key
        if isinstance(part, dict | list):
            yield from _places(part)


def _key(key: str) -> str:
    return json.dumps(key)


def _written(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_written(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    if isinstance(value, str | bool):
        return json.dumps(value)
    return value.isoformat() if isinstance(value, datetime.date) else repr(value)
