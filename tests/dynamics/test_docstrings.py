import jaxsolve.dynamics
from tests.docstrings import examples_of


test_examples = examples_of(jaxsolve.dynamics)
