"""A page runs nothing that a manifest, an axis or the name of an observable holds, and tells no secrets of a run."""

import dataclasses
import html
import json
import re

import jax.numpy as jnp
import numpy as np
import pytest
import xarray

from jaxsolve import sweep
from jaxsolve.report import write
from tests import cases
from tests.report.browser import launched, opened
from tests.report.sweeps_of import modes, TS


BREAK = "window.broken=1"
HOSTILE = [
    f"</script><script>{BREAK}</script>",
    f'<img src=x onerror="{BREAK}">',
    f'<a href="javascript:{BREAK}">here</a>',
    f"javascript:{BREAK}",
    f'"><svg onload={BREAK}><details open ontoggle={BREAK}>',
    f"</title></style></textarea></noscript></pre><script>{BREAK}</script>",
    "<!--<script>",
    f"${{{BREAK}}} $data $hashes $$",
    f"');{BREAK};('",
    f"&lt;script&gt;{BREAK}&lt;/script&gt;",
    f"<sub onclick={BREAK}>x</sub><span style='background:url(javascript:{BREAK})'>",
    "__proto__",
    "constructor",
    "\u2028\u2029\x07\u202e",
    f'<meta http-equiv="refresh" content="0;url=javascript:{BREAK}"><base href="https://example.invalid/">',
]


@pytest.fixture(scope="module")
def browser():
    with launched() as found:
        yield found


def _harmless(seen):
    """Nothing has run, nothing was asked of the network, and what could do either is not in the page."""
    assert seen.page.evaluate("window.broken") is None
    assert seen.page.evaluate("({}).broken") is None
    links = "[...document.querySelectorAll('[href], [src], [onclick], [onerror], [onload], [ontoggle]')]"
    found = seen.page.evaluate(f"{links}.map((node) => node.outerHTML.slice(0, 200))")
    assert found == ['<link rel="icon" href="data:,">']
    assert seen.page.evaluate("document.querySelectorAll('script').length") == 3
    assert seen.page.evaluate("document.querySelectorAll('base, iframe, object, embed, form, svg details').length") == 0
    assert seen.wrong == []


@pytest.mark.parametrize("name", cases.slow_after(2, [HOSTILE[0], "__proto__", *HOSTILE[1:3]]))
def test_names_of_axes_and_observables_and_texts_on_axes(browser, tmp_path, name):
    """One axis is called so, all of them are values of another and observables, with units and attributes."""
    grid = (name, "kind")
    shape = (2, len(HOSTILE))
    variables = {
        f"{other} {i}": ((*grid, "t"), np.ones((*shape, 3)), {"units": other, "long_name": other})
        for i, other in enumerate(HOSTILE)
    }
    result = np.zeros(shape, np.int8)
    result[0, ::2] = 3  # some stand in the table of failures
    swept = xarray.Dataset(
        {**variables, "result": (grid, result)},
        {name: [1.0, 2.0], "kind": HOSTILE, "t": [0.0, 1.0, 2.0]},
        {"dynamics": name, "citation": " ".join(HOSTILE), name: name},
    )
    with opened(browser, write(swept, tmp_path / "report.html")) as seen:
        assert name in seen.text("failures")
        assert HOSTILE[0] in seen.text("citation")
        seen.page.focus("#map")
        for key in ("ArrowRight", "ArrowUp", "Enter", "ArrowRight", "Enter"):
            seen.page.keyboard.press(key)
        seen.pins(2)
        for menu in ("#map-measure", "#curves-name", "#collapse-name", "#collapse-group", "#map-x"):
            count = seen.page.locator(f"{menu} option").count()
            for index in {0, 1, count - 1} & set(range(count)):
                seen.page.select_option(menu, index=index)
        seen.page.mouse.move(*seen.cell(0, 1))
        seen.page.wait_for_timeout(200)
        _harmless(seen)


