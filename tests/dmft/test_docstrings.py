import jaxsolve as js
from tests.docstrings import examples_of


test_examples = examples_of(js.dmft)
