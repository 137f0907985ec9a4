"use strict";
// What Python wrote down, step by step; here it is only drawn. See _encode() in page.py.
const run = JSON.parse(document.getElementById("run").textContent);
const $ = id => document.getElementById(id);
const ESCAPED = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escape = text => String(text).replace(/[&<>"]/g, character => ESCAPED[character]);
const plural = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// -- frames: each says only what has changed since the one before ---------------------------------

function unpack(packed) {
  let tables = new Map(), queues = [[], [], []], free = [];
  const cached = new Set();
  return packed.map(({ step, words, rows, queues: changed, cached: [added, removed],
    free: nowFree }) => {
    const before = tables;
    tables = new Map();
    const unpacked = rows.map(([owner, computed, scheduled, total, isNew, blocks]) => {
      blocks = blocks || before.get(owner);
      tables.set(owner, blocks);
      return { owner, computed, scheduled, total, blocks, firstNew: blocks.length - isNew };
    });
    queues = queues.map((queue, i) => (changed && changed[i]) || queue);
    added.forEach(block => cached.add(block));
    removed.forEach(block => cached.delete(block));
    free = nowFree || free;
    return { step, words, rows: unpacked, queues, cached: new Set(cached), free };
  });
}
const frames = unpack(run.frames);

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
function fill(row, logical) {
  const first = logical * run.blockSize;
  const filled = clamp(row.computed - first, 0, run.blockSize);
  return [filled, clamp(row.computed + row.scheduled - first, 0, run.blockSize) - filled];
}
/** Entries of all tables that point to each held block, by block id. */
function holders(frame) {
  const held = new Map();
  for (const row of frame.rows) row.blocks.forEach((block, logical) => {
    if (!held.has(block)) held.set(block, []);
    const [filled, written] = fill(row, logical);
    held.get(block).push({ row, logical, filled, written, isNew: logical >= row.firstNew });
  });
  return held;
}

// -- drawing --------------------------------------------------------------------------------------

const owner = index => run.owners[index];
const badge = (index, still = "") =>
  `<span class="owner-${owner(index).colour} badge ${still}">${owner(index).letter}</span>`;

function slots(entry, withTokens) {
  if (!run.detailed) {
    const percent = number => (100 * number / run.blockSize).toFixed(1) + "%";
    const style = `--f:${percent(entry.filled)};--w:${percent(entry.filled + entry.written)}`;
    return `<span class="bar" style="${style}"></span>`;
  }
  let html = "";
  for (let i = 0; i < run.blockSize; i++) {
    const state = i < entry.filled ? "filled" : i < entry.filled + entry.written ? "written" : "";
    const token = withTokens && state && run.tokens
      ? run.tokens.texts[run.tokens.of[entry.row.owner][entry.logical * run.blockSize + i]] : "";
    html += `<i class="slot ${state}">${escape(token)}</i>`;
  }
  return `<span class="slots" aria-hidden="true">${html}</span>`;
}

const ordinal = n => n + ((n / 10 | 0) % 10 === 1 ? "th" : ["th", "st", "nd", "rd"][n % 10] || "th");

/** A block that nobody holds and the prefix cache can find: whose it was, and when it is reused. */
function drawFree(block, index, logical, place) {
  const { letter, colour } = owner(index);
  const entry = { row: { owner: index }, logical, filled: run.blockSize, written: 0 };
  return `<div class="owner-${colour} block cached" data-block="${block}" data-was="${letter}" ` +
    `data-place="${place}" title="block ${block}: free, but still cached; ${letter}'s block ` +
    `${logical}; ${ordinal(place)} in the free queue"><span class="name">${block}` +
    `<span>${ordinal(place)}</span><b>${letter}</b></span>${slots(entry, false)}</div>`;
}

function drawPool(frame) {
  const held = holders(frame), free = new Map(frame.free.map(([block, ...rest]) => [block, rest]));
  let used = 0, html = "", cachedAndFree = 0;
  for (let block = 0; block < run.numDrawn; block++) {
    const entries = held.get(block);
    if (!entries) {
      const cached = frame.cached.has(block);
      cachedAndFree += cached;
      if (free.has(block)) {
        html += drawFree(block, ...free.get(block));
        continue;
      }
      const look = block === 0 ? "null" : cached ? "cached" : "free";
      const id = run.dense && block % 10 ? "&nbsp;" : `<span class="id">${block}</span>`;
      html += `<div class="block ${look}" data-block="${block}" title="block ${block}: ${look}">` +
        `<span class="name">${id}${block || run.dense ? "" : "<b>null</b>"}</span></div>`;
      continue;
    }
    const fullest = entries.reduce((a, b) => (b.filled + b.written > a.filled + a.written ? b : a));
    used += fullest.filled + fullest.written;
    const letters = entries.map(entry => owner(entry.row.owner).letter);
    const shared = entries.length > 1;
    const some = letters.slice(0, 2).join(" ") + (letters.length > 2 ? "…" : "");
    const who = run.dense ? letters[0] : some + (shared ? ` ×${entries.length}` : "");
    html += `<div class="owner-${owner(fullest.row.owner).colour} block held` +
      `${shared ? " shared" : ""}${entries.some(entry => entry.isNew) ? " new" : ""}" ` +
      `data-block="${block}" data-owners="${letters.join(" ")}" data-filled="${fullest.filled}" ` +
      `data-written="${fullest.written}" title="block ${block}, held by ${letters.join(", ")}: ` +
      `${fullest.filled} filled, ${fullest.written} written of ${plural(run.blockSize, "slot")}">` +
      `<span class="name">${run.dense ? "" : block}<b>${who}</b></span>${slots(fullest, false)}</div>`;
  }
  const shared = [...held.values()].filter(entries => entries.length > 1).length;
  const facts = [`${held.size} of ${plural(run.numBlocks - 1, "block")} held`];
  if (held.size) facts.push(`${used} of their ${held.size * run.blockSize} slots used`);
  if (shared) facts.push(`${shared} shared`);
  if (cachedAndFree) facts.push(`${cachedAndFree} free but cached`);
  if (run.numDrawn < run.numBlocks)
    facts.push(`${plural(run.numBlocks - run.numDrawn, "block")} never used and not drawn`);
  $("pool").innerHTML = html;
  $("pool-facts").textContent = facts.join(" · ");
  $("pool").setAttribute("aria-label", `Block pool: ${facts.join(", ")}.`);
}

function drawTables(frame) {
  const held = holders(frame);
  $("tables").innerHTML = frame.rows.map(row => {
    const { letter, id, colour } = owner(row.owner);
    const progress = `${row.computed} computed` + (row.scheduled ? ` + ${row.scheduled} now` : "") +
      ` of ${row.total}`;
    const entries = row.blocks.map((block, logical) => {
      const times = held.get(block).length, isNew = logical >= row.firstNew;
      const [filled, written] = fill(row, logical);
      const name = `${block}${times > 1 ? ` ×${times}` : ""}`;
      const said = `<span class="sr">logical block ${logical} is block ${block}` +
        `${times > 1 ? `, shared by ${times}` : ""}${isNew ? ", new" : ""}, ` +
        `${filled} slots filled, ${written} written</span>`;
      const top = run.detailed
        ? `<span class="top" aria-hidden="true"><span>${logical}</span>` +
          `<span>→ <span class="physical">${name}</span></span></span>${said}`
        : `<span class="physical">${name}</span>`;
      return `<li class="entry${times > 1 ? " shared" : ""}${isNew ? " new" : ""}" ` +
        `data-block="${block}" data-ref="${times}">` +
        `${top}${slots({ row, logical, filled, written }, true)}</li>`;
    });
    return `<li class="owner-${colour}" data-seq="${escape(id)}"><div class="who">` +
      `${badge(row.owner)} ${escape(id)}<small>${progress}</small></div>` +
      `<ol aria-label="blocks of ${letter}">${entries.join("")}</ol></li>`;
  }).join("") || "<li>Nobody holds a block.</li>";
}

function drawQueue(frame) {
  const names = ["Running", "Waiting", "On the host"], most = 48;
  $("queue").innerHTML = "<dl>" + frame.queues.map((queue, i) => {
    if (i === 2 && !frames.some(any => any.queues[2].length)) return "";
    const more = queue.length > most ? ` and ${queue.length - most} more` : "";
    const chips = queue.slice(0, most).map(index => badge(index, i ? "still" : "")).join("");
    return `<dt>${names[i]}${queue.length ? ` (${queue.length})` : ""}</dt>` +
      `<dd>${chips || "nobody"}${more}</dd>`;
  }).join("") + "</dl>";
}

function drawWords(frame) {
  $("words").innerHTML = "<dl>" + ["Before", "Plan", "Result"].map((name, i) =>
    frame.words[i] && `<dt>${name}</dt><dd>${escape(frame.words[i])}</dd>`).join("") + "</dl>";
}

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

/** Round numbers of columns, so that a block can be found without counting. */
const perLine = Math.min(run.blockSize, 8);
function layOut() {
  const room = $("pool").clientWidth, width = run.dense ? 23 : run.detailed ? Math.max(72, 12 + perLine * 20) : 47;
  const columns = [run.numDrawn, 50, 40, 20, 10, 8, 5, 4, 2].find(n => n * width <= room) || 1;
  $("pool").style.setProperty("--columns", Math.max(columns, 4));
}
$("still").hidden = true;
$("live").hidden = $("help").hidden = false;
$("pool").classList.toggle("dense", run.dense);
$("pool").classList.toggle("bars", !run.detailed);
$("tables").classList.toggle("small", !run.detailed);
$("shared-means").hidden = !frames.some(frame =>
  [...holders(frame).values()].some(entries => entries.length > 1));
$("cached-means").hidden = !frames.some(frame => frame.cached.size);
if (location.hash) document.querySelector(".controls").scrollIntoView();
document.body.style.setProperty("--per-line", perLine);
document.body.style.setProperty("--slot", run.tokens ? Math.max(3, run.tokens.width) + "ch" : "1.2rem");
new ResizeObserver(layOut).observe($("pool"));
show(linked());
