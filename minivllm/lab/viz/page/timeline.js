// Timeline: what each request did in each step, of one run or two under one axis. It is drawn for
// the width that there is. A playhead, hover, zoom by wheel and by keys: W or + in, S or - out, A
// left, D right. Its look is in timeline.css; it needs `escape`, `patch` and the words of draw.js.
//
//   timeline = new Timeline(box, onStep, onLook)  box: an element; onStep(name, step, row): a step
//     was chosen, in that row; onLook(): another part is seen
//   timeline.show({ name: { timeline, title } }, unit)  runs, from timeline_data.py with "owners"
//     beside it; unit: "steps", or "seconds", where steps are as wide as they took
//   timeline.follow({ timeline, title, said })  the last steps of a run that goes on; said: all of
//     it in words. To be called again with each step: only what has changed is drawn
//   timeline.mark(name, step)   puts the playhead there, and moves until it is seen
//   timeline.select(name, row)  frames a request's row, and scrolls to it; row null: none
//   timeline.zoom(factor)      sees that much of what is seen now
//   timeline.range              [from, to] of the axis, null if all is seen; can be set
//
// What moves with the axis is drawn from an origin that stays, and shifted as a whole.
const NAMES = 74, AXIS = 22, HEAD = 22, MIN_ROW = 13, MAX_ROW = 40, MIN_LANE = 30, MAX_LANE = 72, SEPARATE = 7;
const CELL = 20, ROWS = 12;  // of a run that goes on: width of a step, and rows that have a place
const ORIGIN = 512;  // the origin is a multiple of it
const TOLD = { p: tr`prefill`, d: tr`decode`, o: tr`decode, planned before its token was known`, v: tr`decode with drafts`,
  w: tr`waiting`, i: tr`running, but not in this step`, r: tr`K and V come`, s: tr`K and V are sent` };
const LANES = { tokens: tr`tokens`, blocks: tr`blocks`, encoded: tr`encoded`, kept: tr`kept`, drafts: tr`drafts` };  // others are kinds of groups
const ROUND = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000];

export class Timeline {
  #box; #plot; #tip; #onStep; #onLook; #runs = {}; #chosen = null; #unit = "steps"; #at = null; #bands = [];
  #row = 20; #lane = MIN_LANE; #width = 0; #height = 0;
  #from = 0; #to = 0; #origin = 0;  // what is seen of the axis, in its unit
  #follows = false; #seen = null;  // steps of a run that goes on; null: as many as there is room for
  #frame = ""; #parts = []; #groups = []; #pointer = null;

