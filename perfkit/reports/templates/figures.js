// ---- Figures: each is drawn when it comes near the screen, in the colours of the reader's scheme ----
const figures = read("figures-data");
const twins = read("twins-data");
const ids = Object.keys(figures);
const scheme = matchMedia("(prefers-color-scheme: dark)");
const NARROW = 640, LEGEND_ROW = 19, LEGEND_REST = 29, ENTRY_REST = 45, PRINT_WIDTH = 690, NEAR = "800px 0px";
let printing = false;

// Every light colour becomes its dark twin; only values of keys that hold colours are touched.
const recolour = (node, dark) => {
  if (Array.isArray(node)) return node.map((item) => recolour(item, dark));
  if (node === null || typeof node !== "object") return node;
  const copy = {};
  for (const [key, value] of Object.entries(node)) {
    copy[key] = dark && typeof value === "string" && key.endsWith("color") ? twins[value] ?? value : recolour(value, dark);
  }
  return copy;
};

// Plotly lies in the page as text: to run it takes longer than everything else here, so the page is shown before.
const loadPlotly = () => {
  const source = byId("plotly");
  if (source === null) return;
  document.head.append(element("script", source.textContent));
  source.remove();
};

// All figures are as wide as the page; what they were drawn for tells which of them must be drawn again.
const widthNow = () => (printing ? PRINT_WIDTH : byId("answer").clientWidth);
const darkNow = () => scheme.matches && !printing;
const wanted = () => `${darkNow() ? "dark" : "light"} ${widthNow()}`;

// How many rows the legend needs depends on the width; the plot area keeps its height.
const fit = ({ layout, area, entries }, width) => {
  const margin = width < NARROW ? { ...layout.margin, l: 54, r: 62 } : { ...layout.margin };
  const perRow = Math.max(1, Math.floor((width - margin.l - margin.r) / ((layout.legend.entrywidth ?? 0) + ENTRY_REST)));
  margin.t = LEGEND_REST + LEGEND_ROW * Math.ceil(entries / perRow);
  return { margin, height: area + margin.t + margin.b };
};

const draw = (id) => {
  loadPlotly();
  const place = byId(id);
  const width = widthNow();
  const figure = recolour(figures[id], darkNow());
  const { data, layout, area } = figure;
  Object.assign(layout, fit(figure, width), { width });
  if (width < NARROW) {
    layout.font.size = 11;
    // There is no room beside the points; their names are in the hover boxes and the table.
    layout.annotations = (layout.annotations ?? []).filter((note) => note.name !== "point-label");
    for (const note of layout.annotations) note.font.size = 10;
    const axes = Object.keys(layout).filter((key) => /^[xy]axis/.test(key)).map((key) => layout[key]);
    for (const axis of axes) if (axis.tickvals?.length > 8) {
      axis.ticktext = axis.ticktext.map((text, i) => (i % 2 ? "" : text));
    }
  }
  Plotly.react(place, data, layout, {
    displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { filename: id },
  });
  // A legend that took more rows than reckoned has shrunk the plot area, for whose height the labels are placed.
  const short = area - place._fullLayout._size.h;
  if (Math.abs(short) > 1) Plotly.relayout(place, { height: layout.height + short });
  place.style.minHeight = `${place._fullLayout.height}px`;
};

// One figure at a time, those near the screen first, so that the page answers in between. A figure that nobody has
// come near, or that is folded away, is left out until somebody does.
const near = new Set(), drawnFor = new Map();
let working = false;
const next = () => {
  const look = wanted();
  const open = (id) => drawnFor.has(id) && byId(id).offsetParent !== null;
  const stale = ids.filter((id) => (near.has(id) || open(id)) && drawnFor.get(id) !== look);
  const id = stale.find((item) => near.has(item)) ?? stale[0];
  working = id !== undefined;
  if (!working) { document.body.dataset.drawn = darkNow() ? "dark" : "light"; return; }
  draw(id);
  drawnFor.set(id, look);
  setTimeout(next, 0);
};
const wake = () => { if (!working) next(); };

for (const button of document.querySelectorAll("button[data-figure]")) {
  const name = button.dataset.figure;
  button.addEventListener("click", async () => saveCsv(await unpack(figures[name].csv), `${name}.csv`));
}

if (ids.length === 0) {
  document.body.dataset.drawn = "none";
} else {
  const start = () => {
    const width = widthNow();
    const watcher = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) near[isIntersecting ? "add" : "delete"](target.id);
      wake();
    }, { rootMargin: NEAR });
    for (const id of ids) {
      byId(id).style.minHeight = `${fit(figures[id], width).height}px`;
      watcher.observe(byId(id));
    }
    const idle = () => (window.requestIdleCallback ?? setTimeout)(loadPlotly);
    document.readyState === "complete" ? idle() : addEventListener("load", idle);
  };
  // Plotly's text follows this script.
  document.readyState === "loading" ? addEventListener("DOMContentLoaded", start) : start();
  scheme.addEventListener("change", wake);
  let timer = 0;
  addEventListener("resize", () => {
    if (printing) return;
    clearTimeout(timer);
    timer = setTimeout(wake, 120);
  });
  // Paper has room for what is folded on a screen.
  let folded = [];
  addEventListener("beforeprint", () => {
    printing = true;
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const item of folded) item.open = true;
    for (const id of ids) { draw(id); drawnFor.set(id, wanted()); }
  });
  addEventListener("afterprint", () => {
    printing = false;
    for (const item of folded) item.open = false;
    wake();
  });
}
