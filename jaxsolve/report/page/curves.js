// The trajectories of the cell under the cursor and of the pinned cells.

const MAX_LANES = 64; // drawn for one cell
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const panel = { curve: 0, x: true, y: true };
const colorOf = (i) => data.colors[i % data.colors.length];

// The cell shown before one is chosen: the first with a run that did not fail.
function firstCell() {
  const cells = drawn.y.order.flatMap((_, row) => drawn.x.order.map((_, column) => choiceAt(row, column)));
  return cells.find((choice) => lanesOf(choice, data.shape).some((lane) => hasRun(lane) && !hasFailed(lane)));
}

function drawCurves() {
  if (!curves.length) return;
  const curve = curves[panel.curve];
  const shown = pins.map((choice, i) => ({ choice, name: String(i + 1), line: { width: 2, color: colorOf(i), dash: DASHES[i % DASHES.length] } }));
  const grey = cursor ? choiceAt(...cursor) : shown.length ? undefined : firstCell();
  if (grey) shown.push({ choice: grey, name: "cell looked at", line: { width: 1, color: "#595959", dash: "solid" } });
  let [left, absent] = [0, 0];
  const traces = shown.map(({ choice, ...style }) => {
    const lanes = lanesOf(choice, data.shape);
    const ran = lanes.filter(hasRun);
    left += Math.max(0, ran.length - MAX_LANES);
    absent += lanes.length - ran.length;
    return { ...line(curve, sample(ran, MAX_LANES), panel.x), ...style, ...hovered("t") };
  });
  Plotly.react("curves", traces, figure(TIME, safe(curve.label), panel.x, panel.y), CONFIG);
  const words = [];
  if (!cursor && !pins.length) words.push("No cell is chosen yet.");
  if (grey) words.push(`Grey: ${describe(grey)}.`);
  if (left) words.push(`${left} more runs are not drawn.`);
  if (absent) words.push(`${absent} runs are still to come.`);
  element("curves-status").textContent = words.join(" ");
  listPins();
}

function listPins() {
  element("pins").replaceChildren(...pins.map((choice, i) => {
    const [item, number, words, button] = ["li", "span", "span", "button"].map((tag) => document.createElement(tag));
    number.className = "number";
    number.style.background = colorOf(i);
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
