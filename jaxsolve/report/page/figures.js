// The style of figures, and the curves of lanes in them.

const INK = "#1a1a1a";
const FONT = { family: 'system-ui, "Segoe UI", "DejaVu Sans", sans-serif', size: 13, color: INK };
const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
const DRAG = window.innerWidth < 800 ? false : "zoom"; // on a narrow page, dragging must scroll
const TIME = "time t [gradient-flow time]";
const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b"];

function fitsLog(item) {
  const values = unpack(item.values);
  return values.some((v) => v > 0) && !values.some((v) => v < 0);
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

// The curves of some lanes as one line with gaps; each lane has a factor for time. A logarithmic axis drops times that
// are not positive, so that their values do not stretch the other axis.
function line(curve, lanes, log, factor = () => 1) {
  const values = unpack(curve.values);
  const saved = data.saved && unpack(data.saved); // by lane, if they differ from the requested times
  const count = data.times.length;
  const [x, y, text] = [[], [], []];
  for (const lane of lanes) {
    const [by, words] = [factor(lane), safe(describe(choiceOf(lane)))];
    const add = (time, value) => [x, y, text].forEach((list, i) => list.push([time, value, words][i]));
    data.times.forEach((asked, i) => {
      const [t, value] = [saved ? saved[lane * count + i] : asked, values[lane * count + i]];
      if (!log || t * by > 0) add(t * by, Number.isFinite(value) ? value : null);
    });
    add(null, null);
  }
  return { type: "scatter", mode: count < 3 ? "lines+markers" : "lines", x, y, text };
}

const hovered = (x) => ({ hovertemplate: `%{text}<br>${x} = %{x:.3g}<br>%{y:.3g}<extra></extra>` });

function viridis(share) {
  const at = Math.min(share * (VIRIDIS.length - 1), VIRIDIS.length - 1.001);
  const [low, high] = [VIRIDIS[Math.floor(at)], VIRIDIS[Math.floor(at) + 1]];
  const part = (hex, i) => parseInt(hex.slice(i, i + 2), 16);
  return `rgb(${[1, 3, 5].map((i) => Math.round(part(low, i) + (at % 1) * (part(high, i) - part(low, i)))).join()})`;
}
