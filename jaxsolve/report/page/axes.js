// The axes of the map.

const SINGLE = { name: "", dim: -1, labels: [""], numbers: null }; // the second axis if there is only one
const coordinate = (i) => (i < 0 ? SINGLE : coords[i]);

function evenness(at) {
  const steps = at.slice(1).map((v, i) => v - at[i]);
  return Math.max(...steps) / Math.min(...steps);
}

// The positions of a coordinate's values: logarithmic if that spaces them more evenly; text is spaced evenly.
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

// The two longest axes, in the order of the grid; repetitions come last.
function firstAxes(repeated) {
  const length = (i) => (repeated[coords[i].dim] ? 0 : data.shape[coords[i].dim]);
  const long = indices(coords.length).sort((a, b) => length(b) - length(a));
  const second = long.find((i) => coords[i].dim !== coords[long[0]].dim);
  if (second === undefined) return [long[0], -1];
  return length(second) ? [long[0], second].sort((a, b) => a - b) : [long[0], second];
}
