"use strict";
// The report works without any of this, but for the map: charts and tables are in the page. Text from the data goes
// into the page as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function make(tag, text = "", properties = {}) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(text);
  return element;
}

// ---------------------------------------------------------------------------------------------------------- theme

const redraws = [];
const redraw = () => redraws.forEach((each) => each());
const themes = ["auto", "light", "dark"];

function useTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = `Theme: ${theme}`;
  redraw();
}

function remembered(theme) {
  try { // a browser may keep nothing of files
    if (theme) localStorage.setItem("safda-theme", theme);
    return localStorage.getItem("safda-theme");
  } catch { return null; }
}

function theme() {
  let now = themes.includes(remembered()) ? remembered() : "auto";
  useTheme(now);
  document.getElementById("theme").addEventListener("click", () => {
    now = themes[(themes.indexOf(now) + 1) % themes.length];
    remembered(now);
    useTheme(now);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => { document.documentElement.dataset.theme = "light"; redraw(); });
  addEventListener("afterprint", () => useTheme(now));
}

const probe = document.body.appendChild(make("i", "", { hidden: true }));
function colour(name) { // as the theme has it now
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

// ---------------------------------------------------------------------------------------------------------- tables

function sortBy(table, column, header) {
  const ascending = header.getAttribute("aria-sort") !== "ascending";
  all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const key = (row) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(b, "en", { numeric: true }));
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [key(row), row]);
  rows.sort((a, b) => (ascending ? compare(a[0], b[0]) : compare(b[0], a[0])));
  body.append(...rows.map(([, row]) => row));
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.(".sort");
  if (button) sortBy(button.closest("table"), button.closest("th").cellIndex, button.closest("th"));
});

// ---------------------------------------------------------------------------------------------------------- curves

