"""What a report holds, and what is refused."""

import functools
import html
import re
import shutil
import sys

import jax
import numpy as np
import pytest
import xarray

from jaxsolve import data, GradientFlow, nets, observe, Problem, sweep, theory
from jaxsolve.observe import Regime
from jaxsolve.report import write
from jaxsolve.sweeps import save as write_store
from tests.inside import app, embed, pack, report
from tests.report.sweeps_of import AXES, content, imagined, modes, named, numbers, SHAPE, TS


def _page(data, folder, **options):
    return content(write(data, folder / "report.html", **options))


# --- what it holds


def test_curves_and_last_values_are_those_of_the_dataset(tmp_path):
    swept = imagined()
    page = _page(swept, tmp_path)
    assert page["dims"] == list(AXES)
    assert page["shape"] == [3, 4, 3]
    assert page["times"] == TS.tolist()
    for name in ("loss", "kernel_change"):
        expected = swept[name].values.reshape(36, -1)
        np.testing.assert_allclose(numbers(named(page["curves"], name)["values"], 36, -1), expected, rtol=6e-8)
        last = numbers(named(page["measures"], f"{name}, final")["values"], 36)
        np.testing.assert_allclose(last, expected[:, -1], rtol=6e-8)
    assert [item["label"] for item in page["curves"]] == ["loss", "kernel change"]
    assert named(page["measures"], "loss, final")["label"] == "loss, final [loss]"
    assert [item["name"] for item in page["coords"]] == list(AXES)
    np.testing.assert_allclose(page["coords"][1]["numbers"], AXES["gamma"])
    assert page["coords"][1]["labels"] == ["0.01", "0.1", "1", "10"]


def test_regimes_are_those_of_the_house(tmp_path):
    swept = imagined()
    measure = named(_page(swept, tmp_path)["measures"], "regime")
    codes = numbers(measure["values"], *SHAPE)
    expected = observe.regimes(TS, swept["loss"].values, swept["kernel_change"].values[..., -1])
    np.testing.assert_array_equal(codes, expected)
    assert len(np.unique(codes)) >= 3  # else the comparison would say little
    shifted = observe.regimes(TS, swept["loss"].values, 3 * swept["kernel_change"].values[..., -1] + 0.1)
    assert np.any(codes != shifted)
    assert [item["label"] for item in measure["categories"]] == [kind.label for kind in Regime]


def test_theory_is_drawn_from_a_sweep_by_the_closed_form(tmp_path):
    # As if the sweep had been measured on a coarser grid.
    fine = imagined().isel(sigma=1, drop=True)
    measured = imagined().isel(gamma=[0, 2, 3]).assign_attrs(dynamics="GradientFlow")
    measured = measured.assign_coords(gamma=measured["gamma"] * (1 + 1e-7))  # as float32 might round it
    assert _page(measured, tmp_path)["theory"] is None
    drawn = _page(measured, tmp_path, theory=fine)["theory"]
    assert [dim["of"] for dim in drawn["dims"]] == [1, 2]
    assert [dim["match"] for dim in drawn["dims"]] == [[0, 2, 3], [0, 1, 2]]
    half = observe.half_loss_time(TS, fine["loss"].values)
    np.testing.assert_allclose(numbers(drawn["half"], 4, 3), half, rtol=6e-8)
    np.testing.assert_allclose(numbers(drawn["change"], 4, 3), fine["kernel_change"].values[..., -1], rtol=6e-8)
    elsewhere = observe.half_loss_time(TS, imagined().isel(sigma=0)["loss"].values)
    assert not np.allclose(numbers(drawn["half"], 4, 3), elsewhere, rtol=6e-8)
    itself = _page(imagined(), tmp_path)["theory"]
    assert [dim["of"] for dim in itself["dims"]] == [0, 1, 2]


def test_theory_tells_large_seeds_apart(tmp_path):
    seeds = 200_000 + 100 * np.arange(SHAPE[-1])
    measured, itself = (imagined().assign_coords(seed=found) for found in (seeds, seeds[::-1]))
    match = [item["match"] for item in _page(measured, tmp_path, theory=itself)["theory"]["dims"]]
    assert match == [[*range(size)] for size in SHAPE[:-1]] + [[*reversed(range(SHAPE[-1]))]]
    other = _page(measured, tmp_path, theory=imagined().assign_coords(seed=seeds + 1))["theory"]["dims"]
    assert other[-1]["match"] == [-1] * SHAPE[-1]


