// The phase map.

const pins = []; // choices of cells whose trajectories stay
// Seeds are repetitions: the map shows the median over them at first.
const view = { x: 0, y: -1, measure: 0, rest: data.dims.map((dim) => (/seed/i.test(dim) ? null : 0)), log: false, theory: true };
[view.x, view.y] = firstAxes(view.rest.map((chosen) => chosen === null));
let cursor = null; // row and column of the current cell
let marked = false; // whether it has a disc: under the mouse it needs none
let drawn = null; // the contents of the map

const perCell = (f) => drawn.y.order.map((_, row) => drawn.x.order.map((_, column) => f(row, column)));

function choiceAt(row, column) {
  const choice = [...view.rest];
  choice[coordinate(view.x).dim] = drawn.x.order[column];
  if (view.y >= 0) choice[coordinate(view.y).dim] = drawn.y.order[row];
  return choice;
}

function cellOf(measure, choice) {
  const lanes = lanesOf(choice, data.shape);
  const values = unpack(measure.values);
  const here = lanes.filter(hasRun).map((lane) => values[lane]);
  const valid = here.filter((v) => (measure.categories ? v >= 0 : !Number.isNaN(v)));
  const value = measure.categories ? mode(valid) : median(valid);
  const known = valid.length > 0;
  let words = "unknown";
  if (here.length === 0) words = "has not run";
  else if (known) words = measure.categories ? measure.categories[value].label : short(value);
  if (known && lanes.length > 1) {
    const share = `${valid.filter((v) => v === value).length} of ${valid.length}`;
    words += measure.categories ? ` (${share} runs)` : ` (median of ${valid.length} runs)`;
  }
  const failed = lanes.filter(hasFailed).length;
  if (failed) words += `, ${failed} failed`;
  if (here.length && here.length < lanes.length) words += `, ${lanes.length - here.length} not run`;
  const sign = here.length === 0 ? "·" : !known ? "×" : Number.isFinite(value) ? "" : "∞";
  return { value, words, sign, partial: known && valid.length < lanes.length };
}

// The height drawn for a value; null if it has none.
function heightOf(value, measure) {
  if (measure.categories) return value < 0 ? null : value;
  if (!Number.isFinite(value) || (view.log && value <= 0)) return null;
  return view.log ? Math.log10(value) : value;
}

function drawMap() {
  const measure = data.measures[view.measure];
  drawn = { x: axisOf(coordinate(view.x)), y: axisOf(coordinate(view.y)) };
  drawn.cells = perCell((row, column) => cellOf(measure, choiceAt(row, column)));
  const heights = drawn.cells.map((line) => line.map((c) => heightOf(c.value, measure)));
  const map = {
    type: "heatmap", x: drawn.x.edges, y: drawn.y.edges, z: heights, xgap: 1, ygap: 1, hoverinfo: "text", hoverongaps: true,
    text: perCell((row, column) => `${safe(describe(choiceAt(row, column)))}<br>${safe(drawn.cells[row][column].words)}`),
    ...(measure.categories ? steps(measure.categories) : gradual(measure, heights.flat())),
  };
  const marks = signs(heights);
  const lines = view.theory ? boundaries() : [];
  const traces = [map, marks, ...lines, discs()];
  drawn.discs = traces.length - 1;
  // No double clicks: two fast clicks pin two cells.
  Plotly.react("map", traces, mapLayout(measure), { ...CONFIG, doubleClick: false, doubleClickDelay: 1 });
  explain(measure, marks, lines);
  sayCell();
  drawCurves();
}

// Signs on the cells that have no color, which say why.
function signs(heights) {
  const found = { type: "scatter", mode: "text", x: [], y: [], text: [], hoverinfo: "skip", showlegend: false };
  perCell((row, column) => {
    const text = drawn.cells[row][column].sign || (heights[row][column] === null ? "≤0" : "");
    if (text) push(found, { x: drawn.x.positions[column], y: drawn.y.positions[row], text });
  });
  return found;
}

function push(lists, entry) {
  for (const [key, value] of Object.entries(entry)) lists[key].push(value);
}

