// Results: the numbers of one run or two, the timeline with the step that is shown, and the steps.
let reply = null, shown = "A", svg = null;
const SVG = "http://www.w3.org/2000/svg";
const HEADS = ["", "arrives, ms", "priority", "prompt", "output", "cached", "TTFT, ms", "ends, ms", "preempted"];

/** Show what `run` answered, at the step that is shown already; at first, at the largest. */
export function showResults(answer) {
  const step = frames[current]?.step ?? largest(unpack(answer.runs.A.run.frames));
  if (timer !== null) pause();
  reply = answer;
  if (!(shown in reply.runs)) shown = "A";
  if (svg) $("told").textContent = reply.alt;
  $("results").classList.add("has-run");
  drawNumbers();
  drawTimeline();
  const names = Object.keys(reply.runs);
  $("which").hidden = names.length < 2;
  $("which").innerHTML = names.map(name => `<label><input type="radio" name="which" value="${name}"` +
    `${name === shown ? " checked" : ""}> <span class="run-${name}">${name}</span></label>`).join(" ");
  choose(shown, step);
}

/** The step that computes the most tokens. */
function largest(all) {
  const sizes = all.map(frame => frame.rows.reduce((sum, row) => sum + (row.group ? 0 : row.scheduled), 0));
  return all[sizes.indexOf(Math.max(...sizes))].step;
}

/** Go through the steps of this run, beginning with that one. */
function choose(name, step) {
  shown = name;
  globalThis.run = reply.runs[name].run;
  frames = unpack(run.frames);
  run.swaps = frames.some(frame => frame.queues[2].length);
  $("slider").max = frames.length - 1;
  fitLegend();
  prepare();
  drawRequests();
  show(indexOf(step));
}

function drawNumbers() {
  const names = Object.keys(reply.runs), first = reply.runs[names[0]].numbers;
  $("numbers").innerHTML = first.map(([title, , unit], i) => {
    const values = names.map(name => reply.runs[name].numbers[i][1]);
    const most = Math.max(...values.map(parseFloat), 1e-9);
    return `<div><dt>${title}${unit && `, ${unit}`}</dt>` + values.map((value, j) =>
      `<dd>${names.length > 1 ? `<span class="run-${names[j]}">${names[j]}</span> ` : ""}${value}` +
      `<i class="scale" style="--share:${(100 * parseFloat(value) / most || 0).toFixed(1)}%"></i></dd>`)
      .join("") + "</div>";
  }).join("");
}

function drawRequests() {
  $("requests").innerHTML = `<caption class="sr">Requests of run ${shown}</caption><thead><tr>` +
    HEADS.map((head, i) => i ? `<th scope="col">${head}</th>` : "<td></td>").join("") +
    "</tr></thead><tbody>" + reply.runs[shown].requests.map(([index, ...cells]) =>
      `<tr><th scope="row">${badge(index)}</th>${cells.map(cell => `<td>${cell}</td>`).join("")}</tr>`)
      .join("") + "</tbody>";
}

// -- the timeline ---------------------------------------------------------------------------------

function drawTimeline() {
  $("chart").innerHTML = reply.svg;
  svg = $("chart").firstElementChild;
  svg.style.minWidth = "704px";
  const now = document.createElementNS(SVG, "rect");
  now.id = "now";
  svg.append(now);
}

/** From top to bottom of a run: its group, or of a single one the whole picture. */
function band(name) {
  const names = Object.keys(reply.runs), at = key => Number(svg.getAttribute("data-" + key));
  if (names.length === 1) return [at("top"), at("bottom")];
  const groups = [...svg.querySelectorAll(":scope > g[transform^=translate]")].slice(-names.length);
  const down = groups.map(group => group.transform.baseVal[0].matrix.f);
  const i = names.indexOf(name);
  return [at("top") + down[i], i + 1 < names.length ? at("top") + down[i + 1] - 30 : at("bottom")];
}

whenShown = frame => {
  const columns = reply.runs[shown].columns, [top, bottom] = band(shown);
  const left = columns[frame.step], width = Math.max(2, columns[frame.step + 1] - left);
  for (const [name, value] of Object.entries({ x: left - 1, width: width + 2, y: top - 2,
    height: bottom - top + 4, "stroke-width": width < 8 ? 1 : 2 })) $("now").setAttribute(name, value);
  const view = $("chart"), scale = svg.clientWidth / svg.viewBox.baseVal.width, x = left * scale;
  if (x < view.scrollLeft || x + width * scale > view.scrollLeft + view.clientWidth)
    view.scrollLeft = x - view.clientWidth / 2;
};

/** Where a click on the timeline leads. */
function clicked(event) {
  const box = svg.getBoundingClientRect(), { width, height } = svg.viewBox.baseVal;
  const x = (event.clientX - box.left) * width / box.width;
  const y = (event.clientY - box.top) * height / box.height;
  const name = Object.keys(reply.runs).findLast(name => y >= band(name)[0] - 20) ?? shown;
  const { columns } = reply.runs[name], step = columns.findLastIndex(edge => edge <= x);
  if (step < 0 || step >= columns.length - 1) return;
  pause();
  if (name === shown) show(indexOf(step));
  else {
    document.querySelector(`[name=which][value=${name}]`).checked = true;
    choose(name, step);
  }
}

$("chart").addEventListener("click", event => svg && clicked(event));
$("which").addEventListener("change", event => {
  pause();
  choose(event.target.value, frames[current].step);
});
globalThis.run = {};
listen();