def test_theory_says_nothing_of_lanes_that_it_refuses(tmp_path):
    refused = imagined().copy(deep=True)
    refused["result"][0, 0, 0] = 6
    half = numbers(_page(refused, tmp_path)["theory"]["half"], *SHAPE)
    assert np.isnan(half[0, 0, 0])
    assert np.isnan(half).sum() == 1


@pytest.mark.slow
@pytest.mark.x64_only
def test_theory_and_gradient_flow_draw_one_map(tmp_path):
    """Both sweeps run for real, and what the page holds of either is the same but for the flow's tolerance."""
    line = data.line(5, 2, key=jax.random.key(7))

    def problem(sigma, gamma, seed):
        net = nets.TwoLayerLinear(
            in_size=2, width_size=4, scaling=nets.Scaling.ntk(gamma, sigma=sigma), key=jax.random.key(seed)
        )
        return Problem(net, *line.train, centered=True)

    run = functools.partial(sweep, problem, AXES | {"seed": range(3)}, ts=TS, progress=False)
    watched = [observe.loss(), observe.kernel_change()]
    flow = run(GradientFlow(rtol=1e-8), observe=watched, store=tmp_path / "flow.zarr")
    run(theory.TwoLayerLine(), observe=watched, store=tmp_path / "theory.zarr")
    page = content(write(tmp_path / "flow.zarr", tmp_path / "report.html", theory=tmp_path / "theory.zarr"))
    half = numbers(named(page["measures"], "half-loss time")["values"], 36)
    np.testing.assert_allclose(numbers(page["theory"]["half"], 36), half, rtol=1e-5)
    assert np.isfinite(half).any()
    change = numbers(named(page["measures"], "kernel_change, final")["values"], 36)
    np.testing.assert_allclose(numbers(page["theory"]["change"], 36), change, rtol=1e-4)
    regimes = numbers(named(page["measures"], "regime")["values"], *SHAPE)
    expected = observe.regimes(TS, flow["loss"].values, flow["kernel_change"].values[..., -1])
    np.testing.assert_array_equal(regimes, expected)
    assert len(np.unique(regimes)) >= 3


def test_what_theory_must_be(tmp_path):
    with pytest.raises(ValueError, match=r"theory must be a sweep by theory\.TwoLayerLine\(\).* got one by ModesDecay"):
        write(imagined(), tmp_path / "a.html", theory=modes())
    with pytest.raises(ValueError, match="theory must observe the loss at times from 0 on"):
        write(imagined(), tmp_path / "a.html", theory=imagined().drop_vars("loss"))
    renamed = imagined().rename(sigma="scale")
    with pytest.raises(
        ValueError, match=r"theory has axes \['scale'\], but the sweep has \['sigma', 'gamma', 'seed'\]"
    ):
        write(imagined(), tmp_path / "a.html", theory=renamed)


def test_failed_lanes_have_no_last_value_and_stand_in_the_table(tmp_path):
    swept = modes()
    assert set(np.unique(swept["result"])) == {0, 6}
    page = write(swept, tmp_path / "report.html")
    data, text = content(page), page.read_text("utf-8")
    result = numbers(data["result"], 12)
    np.testing.assert_array_equal(result, swept["result"].values.ravel())
    last = numbers(named(data["measures"], "loss, final")["values"], 12)
    np.testing.assert_array_equal(np.isnan(last), result == 6)
    rows = re.findall(r"<tr>(.*?)</tr>", text.partition('id="failures"')[2].partition("</table>")[0])[1:]
    assert len(rows) == 3
    assert rows[1].startswith("<td>150</td><td>2</td><td>not applicable</td>")
    assert "This dynamics does not solve this problem" in text
    assert [item["name"] for item in data["curves"]] == ["loss", "outputs[0, 0]", "outputs[1, 0]"]
    outputs = numbers(named(data["curves"], "outputs[1, 0]")["values"], 12, -1)
    np.testing.assert_allclose(outputs, swept["outputs"].values[..., 1, 0].reshape(12, -1), rtol=6e-8)
    assert "No regimes: they need observe.kernel_change()." in text


def test_observables_of_many_entries_are_left_out(tmp_path):
    many = imagined().assign(spectrum=(("t", "mode"), np.ones((len(TS), 9))))
    assert "spectrum" in imagined().assign(spectrum=many["spectrum"])
    page = write(many, tmp_path / "report.html")
    assert [item["name"] for item in content(page)["curves"]] == ["loss", "kernel_change"]
    assert "Left out, for more than a few numbers per time: spectrum." in page.read_text("utf-8")
    assert np.unique(numbers(named(content(page)["measures"], "|spectrum|, final")["values"], -1)).tolist() == [3.0]


