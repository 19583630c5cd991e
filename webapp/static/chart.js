// A small drawing of cost over width: lines and marks as SVG, the same figures as table rows.

import { digits } from "./figures.js";

const SVG = "http://www.w3.org/2000/svg";
const SIZE = { width: 480, height: 260, left: 44, right: 14, top: 14, bottom: 40 };

/** A step of 1, 2 or 5 times a power of ten that gives at most `most` intervals. */
export function niceStep(range, most) {
  const rough = range / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((each) => each * power >= rough * 0.999999);
  return factor * power;
}

/** Where values lie in the drawing, and the ticks of its axes. Pure. */
export function layout(points) {
  const highest = Math.max(...points.flatMap((p) => [p.cost, p.emitted ?? 0]));
  const step = niceStep(highest, 5);
  const top = Math.max(Math.ceil(highest / step - 1e-9), 1) * step;
  const widest = Math.max(points.at(-1).width, 2);
  const across = SIZE.width - SIZE.left - SIZE.right;
  const up = SIZE.height - SIZE.top - SIZE.bottom;
  const every = Math.max(1, Math.ceil(widest / 16));
  const widths = [];
  for (let width = 1; width <= widest; width += every) widths.push(width);
  const ticks = [];
  for (let at = 0; at <= Math.round(top / step); at += 1) ticks.push(at * step);
  return {
    x: (width) => SIZE.left + ((width - 1) / (widest - 1)) * across,
    y: (value) => SIZE.top + up - (value / top) * up,
    places: step < 1 ? Math.ceil(-Math.log10(step) - 1e-9) : 0,
    widths,
    ticks,
  };
}

function node(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

/**
 * Draw points into an element, in place of what it holds.
 *
 * @param {Element} into
 * @param {{unit: string, points: import("./evidence.js").Point[]}} evidence  one point at least
 * @param {string} title  for those who cannot see it
 */
export function drawCost(into, { unit, points }, title) {
  const at = layout(points);
  const drawing = node("svg", {
    viewBox: `0 0 ${SIZE.width} ${SIZE.height}`,
    role: "img",
    "aria-label": title,
  });
  drawing.append(...axes(at, unit));
  const compared = unit === "classic steps" ? points.filter((p) => p.emitted !== null) : [];
  drawing.append(...series(compared, (p) => [at.x(p.width), at.y(p.emitted)], "emitted", circle));
  drawing.append(...series(points, (p) => [at.x(p.width), at.y(p.cost)], "cost", square));
  into.replaceChildren(drawing, key(unit, compared.length > 0));
}

function axes(at, unit) {
  const [left, right] = [SIZE.left, SIZE.width - SIZE.right];
  const floor = SIZE.height - SIZE.bottom;
  const lines = at.ticks.map((tick) =>
    node("line", { class: "grid", x1: left, x2: right, y1: at.y(tick), y2: at.y(tick) }),
  );
  const values = at.ticks.map((tick) =>
    node("text", { x: left - 8, y: at.y(tick) + 4, "text-anchor": "end" }, digits(tick, at.places)),
  );
  const widths = at.widths.map((width) =>
    node("text", { x: at.x(width), y: floor + 18, "text-anchor": "middle" }, String(width)),
  );
  const names = [
    node("text", { x: (left + right) / 2, y: SIZE.height - 5, "text-anchor": "middle" }, "block width"),
  ];
  return [...lines, ...values, ...widths, ...names];
}

function series(points, place, name, mark) {
  if (!points.length) return [];
  const path = points.map((p) => place(p).map((value) => value.toFixed(1)).join(",")).join(" ");
  return [
    node("polyline", { class: `line ${name}`, points: path, fill: "none" }),
    ...points.map((p) => mark(...place(p), name)),
  ];
}

function square(x, y, name) {
  return node("rect", { class: `mark ${name}`, x: x - 4.5, y: y - 4.5, width: 9, height: 9 });
}

function circle(x, y, name) {
  return node("circle", { class: `mark ${name}`, cx: x, cy: y, r: 5 });
}

function key(unit, compared) {
  const list = document.createElement("ul");
  list.className = "chart-key";
  const entries = [["cost", `round cost, ${unit} (square, solid line)`]];
  if (compared) entries.push(["emitted", "emitted per verify, tokens (circle, dashed line)"]);
  for (const [name, text] of entries) {
    const item = document.createElement("li");
    item.className = name;
    item.textContent = text;
    list.append(item);
  }
  return list;
}

/** Fill the body of a table with the same figures. */
export function fillRows(body, { unit, points }) {
  body.replaceChildren(
    ...points.map((point) => {
      const row = document.createElement("tr");
      const cost = unit === "ms" ? `${digits(point.cost, 1)} ms` : digits(point.cost);
      const cells = [
        String(point.width),
        cost,
        digits(point.emitted ?? NaN),
        digits(point.speed ?? NaN, 1),
        point.rounds === null ? "–" : String(point.rounds),
      ];
      cells.forEach((text, at) => {
        const cell = document.createElement(at ? "td" : "th");
        if (!at) cell.scope = "row";
        cell.textContent = text;
        row.append(cell);
      });
      return row;
    }),
  );
}
