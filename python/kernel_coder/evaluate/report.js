"use strict";
const table = document.getElementById("tasks");
const rows = Array.from(table.querySelectorAll("tr.task"), (row) => [row, row.nextElementSibling]);
const search = document.getElementById("search");
const outcome = document.getElementById("outcome");

for (const [row, details] of rows) {
  const button = row.querySelector("button");
  button.addEventListener("click", () => {
    details.hidden = !details.hidden;
    button.setAttribute("aria-expanded", String(!details.hidden));
  });
}

function filter() {
  const words = search.value.toLowerCase();
  let shown = 0;
  for (const [row, details] of rows) {
    const fits =
      row.dataset.task.toLowerCase().includes(words) &&
      (outcome.value === "" || row.dataset.outcomes.split(" ").includes(outcome.value));
    row.hidden = !fits;
    details.hidden = !fits || row.querySelector("button").getAttribute("aria-expanded") !== "true";
    shown += fits;
  }
  document.getElementById("shown").textContent = `${shown} of ${rows.length} tasks`;
}
search.addEventListener("input", filter);
outcome.addEventListener("change", filter);

for (const header of table.querySelectorAll("th button")) {
  header.addEventListener("click", () => {
    const cell = header.parentElement;
    const column = cell.cellIndex;
    const upwards = cell.getAttribute("aria-sort") === "descending";
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", upwards ? "ascending" : "descending");
    const value = ([row]) => Number(row.cells[column].dataset.value);
    rows.sort((a, b) => (upwards ? value(a) - value(b) : value(b) - value(a)));
    for (const pair of rows) table.tBodies[0].append(...pair);
  });
}
filter();
