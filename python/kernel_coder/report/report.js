"use strict";

// ---- charts: the values at the step under the pointer

function shown(value, unit) {
  if (unit === "share") return `${Number((100 * value).toPrecision(3))}%`;
  const size = Math.abs(value);
  let text = String(Number(value.toPrecision(3)));
  if (size >= 1000) text = Math.round(value).toLocaleString("en");
  if (size > 0 && size < 0.001) text = String(Number(value.toPrecision(3)).toExponential());
  return text + ({ seconds: " s", speedup: "x" }[unit] ?? "");
}

function nearest(steps, wanted) {
  let low = 0;
  let high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] < wanted) low = middle;
    else high = middle;
  }
  return Math.abs(steps[low] - wanted) <= Math.abs(steps[high] - wanted) ? low : high;
}

for (const svg of document.querySelectorAll("svg[data-chart]")) {
  const chart = JSON.parse(svg.dataset.chart);
  const readout = svg.closest("figure").querySelector("output");
  const before = readout.textContent;
  const cursor = svg.querySelector(".cursor");
  const width = svg.viewBox.baseVal.width;
  const [first, last] = chart.x;
  const every = Array.from(new Set(chart.lines.flatMap((line) => line.steps))).sort((a, b) => a - b);
  let place = every.length - 1;

  const point = (at) => {
    place = at;
    const step = every[place];
    const part = last > first ? (step - first) / (last - first) : 0.5;
    const x = width * (chart.left + part * (chart.right - chart.left));
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.classList.add("on");
    const texts = chart.lines.flatMap((line) => {
      const i = line.steps.indexOf(step);
      return i < 0 ? [] : [chart.lines.length > 1 ? `${line.label} ${shown(line.values[i], chart.unit)}` : shown(line.values[i], chart.unit)];
    });
    readout.textContent = `step ${step}: ${texts.join(", ")}`;
  };
  const leave = () => {
    cursor.classList.remove("on");
    readout.textContent = before;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const part = ((event.clientX - box.left) / box.width - chart.left) / (chart.right - chart.left);
    point(nearest(every, first + Math.min(1, Math.max(0, part)) * (last - first)));
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    point(Math.min(every.length - 1, Math.max(0, place + move)));
  });
}

// ---- samples: search, filters, order, and prompts that are on the page once

const list = document.getElementById("samples");
if (list !== null) {
  const control = (name) => document.getElementById(name);
  const samples = Array.from(list.children, (element) => ({
    element,
    step: Number(element.dataset.step),
    reward: element.dataset.reward === "" ? -Infinity : Number(element.dataset.reward),
    text: null,
  }));
  const promptOf = (element) => document.getElementById(`prompt-${element.dataset.prompt}`);
  const words = (sample) => {
    sample.text ??= `${sample.element.textContent} ${promptOf(sample.element).content.textContent}`.toLowerCase();
    return sample.text;
  };

  list.addEventListener(
    "toggle",
    (event) => {
      const target = event.target;
      if (!target.classList.contains("prompt") || !target.open || target.childElementCount > 1) return;
      target.append(promptOf(target.closest(".sample")).content.cloneNode(true));
    },
    true,
  );

  const filter = () => {
    const wanted = control("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const outcome = control("outcome").value;
    const from = control("from").value === "" ? -Infinity : Number(control("from").value);
    const to = control("to").value === "" ? Infinity : Number(control("to").value);
    const order = control("order").value;
    let count = 0;
    for (const sample of samples) {
      const fits =
        (outcome === "" || sample.element.dataset.outcome === outcome) &&
        sample.step >= from &&
        sample.step <= to &&
        wanted.every((word) => words(sample).includes(word));
      sample.element.hidden = !fits;
      count += fits;
    }
    const sorted = samples.map((sample, place) => [sample, place]);
    if (order === "oldest") sorted.reverse();
    if (order === "best") sorted.sort((a, b) => b[0].reward - a[0].reward || a[1] - b[1]);
    if (order === "worst") sorted.sort((a, b) => a[0].reward - b[0].reward || a[1] - b[1]);
    list.append(...sorted.map(([sample]) => sample.element));
    control("count").textContent = `${count} of ${samples.length} shown`;
  };
  for (const name of ["search", "outcome", "from", "to", "order"]) control(name).addEventListener("input", filter);
  filter();
}