def test_diverged_lanes_are_unstable_and_others_that_failed_have_no_regime(tmp_path):
    swept = imagined().copy(deep=True)
    for code, seed in ((4, 0), (3, 1), (-1, 2)):
        swept["result"][0, 0, seed] = code
        for name in ("loss", "kernel_change"):
            swept[name][0, 0, seed, 2:] = np.nan
    codes = numbers(named(_page(swept, tmp_path)["measures"], "regime")["values"], *SHAPE)
    assert codes[0, 0].tolist() == [Regime.UNSTABLE, -1, -1]


def test_a_store_that_is_partly_filled(tmp_path):
    store = tmp_path / "run.zarr"
    swept = modes(store)
    for name in ("loss", "outputs", "steps", "t_end", "wall", "result"):
        shutil.rmtree(store / name / "c" / "1")
    page = write(store, tmp_path / "report.html")
    data, text = content(page), page.read_text("utf-8")
    result = numbers(data["result"], 12)
    assert np.flatnonzero(result < 0).tolist() == [3, 4, 5]
    assert "3 of 12 lanes have not run yet." in text
    for item in data["measures"]:
        values = numbers(item["values"], 12)[result < 0]
        assert np.all((values == -1) if item["categories"] else np.isnan(values)), item["name"]
    # In the order in which the sweep observes them, though a store lists them by name.
    assert [item["name"] for item in data["curves"]] == ["loss", "outputs[0, 0]", "outputs[1, 0]"]
    known = swept["loss"].values.reshape(12, -1)[result >= 0]
    np.testing.assert_allclose(numbers(data["curves"][0]["values"], 12, -1)[result >= 0], known, rtol=6e-8)
    # The manifest is there, but for what is nobody's business.
    manifest = html.unescape(text.partition('id="manifest"')[2])
    assert '"plan_hash"' in manifest
    assert '"started"' in manifest
    assert '"pid"' not in manifest
    assert '"host"' not in manifest


def test_axes_that_advance_together_and_text(tmp_path):
    swept = imagined().isel(gamma=slice(3), seed=[0, 1]).assign_coords(seed=["a", "b"])
    swept = swept.isel(gamma=xarray.Variable("sigma", [0, 1, 2]))  # as Zip does it
    coords = _page(swept, tmp_path)["coords"]
    assert [(item["name"], item["dim"]) for item in coords] == [("sigma", 0), ("gamma", 0), ("seed", 1)]
    assert coords[2]["labels"] == ["a", "b"]
    assert coords[2]["numbers"] is None


def test_times_without_end_are_last_but_not_drawn(tmp_path):
    swept = imagined().assign_coords(t=[*TS[:-1], np.inf])
    page = _page(swept, tmp_path)
    assert page["times"] == TS[:-1].tolist()
    assert page["window"] == [TS[1], TS[-2]]
    last = numbers(named(page["measures"], "loss, final")["values"], *SHAPE)
    np.testing.assert_allclose(last, swept["loss"].values[..., -1], rtol=6e-8)
    assert _page(swept.isel(t=[-1]), tmp_path)["curves"] == []


# --- numbers


def test_numbers_keep_seven_digits_and_their_range():
    values = np.array([1 / 3, -2e30, 0.0, np.nan, np.inf, -np.inf])
    assert pack(values)["type"] == "f4"
    np.testing.assert_allclose(numbers(pack(values), -1), values, rtol=6e-8)
    for extreme in (1e-60, 1e60):
        packed = pack(np.append(values, extreme))
        assert packed["type"] == "f8"
        assert numbers(packed, -1)[-1] == extreme
    assert pack(np.array([-1, 7], np.int8))["type"] == "i1"


def test_embedded_data_cannot_end_its_script():
    assert "<" not in embed({"name": "</script><script>alert(1)</script>"})


def test_lanes_of_a_paper_fit_into_a_page(tmp_path):
    axes = {"scale": np.geomspace(1e-3, 1e3, 17), "delta": np.linspace(-1, 1, 17), "seed": np.arange(16)}
    rng = np.random.default_rng(0)

    def imagined(times):
        dims = (*axes, "t")
        shape = (17, 17, 16, times)
        variables = {f"observable_{i}": (dims, rng.normal(size=shape), {"units": "1"}) for i in range(5)}
        variables |= {"result": (dims[:3], np.zeros(shape[:3], np.int8))}
        return xarray.Dataset(variables, {**axes, "t": np.linspace(0, 1, times)})

    page = write(imagined(60), tmp_path / "report.html")
    assert page.stat().st_size < 15e6
    assert len(content(page)["times"]) == 60
    page = write(imagined(200), tmp_path / "report.html")
    assert page.stat().st_size < 25e6
    times = content(page)["times"]
    assert 100 < len(times) < 200
    assert (times[0], times[-1]) == (0.0, 1.0)
    assert f"trajectories are drawn at {len(times)} of 200 times" in page.read_text("utf-8")


