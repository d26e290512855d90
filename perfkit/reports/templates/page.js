const byId = (id) => document.getElementById(id);
const read = (id) => JSON.parse(byId(id).textContent);
const element = (name, text, className) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
};
const saveCsv = (text, name) => {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
// The table and the points of figures lie in the page packed: as text they would be half of it.
const unpack = (text) => {
  const packed = new Blob([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))]);
  return new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).text();
};
