// The toy of the first page: one slider for the memory, one for the time. All runs were computed at build.
import { say } from "./words.js";

const SECONDS = .7, SVG = "http://www.w3.org/2000/svg";
const toy = document.querySelector("#toy");
const { first, low, colours, asked, runs } = await (await fetch(`${document.body.dataset.base}/toy.json`)).json();
toy.insertAdjacentHTML("beforeend", `
  <label>${say("blocks of memory")} <input type="range" id="blocks" min="${low}" max="${low + runs.length - 1}" value="${first}"> <output></output></label>
  <div class="chats"></div><div class="lines"></div>
  <p class="time"><button type="button">${say("Play")}</button><input type="range" id="time" min="0" value="0" aria-label="${say("Step")}"><output></output></p>
  <div class="pool" role="img"></div><p class="said" role="status"></p>`);
const at = selector => toy.querySelector(selector), blocks = at("#blocks"), time = at("#time"), button = at("button");
const solid = i => `--solid: ${colours[i][0]}; --on: ${colours[i][1]}`;
at(".chats").innerHTML = asked.map(({ letter, text }, i) =>
  `<div class="chat" style="${solid(i)}"><p><b>${letter}</b> <i>${text}</i></p><p class="answer"></p></div>`).join("");
const chats = [...toy.querySelectorAll(".chat")];
const LONGEST = Math.max(...runs.map(run => run.length)), CELL = 22, ROW = 22, LEFT = 26;
let timer = null, run = [];

function draw() {
  run = runs[blocks.value - low];
  at("label output").textContent = `${blocks.value}`;
  time.max = run.length - 1;
  const bars = run.flatMap((step, s) => step.done.map((done, i) => {
    const x = LEFT + s * CELL, y = i * ROW, fill = colours[i][0];
    if (done === "-") return `<rect x="${x + 1}" y="${y + 9}" width="${CELL - 2}" height="3" fill="${step.lost.includes(asked[i].letter) ? "var(--bad)" : "var(--empty)"}"/>`;
    return done === "." ? "" : `<rect x="${x + 1}" y="${y + 2}" width="${CELL - 2}" height="${ROW - 5}" rx="3" fill="${fill}" opacity="${done > 1 ? 1 : .45}"/>`;
  }));
  const names = asked.map(({ letter }, i) => `<text x="4" y="${i * ROW + 15}">${letter}</text>`);
  at(".lines").innerHTML = `<svg xmlns="${SVG}" viewBox="0 0 ${LEFT + LONGEST * CELL} ${asked.length * ROW}" role="img"
    aria-label="${say("Timeline: {steps} steps", { steps: run.length })}">${names.join("")}${bars.join("")}<rect class="now" y="0" width="${CELL}" height="${asked.length * ROW}"
    fill="none" stroke="var(--ink)" stroke-width="2" rx="3"/></svg>`;
  show(Math.min(time.value, run.length - 1));
}

function show(number) {
  const step = run[number], waits = step.done.filter(done => done === "-").length;
  time.value = number;
  at(".time output").textContent = say("step {number} of {steps}", { number: number + 1, steps: run.length });
  at(".now").setAttribute("x", LEFT + number * CELL);
  chats.forEach((chat, i) => {
    const { letter, answer } = asked[i], done = step.done[i], said = step.said[i];
    const lost = run.slice(0, +number + 1).findLast(it => it.lost.includes(letter));
    const end = said === answer.length ? "" : done === "-"
      ? said || lost ? say("gave its blocks to {others}, and waits", { others: lost?.to.join(say(" and ")) || say("others") }) : say("waits")
      : done === "." ? "" : said ? "…" : say("reads the prompt");
    chat.querySelector(".answer").innerHTML = `${answer.slice(0, said).join("")} <i>${end}</i>`;
    chat.classList.toggle("lost", done === "-" && !!lost);
  });
  at(".pool").innerHTML = [...step.pool].map(letter => {
    const i = asked.findIndex(it => it.letter === letter);
    return i < 0 ? "<span></span>" : `<span style="${solid(i)}">${letter}</span>`;
  }).join("");
  at(".pool").setAttribute("aria-label", say("{held} of {all} blocks are held; {waits} wait", { held: step.pool.replaceAll(".", "").length, all: blocks.value, waits }));
  at(".said").textContent = step.words;
}

/** Goes on to the end, and stays there. */
function play(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => {
    if (+time.value < run.length - 1) show(+time.value + 1);
    if (+time.value === run.length - 1) play(false);
  }, 1000 * SECONDS) : null;
  button.textContent = on ? say("Pause") : say("Play");
}

blocks.addEventListener("input", draw);
time.addEventListener("input", () => { play(false); show(+time.value); });
button.addEventListener("click", () => {
  if (!timer && +time.value === run.length - 1) show(0);
  play(!timer);
});
draw();
show(Math.max(0, run.findIndex(step => step.lost.length)));
