"""What is drawn of sweeps: maps, kernel matrices, power laws and neurons."""

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
import xarray
from matplotlib.figure import Figure

import jaxsolve as js


matplotlib.use("Agg")


@pytest.fixture
def ax():
    return Figure(figsize=(3.4, 2.6)).subplots()


def _grid(values: object, **coords: object) -> xarray.DataArray:
    return xarray.DataArray(np.asarray(values, float), dims=tuple(coords), coords=coords, name="test_loss")


def test_value_map_draws_each_number_in_its_place(ax):
    values = _grid([[1.0, 2.0, 3.0], [4.0, 5.0, np.nan]], delta=[-1.0, 1.0], tau=[0.1, 1.0, 10.0])
    assert js.plot.value_map(values.transpose("tau", "delta"), "tau", "delta", ax=ax) is ax
    mesh = ax.collections[0]
    shown = np.ma.asarray(mesh.get_array())
    np.testing.assert_array_equal(shown.filled(0.0), [[1, 2, 3], [4, 5, 0]])
    assert np.ma.count_masked(shown) == 1  # what has not run stays white
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    # Cells end half-way on the axis as it is drawn, so that the first of them is seen.
    ends = np.asarray(mesh.get_coordinates())
    np.testing.assert_allclose(ends[0, :, 0], 10.0 ** np.array([-1.5, -0.5, 0.5, 1.5]), rtol=1e-12)
    np.testing.assert_allclose(ends[:, 0, 1], [-2.0, 0.0, 2.0])
    np.testing.assert_allclose(ax.get_xlim(), 10.0 ** np.array([-1.5, 1.5]), rtol=1e-12)
    assert [other.get_ylabel() for other in ax.get_figure().axes] == ["delta", "test loss"]


def test_logarithmic_colors_leave_out_what_is_not_positive(ax):
    values = _grid([[0.0, 1e-3], [1.0, -1.0]], delta=[-1.0, 1.0], tau=[1.0, 2.0])
    mesh = js.plot.value_map(values, "tau", "delta", logarithmic=True, ax=ax).collections[0]
    np.testing.assert_array_equal(np.ma.getmaskarray(np.ma.asarray(mesh.get_array())), [[True, False], [False, True]])
    assert (mesh.norm.vmin, mesh.norm.vmax) == (1e-3, 1.0)


def test_gram_is_ordered_by_class_and_says_where_classes_end(ax):
    classes = np.array([2, 0, 2, 1, 0])
    numbers = np.arange(25.0).reshape(5, 5)
    kernel = xarray.DataArray(numbers[:, None, :, None], dims=("sample", "output", "sample_2", "output_2"))
    js.plot.gram(kernel, classes, ax=ax)
    order = [1, 4, 3, 0, 2]
    np.testing.assert_array_equal(ax.get_images()[0].get_array(), numbers[order][:, order])
    borders = sorted({float(line.get_ydata()[0]) for line in ax.get_lines()} & {1.5, 2.5})
    assert borders == [1.5, 2.5]


def test_colors_of_a_gram_are_symmetric_only_if_it_has_two_signs(ax):
    shown = lambda numbers: js.plot.gram(xarray.DataArray(numbers, dims=("a", "b")), ax=ax).get_images()[-1]
    positive, signed = shown(np.ones((3, 3))), shown(np.array([[3.0, -1.0], [-1.0, 3.0]]))
    assert (positive.norm.vmin, positive.norm.vmax) == (0.0, 1.0)
    assert (signed.norm.vmin, signed.norm.vmax) == pytest.approx((-3.0, 3.0))
    assert shown(np.eye(2)).get_cmap().name != signed.get_cmap().name


def test_power_law_draws_its_members_and_the_fit_of_sweeps(ax):
    widths, noise = np.array([10.0, 30.0, 100.0]), np.array([[1.0, 1.1, 1.0], [0.9, 1.0, 1.1], [1.0, 1.0, 1.0]])
    data = _grid(3 * widths**-0.5 * noise, seed=[0, 1, 2], width=widths)
    *rows, line = js.plot.power_law(data, "width", ax=ax).get_lines()
    for drawn, row in zip(rows, data.values, strict=True):
        np.testing.assert_array_equal(drawn.get_ydata(), row)
    law = js.sweeps.power_law(data, "width")
    np.testing.assert_allclose(np.asarray(line.get_ydata()), law.prefactor * widths**law.exponent, rtol=1e-12)
    # An independent path: the mean of NumPy's fits, and a line through the mean of the logarithms.
    fits = [np.polyfit(np.log(widths), np.log(row), 1) for row in data.values]
    np.testing.assert_allclose([law.exponent, np.log(law.prefactor)], np.mean(fits, axis=0), rtol=1e-10)
    said = str(line.get_label())
    assert f"{law.exponent:.3f}" in said
    assert f"{law.uncertainty:.3f}" in said


def test_power_law_draws_the_borders_that_sweeps_finds(ax):
    x = np.geomspace(1e-2, 1e2, 9)
    data = _grid(np.stack([np.minimum(1, 1 / x), np.minimum(2, 2 / x**1.1)]), seed=[0, 1], x=x)
    drawn = js.plot.power_law(data, "x", borders=1, ax=ax)
    law, line = js.sweeps.broken_power_law(data, "x", 1), drawn.get_lines()[-1]
    np.testing.assert_allclose(np.asarray(line.get_ydata()), law(x), rtol=1e-12)
    (band,) = drawn.patches
    np.testing.assert_allclose(
        band.get_extents().transformed(drawn.transData.inverted()).intervalx, law.border_intervals[0]
    )
    assert all(f"{exponent:.3f}" in str(line.get_label()) for exponent in law.exponents)


