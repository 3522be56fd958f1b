// Tables that can be sorted by any column: numbers by value, text by letter, empty cells last.
function sortTables() {
  for (const table of document.querySelectorAll(".sheet table")) {
    const heads = [...table.tHead.rows[0].cells];
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
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, text: row.cells[column].textContent.trim() }));
  rows.sort((a, b) => {
    if (!a.text || !b.text) return Number(!a.text) - Number(!b.text);
    const [left, right] = [parseFloat(a.text), parseFloat(b.text)];
    const numbers = column > 0 && !Number.isNaN(left) && !Number.isNaN(right);
    return sign * (numbers ? left - right : a.text.localeCompare(b.text));
  });
  table.tBodies[0].append(...rows.map((entry) => entry.row));
}
