"""The documentation runs: every block of README.md and docs/**/*.md, as a reader would paste it.

The blocks of a file marked ```python run in order, in one fresh Python with JAX's default settings and an empty working
folder. A ```text block directly below one (only blank lines between) is what it must print, where

- a number with a point or an exponent may differ by one unit in its last digit or by 0.1 %; integers must agree;
- `...` stands for anything (a time, a path); runs of spaces count as one.

The lines of the blocks for a shell run too, in a folder that holds what their page speaks of. `INSTEAD` says of blocks
and lines that run elsewhere where that is.
"""

import json
import math
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest


ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("docs/**/*.md"))]
RELATIVE_TOLERANCE = 1e-3
TIMEOUT = 300.0  # seconds a page
FAST = {"README.md", "docs/conventions.md", "docs/getting-started.md"}  # the others take minutes together

# What does not run here as it stands: the file that runs it or, of what takes minutes, a smaller one; or why none does.
INSTEAD = {
    "git clone https://github.com/jaxsolve/jaxsolve && cd jaxsolve": "tests/test_readme.py",  # the address
    "pip install uv && uv run jaxsolve quickstart": "tests/cli/test_cli.py",
    "jaxsolve quickstart": "tests/cli/test_cli.py",
    'pip install ".[all]"': ".ci/wheel.py",
    'pip install "jaxsolve[all] @ git+https://github.com/jaxsolve/jaxsolve"': ".ci/wheel.py",  # as the address says
    "pip install --no-deps neural-tangents frozendict": ".ci/wheel.py",
    'pip install ".[gpu]"': "no GPU in CI",
    "uv run pytest": ".ci/run",
    "uv run python -m benchmarks faults": "tests/sweeps/test_store.py",
    "jaxsolve errata --write docs/errata.md": "tests/papers/test_errata.py",
    "jaxsolve data fetch mnist cifar10": "tests/data/test_fetch.py",
    "jaxsolve reproduce all --scale small": ".ci/run",
    "jaxsolve sweep grid.toml": "tests/configs/test_config.py",  # ten hours
    'problem = "my_module:make_problem"': "tests/cli/test_sweep_command.py",
    "from dask_jobqueue import SLURMCluster": "tests/benchmarks/test_clusters.py",
    "jax.distributed.initialize()": "tests/benchmarks/test_clusters.py",
    "optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)": "tests/test_torch.py",
    "hidden, readout = torch.nn.Linear(3, 64), torch.nn.Linear(64, 1)": "tests/test_from_torch.py",
    "hidden, readout = torch.nn.Linear(6, 64), torch.nn.Linear(64, 1)": "tests/test_from_torch.py",
    "module = torch.nn.Sequential(hidden, torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Dropout(0.1), readout)": (
        "tests/test_torch_in_training.py"
    ),
    'wandb.init(project="digits")': "tests/test_loggers.py",
    'trackio.init(project="digits")': "tests/test_loggers.py",
    "from tensorboardX import SummaryWriter": "tests/test_loggers.py",
    'data = js.data.digits(task="parity", n_train=64, n_test=256, pca=8, key=jax.random.key(0))': (
        "tests/test_recipes.py"
    ),
    "from omegaconf import OmegaConf": "tests/test_recipes.py",
    "gamma: [0.1, 1.0, 10.0]": "tests/test_recipes.py",
}
# Python that writes what the lines of a page speak of. That of reports goes on where the page's own ends.
SCRIPT = "open('my_{}.py', 'w').write('import jax\\nassert jax.device_count() == {}')"
STORES = """
exact = js.theory.TwoLayerLine()
for store, how in (("run", exact), ("closed_form", exact), ("flow", js.GradientFlow())):
    js.sweep(problem, axes, how, ts, observe=watched, store=f"{store}.zarr", progress=False)
"""
FILES = {
    "docs/performance-notes.md": SCRIPT.format("script", 1),
    "docs/sweeps.md": SCRIPT.format("sweep", 8),
    "docs/report.md": STORES,
}

FENCE = re.compile(r"^```(?P<language>[\w+-]*)[^\n]*\n(?P<body>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
# A number stands alone: "x1" holds none, and neither does the version "0.12.0".
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w]|\.\d)")