def test_the_interval_of_a_power_law_holds_the_truth_as_often_as_it_says():
    widths, draws = np.array([10.0, 20.0, 40.0]), 400
    noise = 0.1 * np.asarray(jax.random.normal(jax.random.key(0), (draws, 5, 3)))
    held = 0
    for one in noise:
        law = js.sweeps.power_law(_grid(widths**0.7 * np.exp(one), seed=range(5), width=widths), "width")
        held += abs(law.exponent - 0.7) <= law.uncertainty
    assert abs(held / draws - 0.95) < 3 * (0.95 * 0.05 / draws) ** 0.5


def test_lines_that_failed_do_not_spoil_a_power_law():
    widths = np.array([1.0, 2.0, 4.0])
    values = np.stack([[widths, 2 * widths], [np.full(3, np.nan), widths], [0 * widths, -widths]])
    law = js.sweeps.power_law(_grid(values, seed=range(3), depth=[2, 3], width=widths), "width")
    np.testing.assert_allclose([law.exponent, law.uncertainty], [1.0, 0.0], atol=1e-12)
    lost = js.sweeps.power_law(_grid(-values[:, 0], seed=range(3), width=widths), "width")
    assert np.isnan(lost)[0]
    (only,) = [js.sweeps.power_law(_grid(values[:1, 0], seed=[0], width=widths), "width").uncertainty]
    assert only == np.inf


def test_members_count_once_in_a_power_law():
    """The first has two lines, 3 w, the second one, 5 w^2, beside one that failed: sqrt(3 w 5 w^2)."""
    widths = np.array([1.0, 2.0, 4.0])
    values = np.stack([[3 * widths, 3 * widths], [5 * widths**2, -widths]])
    law = js.sweeps.power_law(_grid(values, seed=range(2), depth=[2, 3], width=widths), "width")
    np.testing.assert_allclose([law.exponent, law.prefactor], [1.5, 15**0.5], rtol=1e-12)


def test_collapse_brings_curves_together_at_the_right_power_alone():
    alpha, widths, seeds = np.geomspace(0.1, 10, 5), np.array([4.0, 16.0, 64.0]), [0, 1]
    scale = widths[:, None] ** 0.5 * alpha
    data = _grid(np.stack([1 / scale, 2 / scale]), seed=seeds, width=widths, alpha=alpha)
    spreads = []
    for power in (0.5, 0.0):
        ax = js.plot.collapse(data, "alpha", "width", power=power, ax=Figure().subplots())
        products = [np.prod(np.asarray(line.get_xydata()), axis=1) for line in ax.get_lines()]
        spreads.append(np.ptp(products))
    assert spreads[0] < 1e-12 < 0.1 < spreads[1]
    np.testing.assert_allclose(products[0][0], 2**0.5 / 2, rtol=1e-12)  # the geometric mean of members, over h^1/2


def test_neurons_are_paths_of_a_w(ax):
    net = js.nets.MLP(
        in_size=2,
        out_size=1,
        width_size=6,
        depth=1,
        activation="relu",
        scaling=js.nets.Scaling.ntk(),
        key=jax.random.key(0),
    )
    problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
    watched = [js.observe.neuron_radius(), js.observe.neuron_direction()]
    run = js.solve(problem, js.GradientFlow(), jnp.linspace(0.0, 2.0, 4), observe=watched)
    data = run.to_xarray()
    js.plot.neurons(data["neuron_radius"], data["neuron_direction"], ax=ax)
    found = js.theory.neurons(run.final.net)
    ends = np.array([line.get_xydata()[0] for line in ax.get_lines()[1::2]])
    np.testing.assert_allclose(ends, found.radius[:, None] * found.direction, rtol=1e-10)
    paths = ax.get_lines()[::2]
    assert len(paths) == 6
    assert {line.get_color() for line in paths} <= set(js.plot.COLORS[:2])


@pytest.mark.usefixtures("as_users")
def test_what_cannot_be_drawn_is_refused():
    data = _grid(np.ones((2, 2)), seed=[0, 1], width=[1, 2])
    with pytest.raises(ValueError, match=r"must have the axes tau, delta, got .*data.isel\(t=-1\)"):
        js.plot.value_map(data, "tau", "delta")
    with pytest.raises(TypeError, match=r"data must be a variable of a dataset, such as ds\['loss'\], got"):
        js.plot.collapse(np.ones(3), "alpha", "width")  # pyright: ignore
    with pytest.raises(ValueError, match="data must have 2 or more numbers on every axis"):
        js.plot.power_law(data.isel(seed=[0]), "width")
    with pytest.raises(ValueError, match=r"kernel must have one row and one column per sample.*output=0"):
        js.plot.gram(_grid(np.ones((3, 2, 3, 2)), a=range(3), b=range(2), c=range(3), d=range(2)))
    with pytest.raises(ValueError, match=r"one class per sample, 2, got shape \(3,\)"):
        js.plot.gram(data, [0, 1, 1])
    with pytest.raises(TypeError, match="classes must be integers"):
        js.plot.gram(data, [0.5, 1])  # pyright: ignore
    with pytest.raises(ValueError, match="positive numbers on 'width'"):
        js.sweeps.power_law(data.assign_coords(width=[0, 1]), "width")
    with pytest.raises(ValueError, match="an axis 'seed' of 1 or more"):
        js.sweeps.power_law(data.rename(seed="draw"), "width")
    with pytest.raises(ValueError, match="power must be finite"):
        js.plot.collapse(data.expand_dims(alpha=[1]), "alpha", "width", power=float("nan"))
    plane = _grid(np.ones((2, 2, 3)), t=[0, 1], neuron=[0, 1], input=range(3))
    with pytest.raises(ValueError, match="two inputs have their neurons in a plane, got 3"):
        js.plot.neurons(plane.isel(input=0), plane)
