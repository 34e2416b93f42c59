"""A report in a real browser: what is drawn, what the mouse and the keyboard do, and that nothing goes wrong."""

import numpy as np
import pytest
import xarray

from jaxsolve import observe
from jaxsolve.report import write
from tests.report.browser import launched, opened
from tests.report.sweeps_of import AXES, imagined, modes, TS


WIDTHS = (1280, 400)


@pytest.fixture(scope="module")
def browser():
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write(imagined(), tmp_path_factory.mktemp("report") / "report.html")


def test_map_shows_medians_over_any_two_axes(browser, report):
    swept = imagined()
    loss = swept["loss"].values[..., -1]
    with opened(browser, report) as seen:
        regimes = observe.regimes(TS, swept["loss"].values, swept["kernel_change"].values[..., -1])
        counts = np.stack([(regimes == code).sum(axis=-1) for code in range(4)], axis=-1)
        np.testing.assert_array_equal(seen.map(), counts.argmax(axis=-1).T)
        seen.page.select_option("#map-measure", label="loss, final")
        # The median over seeds comes first, and sigma lies across. Losses over decades are drawn by their logarithm.
        assert seen.page.is_checked("#map-log")
        np.testing.assert_allclose(seen.map(), np.log10(np.median(loss, axis=-1)).T, rtol=1e-5)
        seen.page.uncheck("#map-log")
        np.testing.assert_allclose(seen.map(), np.median(loss, axis=-1).T, rtol=1e-6)
        seen.page.focus("#map")
        seen.page.keyboard.press("ArrowUp")
        assert seen.text("map-status").startswith("sigma = 0.3, gamma = 0.01, all seed: loss, final")
        seen.page.select_option("#map-x", label="gamma")  # so sigma goes up
        assert seen.text("map-status") == ""
        np.testing.assert_allclose(seen.map(), np.median(loss, axis=-1), rtol=1e-6)
        seen.page.select_option("#map-y", label="seed")
        np.testing.assert_allclose(seen.map(), loss[0].T, rtol=1e-6)
        seen.page.select_option("#rest-0", label="3")
        np.testing.assert_allclose(seen.map(), loss[2].T, rtol=1e-6)
        seen.page.select_option("#rest-0", label="median over all")
        np.testing.assert_allclose(seen.map(), np.median(loss, axis=0).T, rtol=1e-6)
        assert not np.allclose(seen.map(), np.mean(loss, axis=0).T, rtol=1e-6)
        axis = seen.page.evaluate("document.getElementById('map').layout.xaxis")
        assert axis["title"]["text"] == "gamma"
        assert axis["ticktext"] == ["0.01", "0.1", "1", "10"]
        assert seen.wrong == []


def test_mouse_shows_and_pins_trajectories(browser, report):
    loss = imagined()["loss"].values
    with opened(browser, report) as seen:
        assert len(seen.figure("curves")) == 1  # of the first cell
        seen.hover(2, 1, "sigma = 1, gamma = 1")
        seen.until("document.getElementById('curves').data.length === 1")
        assert seen.text("map-status").startswith("sigma = 1, gamma = 1, all seed: regime ")
        (line,) = seen.figure("curves")
        drawn = np.array([v for v in line["y"] if v is not None])
        np.testing.assert_allclose(drawn, loss[1, 2, :, 1:].ravel(), rtol=1e-6)  # a logarithm shows no t = 0
        assert line["y"].count(None) == 3  # a gap after each lane
        seen.click(2, 1, "sigma = 1, gamma = 1")
        seen.pins(1)
        seen.click(0, 2, "sigma = 3, gamma = 0.01")
        seen.pins(2)
        assert len(seen.figure("curves")) == 3
        assert "sigma = 3, gamma = 0.01, all seed" in seen.text("pins")
        seen.page.select_option("#map-measure", label="loss, final")
        assert seen.text("map-status").startswith("sigma = 3, gamma = 0.01, all seed: loss, final [loss] ")
        seen.page.select_option("#curves-name", label="kernel_change")
        change = imagined()["kernel_change"].values[1, 2, :, 1:].ravel()
        drawn = [v for v in seen.figure("curves")[0]["y"] if v is not None]
        np.testing.assert_allclose(drawn, change, rtol=1e-6)
        layout = seen.page.evaluate("document.getElementById('curves').layout")
        assert (layout["xaxis"]["type"], layout["yaxis"]["type"]) == ("log", "log")
        assert layout["xaxis"]["title"]["text"] == "time t [gradient-flow time]"
        seen.page.get_by_label("unpin 1").click()
        assert seen.page.locator("#pins li").count() == 1
        seen.click(0, 2, "sigma = 3, gamma = 0.01")  # a second click takes a pin away
        seen.pins(0)
        assert seen.wrong == []


