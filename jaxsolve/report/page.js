"use strict";
// Draws the figures of a report from the JSON that jaxsolve.report._content writes. Names may hold anything: they reach
// the page as text, and Plotly through `safe`.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const MAX_LANES = 64; // trajectories drawn of one cell
  const MAX_CURVES = 300; // in the collapse plot
  const MAX_POINTS = 5000; // there, without time
  const STROKES = { solid: "solid", dash: "dashed", dot: "dotted" }; // Plotly's names for lines, and those of CSS
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
  const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b"];
  const INK = "#1a1a1a";
  const FONT = { family: 'system-ui, "Segoe UI", "DejaVu Sans", sans-serif', size: 13, color: INK };
  const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  const DRAG = window.innerWidth < 800 ? false : "zoom"; // dragging scrolls a narrow page

  const element = (id) => document.getElementById(id);
  const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const indices = (size) => Array.from({ length: size }, (_, i) => i);
  const extent = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  function short(v) {
    if (!Number.isFinite(v)) return Number.isNaN(v) ? "–" : v > 0 ? "∞" : "−∞";
    const plain = v === 0 || (Math.abs(v) >= 1e-3 && Math.abs(v) < 1e5);
    return plain ? String(Number(v.toPrecision(3))) : v.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  // `thin` takes every second entry, or third ...; `sample` so many of them, in step with nothing that repeats in the list.
  const thin = (list, most) => {
    const step = Math.max(1, Math.ceil(list.length / most));
    return list.filter((_, i) => i % step === 0);
  };
  function sample(list, most) {
    if (list.length <= most) return list;
    const order = indices(list.length).map((i) => [(i * 0.6180339887) % 1, i]).sort(([a], [b]) => a - b);
    return order.slice(0, most).map(([, i]) => i).sort((a, b) => a - b).map((i) => list[i]);
  }

  // ---- numbers

  const unpacked = new Map();
  function unpack(packed) {
    if (!unpacked.has(packed)) {
      const text = atob(packed.base64);
      const bytes = new Uint8Array(text.length);
      for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
      const kinds = { f4: Float32Array, f8: Float64Array, i1: Int8Array };
      unpacked.set(packed, new kinds[packed.type](bytes.buffer));
    }
    return unpacked.get(packed);
  }

  const result = unpack(data.result);
  const hasRun = (lane) => result[lane] >= 0;
  const hasFailed = (lane) => result[lane] >= data.fine;

  // A choice holds an index for each dimension, or null for all along it.
  function lanesOf(choice, shape) {
    return shape.reduce(
      (lanes, size, k) => {
        const along = choice[k] === null ? indices(size) : [choice[k]];
        return lanes.flatMap((lane) => along.map((i) => lane * size + i));
      },
      [0],
    );
  }

  function median(values) {
    const sorted = values.filter((v) => !Number.isNaN(v)).sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    if (sorted.length === 0) return NaN;
    const [low, high] = [sorted[sorted.length % 2 ? middle : middle - 1], sorted[middle]];
    return low === high ? high : (low + high) / 2;
  }

  // The most common category of some lanes, the first of those in a tie; -1 if none has any.
  function mode(values) {
    const counts = new Map();
    for (const v of values) if (v >= 0) counts.set(v, (counts.get(v) || 0) + 1);
    return [...counts].reduce((best, [v, n]) => (n > best[1] || (n === best[1] && v < best[0]) ? [v, n] : best), [-1, 0])[0];
  }

  // ---- controls

  function control(parent, id, label, input) {
    const box = document.createElement("label");
    const words = document.createElement("span");
    words.textContent = label;
    input.id = id;
    if (input.type === "checkbox") box.className = "switch";
    box.append(...(input.type === "checkbox" ? [input, words] : [words, input]));
    element(parent).append(box);
    return input;
  }

  function menu(parent, id, label, options, chosen, change) {
    const input = document.createElement("select");
    for (const [value, words] of options) input.append(new Option(words, value, false, String(value) === String(chosen)));
    input.addEventListener("change", () => change(input.value));
    return control(parent, id, label, input);
  }

  function tick(parent, id, label, chosen, change) {
    const input = document.createElement("input");
    input.type = "checkbox";
    input.checked = chosen;
    input.addEventListener("change", () => change(input.checked));
    return control(parent, id, label, input);
  }

  // Entries are a label, a class and a style of what it stands for.
  function drawLegend(id, entries) {
    element(id).replaceChildren(...entries.map(([label, kind, style]) => {
      const item = document.createElement("li");
      const mark = document.createElement("span");
      mark.className = kind;
      Object.assign(mark.style, style);
      item.append(mark, label);
      return item;
    }));
  }

  // ---- axes of the map

  const coords = data.coords;
  const SINGLE = { name: "", dim: -1, labels: [""], numbers: null }; // stands for the second axis where there is one only

  function evenness(at) {
    const steps = at.slice(1).map((v, i) => v - at[i]);
    return Math.max(...steps) / Math.min(...steps);
  }

  // Where the values of a coordinate lie: on a logarithm where that spaces them more evenly; text in a row.
  function placing(coordinate) {
    const values = coordinate.numbers;
    const row = { at: (i) => i, order: indices(coordinate.labels.length) };
    if (!values || new Set(values).size < values.length) return row;
    const order = indices(values.length).sort((a, b) => values[a] - values[b]);
    const sorted = order.map((i) => values[i]);
    const log = sorted[0] > 0 && evenness(sorted.map(Math.log10)) < evenness(sorted);
    return { at: log ? (i) => Math.log10(values[i]) : (i) => values[i], order, of: log ? Math.log10 : (v) => v };
  }

  function axisOf(coordinate) {
    const place = placing(coordinate);
    const at = place.order.map(place.at);
    const last = at.length - 1;
    const half = last ? null : 0.5;
    const edges = at.slice(1).map((v, i) => (v + at[i]) / 2);
    edges.unshift(at[0] - (half ?? (at[1] - at[0]) / 2));
    edges.push(at[last] + (half ?? (at[last] - at[last - 1]) / 2));
    const shown = thin(indices(at.length), 7);
    const ticks = shown.map((i) => at[i]);
    const words = shown.map((i) => safe(coordinate.labels[place.order[i]]));
    return { ...place, positions: at, edges, ticks, words, title: safe(coordinate.name) };
  }

  // ---- the phase map

  const names = (list) => list.map((item, i) => [i, item.name]);
  const pins = [];
  // Seeds are repetitions: the median over them is the first thing to look at.
  const rest = data.dims.map((dim) => (/seed/i.test(dim) ? null : 0));
  const [x0, y0] = firstAxes();
  const view = { x: x0, y: y0, measure: 0, rest, log: false, theory: true };
  let cursor = null; // row and column of the cell looked at
  let marked = false; // whether it has a disc: the mouse marks its cell itself
  let drawn = null; // what the map shows

  // The two longest axes that are no repetitions, in the order of the grid.
  function firstAxes() {
    const length = (i) => (rest[coords[i].dim] === null ? 0 : data.shape[coords[i].dim]);
    const long = indices(coords.length).sort((a, b) => length(b) - length(a));
    const second = long.find((i) => coords[i].dim !== coords[long[0]].dim);
    return second === undefined ? [long[0], -1] : [long[0], second].sort((a, b) => a - b);
  }

  const coordinate = (i) => (i < 0 ? SINGLE : coords[i]);

  function choiceAt(row, column) {
    const choice = [...view.rest];
    choice[coordinate(view.x).dim] = drawn.x.order[column];
    if (view.y >= 0) choice[coordinate(view.y).dim] = drawn.y.order[row];
    return choice;
  }

  function describe(choice) {
    const parts = coords.filter((c) => choice[c.dim] !== null).map((c) => `${c.name} = ${c.labels[choice[c.dim]]}`);
    const over = data.dims.filter((_, k) => choice[k] === null && data.shape[k] > 1);
    return parts.concat(over.map((dim) => `all ${dim}`)).join(", ");
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
    const mark = here.length === 0 ? "·" : !known ? "×" : Number.isFinite(value) ? "" : "∞";
    return { value, words, mark, partial: known && valid.length < lanes.length };
  }

  function drawMap() {
    const measure = data.measures[view.measure];
    drawn = { x: axisOf(coordinate(view.x)), y: axisOf(coordinate(view.y)) };
    const cells = drawn.y.order.map((_, row) => drawn.x.order.map((_, column) => cellOf(measure, choiceAt(row, column))));
    drawn.cells = cells;
    const all = cells.flat();
    const usable = (v) => Number.isFinite(v) && (!view.log || v > 0);
    const height = (c) => (measure.categories ? (c.value < 0 ? null : c.value) : !usable(c.value) ? null : view.log ? Math.log10(c.value) : c.value);
    const traces = [{
      type: "heatmap", x: drawn.x.edges, y: drawn.y.edges, z: cells.map((line) => line.map(height)), xgap: 1, ygap: 1,
      hoverinfo: "text", hoverongaps: true,
      text: cells.map((line, row) => line.map((c, column) => `${safe(describe(choiceAt(row, column)))}<br>${safe(c.words)}`)),
      ...(measure.categories ? steps(measure.categories) : gradual(measure, all.map(height))),
    }];
    const marks = { type: "scatter", mode: "text", x: [], y: [], text: [], hoverinfo: "skip", showlegend: false };
    cells.forEach((line, row) => line.forEach((c, column) => {
      const mark = c.mark || (height(c) === null ? "≤0" : "");
      if (mark) [marks.x, marks.y, marks.text].forEach((list, i) => list.push([drawn.x.positions[column], drawn.y.positions[row], mark][i]));
    }));
    const lines = view.theory ? boundaries() : [];
    traces.push(marks, ...lines, discs());
    drawn.discs = traces.length - 1;
    // Two clicks pin two cells, however fast they follow each other.
    Plotly.react("map", traces, mapLayout(measure), { ...CONFIG, doubleClick: false, doubleClickDelay: 1 });
    const present = new Set(all.map((c) => c.value));
    const patches = (measure.categories || []).filter((_, i) => present.has(i)).map((c) => [c.label, "patch", { background: c.colour }]);
    const strokes = lines.filter((trace) => trace.name).map((trace) => [trace.name, "line", { borderTopStyle: STROKES[trace.line.dash] }]);
    drawLegend("map-legend", [...patches, ...strokes]);
    const legend = { "·": "· has not run.", "×": "× failed or unknown.", "∞": "∞ never, or infinite.", "≤0": "≤0 not on a logarithm." };
    const partial = all.filter((c) => c.partial).length;
    const remarks = partial ? [`In ${partial} ${partial > 1 ? "cells" : "cell"} only some of the runs have a value; those decide.`] : [];
    element("map-marks").textContent = [...new Set(marks.text)].map((mark) => legend[mark]).concat(remarks).join(" ");
    sayCell();
    drawCurves();
  }

  function mapLayout(measure) {
    const axis = (a) => ({
      title: { text: a.title }, tickvals: a.ticks, ticktext: a.words, range: [a.edges[0], a.edges[a.edges.length - 1]],
      zeroline: false, showgrid: false, automargin: true, ticks: "outside", fixedrange: !DRAG,
    });
    return {
      font: FONT, margin: { l: 60, r: 12, t: measure.categories ? 32 : 84, b: 48 }, dragmode: DRAG, hovermode: "closest", showlegend: false, plot_bgcolor: "#fff",
      xaxis: axis(drawn.x), yaxis: axis(drawn.y), hoverlabel: { align: "left", bgcolor: "#fff", font: FONT },
      uirevision: `${view.x} ${view.y}`,
    };
  }

  function steps(categories) {
    const n = categories.length;
    const colorscale = categories.flatMap((c, i) => [[i / n, c.colour], [(i + 1) / n, c.colour]]);
    return { zmin: -0.5, zmax: n - 0.5, colorscale, showscale: false };
  }

  function gradual(measure, heights) {
    const known = heights.filter((v) => v !== null);
    const [low, high] = known.length ? extent(known) : [0, 1];
    const bar = { orientation: "h", thickness: 12, len: 1, x: 0, xanchor: "left", y: 1, yanchor: "bottom", title: { text: safe(measure.label), side: "top" } };
    if (view.log) {
      const whole = indices(Math.max(0, Math.floor(high) - Math.ceil(low) + 1)).map((i) => Math.ceil(low) + i);
      bar.tickvals = whole.length > 2 ? thin(whole, 7) : low < high ? [low, (low + high) / 2, high] : [low];
      bar.ticktext = bar.tickvals.map((v) => short(10 ** v));
    } else bar.nticks = 6;
    return { zmin: low, zmax: high > low ? high : low + 1, colorscale: "Viridis", colorbar: bar };
  }

  // Theory's boundaries, the zero levels of three functions, where it knows both axes.
  function boundaries() {
    const theory = data.theory;
    if (!theory || view.y < 0) return [];
    const [x, y] = [coordinate(view.x), coordinate(view.y)].map((c) => theoryAxis(theory, c));
    if (!x || !y) return [];
    const choice = theory.dims.map((dim) => {
      const chosen = view.rest[dim.of];
      return chosen === null ? null : dim.match[chosen];
    });
    if (choice.some((i, k) => i === -1 && k !== x.dim && k !== y.dim)) return [];
    const grid = (packed) => y.order.map((iy) => x.order.map((ix) => {
      choice[x.dim] = ix;
      choice[y.dim] = iy;
      return median(lanesOf(choice, theory.dims.map((dim) => dim.size)).map((lane) => unpack(packed)[lane]));
    }));
    const half = grid(theory.half);
    const [first, last] = data.window;
    const inside = (v) => v >= first && v <= last;
    const found = [
      ["theory: frozen", "dash", levels(half, last)],
      ["theory: unstable", "dot", levels(half, first)],
    ];
    if (theory.change) {
      const change = grid(theory.change).map((line, row) => line.map((v, column) => (inside(half[row][column]) ? v : NaN)));
      found.push(["theory: kernel | feature", "solid", levels(change, data.kernel_change)]);
    }
    const crosses = (level) => level.flat().some((v) => v !== null && v < 0) && level.flat().some((v) => v !== null && v >= 0);
    // Black on white, so that they stand out from any colour; only the black ones have names.
    const contour = (z, line, name) => ({
      type: "contour", x: x.at, y: y.at, z, name, showscale: false, hoverinfo: "skip", connectgaps: false,
      contours: { start: 0, end: 0, size: 1, coloring: "none" }, line: { ...line, smoothing: 0 },
    });
    return found.filter(([, , level]) => crosses(level)).flatMap(([name, dash, z]) => [
      contour(z, { color: "#fff", width: 5, dash: "solid" }, ""),
      contour(z, { color: "#000", width: 2.5, dash }, name),
    ]);
  }

  // By how many decades values lie above a limit. Of an infinite one nobody knows: the line shall pass half way between
  // it and the neighbour that lies deepest below.
  function levels(values, limit) {
    const clip = (v) => (Number.isNaN(v) ? null : Math.max(-2, Math.min(2, v)));
    const heights = values.map((line) => line.map((v) => clip(Math.log10(v / limit))));
    return heights.map((line, row) => line.map((v, column) => {
      if (values[row][column] !== Infinity) return v;
      const around = [[0, 1], [0, -1], [1, 0], [-1, 0]].map(([i, j]) => heights[row + i]?.[column + j] ?? 0);
      return Math.max(0.01, -Math.min(...around));
    }));
  }

  function theoryAxis(theory, coordinate) {
    const dim = theory.dims.findIndex((d) => d.of === coordinate.dim);
    const values = dim < 0 ? null : theory.dims[dim].numbers[coordinate.name];
    const place = placing(coordinate);
    if (!values || values.length < 2 || !place.of) return null;
    const order = indices(values.length).sort((a, b) => values[a] - values[b]);
    return { dim, order, at: order.map((i) => place.of(values[i])) };
  }

  // Discs on the cells that are pinned, with their number, and on the one looked at.
  function discs() {
    const found = { x: [], y: [], text: [], size: [] };
    const add = (row, column, text, size) => {
      const entry = { x: drawn.x.positions[column], y: drawn.y.positions[row], text, size };
      for (const key of Object.keys(found)) found[key].push(entry[key]);
    };
    const numbers = new Map(pins.map((choice, i) => [choice.join(), i + 1]));
    // A ring around a cell that is both. Plotly forgets the points after an empty text.
    if (cursor && marked) add(...cursor, " ", numbers.has(choiceAt(...cursor).join()) ? 26 : 8);
    drawn.y.order.forEach((_, row) => drawn.x.order.forEach((_, column) => {
      const number = numbers.get(choiceAt(row, column).join());
      if (number) add(row, column, `<b>${number}</b>`, 18);
    }));
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
    else drawCurves(); // quicker
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

  // Menus of the axes left over, each with the median over it.
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
    // The axis that is taken from the other one goes there.
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
    menu("map-controls", "map-measure", "colour", names(data.measures), 0, chooseMeasure);
    menu("map-controls", "map-x", "across", names(coords), view.x, (value) => chooseAxis("x", "y", value));
    if (view.y >= 0) menu("map-controls", "map-y", "up", names(coords), view.y, (value) => chooseAxis("y", "x", value));
    tick("map-controls", "map-log", "log colour", false, (on) => { view.log = on; drawMap(); });
    if (data.theory) tick("map-controls", "map-theory", "theory’s boundaries", true, (on) => { view.theory = on; drawMap(); });
    drawRest();
    chooseMeasure(0);
    const map = element("map");
    const cell = (event) => event.points.find((p) => p.data.type === "heatmap").pointIndex;
    map.on("plotly_hover", (event) => look(...cell(event), false));
    map.on("plotly_click", (event) => pin(...cell(event)));
    map.addEventListener("keydown", press);
  }

  // ---- trajectories

  const named = (item) => item.name.replace(/_/g, " ") + (item.unit === "1" || item.unit === item.name ? "" : ` [${item.unit}]`);
  const curves = data.curves;
  const panel = { curve: 0, x: true, y: true };
  const TIME = "time t [gradient-flow time]";
  const fitsLog = (item) => !unpack(item.values).some((v) => v < 0);

  // The curves of some lanes as one line with gaps, time multiplied by a factor of each lane. What a logarithm cannot
  // show of time shall not stretch the axis of the values.
  function line(curve, lanes, log, factor = () => 1) {
    const values = unpack(curve.values);
    const [x, y] = [[], []];
    for (const lane of lanes) {
      const by = factor(lane);
      data.times.forEach((t, i) => {
        const value = values[lane * data.times.length + i];
        if (log && t * by <= 0) return;
        x.push(t * by);
        y.push(Number.isFinite(value) ? value : null);
      });
      x.push(null);
      y.push(null);
    }
    return { type: "scatter", mode: data.times.length < 3 ? "lines+markers" : "lines", x, y };
  }

  function figure(xTitle, yTitle, xLog, yLog) {
    const axis = (title, log) => ({
      title: { text: title }, type: log ? "log" : "linear", exponentformat: "power", automargin: true, gridcolor: "#e6e6e6",
      zerolinecolor: "#b3b3b3", linecolor: INK, ticks: "outside", fixedrange: !DRAG, nticks: DRAG ? 7 : 4,
    });
    return {
      font: FONT, margin: { l: 60, r: 12, t: 32, b: 48 }, dragmode: DRAG, hovermode: "closest", showlegend: false,
      xaxis: axis(xTitle, xLog), yaxis: axis(yTitle, yLog), hoverlabel: { align: "left" },
    };
  }

  function drawCurves() {
    if (!curves.length) return;
    const curve = curves[panel.curve];
    const shown = pins.map((choice, i) => ({ choice, name: String(i + 1), width: 2, color: data.colours[i % data.colours.length], dash: DASHES[i % DASHES.length] }));
    if (cursor) shown.push({ choice: choiceAt(...cursor), name: "cell looked at", width: 1, color: "#595959", dash: "solid" });
    let [left, absent] = [0, 0];
    const traces = shown.map(({ choice, name, width, color, dash }) => {
      const lanes = lanesOf(choice, data.shape);
      const ran = lanes.filter(hasRun);
      left += Math.max(0, ran.length - MAX_LANES);
      absent += lanes.length - ran.length;
      const few = sample(ran, MAX_LANES);
      return { ...line(curve, few, panel.x), name, line: { width, color, dash }, hovertemplate: `${name}<br>t = %{x:.3g}<br>%{y:.3g}<extra></extra>` };
    });
    Plotly.react("curves", traces, figure(TIME, safe(named(curve)), panel.x, panel.y), CONFIG);
    const words = [];
    if (!shown.length) words.push("No cell is chosen yet.");
    if (cursor) words.push(`Grey: ${describe(choiceAt(...cursor))}.`);
    if (left) words.push(`${left} more runs are not drawn.`);
    if (absent) words.push(`${absent} runs are still to come.`);
    element("curves-status").textContent = words.join(" ");
    listPins();
  }

  function listPins() {
    element("pins").replaceChildren(...pins.map((choice, i) => {
      const [item, number, words, button] = ["li", "span", "span", "button"].map((tag) => document.createElement(tag));
      number.className = "number";
      number.style.background = data.colours[i % data.colours.length];
      number.textContent = i + 1;
      words.textContent = describe(choice);
      button.type = "button";
      button.textContent = "unpin";
      button.setAttribute("aria-label", `unpin ${i + 1}`);
      button.addEventListener("click", () => { pins.splice(i, 1); redraw(); });
      item.append(number, words, button);
      return item;
    }));
  }

  function startCurves() {
    if (!curves.length) {
      element("curves-status").textContent = "Nothing was observed over time.";
      element("curves").hidden = true;
      return;
    }
    menu("curves-controls", "curves-name", "observable", names(curves), 0, (value) => {
      panel.curve = Number(value);
      panel.y = element("curves-y").checked = fitsLog(curves[panel.curve]);
      drawCurves();
    });
    tick("curves-controls", "curves-x", "log time", true, (on) => { panel.x = on; drawCurves(); });
    panel.y = fitsLog(curves[0]);
    tick("curves-controls", "curves-y", "log values", panel.y, (on) => { panel.y = on; drawCurves(); });
  }

  // ---- collapse

  const collapse = { base: curves.length ? "t" : "1", y: 0, group: 0, x: true, logY: true, powers: coords.map(() => 0) };
  const numeric = indices(coords.length).filter((i) => coords[i].numbers && data.shape[coords[i].dim] > 1);
  const size = data.shape.reduce((a, b) => a * b, 1);
  const indexOf = (lane, dim) => Math.floor(lane / data.shape.slice(dim + 1).reduce((a, b) => a * b, 1)) % data.shape[dim];

  function factorOf(lane) {
    return numeric.reduce((product, i) => (collapse.powers[i] ? product * coords[i].numbers[indexOf(lane, coords[i].dim)] ** collapse.powers[i] : product), 1);
  }

  function viridis(share) {
    const at = Math.min(share * (VIRIDIS.length - 1), VIRIDIS.length - 1.001);
    const [low, high] = [VIRIDIS[Math.floor(at)], VIRIDIS[Math.floor(at) + 1]];
    const part = (hex, i) => parseInt(hex.slice(i, i + 2), 16);
    return `rgb(${[1, 3, 5].map((i) => Math.round(part(low, i) + (at % 1) * (part(high, i) - part(low, i)))).join()})`;
  }

  function drawCollapse() {
    const overTime = collapse.base === "t";
    const items = overTime ? curves : data.measures.filter((m) => !m.categories);
    const item = items[collapse.y];
    const group = coords[collapse.group];
    const ran = indices(size).filter(hasRun);
    const lanes = sample(ran, overTime ? MAX_CURVES : MAX_POINTS);
    const labels = group.labels;
    const colours = [];
    const traces = labels.map((label, k) => {
      const here = lanes.filter((lane) => indexOf(lane, group.dim) === k);
      const color = labels.length < data.colours.length ? data.colours[k] : viridis(k / (labels.length - 1));
      colours.push(color);
      const style = { name: `${safe(group.name)} = ${safe(label)}` };
      if (overTime) return { ...line(item, here, collapse.x, factorOf), ...style, line: { color, width: 1 }, hoverinfo: "name" };
      const values = unpack(item.values);
      const y = here.map((lane) => (Number.isFinite(values[lane]) ? values[lane] : null));
      return { type: "scatter", mode: "markers", x: here.map(factorOf), y, ...style, marker: { color, size: 6, opacity: 0.8, symbol: k % 8 }, hoverinfo: "name" };
    });
    const powers = numeric.filter((i) => collapse.powers[i]).map((i) => safe(coords[i].name) + (collapse.powers[i] === 1 ? "" : `<sup>${collapse.powers[i]}</sup>`));
    const product = [...(overTime ? ["t"] : []), ...powers].join(" · ") || "1 (choose powers of the axes)";
    const layout = figure(product, safe(overTime ? named(item) : item.label), collapse.x, collapse.logY);
    Plotly.react("collapse", traces, layout, CONFIG);
    const entries = labels.map((label, k) => [`${group.name} = ${label}`, "line", { borderTopColor: colours[k] }]);
    drawLegend("collapse-legend", thin(entries, 12));
    element("collapse-status").textContent = lanes.length < ran.length ? `${lanes.length} of ${ran.length} runs are drawn.` : `${ran.length} runs are drawn.`;
  }

  function startCollapse() {
    const items = () => (collapse.base === "t" ? curves : data.measures.filter((m) => !m.categories));
    const choose = (value) => {
      collapse.y = value;
      collapse.logY = element("collapse-y").checked = fitsLog(items()[value]);
      drawCollapse();
    };
    const bases = [["t", "time t"], ["1", "nothing but the axes"]].slice(curves.length ? 0 : 1);
    menu("collapse-controls", "collapse-base", "multiply", bases, collapse.base, (value) => {
      collapse.base = value;
      element("collapse-name").replaceChildren(...names(items()).map(([i, words]) => new Option(words, i)));
      choose(0);
    });
    for (const i of numeric) {
      const input = document.createElement("input");
      Object.assign(input, { type: "number", step: "any", value: "0" });
      input.addEventListener("input", () => {
        collapse.powers[i] = Number.isFinite(input.valueAsNumber) ? input.valueAsNumber : 0;
        drawCollapse();
      });
      control("collapse-controls", `power-${i}`, `power of ${coords[i].name}`, input);
    }
    menu("collapse-controls", "collapse-name", "observable", names(items()), 0, (value) => choose(Number(value)));
    menu("collapse-controls", "collapse-group", "colour by", names(coords), 0, (value) => { collapse.group = Number(value); drawCollapse(); });
    tick("collapse-controls", "collapse-x", "log x", true, (on) => { collapse.x = on; drawCollapse(); });
    tick("collapse-controls", "collapse-y", "log y", true, (on) => { collapse.logY = on; drawCollapse(); });
    choose(0);
  }

  startCurves();
  startMap();
  startCollapse();
  document.body.dataset.ready = "yes";
})();
