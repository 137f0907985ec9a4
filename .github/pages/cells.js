// A notebook that runs on its page: Python starts with the first cell that is run, in a web worker.
const SECONDS = 300;  // a cell may take
const cells = [...document.querySelectorAll(".cell[data-runs]")].map(element => new Cell(element));
const runner = document.querySelector("#runner");
let engine = null;

runner.innerHTML = `<button type="button" class="all">Run all cells</button>
  <button type="button" class="stop" disabled>Stop</button>
  <span role="status">Runs in this page; each cell can be changed.</span>`;
const state = runner.querySelector("[role=status]"), stop = runner.querySelector(".stop");
runner.querySelector(".all").addEventListener("click", () => runUpTo(cells.at(-1)));
stop.addEventListener("click", () => engine.stop());

async function start() {
  const { Engine } = await import("./playground/engine.js");
  engine = new Engine(said => {
    state.textContent = { ready: "Python is ready.", busy: "Python runs." }[said] ?? `${said}.`;
    stop.disabled = said !== "busy";
  });
}

/** Run a cell, and first those above it that have not run: it may need their names. */
async function runUpTo(last) {
  document.body.classList.add("running");
  for (const button of document.querySelectorAll(".tools .run, .all")) button.disabled = true;
  if (!engine) await start();
  const due = cells.slice(0, cells.indexOf(last)).filter(cell => !cell.ran);
  for (const cell of [...due, last]) if (!await cell.run()) break;
  for (const button of document.querySelectorAll(".tools .run, .all")) button.disabled = false;
  document.body.classList.remove("running");
}

function Cell(element) {
  const number = +element.dataset.number, code = element.querySelector(".code");
  const original = code.textContent.replace(/\n$/, ""), outputs = element.querySelector(".outputs");
  const highlighted = code.innerHTML;
  const tools = document.createElement("p");
  tools.className = "tools";
  tools.innerHTML = `<button type="button" class="run" aria-label="Run cell ${number}">Run</button>
    <button type="button" class="edit" aria-label="Change cell ${number}">Change</button>
    <span role="status"></span>`;
  (element.querySelector(".imports") ?? code).after(tools);
  const said = tools.querySelector("[role=status]"), edit = tools.querySelector(".edit");
  const area = () => code.querySelector("textarea");

  this.ran = false;
  this.run = async () => {
    said.textContent = "…";
    const begin = performance.now();
    const reply = await engine.ask({ call: "cell", source: area()?.value ?? original, number }, SECONDS);
    this.ran = !reply.error;
    if (reply.stopped) for (const cell of cells) cell.ran = false;  // Python begins anew
    const seconds = (performance.now() - begin) / 1000;
    outputs.closest(".answer")?.setAttribute("open", "");
    outputs.replaceChildren(...(reply.outputs ?? []).map(draw));
    if (reply.error) {
      const line = reply.line ? `Line ${reply.line}: ` : "";
      outputs.append(pre("failed", line + reply.error));
    }
    said.textContent = reply.error ? "An error; see below." : `Ran in ${seconds.toFixed(1)} s.`;
    return !reply.error;
  };

  const change = () => {
    if (area()) {
      code.innerHTML = highlighted;
    } else {
      code.innerHTML = `<textarea spellcheck="false" autocapitalize="off" wrap="off" aria-label="Code of cell ${number}"></textarea>`;
      area().value = original;
      area().rows = original.split("\n").length + 1;
      area().addEventListener("keydown", event => {
        if (event.key !== "Enter" || !(event.ctrlKey || event.shiftKey || event.metaKey)) return;
        event.preventDefault();
        if (!document.body.classList.contains("running")) runUpTo(this);
      });
      area().focus();
    }
    this.ran = false;
    edit.textContent = area() ? "Original" : "Change";
    edit.setAttribute("aria-label", `${edit.textContent}${area() ? " code of" : ""} cell ${number}`);
  };
  tools.querySelector(".run").addEventListener("click", () => runUpTo(this));
  edit.addEventListener("click", change);
}

/** An output as the notebook's page shows a stored one. */
function draw(it) {
  if (it.output_type === "stream") return pre(it.name, it.text);
  if (it.data["image/svg+xml"]) return box("figure", it.data["image/svg+xml"]);
  if (it.data["text/html"]) return box("html", it.data["text/html"]);
  if (it.data["text/markdown"]) {
    const listing = box("listing", "");
    listing.append(pre("", it.data["text/plain"]));
    return listing;
  }
  return pre("value", it.data["text/plain"]);
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
