"""Figures: what is drawn, not how it looks."""

import diffrax
import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.colors
import numpy as np
import pytest
from matplotlib.figure import Figure

import jaxsolve as js
from jaxsolve.observe import Regime


matplotlib.use("Agg")


@pytest.fixture(scope="module")
def run():
    line = js.data.line(5, 2, key=jax.random.key(0))
    net = js.nets.TwoLayerLinear(in_size=2, width_size=3, scaling=js.nets.Scaling.ntk(), key=jax.random.key(1))
    problem = js.Problem(net, *line.train)
    watched = [js.observe.loss(), js.observe.weight_norms(), js.observe.outputs()]
    ts = jnp.geomspace(1e-2, 1e2, 9)
    return js.compare(problem, [js.theory.TwoLayerLine(), js.GradientFlow(diffrax.Tsit5())], ts, observe=watched)


@pytest.fixture
def ax():
    return Figure(figsize=(3.4, 2.6)).subplots()


def test_comparison_draws_line_and_marks_with_labels(run, ax):
    assert js.plot.comparison(run, ax=ax) is ax
    exact, flow = ax.get_lines()
    np.testing.assert_array_equal(exact.get_ydata(), run["TwoLayerLine"]["loss"])
    np.testing.assert_array_equal(flow.get_xdata(), run["GradientFlow(Tsit5)"].ts)
    assert (exact.get_linestyle(), flow.get_linestyle()) == ("-", "None")
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["TwoLayerLine", "GradientFlow(Tsit5)"]
    assert ax.get_xlabel() == "time $t$ (gradient-flow units)"
    assert (ax.get_ylabel(), ax.get_xscale()) == ("loss", "log")


def test_trajectory_draws_one_line_per_entry(run, ax):
    js.plot.trajectory(run["TwoLayerLine"], "weight_norms", ax=ax)
    assert len(ax.get_lines()) == 2
    assert ax.get_ylabel() == "weight norms [weight]"


def test_what_cannot_be_drawn_is_refused(run, ax):
    with pytest.raises(ValueError, match="only numbers and vectors"):
        js.plot.trajectory(run["TwoLayerLine"], "outputs", ax=ax)
    with pytest.raises(ValueError, match="only numbers can be compared"):
        js.plot.comparison(run, "weight_norms", ax=ax)


def test_without_axes_a_figure_is_made(run):
    import matplotlib.pyplot as plt

    figure = js.plot.comparison(run).get_figure(root=True)
    assert figure is not None
    assert figure.get_figwidth() == 3.4
    plt.close(figure)


def test_phase_diagram_colors_every_cell_by_regime(ax):
    cells = np.array([[0, 1, 2], [3, 3, 0]])
    level = np.array([[-1.0, -1.0, 1.0], [-1.0, 1.0, 1.0]])
    boundary = js.plot.Boundary("theory", np.array([0.1, 1, 10]), np.array([1.0, 10]), level, "dashed")
    js.plot.phase_diagram([0.1, 1, 10], [1.0, 10], cells, boundaries=[boundary], ax=ax)
    mesh = ax.collections[0]
    shown = mesh.to_rgba(mesh.get_array().ravel())
    handles = js.plot.phase_legend_handles([boundary])
    legend = {h.get_label(): h.get_facecolor() for h in handles[:4]}
    for color, code in zip(shown, cells.ravel(), strict=True):
        np.testing.assert_allclose(color, legend[Regime(code).label])
    assert handles[4].get_label() == "theory"
    assert len(ax.collections) == 2  # the boundary is drawn
    np.testing.assert_allclose(mesh.get_coordinates()[0, :, 0], np.sqrt([0.01 * 0.1, 0.1, 10, 1000]), rtol=1e-12)


def test_regime_colors_differ_in_lightness_for_any_pair_that_may_touch():
    # Distinguishable in grey print, hence for any kind of color blindness.
    handles = js.plot.phase_legend_handles()
    lightness = sorted(
        float(np.dot(matplotlib.colors.to_rgb(h.get_facecolor()), [0.2126, 0.7152, 0.0722])) for h in handles
    )
    assert np.min(np.diff(lightness)) > 0.05


@pytest.mark.parametrize(
    ("x", "y", "shape", "message"),
    [
        ([0.1, 1], [1.0, 10], (3, 2), "must have shape"),
        ([0.0, 1], [1.0, 10], (2, 2), "x must be positive"),
        ([0.1, 1], [10.0, 1], (2, 2), "y must be positive and increasing"),
    ],
)
def test_bad_phase_diagrams_are_refused(ax, x, y, shape, message):
    with pytest.raises(ValueError, match=message):
        js.plot.phase_diagram(x, y, np.zeros(shape, int), ax=ax)


def test_two_runs_can_be_told_apart(run, ax):
    js.plot.comparison(run, label="first", color="red", ax=ax)
    js.plot.comparison(run, label="second", ax=ax)
    labels = [line.get_label() for line in ax.get_lines()]
    assert [label.split(": ")[0] for label in labels] == ["first", "first", "second", "second"]
    line, marks = ax.get_lines()[:2]
    assert line.get_color() == marks.get_markeredgecolor() == "red"
    later = [matplotlib.colors.to_hex(line.get_color()) for line in ax.get_lines()[2:3]]
    assert later == [js.plot.COLORS[2].lower()]
    js.plot.trajectory(run[run.reference], "loss", color="blue", ax=ax)
    js.plot.trajectory(run[run.reference], "loss", ax=ax)
    assert [line.get_color() for line in ax.get_lines()[4:]] == ["blue", js.plot.COLORS[5]]


@pytest.mark.usefixtures("as_users")
def test_what_is_no_run_is_refused(run):
    with pytest.raises(TypeError, match=r"traj must be the result of js.solve, got Dataset.*drawn with xarray"):
        js.plot.trajectory(run[run.reference].to_xarray())
    with pytest.raises(TypeError, match=r"cmp must be the result of js.compare, got Trajectory.*js.plot.trajectory"):
        js.plot.comparison(run[run.reference])


@pytest.mark.usefixtures("as_users")
def test_lanes_that_have_not_run_have_no_color(ax):
    with pytest.raises(ValueError, match=r"regimes must be values of observe.Regime, 0 \(kernel\).*got \[-1.0\]"):
        js.plot.phase_diagram([1.0, 2.0], [1.0, 2.0], np.array([[0, 1], [-1, 3]]), ax=ax)
