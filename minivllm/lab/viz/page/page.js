// Steps through the frames of a run; draw.js draws them.
const run = JSON.parse(document.getElementById("run").textContent);
const frames = unpack(run.frames);
run.swaps = frames.some(frame => frame.queues[2].length);

/** A frame around this step's column of the timeline. */
function markTimeline(step) {
  const chart = document.querySelector("#chart svg"), now = $("now");
  const at = name => Number(chart.getAttribute("data-" + name));
  const left = at("x") + (step - at("first")) * at("step") - 1, width = Math.max(2, at("step") + 2);
  Object.assign(now.style, { left: left + "px", width: width + "px", top: at("top") - 2 + "px",
    height: at("bottom") - at("top") + 4 + "px" });
  now.classList.toggle("thin", at("step") < 8);
  now.hidden = false;
  const view = $("chart");
  if (left < view.scrollLeft || left + width > view.scrollLeft + view.clientWidth)
    view.scrollLeft = left - view.clientWidth / 2;
}

// -- stepping -------------------------------------------------------------------------------------

let current = -1;
function show(index) {
  current = clamp(index, 0, frames.length - 1);
  const frame = frames[current];
  $("slider").value = current;
  $("slider").setAttribute("aria-valuetext", `step ${frame.step} of ${run.numSteps - 1}`);
  $("step").textContent = `step ${frame.step} of ${run.numSteps - 1}`;
  drawWords(frame);
  drawQueue(frame);
  drawPool(frame);
  drawTables(frame);
  markTimeline(frame.step);
  history.replaceState(null, "", "#step=" + frame.step);
}

/** The frame that the address asks for: of that step, or the last one before it. */
function linked() {
  const step = Number(new URLSearchParams(location.hash.slice(1)).get("step") || 0);
  return frames.findLastIndex(frame => frame.step <= step);
}

let timer = null;
function pause() {
  clearInterval(timer);
  timer = null;
  $("play").textContent = "Play";
  $("words").setAttribute("aria-live", "polite");
}
function play() {
  if (current === frames.length - 1) show(0);
  $("play").textContent = "Pause";
  $("words").setAttribute("aria-live", "off");  // nobody can listen that fast
  timer = setInterval(() => {
    show(current + 1);
    if (current === frames.length - 1) pause();
  }, clamp(60000 / frames.length, 120, 800));
}
function go(index) {
  pause();
  show(index);
}

$("play").addEventListener("click", () => (timer ? pause() : play()));
$("back").addEventListener("click", () => go(current - 1));
$("forward").addEventListener("click", () => go(current + 1));
$("slider").addEventListener("input", () => go(Number($("slider").value)));
addEventListener("hashchange", () => go(linked()));
document.querySelector("#chart svg").addEventListener("click", event => {
  const chart = event.currentTarget, at = name => Number(chart.getAttribute("data-" + name));
  const x = event.clientX - chart.getBoundingClientRect().left;
  const step = at("first") + Math.floor((x - at("x")) / at("step"));
  if (x >= at("x")) go(Math.max(0, frames.findLastIndex(frame => frame.step <= step)));
});
document.addEventListener("keydown", event => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const to = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: frames.length - 1 };
  const onControl = event.target.closest("button, summary, input, a");
  if (event.key in to && event.target !== $("slider") && event.target !== $("chart")) {
    go(to[event.key]);
    event.preventDefault();
  } else if (event.key === " " && (!onControl || event.target === $("slider"))) {
    $("play").click();
    event.preventDefault();
  }
});

$("still").hidden = true;
$("live").hidden = $("help").hidden = false;
$("shared-means").hidden = !frames.some(frame =>
  [...holders(frame).values()].some(entries => entries.length > 1));
$("cached-means").hidden = !frames.some(frame => frame.cached.size);
if (location.hash) document.querySelector(".controls").scrollIntoView();
prepare();
new ResizeObserver(layOut).observe($("pool"));
show(linked());
