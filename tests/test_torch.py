"""The loop of PyTorch in docs/coming-from.md takes the steps of the call that the page puts in its place.

It needs PyTorch, which no other test does: `.ci/run torch` runs it.
"""

import numpy as np
import pytest

from tests.test_readme import blocks, FENCE, ROOT


def network(torch, net):
    """A network of `js.nets` with one hidden layer of tanh and no biases, as a module with the same weights."""

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.multipliers = np.asarray(net.scaling.multiplier).tolist()
            self.weights = torch.nn.ParameterList([torch.tensor(np.asarray(weight)) for weight in net.weights])

        def forward(self, x):
            first, second = (factor * weight for factor, weight in zip(self.multipliers, self.weights, strict=True))
            return torch.tanh(x @ first.T) @ second.T

    return Network()


@pytest.mark.slow
def test_the_loop_takes_the_steps_of_the_call():
    torch = pytest.importorskip("torch")
    text = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    ours = {}
    for block in blocks(text):
        exec(block.code, ours)  # a page of this repository
    problem, run = ours["problem"], ours["run"]
    (loop,) = (fence["body"] for fence in FENCE.finditer(text) if "torch.optim" in fence["body"])
    net, x, y = network(torch, problem.net), *(torch.tensor(np.asarray(array)) for array in (problem.x, problem.y))
    exec(loop, {"torch": torch, "net": net, "x": x, "y": y})
    with torch.no_grad():
        loss = 0.5 * ((net(x) - y) ** 2).sum(1).mean()
    np.testing.assert_allclose(float(problem.objective(run.final.params)), float(loss), rtol=1e-12)
    assert float(ours["by_hand"]) != float(loss)
