// Theory's boundaries between regimes.

const DASHED = { solid: "solid", dash: "dashed", dot: "dotted" }; // line styles in Plotly and in CSS

// The zero levels of three functions on the map, if theory has both of its axes.
function boundaries() {
  const theory = data.theory;
  if (!theory) return [];
  const x = theoryAxis(theory, coordinate(view.x));
  // With a single axis, values are the same at both edges of the map.
  const y = view.y < 0 ? { dim: -1, order: [0, 0], at: drawn.y.edges } : theoryAxis(theory, coordinate(view.y));
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
  // Black on white lines stand out from any color; only the black ones have names.
  const contour = (z, line, name) => ({
    type: "contour", x: x.at, y: y.at, z, name, showscale: false, hoverinfo: "skip", connectgaps: false,
    contours: { start: 0, end: 0, size: 1, coloring: "none" }, line: { ...line, smoothing: 0 },
  });
  return found.filter(([, , level]) => crosses(level)).flatMap(([name, dash, z]) => [
    contour(z, { color: "#fff", width: 5, dash: "solid" }, ""),
    contour(z, { color: "#000", width: 2.5, dash }, name),
  ]);
}

// How many decades values lie above a limit. For an infinite value this is unknown: the line passes halfway between it
// and its lowest neighbor.
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
