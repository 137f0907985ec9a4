// The run on the first page: a step every second, until the reader stops it.
const SECONDS = 1.2, SVG = "http://www.w3.org/2000/svg";
const at = id => document.getElementById(`film-${id}`);
const { pools, words } = await (await fetch(new URL("film.json", import.meta.url))).json();
const run = at("run").querySelector("svg"), { x, step: width, top, bottom, first } = run.dataset;
const cursor = document.createElementNS(SVG, "rect");
let timer = null;

function show(step) {
  at("pool").innerHTML = pools[step];
  at("words").textContent = words[step];
  at("at").textContent = `step ${step} of ${pools.length - 1}`;
  at("step").value = step;
  const left = +x + (step - first) * width, seen = at("run");
  cursor.setAttribute("x", left);
  if (seen.scrollWidth > seen.clientWidth) seen.scrollLeft = left - seen.clientWidth / 2;
}

function play(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => show((+at("step").value + 1) % pools.length), 1000 * SECONDS) : null;
  at("play").textContent = on ? "Pause" : "Play";
}

for (const [name, value] of Object.entries({ id: "film-cursor", y: top, width, height: bottom - top })) {
  cursor.setAttribute(name, value);
}
run.append(cursor);
at("play").addEventListener("click", () => play(!timer));
at("step").addEventListener("input", () => { play(false); show(+at("step").value); });
at("play").closest("p").hidden = false;
show(0);
play(!matchMedia("(prefers-reduced-motion: reduce)").matches);