  constructor(box, onStep = () => {}, onLook = () => {}) {
    this.#box = box;
    this.#onStep = onStep;
    this.#onLook = onLook;
    box.innerHTML = `<div class="plot"></div><div class="tip" hidden></div>`;
    this.#plot = box.firstElementChild;
    this.#tip = box.lastElementChild;
    this.#measure();
    new ResizeObserver(() => this.#measure()).observe(box);
    box.addEventListener("wheel", event => this.#wheel(event), { passive: false });
    box.addEventListener("pointerdown", event => event.button === 0 && this.#choose(event));
    box.addEventListener("pointermove", event => this.#hover(event));
    box.addEventListener("pointerleave", () => { this.#tip.hidden = true; });
    document.addEventListener("keydown", event => this.#key(event));
  }

  /** The room that there is; else it is not asked for, since the browser lays the page out for it. */
  #measure() {
    [this.#width, this.#height] = [this.#box.clientWidth, this.#box.clientHeight];
    if (this.#follows) this.follow(this.#runs.run);
    else this.#draw();
  }

  /** Show runs { name: { timeline, title } }, a step "steps" or "seconds" wide. What is zoomed stays. */
  show(runs, unit) {
    const isWhole = this.#to === 0 || this.range === null;
    if (unit !== this.#unit || isWhole) [this.#from, this.#to] = [0, NaN];
    this.#runs = runs;
    this.#unit = unit;
    for (const run of Object.values(runs)) {
      let sum = 0;
      const { steps, ms } = run.timeline;
      run.edges = [0, ...Array.from({ length: steps }, (_, i) => (sum += unit === "steps" ? 1 : ms[i]))];
    }
    const length = this.#length();
    if (!(this.#to <= length) || this.#from >= length) [this.#from, this.#to] = [0, length];
    this.#draw();
  }

  /** Show the last steps of a run { timeline, title, said }: as many as there is room for, or as are zoomed to. */
  follow(run) {
    const { first, steps } = run.timeline;
    this.#follows = true;
    this.#runs = { run };
    run.edges = Array.from({ length: steps + 1 }, (_, i) => first + i);
    const seen = this.#seen ?? Math.max(8, Math.floor((this.#width - NAMES - 8) / CELL));
    this.#from = Math.max(first, first + steps - seen);
    this.#to = this.#from + seen;
    this.#draw();
    if (!this.#tip.hidden) this.#hover(this.#pointer);
  }

  /** Put the playhead at a step of a run. */
  mark(name, step) {
    this.#at = { name, step };
    const edges = this.#runs[name]?.edges;
    if (!edges || step + 1 >= edges.length) return;
    const seen = this.#to - this.#from;
    if (edges[step] < this.#from || edges[step + 1] > this.#to) {
      this.#look(edges[step] - seen / 2, seen);
    } else this.#head();
  }

  /** Frame a request's row of a run. */
  select(name, row) {
    this.#chosen = row === null ? null : { name, row };
    this.#draw();
    const band = this.#bands.find(each => each.name === name), y = band && row !== null ? band.top + row * this.#row : null;
    if (y === null) return;
    if (y - AXIS < this.#box.scrollTop || y + this.#row > this.#box.scrollTop + this.#box.clientHeight)
      this.#box.scrollTop = y - this.#box.clientHeight / 2;
  }

  get range() {
    return this.#from === 0 && this.#to === this.#length() ? null : [this.#from, this.#to];
  }
  set range(range) {
    const [from, to] = range ?? [0, this.#length()];
    if (to > from) this.#look(from, to - from);
  }

  #length() { return Math.max(1e-9, ...Object.values(this.#runs).map(run => run.edges?.at(-1) ?? 0)); }
  get #scale() { return (this.#width - NAMES - 8) / (this.#to - this.#from); }
  #x(value) { return NAMES + (value - this.#from) * this.#scale; }
  #value(x) { return this.#from + (x - NAMES) / this.#scale; }
  #moved(value) { return (value - this.#origin) * this.#scale; }

  #look(from, seen) {
    if (this.#follows) {
      this.#seen = Math.min(Math.max(4, Math.round(seen)), Math.max(8, this.#runs.run.timeline.steps));
      return this.follow(this.#runs.run);
    }
    const length = this.#length();
    seen = Math.min(Math.max(seen, length / 200), length);
    this.#from = Math.min(Math.max(0, from), length - seen);
    this.#to = this.#from + seen;
    this.#draw();
    this.#onLook();
  }
  /** See more (factor above 1) or less of it. */
  zoom(factor, around = (this.#from + this.#to) / 2) {
    this.#look(around - (around - this.#from) * factor, (this.#to - this.#from) * factor);
  }
  #pan(share) { this.#look(this.#from + share * (this.#to - this.#from), this.#to - this.#from); }

  /** The wheel zooms; where it also scrolls the rows or the page, only with Ctrl. */
  #wheel(event) {
    if (!event.ctrlKey && !event.deltaX && this.#scrolls()) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.#pan(event.deltaX / 600);
    else this.zoom(Math.exp(event.deltaY / 400), this.#value(event.clientX - this.#box.getBoundingClientRect().left));
  }
  #scrolls() {
    const root = document.documentElement;
    for (let each = this.#box; each && each !== root; each = each.parentElement)
      if (each.scrollHeight > each.clientHeight && /auto|scroll/.test(getComputedStyle(each).overflowY)) return true;
    return root.scrollHeight > innerHeight;
  }
  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.#width) return;
    if (event.target.closest("textarea, select, input:not([type=range])")) return;
    const does = { w: () => this.zoom(.7), s: () => this.zoom(1 / .7), a: () => this.#pan(-.2), d: () => this.#pan(.2) };
    does["+"] = does["="] = does.w;
    does["-"] = does.s;
    does[event.key.toLowerCase()]?.();
  }

  /** Run, step and row below a pointer. */
  #below(event) {
    const box = this.#box.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top + this.#box.scrollTop;
    const band = this.#bands.find(each => y < each.bottom) ?? this.#bands.at(-1);
    if (!band || x < NAMES || y < AXIS) return null;
    const { edges, timeline } = this.#runs[band.name];
    const place = edges.findLastIndex(edge => edge <= this.#value(x));
    if (place < 0 || place >= timeline.steps) return null;
    const row = Math.floor((y - band.top) / this.#row);
    return { name: band.name, step: timeline.first + place, row: row in timeline.rows ? row : null, x, y };
  }
  #choose(event) {
    const found = this.#below(event);
    if (found) this.#onStep(found.name, found.step, found.row);
  }
  #hover(event) {
    this.#pointer = event;
    if (event.buttons === 1 && event.pointerType === "mouse") this.#choose(event);
    const found = this.#below(event);
    this.#tip.hidden = !found;
    if (!found) return;
    this.#tip.textContent = said(this.#runs[found.name].timeline, found.step, found.row);
    const right = found.x > this.#width / 2;
    this.#tip.style.left = right ? "auto" : `${found.x + 14}px`;
    this.#tip.style.right = right ? `${this.#width - found.x + 14}px` : "auto";
    this.#tip.style.top = `${found.y + 12}px`;
  }

  // -- drawing ------------------------------------------------------------------------------------

  /** The frame is what stays from step to step; its groups are filled with parts, which may change. */
  #draw() {
    const names = Object.keys(this.#runs);
    if (!names.length || this.#width < NAMES + 60) return;
    this.#origin = Math.floor(this.#from / ORIGIN) * ORIGIN;
    this.#parts = [];
    this.#bands = [];
    this.#share(Object.values(this.#runs));
    const ticks = this.#moving(this.#ticks()), lines = this.#moving([this.#drawLines()]);
    let y = AXIS, html = "";
    for (const name of names) {
      const band = { name, head: y, top: y + HEAD };
      html += this.#drawRun(name, band);
      y = band.bottom;
      this.#bands.push(band);
    }
    const frame = `<svg class="axis" width="${this.#width}" height="${AXIS}" aria-hidden="true">` +
      `<text x="${NAMES - 8}" y="${AXIS - 7}" text-anchor="end">${this.#unit === "steps" ? tr`step` : "ms"}</text>${ticks}</svg>` +
      `<svg class="rows" width="${this.#width}" height="${y - AXIS}" viewBox="0 ${AXIS} ${this.#width} ${y - AXIS}" role="img">` +
      `<defs><pattern id="waits" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V6"/></pattern>` +
      `<clipPath id="seen"><rect x="${NAMES}" y="0" width="${this.#width - NAMES}" height="${y}"/></clipPath></defs>` +
      `<g clip-path="url(#seen)">${lines}</g>${html}</svg>`;
    if (frame !== this.#frame) {
      this.#frame = frame;
      this.#plot.innerHTML = frame;
      for (const group of this.#plot.querySelectorAll(".part")) this.#groups[group.dataset.part] = group;
    }
    this.#parts.forEach((parts, i) => patch(this.#groups[i], parts));
    const shift = `translate(${(NAMES - this.#moved(this.#from)).toFixed(1)} 0)`;
    for (const moves of this.#plot.querySelectorAll(".moves")) moves.setAttribute("transform", shift);
    this.#plot.querySelector(".rows").setAttribute("aria-label", this.#said());
    this.#head();
  }

  /** Share the height between rows and lanes. */
  #share(runs) {
    const sum = of => runs.reduce((sum, { timeline }) => sum + of(timeline), 0);
    const least = this.#follows ? ROWS : 0;
    const numRows = Math.max(least, sum(({ rows }) => rows.length)), numLanes = sum(({ lanes }) => lanes.length);
    const room = this.#height - 2 - AXIS - sum(({ lanes }) => HEAD + 8 + MIN_LANE * lanes.length);
    this.#row = Math.min(MAX_ROW, Math.max(MIN_ROW, Math.floor(room / numRows)));
    this.#lane = Math.min(MAX_LANE, MIN_LANE + Math.max(0, Math.floor((room - numRows * this.#row) / numLanes)));
  }

  /** A group of the frame for these parts, each the HTML of one element; and one that is shifted. */
  #part(parts, about = "") {
    return `<g class="${about}part" data-part="${this.#parts.push(parts) - 1}"></g>`;
  }
  #moving(parts) { return `<g class="moves">${this.#part(parts)}</g>`; }

  #said() {
    return this.#runs.run?.said ?? [tr`Timeline.`, ...Object.values(this.#runs).map(({ title, timeline }) =>
      tr`${title}: ${plural(timeline.rows.length, "request")}, ${plural(timeline.steps, "step")}.`)].join(" ");
  }

  #values() {
    const seen = this.#to - this.#from, room = this.#width - NAMES;
    const every = ROUND.find(n => n * room / seen >= 56) ?? ROUND.at(-1);
    const first = Math.ceil(this.#from / every) * every;
    return Array.from({ length: Math.max(0, Math.floor((this.#to - first) / every) + 1) }, (_, i) => first + i * every);
  }
  get #half() { return this.#unit === "steps" ? .5 : 0; }  // a step's number is in its middle
  #ticks() {
    return this.#values().filter(value => this.#x(value + this.#half) <= this.#width - 12).map(value =>
      `<text x="${this.#moved(value + this.#half).toFixed(1)}" y="${AXIS - 7}" text-anchor="middle">${value}</text>`);
  }
  #drawLines() {
    return `<path class="lines" d="${this.#values().map(value => `M${this.#moved(value + this.#half).toFixed(1)} ${AXIS}V9999`).join("")}"/>`;
  }

  #drawRun(name, band) {
    const { timeline, title, edges } = this.#runs[name], row = this.#row;
    const isAlone = Object.keys(this.#runs).length === 1;
    const head = this.#part([`<text class="title" x="6" y="${band.head + 16}">` +
      `${isAlone ? "" : `<tspan class="name-${name}">${name}</tspan> `}${escape(fitting(title, this.#width))}</text>`]);
    const first = Math.max(0, edges.findLastIndex(edge => edge <= this.#from));
    let last = edges.findIndex(edge => edge >= this.#to);
    last = last < 0 ? timeline.steps : last;
    let names = "", cells = "";
    timeline.rows.forEach((each, i) => {
      const y = band.top + i * row, { letter, colour } = timeline.owners[i];
      if (this.#chosen?.name === name && this.#chosen.row === i)
        names += `<rect class="chosen" x="2" y="${y - .5}" width="${this.#width - 5}" height="${row}" rx="3"/>`;
      names += `<text class="letter" x="${NAMES - 8}" y="${y + row / 2 + 4}" text-anchor="end">${letter}</text>`;
      cells += this.#part(this.#drawCells(each, y, edges, timeline.first, first, last), `owner-${colour} `);
    });
    let y = band.top + Math.max(timeline.rows.length, this.#follows ? ROWS : 0) * row + 8;
    for (const [lane, , values] of timeline.lanes) {
      names += `<text class="letter" x="${NAMES - 8}" y="${y + 11}" text-anchor="end">${LANES[lane] ?? lane}</text>`;
      const peak = Math.max(...values, 1);
      cells += this.#part([this.#drawLane(values, peak, y, edges, first, last)]);
      names += this.#part([`<text x="${NAMES - 8}" y="${y + 23}" text-anchor="end">≤ ${peak}</text>`]);
      y += this.#lane;
    }
    band.bottom = y;
    return `${head}${names}<g clip-path="url(#seen)"><g class="moves">${cells}</g></g>`;
  }

  /**
   * Cells of a row, from the first place of the edges to the last; neighbours that are equal are one,
   * where there is no room to tell them apart. `zero` is the step at place 0.
   */
  #drawCells(row, y, edges, zero, first, last) {
    const [begin, kinds, , preempted, ended, rarer] = row, high = this.#row, c = y + high / 2;
    const at = step => this.#moved(edges[step - zero]), parts = [];
    const stop = Math.min(begin + kinds.length, zero + last), isOut = new Set(preempted);
    for (let step = Math.max(begin, zero + first); step < stop;) {
      const kind = kinds[step - begin], from = step, left = at(step);
      step++;
      while (step < stop && kinds[step - begin] === kind && !isOut.has(step) &&
        (kind === "w" || kind === "i" || at(step + 1) - at(step) < SEPARATE)) step++;
      const wide = at(step) - left, gap = wide >= SEPARATE ? 1 : 0;
      const html = [];
      if (kind === "i") html.push(`<path class="i" d="M${left.toFixed(1)} ${c}h${wide.toFixed(1)}"/>`);
      else if (kind in TOLD) html.push(`<rect class="${kind}" x="${(left + gap / 2).toFixed(1)}" y="${y + 1}" ` +
        `width="${Math.max(.6, wide - gap).toFixed(1)}" height="${high - 2}"/>`);
      const label = step - from > 1 ? "" : kind === "p" ? `${numberOf(row, from)}`
        : kind === "v" ? `+${1 + numberOf(row, from)}` : { r: "↓", s: "↑" }[kind] ?? "";
      if (label && wide > 7 * label.length + 4)
        html.push(`<text class="on ${kind}" x="${(left + wide / 2).toFixed(1)}" y="${c + 4}" text-anchor="middle">${label}</text>`);
      if (isOut.has(from)) html.push(`<path class="out" d="M${(left + Math.min(wide, 12) / 2 - 4).toFixed(1)} ${c - 4}l8 8m-8 0l8 -8"/>`);
      if (html.length) parts.push(html.length > 1 ? `<g>${html.join("")}</g>` : html[0]);
    }
    const seen = steps => (steps ?? []).filter(step => step >= zero + first && step < zero + last);
    const bar = (look, step) => parts.push(`<path class="${look}" d="M${(at(step + 1) - 1.5).toFixed(1)} ${y}v${high - 1}"/>`);
    for (const step of seen(ended)) bar("end", step);
    for (const step of seen(rarer.dropped)) bar("dropped", step);
    for (const step of seen(rarer.wasted))
      parts.push(`<path class="wasted" d="M${at(step).toFixed(1)} ${y + 1}L${at(step + 1).toFixed(1)} ${y + high - 1}"/>`);
    return parts;
  }

  #drawLane(values, peak, y, edges, first, last) {
    const height = this.#lane - 6, bottom = y + height;
    let d = `M${this.#moved(edges[first]).toFixed(1)} ${bottom}`;
    for (let place = first; place < last; place++)
      d += `V${(bottom - height * values[place] / peak).toFixed(1)}H${this.#moved(edges[place + 1]).toFixed(1)}`;
    return `<path class="lane" d="${d}V${bottom}Z"/>`;
  }

  /** The frame around the step that is shown. */
  #head() {
    const svg = this.#plot.querySelector(".rows"), band = this.#bands.find(each => each.name === this.#at?.name);
    svg?.querySelector("#now")?.remove();
    const edges = this.#runs[this.#at?.name]?.edges;
    if (!svg || !band || this.#at.step + 1 >= edges.length) return;
    const left = this.#x(edges[this.#at.step]), wide = Math.max(3, this.#x(edges[this.#at.step + 1]) - left);
    svg.insertAdjacentHTML("beforeend", `<rect id="now" x="${left - 1}" y="${band.top - 3}" width="${wide + 2}" ` +
      `height="${band.bottom - band.top + 2}" rx="3"/>`);
  }
}

/** As many of a title's parts as there is room for. */
function fitting(title, width) {
  const parts = title.split(" · ");
  while (parts.length > 1 && parts.join(" · ").length * 8 > width) parts.pop();
  return parts.join(" · ");
}

/** Tokens of a row's prefill in this step, or the drafts accepted. */
function numberOf([begin, kinds, numbers], step) {
  return numbers[kinds.slice(0, step - begin).replace(/[^pv]/g, "").length];
}

/** A step in words, and what the request of a row did in it. */
function said({ first, ms, lanes, rows, owners }, step, row) {
  const lines = [tr`step ${step}` + (ms ? ` · ${ms[step - first].toPrecision(3)} ms` : "")];
  for (const [name, , values, limit] of lanes) {
    const lane = LANES[name] ?? name, value = values[step - first];
    lines.push(limit ? tr`${lane}: ${value} of ${limit}` : tr`${lane}: ${value}`);
  }
  const [begin, kinds, , preempted, ended, rarer] = rows[row] ?? [0, ""], kind = kinds[step - begin];
  if (!(kind in TOLD)) return lines.join("\n");
  const { letter, id } = owners[row], has = steps => steps?.includes(step);
  const does = kind === "p" ? tr`prefill of ${numberOf(rows[row], step)}`
    : kind === "v" ? tr`decode with drafts, ${numberOf(rows[row], step)} accepted` : TOLD[kind];
  lines.push(`${letter} ${id}: ${does}` + (has(preempted) ? tr`, preempted` : "") +
    (has(ended) ? tr`, finished` : "") + (has(rarer.dropped) ? tr`, dropped for a better beam` : "") +
    (has(rarer.wasted) ? tr`, wasted: it had ended` : ""));
  return lines.join("\n");
}
