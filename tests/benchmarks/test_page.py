"""The page of the benchmarks is what the numbers of the committed runs give."""

import json
import math

import pytest

from benchmarks import page
from benchmarks._said import Beside, Row
from tests.cases import assert_fails


RESULTS = sorted((page.ROOT / "benchmarks" / "results").glob("*.json"))


def kept(device: str, rows: list[Row], **others) -> dict:
    """What a run of `kernels` alone keeps."""
    machine = {"device": device, "devices": 1, "processor": "P", "cores": 2, "memory": 8e9, "python": "3.11.7"}
    one = {"rows": [row.facts() for row in rows], "failed": False, "busy": 3.0, "seconds": 90.0, "peak_memory": 1e9}
    one |= {"date": "2026-01-02", "quick": False}
    machine["versions"] = {"jax": "0.10.2", "neural-tangents": None}
    return {"machine": machine, "benchmarks": {"kernels": one | others}}


RATIO = Row("ratio", 4.0, ">=", 5.0, peer="a rival", note="7 steps")
PRODUCTS = Row("products", 1.5, "<=", 2.0, limit="the products")
FORGOTTEN = Row("neither", math.nan)
SECONDS = Row("seconds", 3.0, beside=(Beside("a rival", 12.0), Beside("the products", 1.5), Beside("none", 0.0)))


def lines(runs: dict) -> list[str]:
    return page.page(runs).splitlines()


def test_the_page_is_that_of_the_committed_runs():
    assert RESULTS
    committed = {path.stem: json.loads(path.read_text("utf-8")) for path in RESULTS}
    written = page.PAGE.read_text("utf-8")
    close = lambda runs: _equal(page.page(runs), written)
    close(committed)
    first = next(iter(committed))
    other = committed[first] | {"machine": committed[first]["machine"] | {"cores": 1000}}
    assert_fails(lambda: close(committed | {first: other}))


def _equal(one: str, other: str) -> None:
    assert one == other


def test_one_run():
    found = lines({"cpu": kept("cpu", [RATIO, PRODUCTS, FORGOTTEN, SECONDS])})
    assert "| date | 2026-01-02 |" in found
    assert "| command | `uv run python -m benchmarks kernels` |" in found
    assert "| neural-tangents | – |" in found  # noqa: RUF001
    assert "| ratio | 4 | >= 5 | **no** | 1/4 of a rival | 7 steps |" in found
    assert "| products | 1.5 | <= 2 | yes | 1.5 x the products |  |" in found
    assert "| neither | – |  |  |  |  |" in found  # noqa: RUF001
    assert "| seconds | 3 |  |  | 1/4 of a rival; 2 x the products; none: – |  |" in found  # noqa: RUF001
    assert [line for line in found if line.startswith("## ")] == ["## kernels"]
    assert any(line.startswith("Empirical NTKs: time, memory") for line in found)
    missing = ", ".join(name for name in page.TIMED if name != "kernels")
    assert f"- Not run: {missing}." in found
    assert any(line.startswith("- Noisy") and line.endswith(": none.") for line in found)


def test_parts():
    """Benchmarks run whole and those run in part stand beside each other, each under its command."""
    run = kept("cpu", [RATIO], quick=True)
    assert "| part | the quick part |" in lines({"cpu": run})
    run["benchmarks"]["flow"] = run["benchmarks"]["kernels"] | {"quick": False}
    found = lines({"cpu": run})
    both = "`uv run python -m benchmarks flow`, `uv run python -m benchmarks kernels --quick`"
    assert f"| command | {both} |" in found
    assert "| part | as the commands say |" in found


def test_two_devices():
    """A column each, where one has measured something else, on a noisy machine, and ended early."""
    ended = Row("ran to its end", 0, ">=", 1, note="ValueError: no")
    slower = [RATIO._replace(measured=0.5, peer="another"), ended]
    runs = {"cpu": kept("cpu", [RATIO, PRODUCTS]), "gpu": kept("H", slower, failed=True, busy=40.0)}
    found = lines(runs)
    assert "| device | 1 x cpu | 1 x H |" in found
    assert "| ratio | 4 | 0.5 | >= 5 | **no** | 1/4 of a rival / 2 x another | 7 steps |" in found
    assert any(line.startswith("| products | 1.5 | – | <= 2 | yes / – |") for line in found)  # noqa: RUF001
    assert any(line.startswith("| ran to its end | – | 0 | >= 1 |") for line in found)  # noqa: RUF001
    assert any(line.startswith("- Noisy (gpu)") and line.endswith(": kernels (40 %).") for line in found)
    assert "- Not finished (gpu): kernels." in found
    runs["gpu"]["benchmarks"]["flow"] = runs["gpu"]["benchmarks"].pop("kernels")
    heads = [line for line in lines(runs) if line.startswith("| what ")]
    beside = "| goal | met | beside the best peer, or a reference |"
    assert heads == [f"| what | cpu {beside} this run |", f"| what | gpu {beside} this run |"]


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "–"), (0.0, "0"), (1e-8, "1.0e-08"), (0.1234, "0.123"), (12.0, "12"), (123.4, "123"), (2e5, "2.0e+05")],  # noqa: RUF001
)
def test_three_digits(value, said):
    assert page._number(value) == said


def test_the_page_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "PAGE", tmp_path / "performance.md")
    file = tmp_path / "h100.json"
    file.write_text(json.dumps(kept("H", [RATIO])), encoding="utf-8")
    page.main([str(file)])
    assert "|  | h100 |" in (tmp_path / "performance.md").read_text("utf-8")
