// A notebook that runs on its page: Python starts with the first cell that is run, in a web worker.
import { highlighted } from "./colours.js";
import { paint } from "./page.js";
import { say } from "./words.js";

const SECONDS = 300;  // a cell may take
const KEY = `cells ${location.pathname}`;  // the reader's changes, kept over a reload
const kept = () => { try { return JSON.parse(localStorage.getItem(KEY)) ?? {}; } catch { return {}; } };
const runner = document.querySelector("#runner");
const bar = Object.assign(document.createElement("div"), { className: "running-bar", hidden: true });
bar.innerHTML = `<span role="status"></span> <button type="button" class="stop" disabled>${say("Stop")}</button>`;
runner.closest(".runs").after(bar);
runner.innerHTML = `<button type="button" class="main all">${say("Run all")}</button>
  <button type="button" class="reset" hidden>${say("Reset")}</button>
  <span role="status">${say("Runs in this page; nothing to install. Change any cell.")}</span>`;
const state = runner.querySelector("[role=status]"), stop = bar.querySelector(".stop");
const where = bar.querySelector("[role=status]"), reset = runner.querySelector(".reset");
// What was highlighted when the page was made keeps its colours when it is printed again.
const coloured = new Map([...document.querySelectorAll(".listing")].map(
  listing => [listing.textContent.trimEnd(), listing.innerHTML]));
const cells = [...document.querySelectorAll(".cell[data-runs]")].map(element => new Cell(element));
const STATES = {  // what the engine tells of itself
  ready: "", busy: "", "Python is starting": say("Python is starting…"), "The scheduler is loading": say("The scheduler is loading…"),
};
let engine = null, said = "";

runner.querySelector(".all").addEventListener("click", () => runUpTo(cells.at(-1)));
stop.addEventListener("click", () => engine.stop());
reset.addEventListener("click", () => {
  try { localStorage.removeItem(KEY); } catch { /* nothing was kept */ }
  location.reload();
});
reset.hidden = !Object.keys(kept()).length;
document.addEventListener("guessed", ({ target, detail }) => {
  const cell = cells.find(it => it.element === target.closest(".cell"));
  if (!cell) return;
  cell.source = detail;
  const answer = cells[cells.indexOf(cell) + 1];
  if (answer && !document.body.classList.contains("running")) runUpTo(answer);
});

/** Start Python, once: its files are in the browser's cache by now, since the page asks for them. */
async function start() {
  const { Engine } = await import("./playground/engine.js");
  engine ??= new Engine(told => {
    said = STATES[told] ?? `${told}…`;
    if (said) where.textContent = said;
    stop.disabled = told !== "busy";
  });
}
// It starts when the reader comes near a button that runs something.
for (const near of document.querySelectorAll("#runner, .tools, form.guess"))
  for (const comes of ["pointerenter", "focusin"]) near.addEventListener(comes, start, { once: true });

/** Run a cell, and first those above it that have not run: it may need their names. */
async function runUpTo(last) {
  const buttons = [...document.querySelectorAll(".tools .run, .all")];
  document.body.classList.add("running");
  for (const button of buttons) button.disabled = true;
  bar.hidden = false;
  const begin = performance.now();
  await start();
  await engine.ready.catch(() => {});
  const due = [...cells.slice(0, cells.indexOf(last)).filter(cell => !cell.ran), last];
  let done = true;
  for (const cell of due) {
    where.textContent = said || say("Cell {number} of {all}", { number: cells.indexOf(cell) + 1, all: cells.length });
    if (due.length > 1) cell.element.scrollIntoView({ block: "nearest" });
    if (!(done = await cell.run())) break;
  }
  for (const button of buttons) button.disabled = false;
  document.body.classList.remove("running");
  bar.hidden = true;
  const seconds = ((performance.now() - begin) / 1000).toFixed(0);
  state.textContent = done
    ? say("Ran {ran} of {all} cells in {seconds} s.", { ran: due.length, all: cells.length, seconds }) : say("A cell failed: see its output.");
}