function readable(chart) { // its values, from the table behind it, under the pointer or by arrow keys
  const svg = chart.querySelector("svg");
  const { low, high } = chart.dataset;
  const cursor = svg.querySelector(".cursor");
  const names = all("thead th", chart).map((each) => each.textContent);
  const rows = all("tbody tr", chart).map((row) => [...row.cells].map((cell) => cell.textContent));
  const steps = all("tbody tr th", chart).map((cell) => Number(cell.dataset.value));
  const [left, right] = [data.frame.left, data.frame.width - data.frame.right];
  const place = (step) => left + ((step - low) / (high - low)) * (right - left);
  let at = steps.length - 1;
  const show = (row) => {
    at = clamp(row, 0, steps.length - 1);
    cursor.setAttribute("x1", place(steps[at]));
    cursor.setAttribute("x2", place(steps[at]));
    cursor.style.visibility = "visible";
    const values = names.slice(1).map((name, k) => (names.length > 2 ? `${name} ${rows[at][k + 1]}` : rows[at][k + 1]));
    chart.querySelector(".readout").textContent = `step ${rows[at][0]}: ${values.join(" · ")}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * data.frame.width;
    const gaps = steps.map((step) => Math.abs(place(step) - x));
    show(gaps.indexOf(Math.min(...gaps)));
  });
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    show(move);
  });
}

// ---------------------------------------------------------------------------------------------------------- the map

const tip = document.getElementById("tip");
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
const sure = [[0, [68, 1, 84]], [0.33, [49, 104, 142]], [0.66, [53, 183, 121]], [1, [253, 231, 37]]]; // dark: unsure

function confidenceColour(value) {
  const next = sure.findIndex(([at]) => at >= value);
  if (next < 1) return `rgb(${sure[0][1]})`;
  const [[from, a], [to, b]] = [sure[next - 1], sure[next]];
  return `rgb(${a.map((channel, k) => Math.round(channel + ((value - from) / (to - from)) * (b[k] - channel)))})`;
}

const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark" ||
  (document.documentElement.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);

function classColour(number) { // hues as far apart as can be, at two lightnesses
  const light = (isDark() ? 72 : 50) - 14 * (number % 2);
  return `hsl(${(number * 137.508) % 360} 70% ${light}%)`;
}

class Samples { // of one run: what the map shows
  constructor(seen) {
    Object.assign(this, seen);
    this.count = this.ids.length;
    const mixed = (k) => (k < this.sources ? k / this.sources : (k - this.sources) / (this.count - this.sources));
    this.order = [...this.ids.keys()].sort((a, b) => mixed(a) - mixed(b)); // no domain lies on top of the other
    const certainty = (k) => this.confidence[k] ?? 2;
    this.byDoubt = [...this.ids.keys()].sort((a, b) => certainty(a) - certainty(b));
    this.colouring = "domain";
    this.only = -1;
    this.shown = { source: true, target: true };
    this.pointed = -1;
  }
  domain(k) { return k < this.sources ? "source" : "target"; }
  visible(k) { return this.shown[this.domain(k)]; }
  name(k) { return this.classes[this.labels[k]] ?? "unknown"; }
  colours() {
    const [domains, none] = [{ source: colour("source"), target: colour("target") }, colour("muted")];
    const number = this.classes.map((_, k) => classColour(k));
    return (k) => {
      if (this.colouring === "domain") return domains[this.domain(k)];
      if (this.colouring === "class") return number[this.labels[k]] ?? none;
      return this.confidence[k] === null ? none : confidenceColour(this.confidence[k]);
    };
  }
  lines(k) { // what is to be said of a sample
    const said = this.domain(k) === "source" ? `source, labelled ${this.name(k)}` : `target, taken for ${this.name(k)}`;
    const sureness = this.confidence[k] === null ? [] : [`confidence ${(100 * this.confidence[k]).toFixed(1)}%`];
    const earlier = this.before[k] === null || this.before[k] === this.labels[k] ? [] : [`source only: ${this.classes[this.before[k]]}`];
    return [said, ...sureness, ...earlier, this.ids[k]];
  }
  tile(k) {
    const sheet = this.sheets[this.domain(k)];
    if (sheet === null || this.tiles[k] === null) return null;
    const { columns } = data.sheets[sheet];
    const tile = make("div", "", { className: `tile sheet-${sheet}` });
    tile.style.setProperty("--column", this.tiles[k] % columns);
    tile.style.setProperty("--line", Math.floor(this.tiles[k] / columns));
    return tile;
  }
}

class View { // one canvas: the same samples, laid out in one way
  constructor(canvas, samples, points, changed) {
    Object.assign(this, { canvas, samples, points, changed, scale: 1, x: 0.5, y: 0.5 });
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.grab(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", () => { this.held = null; });
    canvas.addEventListener("pointerleave", () => this.point(-1));
    canvas.addEventListener("blur", () => this.point(-1));
    canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }
  get size() { return Math.min(this.canvas.clientWidth, this.canvas.clientHeight) * 0.94 * this.scale; }
  place(k) { // in pixels of the canvas
    const { clientWidth: width, clientHeight: height } = this.canvas;
    return [width / 2 + (this.points[2 * k] - this.x) * this.size, height / 2 - (this.points[2 * k + 1] - this.y) * this.size];
  }
  draw() {
    const { canvas, samples } = this;
    const ratio = devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const colourOf = samples.colours();
    const radius = clamp(2.6 * Math.sqrt(this.scale), 2.6, 6);
    for (const k of samples.order.filter((each) => samples.visible(each))) {
      const [x, y] = this.place(k);
      pen.globalAlpha = samples.only >= 0 && samples.labels[k] !== samples.only ? 0.07 : 0.82;
      pen.strokeStyle = pen.fillStyle = colourOf(k);
      pen.beginPath();
      if (samples.domain(k) === "source") {
        pen.lineWidth = 1.4;
        pen.moveTo(x - radius, y - radius); pen.lineTo(x + radius, y + radius);
        pen.moveTo(x - radius, y + radius); pen.lineTo(x + radius, y - radius);
        pen.stroke();
      } else {
        pen.arc(x, y, radius, 0, 7);
        pen.fill();
      }
    }
    if (samples.pointed >= 0) {
      pen.globalAlpha = 1;
      pen.strokeStyle = colour("ink");
      pen.lineWidth = 2;
      pen.beginPath();
      pen.arc(...this.place(samples.pointed), radius + 5, 0, 7);
      pen.stroke();
    }
  }
  zoom(factor, [x, y] = [this.canvas.clientWidth / 2, this.canvas.clientHeight / 2]) { // about a place
    if (!factor) Object.assign(this, { scale: 1, x: 0.5, y: 0.5 });
    else {
      const scale = clamp(this.scale * factor, 0.5, 40);
      const kept = (1 - this.scale / scale) / this.size;
      this.x += (x - this.canvas.clientWidth / 2) * kept;
      this.y -= (y - this.canvas.clientHeight / 2) * kept;
      this.scale = scale;
    }
    this.draw();
  }
  pan(right, down) {
    this.x = clamp(this.x - right / this.size, -0.2, 1.2);
    this.y = clamp(this.y + down / this.size, -0.2, 1.2);
    this.draw();
  }
  wheel(event) { // a page that scrolls by must not be caught: only once somebody has clicked here
    if (document.activeElement !== this.canvas && !event.ctrlKey) return;
    event.preventDefault();
    this.zoom(Math.exp(-clamp(event.deltaY, -200, 200) / 300), [event.offsetX, event.offsetY]);
  }
  grab(event) {
    this.held = [event.clientX, event.clientY];
    this.canvas.setPointerCapture(event.pointerId);
    this.move(event);
  }
  move(event) {
    if (this.held && event.buttons) {
      this.pan(event.clientX - this.held[0], event.clientY - this.held[1]);
      this.held = [event.clientX, event.clientY];
    }
    this.point(this.nearest(event.offsetX, event.offsetY));
  }
  nearest(x, y, within = 14) {
    let [found, least] = [-1, within ** 2];
    for (let k = 0; k < this.samples.count; k += 1) {
      if (!this.samples.visible(k)) continue;
      const [px, py] = this.place(k);
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < least) [found, least] = [k, distance];
    }
    return found;
  }
  point(k) { // at a sample, or with −1 at none
    if (k === this.samples.pointed) return;
    this.samples.pointed = k;
    this.changed();
    tip.hidden = k < 0;
    if (k < 0) return;
    const [said, ...more] = this.samples.lines(k);
    const tile = this.samples.tile(k);
    tip.replaceChildren(...(tile ? [tile] : []), make("b", said), ...more.map((line) => make("div", line)));
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = this.place(k);
    tip.style.left = `${clamp(box.left + x + 14, 8, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${clamp(box.top + y + 14, 8, innerHeight - tip.offsetHeight - 8)}px`;
  }
  step(by) { // to the next sample, the least certain first
    const { samples } = this;
    const shown = samples.byDoubt.filter((k) => samples.visible(k) && (samples.only < 0 || samples.labels[k] === samples.only));
    if (!shown.length) return;
    const at = shown.indexOf(samples.pointed);
    const next = shown[at < 0 ? 0 : (at + by + shown.length) % shown.length];
    [this.x, this.y] = this.scale > 1 ? [this.points[2 * next], this.points[2 * next + 1]] : [this.x, this.y];
    this.point(next);
    this.canvas.closest(".map").querySelector(".readout").textContent = samples.lines(next).join(", ");
  }
  key(event) {
    const does = {
      "+": () => this.zoom(1.25), "=": () => this.zoom(1.25), "-": () => this.zoom(0.8), 0: () => this.zoom(0),
      ArrowLeft: () => this.pan(40, 0), ArrowRight: () => this.pan(-40, 0),
      ArrowUp: () => this.pan(0, 40), ArrowDown: () => this.pan(0, -40),
      n: () => this.step(1), p: () => this.step(-1), Escape: () => this.point(-1),
    }[event.key];
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    does();
  }
}

function legend(place, samples, choose) {
  const item = (text, swatch) => {
    const box = make("span", "", { className: "item" });
    box.append(swatch, text);
    return box;
  };
  const swatch = (background) => {
    const dot = make("span", "", { className: "swatch" });
    dot.style.background = background;
    return dot;
  };
  const marks = "× source, by its labels; ● target, by what it is taken for";
  if (samples.colouring === "domain") {
    place.replaceChildren(item("source ×", swatch(colour("source"))), item("target ●", swatch(colour("target"))));
  } else if (samples.colouring === "confidence") {
    const bar = make("span", "", { className: "gradient" });
    bar.style.background = `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map(confidenceColour)})`;
    place.replaceChildren("target ●: unsure ", bar, " sure", item("source ×", swatch(colour("muted"))));
  } else {
    const few = samples.classes.length <= 80; // more can be chosen from the list, one by one
    const chips = (few ? samples.classes : []).map((name, k) => {
      const chip = make("button", "", { type: "button", onclick: () => choose(samples.only === k ? -1 : k) });
      chip.setAttribute("aria-pressed", samples.only === k);
      chip.append(swatch(classColour(k)), name);
      return chip;
    });
    place.replaceChildren(make("span", marks, { className: "item" }), ...chips);
  }
}

function pointsTable(samples) {
  const table = make("table", "", { className: "sortable" });
  const heads = ["sample", "domain", "class", "confidence", "source only"].map((name) => {
    const head = make("th", make("button", name, { type: "button", className: "sort" }), { scope: "col" });
    return head;
  });
  const head = make("tr");
  head.append(...heads);
  const body = make("tbody");
  for (const k of samples.byDoubt) {
    const row = make("tr");
    const confidence = make("td", samples.confidence[k] === null ? "" : samples.confidence[k].toFixed(3), { className: "number" });
    confidence.dataset.value = samples.confidence[k] ?? 2;
    row.append(make("th", samples.ids[k], { scope: "row" }), make("td", samples.domain(k)), make("td", samples.name(k)),
      confidence, make("td", samples.classes[samples.before[k]] ?? ""));
    body.append(row);
  }
  const top = make("thead", head);
  table.append(make("caption", "Samples that the map shows, the least certain first"), top, body);
  const box = make("div", table, { className: "table", tabIndex: 0 });
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", "Samples that the map shows");
  return box;
}

function map(element) {
  const samples = new Samples(data.maps[element.dataset.map]);
  const views = [];
  const changed = () => views.forEach((view) => view.draw());
  views.push(...all("canvas", element).map((canvas, k) => new View(canvas, samples, samples.views[k], changed)));
  const only = element.querySelector(".only");
  only.append(...samples.classes.map((name, k) => make("option", name, { value: k })));
  const refresh = () => { legend(element.querySelector(".legend"), samples, choose); changed(); };
  function choose(number) {
    samples.only = number;
    only.value = number < 0 ? "" : number;
    refresh();
  }
  only.addEventListener("change", () => choose(only.value === "" ? -1 : Number(only.value)));
  all("input[type=radio]", element).forEach((radio) => radio.addEventListener("change", () => {
    samples.colouring = radio.value;
    refresh();
  }));
  all(".show", element).forEach((box) => box.addEventListener("change", () => {
    samples.shown[box.value] = box.checked;
    refresh();
  }));
  all("[data-zoom]", element).forEach((button) => button.addEventListener("click", () => {
    views.forEach((view) => view.zoom(Number(button.dataset.zoom)));
  }));
  const details = element.querySelector(".points");
  details.addEventListener("toggle", () => { if (details.children.length < 2) details.append(pointsTable(samples)); });
  redraws.push(refresh);
  element.views = views; // for whoever wants to look from the console
}

all(".lines").forEach(readable);
all(".map").forEach(map);
theme();
