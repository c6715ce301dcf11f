// Finding and making elements. Text always becomes a text node: no part of this script parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function byId(id) {
  return document.getElementById(id);
}

/** An element with attributes and children. A child may be a node or a text; null and undefined are left out. */
function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function makeSvg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function button(label, act, attributes = {}) {
  const node = make("button", { type: "button", ...attributes }, label);
  node.addEventListener("click", act);
  return node;
}

/** Change a text only where it differs, so that what is selected stays so. */
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** What was kept under a name, or what it is without; whatever else stands there is dropped. */
function kept(name, otherwise, isRight) {
  try {
    const value = JSON.parse(localStorage.getItem(name));
    return isRight(value) ? value : otherwise;
  } catch {
    return otherwise;
  }
}

/** Keep something over a reload, as long as the browser has room for it. */
function keep(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    console.info(`the browser does not keep ${name}`);
  }
}

// Numbers for people.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A count as it is; of anything else three digits, so that what changes all the time keeps its width. */
function figure(value) {
  if (Number.isInteger(value) || value >= 99.95) return whole.format(value);
  return value.toFixed(value >= 9.995 ? 1 : 2);
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0995) return `${whole.format(1000 * value)} ms`;
  if (value < 100) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(value / 60);
  return minutes < 100 ? `${minutes} min ${Math.floor(value % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function share(value) {
  return `${whole.format(100 * value)} %`;
}

function count(number, word) {
  return `${whole.format(number)} ${word}${number === 1 ? "" : "s"}`;
}