// The legend, and the meaning of the signs.
function explain(measure, marks, lines) {
  const cells = drawn.cells.flat();
  const present = new Set(cells.map((c) => c.value));
  const patches = (measure.categories || []).filter((_, i) => present.has(i)).map((c) => [c.label, "patch", { background: c.color }]);
  const strokes = lines.filter((trace) => trace.name).map((trace) => [trace.name, "line", { borderTopStyle: DASHED[trace.line.dash] }]);
  drawLegend("map-legend", [...patches, ...strokes]);
  const meaning = { "·": "· has not run.", "×": "× failed or unknown.", "∞": "∞ never, or infinite.", "≤0": "≤0 not on a logarithm." };
  const partial = cells.filter((c) => c.partial).length;
  const remarks = partial ? [`In ${partial} ${partial > 1 ? "cells" : "cell"} only some of the runs have a value; those decide.`] : [];
  element("map-marks").textContent = [...new Set(marks.text)].map((mark) => meaning[mark]).concat(remarks).join(" ");
}

function mapLayout(measure) {
  const axis = (a) => ({
    title: { text: a.title }, tickvals: a.ticks, ticktext: a.words, range: [a.edges[0], a.edges[a.edges.length - 1]],
    zeroline: false, showgrid: false, automargin: true, ticks: a.title ? "outside" : "", fixedrange: !DRAG,
  });
  return {
    font: FONT, margin: { l: 60, r: 12, t: measure.categories ? 32 : 116, b: 56 }, dragmode: DRAG, hovermode: "closest", showlegend: false, plot_bgcolor: "#fff",
    // Beside a color bar, Plotly would put a short title between two labels.
    xaxis: { ...axis(drawn.x), title: { text: drawn.x.title, ...(measure.categories ? {} : { standoff: 40 }) } }, yaxis: axis(drawn.y), hoverlabel: { align: "left", bgcolor: "#fff", font: FONT },
    uirevision: `${view.x} ${view.y}`,
  };
}

function steps(categories) {
  const n = categories.length;
  const colorscale = categories.flatMap((c, i) => [[i / n, c.color], [(i + 1) / n, c.color]]);
  return { zmin: -0.5, zmax: n - 0.5, colorscale, showscale: false };
}

function gradual(measure, heights) {
  const known = heights.filter((v) => v !== null);
  const [low, high] = known.length ? extent(known) : [0, 1];
  const bar = { orientation: "h", thickness: 12, len: 0.92, x: 0.5, xanchor: "center", y: 1, yanchor: "bottom", ticklabeloverflow: "allow", title: { text: safe(measure.label), side: "top" } };
  if (view.log) {
    const whole = indices(Math.max(0, Math.floor(high) - Math.ceil(low) + 1)).map((i) => Math.ceil(low) + i);
    bar.tickvals = whole.length > 2 ? thin(whole, 7) : low < high ? [low, (low + high) / 2, high] : [low];
    bar.ticktext = bar.tickvals.map((v) => short(10 ** v));
  } else bar.nticks = 6;
  return { zmin: low, zmax: high > low ? high : low + 1, colorscale: "Viridis", colorbar: bar };
}

// Discs on the pinned cells, with their numbers, and on the current one.
function discs() {
  const found = { x: [], y: [], text: [], size: [] };
  const add = (row, column, text, size) => push(found, { x: drawn.x.positions[column], y: drawn.y.positions[row], text, size });
  const numbers = new Map(pins.map((choice, i) => [choice.join(), i + 1]));
  // A cell that is both gets a ring. Its text is a space, since Plotly drops all points after an empty text.
  if (cursor && marked) add(...cursor, " ", numbers.has(choiceAt(...cursor).join()) ? 26 : 8);
  perCell((row, column) => {
    const number = numbers.get(choiceAt(row, column).join());
    if (number) add(row, column, `<b>${number}</b>`, 18);
  });
  return {
    type: "scatter", mode: "markers+text", x: found.x, y: found.y, text: found.text, hoverinfo: "skip", showlegend: false,
    marker: { size: found.size, color: "#fff", opacity: 1, line: { width: 2, color: INK } }, textfont: { color: INK, size: 11 },
  };
}

