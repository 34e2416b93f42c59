// Menus, switches and legends.

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
