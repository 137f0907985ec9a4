"use strict";
// Draws frames, as Python has written them down: see StepFrame and Packer. A page that includes this
// has `run`, with what holds for all of them.
const $ = id => document.getElementById(id);
const ESCAPED = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escape = text => String(text).replace(/[&<>"]/g, character => ESCAPED[character]);
// A page in another language has read words.js before; in English a text is what it says.
const tr = globalThis.tr ?? String.raw, word = text => globalThis.WORDS?.[text] ?? text;
/** A number with what it counts, or in its order, where the page's language has a form of its own. */
const formed = (form, number) => globalThis.WORDS?.[form]?.replace("#", number);
const plural = (number, noun) => formed(`# ${noun}`, number) ?? `${number} ${noun}${number === 1 ? "" : "s"}`;

/**
 * Make these the children of an element: parts, each the HTML of one. A child whose HTML is as it was
 * stays; so does the rest of a list that has lost its first ones.
 */
function patch(element, parts) {
  const old = element.parts ?? [];
  for (let gone = old.indexOf(parts[0]); gone > 0; gone--) {
    element.firstElementChild.remove();
    old.shift();
  }
  const same = parts.reduce((sum, part, i) => sum + (part === old[i]), 0);
  if (2 * same < parts.length || !parts.length) element.innerHTML = parts.join("");
  else {
    const children = [...element.children];
    children.forEach((child, i) => {
      if (i >= parts.length) child.remove();
      else if (parts[i] !== old[i]) child.outerHTML = parts[i];
    });
    element.insertAdjacentHTML("beforeend", parts.slice(children.length).join(""));
  }
  element.parts = parts;
}

// -- frames: each says only what has changed since the one before ---------------------------------

function unpack(packed) {
  let tables = new Map(), queues = [[], [], [], [], []], free = [];
  const cached = new Set();
  return packed.map(({ step, words, rows, queues: changed, cached: [added, removed],
    free: nowFree }) => {
    const before = tables;
    tables = new Map();
    const unpacked = rows.map(
      ([owner, computed, scheduled, total, isNew, blocks, inFlight, group = 0, left = []]) => {
        const table = owner + ":" + group;
        blocks = blocks || before.get(table);
        tables.set(table, blocks);
        const firstNew = blocks.length - isNew;
        return { owner, computed, inFlight, scheduled, total, blocks, firstNew, group, left };
      });
    queues = queues.map((queue, i) => (changed && changed[i]) || queue);
    added.forEach(block => cached.add(block));
    removed.forEach(block => cached.delete(block));
    free = nowFree || free;
    return { step, words, rows: unpacked, queues, cached: new Set(cached), free };
  });
}

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
/** Slots of a block of this KV cache group, and its name there; of one group alone there is none. */
const sizeOf = group => run.groups?.[group].blockSize ?? run.blockSize;
const keyOf = group => (run.groups ? `<em>${run.groups[group].key}</em>` : "");
/** Slots of a block that are filled, in flight by earlier plans, and written by this step's. */
function fill(row, logical) {
  const size = sizeOf(row.group), first = logical * size, within = n => clamp(n - first, 0, size);
  const filled = within(row.computed), sent = within(row.computed + row.inFlight);
  const all = within(row.computed + row.inFlight + row.scheduled);
  return { filled, inFlight: sent - filled, written: all - sent };
}
/** Entries of all tables that point to each held block, by block id. */
function holders(frame) {
  const held = new Map();
  for (const row of frame.rows) row.blocks.forEach((block, logical) => {
    if (!block) return;  // a window has left it behind
    if (!held.has(block)) held.set(block, []);
    held.get(block).push({ row, logical, ...fill(row, logical), isNew: logical >= row.firstNew });
  });
  return held;
}

// -- drawing --------------------------------------------------------------------------------------

const owner = index => run.owners[index];
const badge = (index, still = "") =>
  `<span class="owner-${owner(index).colour} badge ${still}">${owner(index).letter}</span>`;

/** True for a token that is on its way. Drafts are behind a known one, in the same plan. */
function isUnknown({ computed, inFlight, total }, position) {
  const isDraft = position >= computed + inFlight && computed + inFlight < total;
  return position >= total && !isDraft;
}
const usedOf = entry => entry.filled + entry.inFlight + entry.written;

function slots(entry, withTokens) {
  const size = sizeOf(entry.row.group);
  if (!run.detailed) {
    const percent = number => (100 * number / size).toFixed(1) + "%";
    const style = `--f:${percent(entry.filled + entry.inFlight)};--w:${percent(usedOf(entry))}`;
    return `<span class="bar" style="${style}"></span>`;
  }
  let html = "";
  for (let i = 0; i < size; i++) {
    const state = i < entry.filled ? "filled" : i < entry.filled + entry.inFlight ? "in-flight"
      : i < usedOf(entry) ? "written" : "";
    const position = entry.logical * size + i;
    const unknown = state && isUnknown(entry.row, position);
    const token = withTokens && state && !unknown && run.tokens
      ? run.tokens.texts[run.tokens.of[entry.row.owner][position]] : "";
    html += `<i class="slot ${unknown ? "unknown" : state}">${escape(token)}</i>`;
  }
  return `<span class="slots" aria-hidden="true">${html}</span>`;
}

const ordinal = n => formed("#th", n) ?? n + ((n / 10 | 0) % 10 === 1 ? "th" : ["th", "st", "nd", "rd"][n % 10] || "th");

/** How a block looks that no request holds. */
const LOOKS = { null: tr`null`, cached: tr`cached`, free: tr`free` };

/** A block that no request holds and the prefix cache can find: whose it was, and when it is reused. */
function drawFree(back, block, index, logical, place, group = 0) {
  const { letter, colour } = owner(index);
  const entry = { row: { owner: index, group }, logical, filled: sizeOf(group), inFlight: 0, written: 0 };
  const said = tr`block ${block}: free, but still cached; ${letter}'s block ${logical}; ${ordinal(place)} in the free queue`;
  return `<div class="owner-${colour} block cached${back}" data-block="${block}" data-was="${letter}" ` +
    `data-place="${place}" title="${said}"><span class="name">${block}${keyOf(group)}` +
    `<span>${ordinal(place)}</span><b>${letter}</b></span>${slots(entry, false)}</div>`;
}

function drawPool(frame) {
  const held = holders(frame), free = new Map(frame.free.map(([block, ...rest]) => [block, rest]));
  const returned = new Set(frame.rows.flatMap(row => row.left).filter(block => !held.has(block)));
  let used = 0, numSlots = 0, next = 0;
  const parts = [];
  for (const block of run.drawn || Array(run.numDrawn).keys()) {
    if (block > next)
      parts.push(`<p class="fold">${tr`${next}–${block - 1} not drawn`}</p>`);
    next = block + 1;
    const entries = held.get(block);
    if (!entries) {
      const back = returned.has(block) ? " back" : "";
      if (free.has(block)) {
        parts.push(drawFree(back, block, ...free.get(block)));
        continue;
      }
      const cached = frame.cached.has(block);
      const look = block === 0 ? "null" : cached ? "cached" : "free";
      const id = run.dense && block % 10 ? "&nbsp;" : `<span class="id">${block}</span>`;
      parts.push(`<div class="block ${look}${back}" data-block="${block}" title="${tr`block ${block}: ${LOOKS[look]}`}">` +
        `<span class="name">${id}${block || run.dense ? "" : "<b>null</b>"}</span></div>`);
      continue;
    }
    const fullest = entries.reduce((a, b) => (usedOf(b) > usedOf(a) ? b : a));
    used += usedOf(fullest);
    numSlots += sizeOf(fullest.row.group);
    const letters = entries.map(entry => owner(entry.row.owner).letter);
    const shared = entries.length > 1;
    const some = letters.slice(0, 2).join(" ") + (letters.length > 2 ? "…" : "");
    const who = run.dense ? letters[0] : some + (shared ? ` ×${entries.length}` : "");
    const said = tr`block ${block}, held by ${letters.join(", ")}: ${fullest.filled} filled, ${fullest.written} written of ${plural(sizeOf(fullest.row.group), "slot")}`;
    parts.push(`<div class="owner-${owner(fullest.row.owner).colour} block held` +
      `${shared ? " shared" : ""}${entries.some(entry => entry.isNew) ? " new" : ""}" ` +
      `data-block="${block}" data-owners="${letters.join(" ")}" data-filled="${fullest.filled}" ` +
      `data-written="${fullest.written}" title="${said}">` +
      `<span class="name">${run.dense ? "" : block + keyOf(fullest.row.group)}<b>${who}</b></span>${slots(fullest, false)}</div>`);
  }
  const cachedAndFree = run.cachedAndFree ?? [...frame.cached].filter(b => !held.has(b)).length;
  const shared = [...held.values()].filter(entries => entries.length > 1).length;
  const facts = [tr`${held.size} of ${plural(run.numBlocks - 1, "block")} held`];
  if (held.size) facts.push(tr`${used} of their ${numSlots} slots used`);
  if (shared) facts.push(tr`${shared} shared`);
  if (cachedAndFree) facts.push(tr`${cachedAndFree} free but cached`);
  if (returned.size) facts.push(tr`${returned.size} given back by a window`);
  const left = run.numBlocks - run.numDrawn, numLeft = plural(left, "block");
  if (left) facts.push(run.drawn ? tr`${numLeft} not drawn` : tr`${numLeft} never used and not drawn`);
  patch($("pool"), parts);
  $("pool-facts").textContent = facts.join(" · ");
  $("pool").setAttribute("aria-label", tr`Block pool: ${facts.join(word(", "))}.`);
}

/** An entry that a window has left behind; in this step, if it says which block it was. */
function drawNull(logical, was) {
  const said = was ? tr`logical block ${logical} is null: a window has left it behind, and block ${was} was given back`
    : tr`logical block ${logical} is null: a window has left it behind`;
  return `<li class="entry gone${was ? " back" : ""}" title="${said}"><span class="sr">${said}</span>` +
    `<span class="top" aria-hidden="true"><span>${logical}</span>` +
    `<span>${was ? `${was} ↩` : ""}</span></span></li>`;
}

function drawTables(frame) {
  const held = holders(frame);
  let room = run.maxEntries ?? Infinity;
  const rows = frame.rows.filter(row => (room -= row.blocks.length) >= 0);
  const numOwners = some => new Set(some.map(row => row.owner)).size;
  const left = numOwners(frame.rows) - numOwners(rows);
  const lists = rows.map(row => {
    const { letter, id, colour } = owner(row.owner);
    const group = run.groups ? ` <em>${escape(run.groups[row.group].name)}</em>` : "";
    const numNull = row.blocks.filter(block => !block).length;
    const sum = tr`${row.computed} computed` + (row.inFlight ? tr` + ${row.inFlight} in flight` : "") +
      (row.scheduled ? tr` + ${row.scheduled} now` : "");
    const progress = tr`${sum} of ${row.total}`;
    const entries = row.blocks.map((block, logical) => {
      if (!block) return drawNull(logical, row.left[logical - numNull + row.left.length]);
      const times = held.get(block).length, isNew = logical >= row.firstNew;
      const { filled, inFlight, written } = fill(row, logical);
      const name = `${block}${times > 1 ? ` ×${times}` : ""}`;
      const said = `<span class="sr">` + tr`logical block ${logical} is block ${block}` +
        `${times > 1 ? tr`, shared by ${times}` : ""}${isNew ? tr`, new` : ""}` +
        tr`, ${filled} slots filled` + (inFlight ? tr`, ${inFlight} in flight` : "") + tr`, ${written} written` + "</span>";
      const top = run.detailed
        ? `<span class="top" aria-hidden="true"><span>${logical}</span>` +
          `<span>→ <span class="physical">${name}</span></span></span>${said}`
        : `<span class="physical">${name}</span>`;
      return `<li class="entry${times > 1 ? " shared" : ""}${isNew ? " new" : ""}" ` +
        `data-block="${block}" data-ref="${times}">` +
        `${top}${slots({ row, logical, filled, inFlight, written }, true)}</li>`;
    });
    const html = `<li class="owner-${colour}" data-seq="${escape(id)}"><div class="who">` +
      `${badge(row.owner)} ${escape(id)}${group}<small></small></div><ol aria-label="${tr`blocks of ${letter}`}"></ol></li>`;
    return { html, progress, entries };
  });
  const said = left ? [`<li>${tr`and ${plural(left, "more sequence")}`}</li>`]
    : lists.length ? [] : [`<li>${tr`No request holds a block.`}</li>`];
  patch($("tables"), [...lists.map(list => list.html), ...said]);
  lists.forEach(({ progress, entries }, i) => {
    const [who, blocks] = $("tables").children[i].children;
    who.lastElementChild.textContent = progress;
    patch(blocks, entries);
  });
}

function drawQueue(frame) {
  const names = [tr`Running`, tr`Waiting`, tr`On the host`, tr`K and V come`, tr`K and V are sent`], most = 48;
  patch($("queue"), ["<dl>" + frame.queues.map((queue, i) => {
    if (i === 2 && !run.swaps || i > 2 && !run.transfers) return "";
    const more = queue.length > most ? tr` and ${queue.length - most} more` : "";
    const chips = queue.slice(0, most).map(index => badge(index, i ? "still" : "")).join("");
    return `<dt>${names[i]}${queue.length ? ` (${queue.length})` : ""}</dt>` +
      `<dd>${chips || tr`none`}${more}</dd>`;
  }).join("") + "</dl>"]);
}

/** Legend of plans in flight and of windows: only where some of these frames have any. */
function fitMarks(frames) {
  const rows = frames.flatMap(frame => frame.rows);
  $("null-means").hidden = !rows.some(row => row.blocks.includes(0));
  $("back-means").hidden = !rows.some(row => row.left.length);
  $("groups-mean").textContent = (run.groups || []).map(({ key, name }) => `${key}: ${name}`).join(", ");
  $("in-flight-means").hidden = !rows.some(row => row.inFlight);
  $("unknown-means").hidden = !rows.some(row => row.inFlight + row.scheduled &&
    isUnknown(row, row.computed + row.inFlight + row.scheduled - 1));
}

function drawWords(frame) {
  patch($("words"), ["<dl>" + [tr`Before`, tr`Plan`, tr`Result`].map((name, i) =>
    frame.words[i] && `<dt>${name}</dt><dd>${escape(frame.words[i])}</dd>`).join("") + "</dl>"]);
}

/** Round numbers of columns, so that a block can be found without counting. */
const perLine = () => Math.min(run.blockSize, 8);
function layOut() {
  const room = $("pool").clientWidth, width = run.dense ? 27 : run.detailed ? Math.max(72, 12 + perLine() * 20) : 47;
  const columns = [run.numDrawn, 50, 40, 20, 10, 8, 5, 4, 2].find(n => n * width <= room) || 1;
  $("pool").style.setProperty("--columns", Math.max(columns, 4));
}
/** What depends on how blocks are drawn; again if that changes. */
function prepare() {
  $("pool").classList.toggle("dense", run.dense);
  $("pool").classList.toggle("bars", !run.detailed);
  $("tables").classList.toggle("small", !run.detailed);
  document.body.style.setProperty("--per-line", perLine());
  document.body.style.setProperty("--slot", run.tokens ? Math.max(3, run.tokens.width) + "ch" : "1.2rem");
}
