// Results: the two numbers of the lesson, the timeline, and in the dock the step that is shown.
import { Dock } from "./dock.js";
import { Timeline } from "./timeline.js";

let reply = null, steps = null, shown = "1", wanted = 0;
const HEADS = ["", tr`arrives, ms`, tr`priority`, tr`prompt`, tr`output`, tr`cached`, tr`TTFT, ms`, tr`ends, ms`, tr`preempted`];
const timeline = new Timeline($("chart"), (name, step) => { pause(); choose(name, step); });

/** Show what `run` answered: numbers and timelines. titles: of the runs. focus: the lesson's numbers. */
export function showResults(answer, { axis, focus, titles, opens }) {
  if (timer !== null) pause();
  reply = answer;
  for (const [name, each] of Object.entries(reply.runs)) each.title = `${titles[name]} · ${plural(each.timeline.steps, "step")}`;
  if (opens) [shown, wanted] = [opens.engine, opens.step];
  if (!(shown in reply.runs)) shown = "1";
  wanted = Math.min(wanted, reply.runs[shown].timeline.steps - 1);
  drawFocus(focus);
  drawNumbers();
  timeline.show(reply.runs, axis);
  timeline.mark(shown, wanted);
  const names = Object.keys(reply.runs);
  $("which").innerHTML = names.map(name => `<label><input type="radio" name="which" value="${name}"` +
    `${name === shown ? " checked" : ""}> <span class="run-${name}">${name}</span></label>`).join(" ");
  drawRequests();
  $("dock").classList.add("has-run");
}

/** Show what `steps` answered: the same runs, step by step. */
export function showSteps(answer) {
  steps = answer.runs;
  choose(shown, wanted);
}

/** The axis has another unit. */
export function showAxis(axis) {
  if (!reply) return;
  timeline.show(reply.runs, axis);
  timeline.mark(shown, wanted);
}

/** Go through the steps of this run, beginning with that one. */
function choose(name, step) {
  if (name !== shown) {
    document.querySelector(`[name=which][value="${name}"]`).checked = true;
    shown = name;
    drawRequests();
  }
  wanted = step;
  timeline.mark(name, step);
  if (!steps?.[name]) return;
  globalThis.run = steps[name].run ?? steps[name];
  if (steps[name] !== choose.ready) {
    choose.ready = steps[name];
    frames = unpack(run.frames);
    run.swaps = frames.some(frame => frame.queues[2].length);
    $("slider").max = frames.length - 1;
    fitLegend();
    prepare();
    layOut();
  }
  show(indexOf(step));
}

let moved = () => {};
/** Call a function after each move of the playhead. */
export function whenMoved(call) { moved = call; }
/** What is shown: { engine, step }. */
export const place = () => reply && { engine: shown, step: wanted };

whenShown = frame => {
  wanted = frame.step;
  timeline.mark(shown, frame.step);
  moved();
};

const unit = text => text && `<small>${text}</small>`;

/** The two numbers that the lesson is about: before and after. */
function drawFocus(focus) {
  const runs = Object.values(reply.runs);
  $("focus").innerHTML = focus.map(title => {
    const found = runs.map(each => each.numbers.find(number => number[0].startsWith(title)));
    return found[0] ? `<div><dt>${title}</dt><dd>${found.map(number => `<span>${number[1]}</span>`).join(" → ")} ${unit(found[0][2])}</dd></div>` : "";
  }).join("");
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
  const { owners } = reply.runs[shown].timeline;
  const name = index => `<span class="owner-${owners[index].colour} badge">${owners[index].letter}</span>`;
  $("requests").innerHTML = `<caption>${tr`Requests, engine ${shown}`}</caption><thead><tr>` +
    HEADS.map((head, i) => i ? `<th scope="col">${head}</th>` : "<td></td>").join("") +
    "</tr></thead><tbody>" + reply.runs[shown].requests.map(([index, ...cells]) =>
      `<tr><th scope="row">${name(index)}</th>${cells.map(cell => `<td>${cell}</td>`).join("")}</tr>`)
      .join("") + "</tbody>";
}

$("which").addEventListener("change", event => {
  pause();
  const step = Math.min(wanted, reply.runs[event.target.value].timeline.steps - 1);
  choose(event.target.value, step);
});

// -- the dock: the parts of stepping.html, each in its pane -----------------------------------------

$("stepper").append(document.querySelector("#pool-pane .controls"));
$("step-pane").append($("plan"));
$("tables-pane").append($("tables").previousElementSibling, $("tables"));
document.querySelectorAll("#blocks h3").forEach(head => head.remove());

export const dock = new Dock($("dock"), "playground");
globalThis.run = {};
listen();
