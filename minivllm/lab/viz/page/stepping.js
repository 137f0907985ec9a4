// Goes through frames by slider, buttons, keys and play; draw.js draws each. A page sets `frames`
// before it calls `show`, calls `listen` once, and may be told of each frame by `whenShown`.
let frames = [], current = -1, timer = null;
let whenShown = () => {};

function show(index) {
  current = clamp(index, 0, frames.length - 1);
  const frame = frames[current], said = tr`step ${frame.step} of 0–${run.numSteps - 1}`;
  $("slider").value = current;
  $("slider").setAttribute("aria-valuetext", said);
  $("step").textContent = said;
  drawWords(frame);
  drawQueue(frame);
  drawPool(frame);
  drawTables(frame);
  whenShown(frame);
}

/** The frame of a step, or the last one before it. */
const indexOf = step => Math.max(0, frames.findLastIndex(frame => frame.step <= step));

function pause() {
  clearInterval(timer);
  timer = null;
  $("play").textContent = tr`Play`;
  $("words").setAttribute("aria-live", "polite");
}
function play() {
  if (current === frames.length - 1) show(0);
  $("play").textContent = tr`Pause`;
  $("words").setAttribute("aria-live", "off");  // that is too fast to listen to
  timer = setInterval(() => {
    show(current + 1);
    if (current === frames.length - 1) pause();
  }, clamp(60000 / frames.length, 120, 800));
}
function go(index) {
  pause();
  show(index);
}

/** Legend of this run's blocks: without what none of its steps has. */
function fitLegend() {
  $("shared-means").hidden = !frames.some(frame =>
    [...holders(frame).values()].some(entries => entries.length > 1));
  $("cached-means").hidden = !frames.some(frame => frame.cached.size);
  fitMarks(frames);
}

function listen() {
  $("play").addEventListener("click", () => (timer ? pause() : play()));
  $("back").addEventListener("click", () => go(current - 1));
  $("forward").addEventListener("click", () => go(current + 1));
  $("slider").addEventListener("input", () => go(Number($("slider").value)));
  document.addEventListener("keydown", event => {
    if (event.altKey || event.ctrlKey || event.metaKey || !frames.length) return;
    if (event.target.closest("textarea, select, [role=tab], [role=separator], input:not(#slider)")) return;
    const to = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: frames.length - 1 };
    const onControl = event.target.closest("button, summary, input, a");
    if (event.key in to && event.target !== $("slider")) {
      go(to[event.key]);
      event.preventDefault();
    } else if (event.key === " " && (!onControl || event.target === $("slider"))) {
      $("play").click();
      event.preventDefault();
    }
  });
  new ResizeObserver(() => run.blockSize && layOut()).observe($("pool"));
}
