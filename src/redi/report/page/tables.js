// Tables that can be sorted by any column: numbers by value, text by letter, empty cells last. Each group of rows is
// sorted by itself, so what is set apart stays apart.
function sortTables() {
  for (const table of document.querySelectorAll(".sheet table")) {
    const heads = [...[...table.tHead.rows].at(-1).cells];
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => sortBy(table, heads, head, column));
    });
  }
}

function sortBy(table, heads, head, column) {
  const first = column === 0 ? "ascending" : "descending";
  const other = first === "ascending" ? "descending" : "ascending";
  const direction = head.getAttribute("aria-sort") === first ? other : first;
  for (const cell of heads) cell.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  for (const body of table.querySelectorAll("tbody:not(.label)")) sortRows(body, column, sign);
}

function sortRows(body, column, sign) {
  const rows = [...body.rows].map((row) => ({ row, text: row.cells[column].textContent.trim() }));
  rows.sort((a, b) => {
    if (!a.text || !b.text) return Number(!a.text) - Number(!b.text);
    const [left, right] = [parseFloat(a.text), parseFloat(b.text)];
    const numbers = column > 0 && !Number.isNaN(left) && !Number.isNaN(right);
    return sign * (numbers ? left - right : a.text.localeCompare(b.text));
  });
  body.append(...rows.map((entry) => entry.row));
}
