// Shared by the other files: the data of the page, text, lists, and the lanes of a cell.

const data = JSON.parse(document.getElementById("data").textContent);
const coords = data.coords;
const curves = data.curves;

const element = (id) => document.getElementById(id);
// Names may contain anything: the page gets them as text, and Plotly escaped by this.
const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const names = (list) => list.map((item, i) => [i, item.name]);
const indices = (size) => Array.from({ length: size }, (_, i) => i);
const extent = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);

function short(v) {
  if (!Number.isFinite(v)) return Number.isNaN(v) ? "–" : v > 0 ? "∞" : "−∞";
  const plain = v === 0 || (Math.abs(v) >= 1e-3 && Math.abs(v) < 1e5);
  return plain ? String(Number(v.toPrecision(3))) : v.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
}

// `thin` takes every k-th entry; `sample` takes `most` entries, irregularly, so as not to alias with a periodic list.
function thin(list, most) {
  const step = Math.max(1, Math.ceil(list.length / most));
  return list.filter((_, i) => i % step === 0);
}

function sample(list, most) {
  if (list.length <= most) return list;
  const order = indices(list.length).map((i) => [(i * 0.6180339887) % 1, i]).sort(([a], [b]) => a - b);
  return order.slice(0, most).map(([, i]) => i).sort((a, b) => a - b).map((i) => list[i]);
}

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

function median(values) {
  const sorted = values.filter((v) => !Number.isNaN(v)).sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  if (sorted.length === 0) return NaN;
  const [low, high] = [sorted[sorted.length % 2 ? middle : middle - 1], sorted[middle]];
  return low === high ? high : (low + high) / 2;
}

// The most common category of some lanes, the first one in a tie; -1 if no lane has one.
function mode(values) {
  const counts = new Map();
  for (const v of values) if (v >= 0) counts.set(v, (counts.get(v) || 0) + 1);
  return [...counts].reduce((best, [v, n]) => (n > best[1] || (n === best[1] && v < best[0]) ? [v, n] : best), [-1, 0])[0];
}

const result = unpack(data.result);
const hasRun = (lane) => result[lane] >= 0;
const hasFailed = (lane) => result[lane] >= data.fine;

// A choice holds an index for each dimension, or null for all indices.
function lanesOf(choice, shape) {
  return shape.reduce(
    (lanes, size, k) => {
      const along = choice[k] === null ? indices(size) : [choice[k]];
      return lanes.flatMap((lane) => along.map((i) => lane * size + i));
    },
    [0],
  );
}

const strides = data.shape.map((_, k) => data.shape.slice(k + 1).reduce((a, b) => a * b, 1));
const choiceOf = (lane) => data.shape.map((size, k) => Math.floor(lane / strides[k]) % size);

function describe(choice) {
  const parts = coords.filter((c) => choice[c.dim] !== null).map((c) => `${c.name} = ${c.labels[choice[c.dim]]}`);
  const over = data.dims.filter((_, k) => choice[k] === null && data.shape[k] > 1);
  return parts.concat(over.map((dim) => `all ${dim}`)).join(", ");
}