def test_trajectories_are_drawn_at_the_times_saved(browser, tmp_path):
    saved = xarray.ones_like(imagined()["loss"]) * TS * xarray.DataArray([1.0, 1.7, 1.0], dims="seed")
    with opened(browser, write(imagined().assign(t_saved=saved), tmp_path / "report.html")) as seen:
        seen.hover(2, 1, "sigma = 1, gamma = 1")
        seen.until("document.getElementById('curves').data.length === 1")
        (line,) = seen.figure("curves")
        drawn = [t for t in line["x"] if t is not None]
        np.testing.assert_allclose(drawn, np.outer([1.0, 1.7, 1.0], TS[1:]).ravel(), rtol=1e-6)
        assert seen.wrong == []


def test_keyboard_does_what_the_mouse_does(browser, report):
    with opened(browser, report) as seen:
        seen.page.focus("#map")
        for key in ("ArrowRight", "ArrowRight", "ArrowUp", "Enter", "ArrowDown", "Enter"):
            seen.page.keyboard.press(key)
        pins = seen.text("pins")
        assert "sigma = 1, gamma = 0.1, all seed" in pins
        assert "sigma = 1, gamma = 0.01, all seed" in pins
        seen.page.keyboard.press("Escape")
        assert seen.page.locator("#pins li").count() == 0
        # From the first menu on, the tabulator reaches every control and the map.
        seen.page.focus("#map-measure")
        reached = set()
        for _ in range(30):
            reached.add(seen.page.evaluate("document.activeElement.id"))
            seen.page.keyboard.press("Tab")
        assert {"map-x", "map-y", "rest-2", "map", "curves-name", "collapse-base", "power-1"} <= reached
        assert seen.wrong == []


def test_theory_draws_its_boundaries_only_where_it_applies(browser, report, tmp_path):
    names = lambda seen: {trace.get("name") for trace in seen.figure("map") if trace["type"] == "contour"}
    with opened(browser, report) as seen:
        found = {trace["name"]: trace for trace in seen.figure("map") if trace["type"] == "contour"}
        assert "theory: frozen" in found
        assert "theory: kernel | feature" in found
        half = np.median(observe.half_loss_time(TS, imagined()["loss"].values), axis=-1).T
        known = np.isfinite(half)
        drawn = np.array(found["theory: frozen"]["z"])
        np.testing.assert_allclose(drawn[known], np.clip(np.log10(half[known] / TS[-1]), -2, 2), atol=1e-6)
        assert np.all(drawn[known] < 0)
        assert np.all(drawn[~known] > 0)
        # Half way between a cell that never halves and the one above it.
        np.testing.assert_allclose(drawn[0, 2], -drawn[1, 2], atol=1e-6)
        np.testing.assert_allclose(found["theory: frozen"]["x"], np.log10(AXES["sigma"]))
        seen.page.uncheck("#map-theory")
        assert names(seen) == set()
        seen.page.check("#map-theory")
        seen.page.select_option("#map-measure", label="kernel_change, final")
        assert "theory: frozen" in names(seen)
    measured = write(imagined().assign_attrs(dynamics="GradientFlow"), tmp_path / "report.html")
    with opened(browser, measured) as seen:
        assert names(seen) == set()
        assert seen.page.locator("#map-theory").count() == 0
    along = write(imagined().isel(sigma=0, seed=0, drop=True), tmp_path / "report.html")
    with opened(browser, along) as seen:
        found = {trace["name"]: trace for trace in seen.figure("map") if trace["type"] == "contour"}
        half = observe.half_loss_time(TS, imagined()["loss"].values)[0, :, 0]
        z = np.array(found["theory: frozen"]["z"])
        np.testing.assert_array_equal(z[0], z[1])
        np.testing.assert_array_equal(z[0] < 0, half < TS[-1])
        assert found["theory: frozen"]["y"] == [-0.5, 0.5]
        assert seen.wrong == []


