// Shows the engine's pictures as they come; draw.js draws.
let run = {};
let last = null;  // the picture that is shown
let next = null;  // the one that comes after it
let came = 0;  // when the latest came, in milliseconds
let whenShown = () => {};  // what else is done with a picture
const timeline = new Timeline($("chart"));

const COMPILES = 60;  // steps; a process that has done fewer may have to compile
const LONG = 1500;  // milliseconds without a step

async function watch() {
  for (;;) {
    try {
      for await (const event of eventsOf(await send("glass/events"))) keep(JSON.parse(event));
    } catch { /* it is asked again */ }
    $("gone").hidden = false;
    await wait(1000);
  }
}

/** Note a picture. The latest one is drawn when the screen is: several may come before. */
function keep(picture) {
  const isFirst = next === null;
  next = picture;
  came = performance.now();
  if (isFirst) requestAnimationFrame(() => {
    show(next);
    next = null;
  });
}

function show(picture) {
  const { run: constants, frame: packed, timeline: steps, numbers } = picture;
  last = picture;
  run = constants;
  const [frame] = unpack([packed]);
  $("gone").hidden = true;
  if (isAnother(run)) {
    prepare();
    fitPool();
  }
  drawSizes(picture.server);
  drawNumbers(numbers);
  drawPace();
  drawWords(frame);
  drawQueue(frame);
  drawTables(frame);
  drawPool(frame);
  if (steps) timeline.follow({ timeline: { ...steps, owners: steps.owners.map(owner) }, title: steps.told, said: steps.said });
  $("cached-means").hidden = $("shared-means").hidden = false;
  fitMarks([frame]);
  whenShown(picture);
}

/** The server's sizes: another one may have been started in its place. */
function drawSizes({ tokens, seqs, length, small }) {
  const flag = "<code>--num-gpu-blocks-override</code>", more = small ? tr`Few on purpose: ${flag} gives more.` + " " : "";
  patch($("sizes"), ["<span>" + tr`${run.numBlocks} blocks of ${plural(run.blockSize, "slot")}, one of them the null block.` +
    ` ${more}` + tr`At most ${plural(tokens, "token")} and ${plural(seqs, "sequence")} a step, ${plural(length, "token")} a request.` + "</span>"]);
}

function drawNumbers({ step, running, waiting, free, usable, prompt, cached, note }) {
  const why = tr`prompt tokens that were found in the prefix cache` + (note && `; ${note}`);
  const shown = [
    [tr`steps`, step + 1], [tr`running`, running], [tr`waiting`, waiting], [tr`blocks free`, tr`${free} of ${usable}`],
    [tr`from the prefix cache`, tr`${cached} of ${prompt}`, ` title="${escape(why)}"`],
  ];
  patch($("numbers"), shown.map(([name, value, about = ""]) => `<div${about}><dt>${name}</dt><dd>${value}</dd></div>`));
}

let shape = "";
/** True for the first picture, and where blocks are drawn in another way than in the one before. */
function isAnother({ dense, detailed, numDrawn, blockSize, tokens }) {
  const before = shape;
  shape = [dense, detailed, numDrawn, blockSize, tokens?.width].join();
  return shape !== before;
}

let room = 0;  // width of the pool
/** As many blocks in a line as have room, a round number of them; each as high as a full one. */
function fitPool() {
  const pool = $("pool"), width = run.dense ? 27 : run.detailed ? 62 : 47;
  const columns = [40, 20, 16, 12, 10, 8, 6, 5, 4].find(n => n * width <= room) || 4;
  pool.style.setProperty("--columns", Math.min(columns, Math.max(run.numDrawn, 4)));
  pool.style.setProperty("--lines", Math.ceil(run.blockSize / perLine()));
}

// -- pace -----------------------------------------------------------------------------------------

/** True if a new process has work and shows no step: its loops are compiled then. */
const compiles = () => last.pace !== 0 && last.numbers.running + last.numbers.waiting > 0 &&
  last.numbers.step < COMPILES && performance.now() - came > LONG;

function stateOf({ pace, ended, server, numbers }) {
  if (!$("gone").hidden) return tr`no answer`;
  if (ended) return tr`recorded, ended at step ${numbers.step}`;
  if (server.attached) {
    const seconds = Math.round((performance.now() - came) / 1000);
    return tr`step ${numbers.step}` + (seconds > 3 ? tr`, nothing new for ${seconds} s` : tr`, live`);
  }
  if (compiles()) return tr`compiling, about 10 s, only once`;
  return pace === null ? tr`running` : pace ? tr`${plural(pace, "step")} a second` : tr`paused`;
}

function drawPace() {
  $("state").textContent = stateOf(last);
  if ($("slider")) return drawScrubber();
  $("pause").disabled = last.pace === 0;
  $("resume").disabled = last.pace === null && !$("pace").value;
}

/** A run that is attached: what has been is on a page of its own, and this one loads it at the end. */
function drawScrubber() {
  const slider = $("slider"), { numbers, ended, server } = last;
  slider.max = numbers.step;
  slider.disabled = numbers.step < 0 || !server.steps;
  if (document.activeElement !== slider) slider.value = numbers.step;
  $("back").hidden = slider.disabled;
  if (ended && server.steps) location.replace("glass/steps#step=" + numbers.step);
}

const press = path => send(path, { method: "POST" }).catch(error => say(inWords(error), "problem"));
const resume = () => press("glass/resume" + ($("pace").value && "?steps_per_second=" + $("pace").value));

if ($("slider")) {
  $("slider").addEventListener("change", () => {
    location.href = "glass/steps#step=" + $("slider").value;
  });
} else {
  $("pause").addEventListener("click", () => press("glass/pause"));
  $("one-step").addEventListener("click", () => press("glass/step"));
  $("resume").addEventListener("click", resume);
  $("pace").addEventListener("change", resume);
  document.addEventListener("keydown", event => {
    const onControl = event.target.closest("button, summary, input, textarea, select, a");
    if (event.key !== " " || onControl || event.altKey || event.ctrlKey || event.metaKey || !last) return;
    event.preventDefault();
    if (last.pace === 0) resume();
    else press("glass/pause");
  });
}
setInterval(() => last && ($("state").textContent = stateOf(last)), 500);
new ResizeObserver(() => {
  room = $("pool").clientWidth;
  if (last) fitPool();
}).observe($("pool"));
