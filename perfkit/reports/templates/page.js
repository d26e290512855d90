const byId = (id) => document.getElementById(id);
const read = (id) => JSON.parse(byId(id).textContent);
const element = (name, text, className) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
};