def test_collapse_multiplies_time_by_powers_of_the_axes(browser, report):
    with opened(browser, report) as seen:
        seen.page.fill("#power-1", "2")
        seen.page.fill("#power-0", "0.5")
        traces = seen.figure("collapse")
        assert len(traces) == 3  # a color per sigma
        factor = np.sqrt(AXES["sigma"][1]) * np.repeat(np.square(AXES["gamma"]), 3)
        expected = factor[:, None] * TS[1:]
        drawn = np.array([v for v in traces[1]["x"] if v is not None])
        np.testing.assert_allclose(drawn, expected.ravel(), rtol=1e-9)
        title = seen.page.evaluate("document.getElementById('collapse').layout.xaxis.title.text")
        assert title == "t · sigma<sup>0.5</sup> · gamma<sup>2</sup>"
        seen.page.select_option("#collapse-base", label="nothing but the axes")
        seen.page.select_option("#collapse-name", label="half-loss time")
        x, y = (np.array(seen.figure("collapse")[1][name]) for name in "xy")
        np.testing.assert_allclose(x, factor, rtol=1e-9)
        half = observe.half_loss_time(TS, imagined()["loss"].values)[1].ravel()
        drawn = np.array([np.inf if v is None else v for v in y])  # what never halves is not drawn
        np.testing.assert_allclose(drawn, half, rtol=1e-6)
        assert seen.wrong == []


@pytest.mark.parametrize("width", WIDTHS)
def test_page_fits_the_window(browser, report, width):
    with opened(browser, report, width) as seen:
        assert seen.overflow() <= 0
        seen.click(2, 1, "sigma = 1, gamma = 1")
        seen.pins(1)
        seen.page.select_option("#map-measure", label="loss, final")
        assert seen.overflow() <= 0
        for name in ("map", "curves", "collapse"):
            box = seen.page.locator(f"#{name} .main-svg").first.bounding_box()
            assert box["width"] > 0.8 * width * (0.45 if width > 800 and name != "collapse" else 1)
        # The widest words of a figure stay inside of it.
        inside = """() => [...document.querySelectorAll(".figure")].every((figure) => {
          const frame = figure.getBoundingClientRect();
          return [...figure.querySelectorAll("text")].every((text) => {
            const box = text.getBoundingClientRect();
            return box.width === 0 || (box.left >= frame.left - 1 && box.right <= frame.right + 1);
          });
        })"""
        assert seen.page.evaluate(inside)
        # Four labels leave room for a title in the middle; it stands below them.
        seen.page.select_option("#map-x", label="gamma")
        below = """() => {
          const box = (text) => text.getBoundingClientRect();
          const labels = [...document.querySelectorAll("#map .xtick text")].map((text) => box(text).bottom);
          return labels.length === 4 && box(document.querySelector("#map .xtitle")).top >= Math.max(...labels);
        }"""
        assert seen.page.evaluate(below)
        assert seen.wrong == []


def test_marks_of_failed_infinite_and_missing_cells(browser, tmp_path):
    swept = imagined().copy(deep=True)
    swept["loss"][0, 0, :, 3:] = np.nan
    swept["result"][0, 0] = 3
    swept["result"][1, 0] = -1
    swept["result"][2, 0, 1] = -1
    with opened(browser, write(swept, tmp_path / "report.html")) as seen:
        assert "4 of 36 lanes have not run yet." in seen.text("notes")
        seen.page.select_option("#map-measure", label="half-loss time")
        assert np.isnan(seen.map()[0, :2]).all()
        marks = next(trace for trace in seen.figure("map") if trace.get("mode") == "text")
        assert dict(zip(zip(marks["x"], marks["y"], strict=True), marks["text"], strict=True))[0, -2] == "·"
        assert "×" in marks["text"]
        assert "× failed or unknown." in seen.text("map-marks")
        seen.hover(0, 0, "3 failed")
        seen.hover(0, 2, "(median of 2 runs), 1 not run")
        assert "In 1 cell only some of the runs have a value; those decide." in seen.text("map-marks")
        assert seen.wrong == []


def test_failed_lanes_are_shown_along_one_axis(browser, tmp_path):
    swept = modes().isel(start=0, drop=True)
    with opened(browser, write(swept, tmp_path / "report.html"), 400) as seen:
        assert seen.page.locator("#map-y").count() == 0
        assert seen.map().shape == (1, 4)
        assert np.isnan(seen.map()[0]).tolist() == [False, False, False, True]
        assert "not applicable" in seen.text("failures")
        seen.click(0, 1, "rate = 1")
        seen.pins(1)
        assert "rate = 1" in seen.text("pins")
        assert seen.overflow() <= 0
        assert seen.wrong == []