# --- what is refused


def test_what_is_no_sweep_is_refused(tmp_path, as_users):
    page = tmp_path / "report.html"
    with pytest.raises(TypeError, match="data must be the result of js.sweep or the path of its store, got int 3"):
        write(3, page)
    with pytest.raises(TypeError, match="path must be that of the page, such as 'report.html', got NoneType"):
        write(imagined(), None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(FileNotFoundError, match="there is no store at '.*absent.zarr'; give the folder"):
        write(tmp_path / "absent.zarr", page)
    with pytest.raises(ValueError, match=r"is not the store of a sweep: it holds no zarr\.json\. Give the folder"):
        write(tmp_path, page)
    (tmp_path / "begun.zarr" / "_jaxsolve").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"begun\.zarr' is the store of a sweep in which nothing has run yet"):
        write(tmp_path / "begun.zarr", page)
    with pytest.raises(ValueError, match=r"data is not a sweep's dataset: it needs times `t` and codes .*\['x'\]"):
        write(xarray.Dataset({"x": ("y", np.ones(2))}), page)
    waiting = imagined().copy()
    waiting["result"] = waiting["result"] * 0 - 1
    with pytest.raises(ValueError, match="data holds 36 lanes, none of which has run yet; report on it later"):
        write(waiting, page)
    with pytest.raises(FileNotFoundError, match="there is no folder '.*absent' to write the report to; make it first"):
        write(imagined(), tmp_path / "absent" / "report.html")
    assert not page.exists()


def test_a_foreign_zarr_store_is_refused(tmp_path):
    write_store(xarray.Dataset({"x": ("y", np.ones(2))}), tmp_path / "foreign.zarr")
    with pytest.raises(ValueError, match=r"foreign\.zarr' is not a sweep's dataset"):
        write(tmp_path / "foreign.zarr", tmp_path / "report.html")


def test_a_damaged_store_is_told(tmp_path):
    store = tmp_path / "run.zarr"
    modes(store)
    chunk = next(file for file in (store / "loss" / "c").rglob("*") if file.is_file())
    chunk.write_bytes(bytes(reversed(chunk.read_bytes())))
    with pytest.raises(ValueError, match=r"run\.zarr' is damaged: .*checksum.*\. Call its sweep again, which finds"):
        write(store, tmp_path / "report.html")
    (store / "zarr.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.zarr' is damaged: "):
        write(store, tmp_path / "report.html")


def test_a_store_without_observables(tmp_path):
    write_store(imagined().drop_vars(["loss", "kernel_change"]), tmp_path / "run.zarr")
    page = _page(tmp_path / "run.zarr", tmp_path)
    assert page["curves"] == []
    assert [item["name"] for item in page["measures"]] == ["result", "wall"]


def test_too_many_lanes_are_refused(tmp_path):
    lanes = np.zeros(10**6, np.int8)
    steps = np.arange(10**6)
    swept = xarray.Dataset({"result": ("x", lanes), "steps": ("x", steps), "wall": ("x", steps)}, {"t": [0.0, 1.0]})
    with pytest.raises(ValueError, match="1000000 lanes with 3 numbers each are too many for a page; report on a part"):
        write(swept, tmp_path / "report.html")


def test_without_plotly_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'jaxsolve\[plot\]'"):
        write(imagined(), tmp_path / "report.html")


# --- the command


def test_the_command_writes_a_page(tmp_path, capsys):
    write_store(imagined(), tmp_path / "run.zarr")
    report(tmp_path / "run.zarr", output=tmp_path / "page.html")
    said = " ".join(capsys.readouterr().out.split())
    assert re.fullmatch(r"written to .*page\.html \(\d\.\d MB\); open it in a browser", said)
    assert "run.zarr: report" in (tmp_path / "page.html").read_text("utf-8")


def test_the_command_line_knows_the_command(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no store at '.*absent.zarr'"):
        app(["report", str(tmp_path / "absent.zarr"), "-o", str(tmp_path / "a.html"), "--theory", "other.zarr"])


def test_the_command_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ValueError, match=r"pip install 'jaxsolve\[plot\]'"):
        report(tmp_path, output=tmp_path / "page.html")
