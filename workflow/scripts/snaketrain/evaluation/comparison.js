// Tables of runs: a click on a column sorts by it, a text filters, and of many rows the first are shown.
const FIRST = 20;
const number = (row, column) => {
  const text = row.cells[column].innerText.trim(), found = parseFloat(text.replaceAll(",", ""));  // 1,733
  return isNaN(found) ? text : found;
};

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], rows = [...body.rows];
  const filter = document.createElement("input"), more = document.createElement("button");
  let all = rows.length <= FIRST + 5;
  const show = () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    const found = [...body.rows].filter(row => (row.hidden = !words.every(word => row.innerText.toLowerCase().includes(word))) === false);
    found.forEach((row, place) => row.hidden = !all && place >= FIRST);
    more.hidden = all || found.length <= FIRST;
    more.textContent = `Show all ${found.length}`;
  };
  [...table.tHead.rows].at(-1).querySelectorAll("th").forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const descending = head.ariaSort !== "descending";
      table.querySelectorAll("th[aria-sort]").forEach(each => each.ariaSort = null);
      head.ariaSort = descending ? "descending" : "ascending";
      const sign = descending ? -1 : 1;
      rows.sort((a, b) => {
        const [x, y] = [number(a, column), number(b, column)];
        return sign * (typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? sign * -1 : sign);
      });
      body.append(...rows);
      show();
    };
  });
  if (rows.length > 5) {
    filter.type = "search";
    filter.placeholder = "Filter";
    filter.ariaLabel = "Filter the table";
    filter.oninput = show;
    table.parentElement.before(filter);
  }
  more.onclick = () => { all = true; show(); };
  table.parentElement.after(more);
  show();
}