def test_of_many_runs_a_part_of_every_seed_is_drawn(browser, tmp_path):
    many = imagined().isel(sigma=[0, 1, 2] * 25, gamma=[0, 1, 2, 3] * 4).assign_coords(sigma=np.arange(75.0))
    many = many.assign(balance=many["loss"] - 0.5)
    with opened(browser, write(many, tmp_path / "report.html")) as seen:
        seen.page.select_option("#collapse-group", label="seed")
        assert seen.text("collapse-status") == "300 of 3600 runs are drawn."
        drawn = [trace["y"].count(None) for trace in seen.figure("collapse")]
        assert sum(drawn) == 300
        assert min(drawn) > 90
        assert seen.page.is_checked("#collapse-y")
        seen.page.select_option("#collapse-name", label="balance")  # it changes its sign
        assert not seen.page.is_checked("#collapse-y")
        assert seen.wrong == []


def test_nothing_observed_over_time(browser, tmp_path):
    swept = imagined().drop_vars(["loss", "kernel_change"])
    with opened(browser, write(swept, tmp_path / "report.html")) as seen:
        assert "Nothing was observed over time." in seen.text("curves-status")
        assert seen.map().shape == (4, 3)
        assert seen.wrong == []


EVIL = '</script><script>window.broken = 1</script><img src=x onerror="window.broken = 2"><b>&amp;'


def test_names_are_text(browser, tmp_path):
    named = xarray.Dataset(
        {
            "result": ((EVIL, "kind"), np.zeros((2, 2), np.int8)),
            EVIL + "loss": ((EVIL, "kind", "t"), np.ones((2, 2, 3)), {"units": EVIL}),
        },
        {EVIL: [1.0, 2.0], "kind": [EVIL, "b"], "t": [0.0, 1.0, 2.0]},
        {"dynamics": EVIL, "citation": EVIL},
    )
    with opened(browser, write(named, tmp_path / "report.html")) as seen:
        seen.click(0, 0, EVIL)
        seen.pins(1)
        assert seen.page.evaluate("window.broken") is None
        assert f"{EVIL} = 1, kind = {EVIL}" in seen.text("pins")
        assert EVIL in seen.text("citation")
        assert seen.page.locator("img").count() == 0
        shown = "document.querySelector('#map .xtitle').textContent"
        assert seen.page.evaluate(shown) == EVIL
        assert seen.overflow() <= 0
        assert seen.wrong == []


def test_only_our_scripts_run_and_the_watch_would_see_others(browser, report, tmp_path):
    """Of a page that was tampered with the extra script is refused, and that is noticed."""
    other = tmp_path / "report.html"
    text = report.read_text("utf-8")
    end = text.rindex("</body>")
    added = "<script>window.broken = 1</script><img src='https://example.invalid/x.png'>"
    other.write_text(text[:end] + added + text[end:], "utf-8")
    with opened(browser, other) as seen:
        seen.page.wait_for_timeout(200)
        assert seen.page.evaluate("window.broken") is None
        assert any("script" in line for line in seen.wrong)
        assert any("example.invalid" in line for line in seen.wrong)


def test_something_is_drawn_before_anything_is_chosen(browser, tmp_path):
    with opened(browser, write(imagined(), tmp_path / "all.html")) as seen:
        assert seen.text("curves-status") == "No cell is chosen yet. Grey: sigma = 0.3, gamma = 0.01, all seed."
        assert len(seen.figure("curves")[0]["y"]) > 3
    # One finite time: over time a logarithm shows nothing, so last values lie over the first axis.
    ends = imagined().isel(t=[0, -1]).assign_coords(t=[0.0, np.inf])
    with opened(browser, write(ends, tmp_path / "ends.html")) as seen:
        assert seen.page.input_value("#collapse-base") == "1"
        assert seen.page.evaluate("document.getElementById('collapse').layout.xaxis.title.text") == "sigma"
        assert seen.text("collapse-status") == "36 runs are drawn."
        assert sum(y is not None for trace in seen.figure("collapse") for y in trace["y"]) == 36
        assert "they need the loss at time 0 and at finite times after it" in seen.text("notes")
        seen.page.select_option("#collapse-base", "t")
        assert seen.text("collapse-status") == "Nothing can be drawn on these axes."
        assert seen.wrong == []