function sayCell() {
  const words = ([row, column]) => `${describe(choiceAt(row, column))}: ${data.measures[view.measure].label} ${drawn.cells[row][column].words}`;
  element("map-status").textContent = cursor ? words(cursor) : "";
}

function look(row, column, mark) {
  const before = marked;
  [cursor, marked] = [[row, column], mark];
  sayCell();
  if (before || mark) redraw();
  else drawCurves(); // faster
}

function redraw() {
  const { x, y, text, marker } = discs();
  Plotly.restyle("map", { x: [x], y: [y], text: [text], "marker.size": [marker.size] }, [drawn.discs]);
  drawCurves();
}

function pin(row, column) {
  const choice = choiceAt(row, column);
  const at = pins.findIndex((other) => other.join() === choice.join());
  if (at >= 0) pins.splice(at, 1);
  else pins.push(choice);
  redraw();
}

function press(event) {
  const rows = drawn.y.order.length;
  const columns = drawn.x.order.length;
  const [row, column] = cursor || [0, 0];
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] };
  const move = moves[event.key];
  if (move && cursor) look(Math.min(rows - 1, Math.max(0, row + move[0])), Math.min(columns - 1, Math.max(0, column + move[1])), true);
  else if (move) look(0, 0, true);
  else if ((event.key === "Enter" || event.key === " ") && cursor) pin(row, column);
  else if (event.key === "Escape") {
    pins.length = 0;
    redraw();
  } else return;
  event.preventDefault();
}

// Menus for the remaining axes, each with the median over the axis as an option.
function drawRest() {
  for (const box of document.querySelectorAll("#map-controls .rest")) box.remove();
  data.dims.forEach((dim, k) => {
    if (data.shape[k] < 2 || k === coordinate(view.x).dim || k === coordinate(view.y).dim) return;
    const members = coords.filter((c) => c.dim === k);
    const words = (i) => members.map((c) => (members.length > 1 ? `${c.name} ${c.labels[i]}` : c.labels[i])).join(", ");
    const options = [["", "median over all"], ...indices(data.shape[k]).map((i) => [i, words(i)])];
    const input = menu("map-controls", `rest-${k}`, dim, options, view.rest[k] ?? "", (value) => {
      view.rest[k] = value === "" ? null : Number(value);
      drawMap();
    });
    input.parentElement.classList.add("rest");
  });
}

function chooseAxis(which, other, value) {
  const before = view[which];
  view[which] = Number(value);
  // If both now show the same dimension, they swap axes.
  if (coordinate(view.x).dim === coordinate(view.y).dim) view[other] = before;
  if (coordinate(view.x).dim === coordinate(view.y).dim) view[other] = coords.findIndex((c) => c.dim !== coordinate(view[which]).dim);
  element("map-x").value = view.x;
  if (element("map-y")) element("map-y").value = view.y;
  cursor = null;
  drawRest();
  drawMap();
}

function chooseMeasure(value) {
  view.measure = Number(value);
  const measure = data.measures[view.measure];
  const known = measure.categories ? [] : Array.from(unpack(measure.values)).filter(Number.isFinite);
  const [positive, high] = extent(known.filter((v) => v > 0));
  view.log = known.every((v) => v >= 0) && high / positive > 100;
  element("map-log").checked = view.log;
  element("map-log").disabled = Boolean(measure.categories);
  drawMap();
}

function startMap() {
  menu("map-controls", "map-measure", "color", names(data.measures), 0, chooseMeasure);
  menu("map-controls", "map-x", "across", names(coords), view.x, (value) => chooseAxis("x", "y", value));
  if (view.y >= 0) menu("map-controls", "map-y", "up", names(coords), view.y, (value) => chooseAxis("y", "x", value));
  tick("map-controls", "map-log", "log color", false, (on) => { view.log = on; drawMap(); });
  if (data.theory) tick("map-controls", "map-theory", "theory’s boundaries", true, (on) => { view.theory = on; drawMap(); });
  drawRest();
  chooseMeasure(0);
  const map = element("map");
  const cell = (event) => event.points.find((p) => p.data.type === "heatmap").pointIndex;
  map.on("plotly_hover", (event) => look(...cell(event), false));
  map.on("plotly_click", (event) => pin(...cell(event)));
  map.addEventListener("keydown", press);
}
