"use strict";
// What is shown comes from the data block and goes into the page as text: nothing of it is ever read as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const OTHER = { name: "none of these", value: data.other };
const QUICK = 10; // so many classes have a key each; of more, one types the name
const storageKey = "safda-labels-" + data.key;

const keys = keysOf(data.classes.map((each) => each.name));
let state = { labels: data.samples.map((sample) => sample.label), at: 0, done: [] };
let matches = data.classes;
let chosen = 0; // which of the matches Enter takes
let kept = true; // whether this browser remembers

function keysOf(names) {
  const lower = names.map((name) => name.toLowerCase());
  if (lower.every((name) => name.length === 1 && name !== "-") && new Set(lower).size === lower.length) return lower;
  return names.length <= QUICK ? names.map((_, k) => "1234567890"[k]) : null;
}

// ------------------------------------------------------------------------------------------- what is remembered

function remember() {
  try {
    localStorage.setItem(storageKey, JSON.stringify(state));
  } catch {
    kept = false;
  }
}

function recall() {
  try {
    const before = JSON.parse(localStorage.getItem(storageKey));
    if (before && before.labels.length === state.labels.length) state = before;
  } catch {
    kept = false;
  }
}

// -------------------------------------------------------------------------------------------------- what is done

const unlabelled = () => state.labels.map((label, k) => (label ? -1 : k)).filter((k) => k >= 0);

function answer(choice) {
  state.done.push([state.at, state.labels[state.at]]);
  state.labels[state.at] = choice.value;
  const left = unlabelled();
  if (left.length) state.at = left.find((k) => k > state.at) ?? left[0];
  remember();
  show(left.length ? `${choice.name}. ` : `${choice.name}. All are labelled: save the file. `);
  if (!left.length) $("save").focus();
}

function undo() {
  const last = state.done.pop();
  if (!last) return show("Nothing to take back. ");
  [state.at, state.labels[last[0]]] = last;
  remember();
  show("Taken back. ");
}

function move(by) {
  state.at = Math.min(Math.max(state.at + by, 0), data.samples.length - 1);
  remember();
  show("");
}

function save() {
  const quoted = (cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  const rows = data.samples.map((sample, k) => [...sample.cells, state.labels[k]]);
  const text = [[...data.columns, "label"], ...rows].map((row) => row.map(quoted).join(",") + "\n").join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = data.file;
  link.click();
  URL.revokeObjectURL(link.href);
  const missing = unlabelled().length;
  say(`Saved ${data.file}${missing ? `, ${missing} samples without a label` : ""}. `);
}

// ------------------------------------------------------------------------------------------------- what is shown

function say(text) {
  $("status").textContent = text + (kept ? "" : "This browser keeps nothing: save before you leave.");
}

function show(told) {
  const sample = data.samples[state.at];
  const labelled = state.labels.length - unlabelled().length;
  $("progress").max = data.samples.length;
  $("progress").value = labelled;
  $("count").textContent = `${labelled} of ${data.samples.length} labelled`;
  $("name").textContent = sample.name;
  $("preview").replaceChildren(previewOf(sample));
  $("filter").value = "";
  const own = data.classes.find((each) => each.value === state.labels[state.at]);
  const said = state.labels[state.at] ? ` (labelled ${own ? own.name : OTHER.name})` : "";
  say(`${told}Sample ${state.at + 1} of ${data.samples.length}: ${sample.name}${said}. `);
  $("other").setAttribute("aria-pressed", state.labels[state.at] === OTHER.value && !own);
  narrow();
}

function previewOf(sample) {
  if (sample.picture) {
    const picture = new Image();
    picture.src = sample.picture;
    picture.alt = sample.name;
    if (sample.pixels) picture.className = "pixels";
    return picture;
  }
  const box = document.createElement("div");
  box.style.width = "100%";
  const text = document.createElement("p");
  text.textContent = sample.values ? sample.told : "There is nothing to show of this sample but its name.";
  if (sample.values) box.append(bars(sample.values));
  box.append(text);
  return box;
}

function bars(values) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const low = Math.min(0, ...values);
  const span = Math.max(0, ...values) - low || 1;
  svg.setAttribute("viewBox", `0 0 ${values.length} 1`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  values.forEach((value, k) => {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const [from, to] = [Math.min(value, 0), Math.max(value, 0)].map((edge) => (edge - low) / span);
    Object.entries({ x: k + 0.1, y: 1 - to, width: 0.8, height: to - from }).forEach(([name, v]) => bar.setAttribute(name, v));
    svg.append(bar);
  });
  return svg;
}

function narrow() {
  const typed = $("filter").value.trim().toLowerCase();
  const begins = (each) => each.name.toLowerCase().startsWith(typed);
  const holds = (each) => each.name.toLowerCase().includes(typed);
  matches = [...data.classes.filter(begins), ...data.classes.filter((each) => holds(each) && !begins(each))];
  chosen = 0;
  list();
}

function list() {
  const typed = Boolean($("filter").value.trim());
  $("classes").replaceChildren(
    ...matches.map((each, k) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", each.value === state.labels[state.at]);
      if (typed && k === chosen) button.className = "first";
      if (keys) {
        const key = document.createElement("kbd");
        key.textContent = keys[data.classes.indexOf(each)];
        button.append(key, " ");
      }
      button.append(each.name);
      button.addEventListener("click", () => answer(each));
      return button;
    }),
  );
  if (typed) say(matches.length ? `Enter: ${matches[chosen].name} (${matches.length} match). ` : "No class is called so. ");
}

// -------------------------------------------------------------------------------------------------------- keys

function pressed(event) {
  const typed = $("filter").value;
  const control = event.ctrlKey || event.metaKey;
  const key = event.key.toLowerCase();
  const onButton = event.target instanceof HTMLButtonElement || event.target.tagName === "SUMMARY";
  if (control && key === "s") save();
  else if (control && key === "z" && !typed) undo();
  else if (control || event.altKey) return;
  else if (keys && keys.includes(key)) answer(data.classes[keys.indexOf(key)]);
  else if (key === "-" && !typed) answer(OTHER);
  else if (key === "backspace" && !typed) undo();
  else if (key === "arrowleft" && !typed) move(-1);
  else if (key === "arrowright" && !typed) move(1);
  else if (key === "arrowdown" && typed && matches.length) step(1);
  else if (key === "arrowup" && typed && matches.length) step(-1);
  else if (key === "escape" && typed) clear();
  else if (key === "enter" && !onButton && typed && matches.length) answer(matches[chosen]);
  else {
    if (!keys && key.length === 1 && key !== " " && event.target !== $("filter")) $("filter").focus(); // and it is typed there
    return;
  }
  event.preventDefault();
}

function step(by) {
  chosen = (chosen + by + matches.length) % matches.length;
  list();
}

function clear() {
  $("filter").value = "";
  show("");
}

recall();
$("file").textContent = data.file;
$("typing").hidden = Boolean(keys);
$("how").textContent = keys ? "the key beside a class takes it" : "letters of a class's name narrow the list, Enter takes the first, ↑ and ↓ another";
$("filter").addEventListener("input", narrow);
$("other").addEventListener("click", () => answer(OTHER));
$("back").addEventListener("click", () => move(-1));
$("next").addEventListener("click", () => move(1));
$("undo").addEventListener("click", undo);
$("save").addEventListener("click", save);
document.addEventListener("keydown", pressed);
addEventListener("beforeunload", (event) => {
  if (!kept && state.done.length) event.preventDefault();
});
show("");
if (!keys && matchMedia("(hover: hover)").matches) $("filter").focus(); // on a phone it would bring up the keyboard
