// ---- The table: sort, filter, page, CSV ----
const table = JSON.parse(await unpack(byId("table-data").textContent));
const PAGE = 50;
const value = (row, column) => { const list = table.data[column]; return list.length === 1 ? list[0] : list[row]; };
const numeric = new Set(table.numeric);
const status = table.columns.indexOf("status");
const rows = Array.from({ length: table.rows }, (_, i) => i);
let order = rows, sorted = null, descending = false, page = 0, haystack = null;
const menus = new Map();

const show = (item) => {
  if (item === null || item === undefined) return "";
  if (typeof item !== "number" || Number.isInteger(item)) return String(item);
  return String(Number(item.toPrecision(5)));
};
const visible = () => (byId("all-columns").checked ? table.columns.map((_, i) => i) : table.main);

// Words must all occur in a row; the text of the rows is joined once, when somebody first searches.
const filter = () => {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length && haystack === null) {
    haystack = rows.map((row) => table.main.map((c) => show(value(row, c))).join("\u0001").toLowerCase());
  }
  order = rows.filter((row) =>
    words.every((word) => haystack[row].includes(word)) &&
    [...menus].every(([column, menu]) => menu.value === "" || String(value(row, column) ?? "") === menu.value.slice(1)));
  if (sorted !== null) {
    const sign = descending ? -1 : 1;
    order = [...order].sort((a, b) => {
      const x = value(a, sorted), y = value(b, sorted);
      if (x === null || y === null) return (x === null) - (y === null) || a - b;
      const less = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
      return sign * less || a - b;
    });
  }
  page = 0;
  render();
};

const render = () => {
  const columns = visible();
  const head = element("tr");
  for (const column of columns) {
    const cell = element("th", undefined, numeric.has(column) ? "number" : "");
    const mark = column === sorted ? (descending ? " ▼" : " ▲") : "";
    const button = element("button", table.columns[column] + mark);
    button.type = "button";
    button.addEventListener("click", () => {
      descending = sorted === column && !descending;
      sorted = column;
      filter();
      byId("rows").tHead.rows[0].cells[columns.indexOf(column)].firstChild.focus();
    });
    cell.scope = "col";
    cell.setAttribute("aria-sort", column === sorted ? (descending ? "descending" : "ascending") : "none");
    cell.append(button);
    head.append(cell);
  }
  const body = order.slice(page * PAGE, (page + 1) * PAGE).map((row) => {
    const line = element("tr", undefined, status < 0 || value(row, status) === "ok" ? "" : "bad");
    for (const column of columns) {
      const text = show(value(row, column));
      line.append(element("td", text, numeric.has(column) ? "number" : text.length > 40 ? "long" : ""));
    }
    return line;
  });
  byId("rows").tHead.replaceChildren(head);
  byId("rows").tBodies[0].replaceChildren(...body);
  const last = Math.min(order.length, (page + 1) * PAGE);
  byId("shown").textContent = order.length ? `${page * PAGE + 1}–${last} of ${order.length} rows` : "no row matches";
  byId("previous").disabled = page === 0;
  byId("next").disabled = last >= order.length;
};

for (const column of table.menus) {
  const label = element("label", table.columns[column]);
  const menu = element("select");
  menu.append(new Option("all", ""));
  for (const item of [...new Set(table.data[column].map((entry) => String(entry ?? "")))].sort()) {
    menu.append(new Option(item || "(none)", `=${item}`));
  }
  menu.dataset.column = table.columns[column];
  menu.addEventListener("change", filter);
  menus.set(column, menu);
  label.append(menu);
  byId("menus").append(label);
}
byId("search").addEventListener("input", filter);
byId("all-columns").addEventListener("change", render);
byId("previous").addEventListener("click", () => { page -= 1; render(); });
byId("next").addEventListener("click", () => { page += 1; render(); });
byId("csv").addEventListener("click", () => {
  const quote = (item) => {
    const text = item === null || item === undefined ? "" : String(item);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const all = table.columns.map((_, i) => i);
  const lines = [table.columns.map(quote), ...rows.map((row) => all.map((column) => quote(value(row, column))))];
  saveCsv(lines.map((line) => line.join(",")).join("\n") + "\n", "perfkit-results.csv");
});
render();
