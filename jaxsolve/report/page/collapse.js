// All curves, or final values, over a product of powers.

const MAX_CURVES = 300;
const MAX_POINTS = 5000;
const MAX_LEGEND = 12;
const numeric = indices(coords.length).filter((i) => coords[i].numbers && data.shape[coords[i].dim] > 1);
// Curves over time need two positive times for a logarithmic axis; otherwise, final values are drawn over one axis.
const timed = curves.length > 0 && data.times.filter((t) => t > 0).length > 1;
const collapse = {
  base: timed ? "t" : "1", y: 0, group: view.x, x: true, logY: true, powers: coords.map((_, i) => (!timed && i === numeric[0] ? 1 : 0)),
};
const collapsible = () => (collapse.base === "t" ? curves : data.measures.filter((m) => !m.categories));

function factorOf(lane) {
  const choice = choiceOf(lane);
  const powers = numeric.filter((i) => collapse.powers[i]);
  return powers.reduce((product, i) => product * coords[i].numbers[choice[coords[i].dim]] ** collapse.powers[i], 1);
}

function drawCollapse() {
  const overTime = collapse.base === "t";
  const item = collapsible()[collapse.y];
  const group = coords[collapse.group];
  const ran = indices(result.length).filter(hasRun);
  const lanes = sample(ran, overTime ? MAX_CURVES : MAX_POINTS);
  const few = group.labels.length < data.colors.length;
  const colors = group.labels.map((_, k) => (few ? data.colors[k] : viridis(k / (group.labels.length - 1))));
  const traces = colors.map((color, k) => {
    const here = lanes.filter((lane) => choiceOf(lane)[group.dim] === k);
    if (overTime) return { ...line(item, here, collapse.x, factorOf), ...hovered("x"), line: { color, width: 1 } };
    const values = unpack(item.values);
    return {
      type: "scatter", mode: "markers", x: here.map(factorOf), y: here.map((lane) => (Number.isFinite(values[lane]) ? values[lane] : null)),
      text: here.map((lane) => safe(describe(choiceOf(lane)))), ...hovered("x"), marker: { color, size: 6, opacity: 0.8, symbol: k % 8 },
    };
  });
  const powers = numeric.filter((i) => collapse.powers[i]).map((i) => safe(coords[i].name) + (collapse.powers[i] === 1 ? "" : `<sup>${collapse.powers[i]}</sup>`));
  const alone = overTime ? TIME : "1 (choose powers of the axes)";
  const product = powers.length ? [...(overTime ? ["t"] : []), ...powers].join(" · ") : alone;
  Plotly.react("collapse", traces, figure(product, safe(item.label), collapse.x, collapse.logY), CONFIG);
  const entries = group.labels.map((label, k) => [`${group.name} = ${label}`, "line", { borderTopColor: colors[k] }]);
  drawLegend("collapse-legend", thin(entries, MAX_LEGEND));
  const fits = (v, log) => v !== null && (!log || v > 0);
  const seen = traces.some(({ x, y }) => x.some((at, i) => fits(at, collapse.x) && fits(y[i], collapse.logY)));
  const count = lanes.length < ran.length ? `${lanes.length} of ${ran.length} runs are drawn.` : `${ran.length} runs are drawn.`;
  element("collapse-status").textContent = seen ? count : "Nothing can be drawn on these axes.";
}

function startCollapse() {
  if (!collapsible().length) {
    element("collapse-status").textContent = "There are no numbers to draw.";
    element("collapse").hidden = true;
    return;
  }
  const choose = (value) => {
    collapse.y = value;
    collapse.logY = element("collapse-y").checked = fitsLog(collapsible()[value]);
    drawCollapse();
  };
  const bases = [["t", "time t"], ["1", "nothing but the axes"]].slice(curves.length ? 0 : 1);
  menu("collapse-controls", "collapse-base", "multiply", bases, collapse.base, (value) => {
    collapse.base = value;
    element("collapse-name").replaceChildren(...names(collapsible()).map(([i, words]) => new Option(words, i)));
    choose(0);
  });
  for (const i of numeric) {
    const input = document.createElement("input");
    Object.assign(input, { type: "number", step: "any", value: String(collapse.powers[i]) });
    input.addEventListener("input", () => {
      collapse.powers[i] = Number.isFinite(input.valueAsNumber) ? input.valueAsNumber : 0;
      drawCollapse();
    });
    control("collapse-controls", `power-${i}`, `power of ${coords[i].name}`, input);
  }
  menu("collapse-controls", "collapse-name", "observable", names(collapsible()), 0, (value) => choose(Number(value)));
  menu("collapse-controls", "collapse-group", "color by", names(coords), collapse.group, (value) => { collapse.group = Number(value); drawCollapse(); });
  tick("collapse-controls", "collapse-x", "log x", true, (on) => { collapse.x = on; drawCollapse(); });
  tick("collapse-controls", "collapse-y", "log y", true, (on) => { collapse.logY = on; drawCollapse(); });
  choose(0);
}