def test_manifests_and_names_of_stores(browser, tmp_path):
    store = tmp_path / "<img src=x onerror=window.broken=1>.zarr"
    modes(store)
    file = store / "_jaxsolve" / "manifest.json"
    manifest = json.loads(file.read_text())
    everything = " ".join(HOSTILE)
    manifest |= {"citation": everything, "hostile": HOSTILE, everything: {everything: HOSTILE}}
    manifest["runs"] += [{"device": everything, everything: everything}, "no table"]
    manifest["variables"] += ["no table", {"name": everything}, {"name": 3}]
    manifest["attributes"] = HOSTILE
    manifest["half of a character"] = "\ud800"
    file.write_text(json.dumps(manifest))
    with opened(browser, write(store, tmp_path / "report.html")) as seen:
        assert everything.split("$")[0][:200] in seen.page.evaluate("document.getElementById('citation').textContent")
        assert "window.broken=1" in seen.page.evaluate("document.getElementById('manifest').textContent")
        _harmless(seen)


@pytest.mark.parametrize("damaged", [[], "text", {"runs": 3, "plan": 3, "variables": 3, "citation": 3}])
def test_manifests_of_another_form(tmp_path, damaged, as_users):
    modes(tmp_path / "run.zarr")
    (tmp_path / "run.zarr" / "_jaxsolve" / "manifest.json").write_text(json.dumps(damaged))
    if isinstance(damaged, dict):
        assert write(tmp_path / "run.zarr", tmp_path / "report.html").is_file()
        return
    with pytest.raises(ValueError, match=r"run\.zarr' is damaged: its manifest must be a table"):
        write(tmp_path / "run.zarr", tmp_path / "report.html")


# What is left out


def _manifest_in(page):
    text = page.read_text("utf-8")
    found = re.search(r"<pre>(.*?)</pre>", text, re.DOTALL)
    assert found is not None
    return json.loads(html.unescape(found[1])), text


@dataclasses.dataclass(frozen=True)
class _Problem:
    """A function of problems with a setting that is nobody's business."""

    token: str

    def __call__(self, rate):
        return cases.modes(jnp.full(1, 2.0), rate[None])


def test_settings_of_the_function_of_problems_are_left_out(tmp_path):
    path = tmp_path / "r.zarr"
    sweep(_Problem("a token"), {"rate": [1.0]}, cases.ModesDecay(), TS, store=path, progress=False)
    assert "a token" in (path / "_jaxsolve" / "manifest.json").read_text()
    manifest, text = _manifest_in(write(path, tmp_path / "report.html"))
    assert manifest["plan"]["problem_fn"] == "_Problem"
    assert "a token" not in text


def test_texts_in_a_store_of_format_2_are_left_out(tmp_path):
    """Its manifest says of a function what it refers to."""
    modes(tmp_path / "r.zarr")
    file = tmp_path / "r.zarr" / "_jaxsolve" / "manifest.json"
    manifest = json.loads(file.read_text()) | {"format": 2}
    told = {"function": "problem", "code": "0123456789abcdef", "refers to": {"SECRET": "a token", "type": "a password"}}
    manifest["plan"] |= {"problem_fn": told}
    file.write_text(json.dumps(manifest))
    manifest, text = _manifest_in(write(tmp_path / "r.zarr", tmp_path / "report.html"))
    assert manifest["plan"]["problem_fn"] == "problem"
    for secret in ("a token", "a password"):
        assert secret not in text


def test_names_of_hosts_are_left_out(tmp_path):
    modes(tmp_path / "r.zarr")
    file = tmp_path / "r.zarr" / "_jaxsolve" / "manifest.json"
    manifest = json.loads(file.read_text())
    workers = {"node-17.secret.example, cpu": 5, "node-18.secret.example, cpu": 3, "node-18.secret.example, H100": 1}
    manifest["runs"][0]["workers"] = workers  # as on a cluster
    file.write_text(json.dumps(manifest))
    manifest, text = _manifest_in(write(tmp_path / "r.zarr", tmp_path / "report.html"))
    assert manifest["runs"][0]["workers"] == {"cpu": 2, "H100": 1}
    assert "secret.example" not in text
    assert not {"host", "pid"} & set(manifest["runs"][0])