function Cell(element) {
  const number = +element.dataset.number, code = element.querySelector(".code");
  const listing = code.querySelector(".highlight"), original = listing.textContent.replace(/\n$/, "");
  const outputs = element.querySelector(".outputs"), isGuess = element.classList.contains("guessing");
  const tools = document.createElement("p");
  tools.className = "tools";
  tools.innerHTML = `<button type="button" class="run" aria-label="${say("Run cell {number}", { number })}">${say("Run")}</button>
    <button type="button" class="edit" aria-label="${say("Change cell {number}", { number })}">${say("Change")}</button>
    <span role="status"></span>`;
  if (!isGuess) code.prepend(tools);
  const told = tools.querySelector("[role=status]"), edit = tools.querySelector(".edit");
  const area = () => code.querySelector("textarea");

  this.element = element;
  this.ran = false;
  this.source = original;  // a guess changes it
  this.run = async () => {
    told.textContent = say("running…");
    element.classList.add("now");
    const begin = performance.now();
    const reply = await engine.ask({ call: "cell", source: area()?.value ?? this.source, number }, SECONDS);
    element.classList.remove("now");
    this.ran = !reply.error;
    if (reply.stopped) for (const cell of cells) cell.ran = false;  // Python begins anew
    const seconds = (performance.now() - begin) / 1000;
    outputs.closest(".answer")?.setAttribute("open", "");
    outputs.replaceChildren(...(reply.outputs ?? []).map(draw));
    paint(outputs);
    if (reply.error) {
      const line = reply.line ? say("Line {line}: ", { line: reply.line }) : "";
      outputs.append(pre("failed", line + reply.error));
    }
    told.textContent = reply.error ? say("error, see below") : `${seconds.toFixed(1)} s`;
    return !reply.error;
  };

  const keep = text => {
    const all = kept();
    if (text === undefined || text === original) delete all[element.id];
    else all[element.id] = text;
    try { localStorage.setItem(KEY, JSON.stringify(all)); } catch { /* then it holds until a reload */ }
    reset.hidden = !Object.keys(all).length;
  };
  const change = text => {
    if (area()) {
      area().closest(".editor").remove();
      listing.hidden = false;
      keep();
    } else {
      listing.hidden = true;
      code.insertAdjacentHTML("beforeend", `<div class="highlight editor"><pre aria-hidden="true"></pre><textarea
        spellcheck="false" autocapitalize="off" wrap="off" aria-label="${say("Code of cell {number}", { number })}"></textarea></div>`);
      area().value = text ?? original;
      area().rows = area().value.split("\n").length + 1;
      const below = code.querySelector(".editor pre");  // the same text, in colours
      const colour = () => { below.innerHTML = `${highlighted(area().value)}\n`; };
      const follow = () => { below.scrollTo(area().scrollLeft, area().scrollTop); };
      colour();
      area().addEventListener("scroll", follow);
      area().addEventListener("input", () => { this.ran = false; keep(area().value); colour(); follow(); });
      area().addEventListener("keydown", event => {
        if (event.key !== "Enter" || !(event.ctrlKey || event.shiftKey || event.metaKey)) return;
        event.preventDefault();
        if (!document.body.classList.contains("running")) runUpTo(this);
      });
      if (text === undefined) area().focus();
    }
    this.ran = false;
    edit.textContent = area() ? say("Original") : say("Change");
    edit.setAttribute("aria-label", area() ? say("Original code of cell {number}", { number }) : say("Change cell {number}", { number }));
  };
  tools.querySelector(".run").addEventListener("click", () => runUpTo(this));
  edit.addEventListener("click", () => change());
  if (kept()[element.id] !== undefined && !isGuess) change(kept()[element.id]);
}

/** An output as the notebook's page shows a stored one. */
function draw(it) {
  if (it.output_type === "stream") return pre(it.name, it.text);
  if (it.data["image/svg+xml"]) return figure(it.data["image/svg+xml"]);
  if (it.data["text/html"]) return box("html", it.data["text/html"]);
  if (it.data["text/markdown"]) {
    const text = it.data["text/plain"];
    return box("listing", coloured.get(text.trimEnd()) ?? `<div class="highlight"><pre>${highlighted(text)}</pre></div>`);
  }
  return pre("value", it.data["text/plain"]);
}

/** Never so small that letters are below 10.5 px, and wider than the text if it must be. */
function figure(html) {
  const element = box("figure", html), svg = element.querySelector("svg"), width = svg?.getAttribute("width");
  if (width) svg.style.minWidth = `${Math.round(.96 * width)}px`;
  element.classList.toggle("wide", width > 752);
  return element;
}

function box(name, html) {
  const element = document.createElement("div");
  element.className = name;
  element.innerHTML = html;
  return element;
}

function pre(name, text) {
  const element = document.createElement("pre");
  element.className = name;
  element.textContent = text;
  return element;
}
