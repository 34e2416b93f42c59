// Draws the curves that explorer-data.js holds, at the settings of four sliders.
"use strict";
{
  const { axes, times, regimes, regime } = EXPLORER;
  const curves = [
    { name: "loss", label: "training loss", log: true },
    { name: "layer_alignment", label: "alignment of the layers", range: [-1, 1] },
    { name: "kernel_change", label: "change of the kernel |K - K0| / |K0|", log: true, limit: 0.1 },
  ];
  const said = { sigma: "initial scale \u03c3", eta: "learning rate \u03b7", gamma: "output scale \u03b3", width: "width" };
  const names = Object.keys(axes);
  const at = Object.fromEntries(names.map((name) => [name, Math.floor(axes[name].length / 2)]));
  const cell = () => names.reduce((index, name) => index * axes[name].length + at[name], 0);
  const svg = (tag, attributes, text = "") => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  };
  // The plane of a curve: 0.01 to 100 in time, and its own range.
  const box = { left: 46, right: 300, top: 8, bottom: 150 };
  const across = (t) => box.left + ((Math.log10(t) + 2) / 4) * (box.right - box.left);

  function draw() {
    const index = cell();
    const label = regimes[regime[index]];
    document.getElementById("explorer-regime").textContent = `Regime: ${label}`;
    document.getElementById("explorer-curves").replaceChildren(
      ...curves.map(({ name, label, log, range, limit }) => {
        const values = EXPLORER[name].slice(index * times.length, (index + 1) * times.length);
        const [low, high] = range ?? [-4, 1];
        const height = (value) => {
          const place = log ? Math.log10(value) : value;
          return box.bottom - ((place - low) / (high - low)) * (box.bottom - box.top);
        };
        const picture = svg("svg", { viewBox: "0 0 310 190", role: "img", "aria-label": `${label} over time` });
        const { left, right, top, bottom } = box;
        picture.append(svg("path", { d: `M${left} ${top}V${bottom}H${right}`, class: "axis" }));
        for (const power of [-2, -1, 0, 1, 2]) {
          picture.append(svg("text", { x: across(10 ** power), y: bottom + 14, "text-anchor": "middle" }, `${10 ** power}`));
        }
        for (const tick of log ? [-4, -2, 0] : [-1, 0, 1]) {
          const y = height(log ? 10 ** tick : tick) + 4;
          picture.append(svg("text", { x: left - 5, y, "text-anchor": "end" }, log ? `${10 ** tick}` : `${tick}`));
        }
        picture.append(svg("text", { x: (left + right) / 2, y: bottom + 32, "text-anchor": "middle" }, "time t"));
        if (limit) picture.append(svg("path", { d: `M${left} ${height(limit)}H${right}`, class: "limit" }));
        // What lies outside of the plane is left out, not drawn along its border.
        const seen = times.map((t, i) => [across(t), height(values[i])]).filter(([x, y]) => x >= left && y <= bottom && y >= top);
        const points = seen.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`);
        picture.append(svg("path", { d: `M${points.join("L")}`, class: "curve" }));
        const figure = document.createElement("figure");
        const caption = document.createElement("figcaption");
        caption.textContent = label;
        figure.append(caption, picture);
        return figure;
      }),
    );
  }

  for (const name of names) {
    const row = document.createElement("label");
    const slider = document.createElement("input");
    const value = document.createElement("output");
    Object.assign(slider, { type: "range", name, min: 0, max: axes[name].length - 1, step: 1, value: at[name] });
    value.textContent = axes[name][at[name]];
    slider.addEventListener("input", () => {
      at[name] = Number(slider.value);
      value.textContent = axes[name][at[name]];
      slider.setAttribute("aria-valuetext", value.textContent);
      draw();
    });
    row.append(`${said[name]} `, slider, value);
    document.getElementById("explorer-settings").append(row);
  }
  draw();
}