# Runs [line, code] pairs as the module __main__ and writes one JSON list of what each printed.
RUNNER = """
import contextlib, io, json, sys, types
page, blocks, out = json.load(sys.stdin)
module = sys.modules["__main__"] = types.ModuleType("__main__")
printed = []
for line, code in blocks:
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        exec(compile("\\n" * line + code, page, "exec"), module.__dict__)
    printed.append(stream.getvalue())
with open(out, "w") as file:
    json.dump(printed, file)
"""


class Block(NamedTuple):
    line: int  # lines of the page above the code
    code: str
    expected: str | None


def blocks(text: str) -> list[Block]:
    """The Python blocks of a page, each with the output promised directly below it."""
    found, fences = [], list(FENCE.finditer(text))
    for fence, below in zip(fences, [*fences, None][1:], strict=True):
        if fence["language"] == "python":
            promised = below and below["language"] == "text" and not text[fence.end() : below.start()].strip()
            expected = below["body"] if below and promised else None
            found.append(Block(text.count("\n", 0, fence.start("body")), fence["body"], expected))
    return found


def close(expected: str, printed: str) -> bool:
    """Whether two numbers agree to the last digit that the page shows."""
    if not re.search(r"[.eE]", expected):
        return printed == expected
    mantissa, _, exponent = expected.lower().partition("e")
    last_digit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    tolerance = max(1.0001 * last_digit, RELATIVE_TOLERANCE * abs(float(expected)))
    return math.isclose(float(expected), float(printed), rel_tol=0, abs_tol=tolerance)


def agrees(expected: str, printed: str) -> bool:
    """Whether what was printed is what the page promises."""
    expected, printed = (re.sub(r"[ \t]+", " ", text).replace(" \n", "\n").strip() for text in (expected, printed))
    pattern, end = "", 0
    for number in NUMBER.finditer(expected):
        pattern += re.escape(expected[end : number.start()]) + f"({NUMBER.pattern})"
        end = number.end()
    pattern = (pattern + re.escape(expected[end:])).replace(re.escape("..."), ".*?")
    match = re.fullmatch(pattern, printed, re.DOTALL)
    return match is not None and all(map(close, NUMBER.findall(expected), match.groups()))


def run(page: Path, folder: Path) -> list[tuple[Block, str]]:
    """The page's blocks, each with what it printed."""
    found, out = blocks(page.read_text(encoding="utf-8")), folder / "printed.json"
    work = folder / "work"
    work.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_ENABLE")}
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps([str(page), [[block.line, block.code] for block in found], str(out)]),
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, f"{page.name} does not run:\n{done.stderr}"
    return list(zip(found, json.loads(out.read_text()), strict=True))


def named(page: Path):
    name = page.relative_to(ROOT).as_posix()
    fast = name in FAST or not blocks(page.read_text("utf-8"))
    return pytest.param(page, id=name, marks=[] if fast else [pytest.mark.slow])


@pytest.mark.parametrize("page", [named(page) for page in PAGES])
def test_page_runs_and_prints_what_it_promises(page, tmp_path):
    for block, printed in run(page, tmp_path):
        assert block.expected is None or agrees(block.expected, printed), (
            f"{page.name}, code from line {block.line + 1}: promised\n{block.expected}\nprinted\n{printed}"
        )


def test_readme_has_python():
    assert blocks(README.read_text(encoding="utf-8")), "README.md shows no ```python block"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_python_hides_from_the_runner(page):
    text = page.read_text(encoding="utf-8")
    languages = {fence["language"] for fence in FENCE.finditer(text)}
    hidden = {name for name in languages if name.lower().startswith(("py", "ipy"))} - {"python"}
    assert not hidden, f"{page.name}: mark code as ```python, not {hidden}"
    assert len(re.findall(r"^[ \t>]*(?:```|~~~)", text, re.MULTILINE)) == 2 * len(list(FENCE.finditer(text))), (
        f"{page.name}: a fence is indented, quoted, nested or left open, so its code would not run"
    )


def shell(page: Path) -> list[str]:
    """The lines of a page for a shell, without their comments."""
    fences = FENCE.finditer(page.read_text(encoding="utf-8"))
    text = "".join(fence["body"] for fence in fences if fence["language"] in ("shell", "bash"))
    return [line.partition(" #")[0].rstrip() for line in text.splitlines()]


