from jaxsolve import cli
from tests.docstrings import examples_of


test_examples = examples_of(cli)
