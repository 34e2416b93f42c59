"""What a plan says of functions and values: two that differ are told apart, and what does not change stays itself."""

import functools
import json
import logging

import optax

from jaxsolve import Descent
from tests.sweeps.inside import describe_value


def _text(value):
    return json.dumps(describe_value(value), allow_nan=False)


# Methods


def test_methods_of_objects_of_libraries_are_described_by_what_the_objects_hold():
    def steps(rate, every=2):
        return Descent(optax.MultiSteps(optax.sgd(rate), every).gradient_transformation(), rate=0.1)

    assert _text(steps(0.1)) == _text(steps(0.1))
    assert len({_text(steps(0.1)), _text(steps(0.2)), _text(steps(0.1, 3))}) == 3


def test_methods_stay_themselves_when_objects_remember():
    """Caches of libraries, and cached properties, come with use."""
    say = logging.getLogger("jaxsolve.tests.fingerprint").isEnabledFor
    first = _text(lambda: say)
    say(logging.INFO)
    assert _text(lambda: say) == first

    class Squares:
        @functools.cached_property
        def four(self):
            return 2**2

    squares = Squares()
    first = _text(squares)
    assert squares.four == 4
    assert _text(squares) == first


def test_an_object_may_hold_its_own_methods():
    transformation = optax.MultiSteps(optax.sgd(0.1), 2)
    vars(transformation).update(itself=transformation, again=transformation.update)
    described = json.loads(_text(transformation.update))["refers to"]["self"]
    assert described["itself"] == described["type"] == "<MultiSteps>"