def other_blocks(text: str) -> list[str]:
    """Of the blocks that neither run nor are what one that runs prints, the first line after imports."""
    printed = {block.expected for block in blocks(text)}
    runs = ("python", "shell", "bash")
    bodies = [f["body"] for f in FENCE.finditer(text) if f["language"] not in runs and not f[0].startswith("```{")]
    first = re.compile(r"^(?!import |\n)[^#\n]*[^#\s]", re.MULTILINE)
    return [found[0] for body in bodies if body not in printed and (found := first.search(body))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem) for page in PAGES if set(shell(page)) - INSTEAD.keys()],
)
def test_lines_for_a_shell_run(page, tmp_path):
    name = page.relative_to(ROOT).as_posix()
    own = [block.code for block in blocks(page.read_text(encoding="utf-8"))] if FILES.get(name) == STORES else []
    (tmp_path / "made.py").write_text("".join([*own, FILES.get(name, "")]))
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_"))}
    for line in ["python made.py", *(line for line in shell(page) if line not in INSTEAD)]:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env={**clean, "PATH": programs, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert done.returncode == 0, f"{page.name}: {line}\n{done.stderr}"


def test_every_other_block_runs_elsewhere():
    """Or the reason is said why it does not; and nothing is said of blocks that are gone."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    others = {line for text in texts for line in other_blocks(text)}
    assert others <= INSTEAD.keys()
    assert not INSTEAD.keys() - others - {line for page in PAGES for line in shell(page)}
    assert [where for where in INSTEAD.values() if not (ROOT / where).exists()] == ["no GPU in CI"]


def test_the_readme_clones_what_is_published():
    published = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]
    assert f"git clone {published} && cd {published.rpartition('/')[2]}\n" in README.read_text("utf-8")
    assert f'repository-code: "{published}"\n' in (ROOT / "CITATION.cff").read_text("utf-8")


def test_ci_runs_the_readme_test_command():
    command = "uv run pytest"
    assert command in README.read_text(encoding="utf-8")
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("loss 0.123\n", "loss 0.1239\n"),
        ("loss 0.123", "loss 0.124"),
        ("error 1.2e-08", "error 1.25e-08"),
        ("error 2.4e-6", "error 2.3e-06"),
        ("12 steps in 3.1 s ...", "12  steps in 3.1 s (3.2 MB)\n"),
        ("a\n...\nb 1.0", "a\nanything\n2\nb 1.0"),
        ("jax 0.12.0", "jax 0.12.0"),
        ("[-1.00 2.00]", "[-1.005  1.999]"),
    ],
)
def test_agrees(expected, printed):
    assert agrees(expected, printed)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("loss 0.123", "loss 0.125"),
        ("loss 0.123", "loss -0.123"),
        ("error 1.2e-08", "error 1.4e-08"),
        ("12 steps", "13 steps"),
        ("jax 0.12.0", "jax 0.12.1"),
        ("loss 0.5", "error 0.5"),
        ("loss 0.5", "loss 0.5\nloss 0.4"),
        ("loss 0.5", ""),
        ("loss 0.5", "loss nan"),
    ],
)
def test_agrees_can_fail(expected, printed):
    assert not agrees(expected, printed)


def test_no_page_opens_a_port_to_the_world():
    """A dashboard at ":0" listens on all interfaces."""
    for page in PAGES:
        assert not re.search(r"address=[\"']:", page.read_text("utf-8")), page


def test_the_page_on_security_names_tests_that_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "SECURITY.md").read_text("utf-8"))
    assert len(named) >= 8
    assert not [name for name in named if not (ROOT / name).is_file()]


def test_blocks_share_a_namespace_and_promise_only_directly_below(tmp_path):
    page = tmp_path / "page.md"
    first_code, second_code = "x = 1.5\nprint(x)\n", "print(2 * x)\n"
    page.write_text(
        f"```python\n{first_code}```\nWords.\n```text\n9\n```\n```python\n{second_code}```\n\n```text\n3.0\n```\n"
    )
    (first, printed), (second, printed_too) = run(page, tmp_path)
    assert first == Block(1, first_code, None)
    assert printed == "1.5\n"
    assert second == Block(9, second_code, "3.0\n")
    assert printed_too == "3.0\n"


def test_a_broken_page_fails_naming_its_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Words.\n\n```python\nx = 1\n1 / 0\n```\n")
    with pytest.raises(AssertionError, match=r'page\.md", line 5'):
        run(page, tmp_path)
