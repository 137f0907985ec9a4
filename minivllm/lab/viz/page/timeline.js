// Timeline: what each request did in each step, of one run or two under one axis. It is drawn for
// the width that there is. A playhead, hover, zoom by wheel and by keys: W or + in, S or - out, A
// left, D right. Its look is in timeline.css; it needs `escape` and the words of draw.js.
//
//   timeline = new Timeline(box, onStep, onLook)  box: an element; onStep(name, step, row): a step
//     was chosen, in that row; onLook(): another part is seen
//   timeline.show({ name: { timeline, title } }, unit)  runs, from timeline_data.py with "owners"
//     beside it; unit: "steps", or "seconds", where steps are as wide as they took
//   timeline.mark(name, step)   puts the playhead there, and moves until it is seen
//   timeline.select(name, row)  frames a request's row, and scrolls to it; row null: none
//   timeline.zoom(factor)      sees that much of what is seen now
//   timeline.range              [from, to] of the axis, null if all is seen; can be set
const NAMES = 74, AXIS = 22, HEAD = 22, MIN_ROW = 13, MAX_ROW = 40, MIN_LANE = 30, MAX_LANE = 72, SEPARATE = 7;
const TOLD = { p: tr`prefill`, d: tr`decode`, v: tr`decode with drafts`, w: tr`waiting`,
  i: tr`running, but not in this step`, r: tr`K and V come`, s: tr`K and V are sent` };
const LANES = { tokens: tr`tokens`, blocks: tr`blocks` };  // others are kinds of KV cache groups
const ROUND = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000];

export class Timeline {
  #box; #svg; #tip; #onStep; #onLook; #runs = {}; #chosen = null; #unit = "steps"; #at = null; #bands = []; #row = 20; #lane = MIN_LANE;
  #from = 0; #to = 0;  // what is seen of the axis, in its unit

  constructor(box, onStep, onLook = () => {}) {
    this.#box = box;
    this.#onStep = onStep;
    this.#onLook = onLook;
    box.innerHTML = `<div class="plot"></div><div class="tip" hidden></div>`;
    this.#svg = box.firstElementChild;
    this.#tip = box.lastElementChild;
    new ResizeObserver(() => this.#draw()).observe(box);
    box.addEventListener("wheel", event => this.#wheel(event), { passive: false });
    box.addEventListener("pointerdown", event => event.button === 0 && this.#choose(event));
    box.addEventListener("pointermove", event => this.#hover(event));
    box.addEventListener("pointerleave", () => { this.#tip.hidden = true; });
    document.addEventListener("keydown", event => this.#key(event));
  }

  /** Show runs { name: { timeline, title } }, a step "steps" or "seconds" wide. What is zoomed stays. */
  show(runs, unit) {
    const isWhole = this.#from === 0 && (this.#to === 0 || this.#to === this.#length());
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
  #x(value) { return NAMES + (value - this.#from) * (this.#box.clientWidth - NAMES - 8) / (this.#to - this.#from); }
  #value(x) { return this.#from + (x - NAMES) * (this.#to - this.#from) / (this.#box.clientWidth - NAMES - 8); }

  #look(from, seen) {
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

  /** The wheel zooms; where it also scrolls the rows, only with Ctrl. */
  #wheel(event) {
    const scrolls = this.#box.scrollHeight > this.#box.clientHeight || document.documentElement.scrollHeight > innerHeight;
    if (scrolls && !event.ctrlKey && !event.deltaX) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.#pan(event.deltaX / 600);
    else this.zoom(Math.exp(event.deltaY / 400), this.#value(event.clientX - this.#box.getBoundingClientRect().left));
  }
  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.#box.clientWidth) return;
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
    const step = this.#runs[band.name].edges.findLastIndex(edge => edge <= this.#value(x));
    if (step < 0 || step >= this.#runs[band.name].timeline.steps) return null;
    const row = Math.floor((y - band.top) / this.#row);
    return { name: band.name, step, row: row in this.#runs[band.name].timeline.rows ? row : null, x, y };
  }
  #choose(event) {
    const found = this.#below(event);
    if (found) this.#onStep(found.name, found.step, found.row);
  }
  #hover(event) {
    if (event.buttons === 1 && event.pointerType === "mouse") this.#choose(event);
    const found = this.#below(event);
    this.#tip.hidden = !found;
    if (!found) return;
    const { timeline } = this.#runs[found.name], { step } = found;
    const said = [tr`step ${step}` + (timeline.ms ? ` · ${timeline.ms[step].toPrecision(3)} ms` : "")];
    for (const [lane, , values, limit] of timeline.lanes)
      said.push(tr`${LANES[lane] ?? lane}: ${values[step]} of ${limit}`);
    const row = timeline.rows[found.row];
    const kind = row?.[1][step - row[0]];
    const does = kind === "p" ? tr`prefill of ${tokensOf(row, step)}` : TOLD[kind];
    if (does) said.push(`${timeline.owners[found.row].letter} ${timeline.owners[found.row].id}: ${does}` +
      (row[3].includes(step) ? tr`, preempted` : "") + (row[4]?.includes(step) ? tr`, finished` : ""));
    this.#tip.textContent = said.join("\n");
    const right = found.x > this.#box.clientWidth / 2;
    this.#tip.style.left = right ? "auto" : `${found.x + 14}px`;
    this.#tip.style.right = right ? `${this.#box.clientWidth - found.x + 14}px` : "auto";
    this.#tip.style.top = `${found.y + 12}px`;
  }

  // -- drawing ------------------------------------------------------------------------------------

  #draw() {
    const names = Object.keys(this.#runs), width = this.#box.clientWidth;
    if (!names.length || width < NAMES + 60) return;
    const numRows = names.reduce((sum, name) => sum + this.#runs[name].timeline.rows.length, 0);
    const fixed = AXIS + names.reduce((sum, name) => sum + HEAD + 8 + MIN_LANE * this.#runs[name].timeline.lanes.length, 0);
    const room = this.#box.clientHeight - 2 - fixed;
    this.#row = Math.min(MAX_ROW, Math.max(MIN_ROW, Math.floor(room / numRows)));
    const numLanes = names.reduce((sum, name) => sum + this.#runs[name].timeline.lanes.length, 0);
    const left = Math.floor((room - numRows * this.#row) / numLanes);
    this.#lane = Math.min(MAX_LANE, MIN_LANE + Math.max(0, left));
    let y = AXIS, html = "";
    this.#bands = [];
    for (const name of names) {
      const band = { name, head: y, top: y + HEAD };
      html += this.#drawRun(name, band, width);
      y = band.bottom;
      this.#bands.push(band);
    }
    this.#svg.innerHTML = `<svg class="axis" width="${width}" height="${AXIS}" aria-hidden="true">${this.#drawAxis(width, AXIS)}</svg>` +
      `<svg class="rows" width="${width}" height="${y - AXIS}" viewBox="0 ${AXIS} ${width} ${y - AXIS}" role="img" aria-label="${escape(this.#said())}">` +
      `<defs><pattern id="waits" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V6"/></pattern>` +
      `<clipPath id="seen"><rect x="${NAMES}" y="0" width="${width - NAMES}" height="${y}"/></clipPath></defs>${this.#drawLines(y)}${html}</svg>`;
    this.#head();
  }

  #said() {
    return [tr`Timeline.`, ...Object.values(this.#runs).map(({ title, timeline }) =>
      tr`${title}: ${plural(timeline.rows.length, "request")}, ${plural(timeline.steps, "step")}.`)].join(" ");
  }

  #ticks() {
    const seen = this.#to - this.#from, room = this.#box.clientWidth - NAMES;
    const every = ROUND.find(n => n * room / seen >= 56) ?? ROUND.at(-1);
    const first = Math.ceil(this.#from / every) * every;
    return Array.from({ length: Math.max(0, Math.floor((this.#to - first) / every) + 1) }, (_, i) => first + i * every);
  }
  #drawAxis(width, y) {
    const unit = this.#unit === "steps" ? tr`step` : "ms", half = this.#unit === "steps" ? .5 : 0;
    return `<text x="${NAMES - 8}" y="${y - 7}" text-anchor="end">${unit}</text>` + this.#ticks().map(value =>
      this.#x(value + half) > width - 12 ? "" : `<text x="${this.#x(value + half).toFixed(1)}" y="${y - 7}" text-anchor="middle">${value}</text>`).join("");
  }
  #drawLines(bottom) {
    const half = this.#unit === "steps" ? .5 : 0;
    return `<path class="lines" d="${this.#ticks().map(value => `M${this.#x(value + half).toFixed(1)} ${AXIS}V${bottom}`).join("")}"/>`;
  }

  #drawRun(name, band, width) {
    const { timeline, title, edges } = this.#runs[name], row = this.#row;
    const isAlone = Object.keys(this.#runs).length === 1;
    let html = `<text class="title" x="6" y="${band.head + 16}">` +
      `${isAlone ? "" : `<tspan class="name-${name}">${name}</tspan> `}${escape(fitting(title, width))}</text>`;
    const first = Math.max(0, edges.findLastIndex(edge => edge <= this.#from));
    let last = edges.findIndex(edge => edge >= this.#to);
    last = last < 0 ? timeline.steps : last;
    const cells = timeline.rows.map((each, i) => {
      const y = band.top + i * row, { letter, colour } = timeline.owners[i];
      const isChosen = this.#chosen?.name === name && this.#chosen.row === i;
      return (isChosen ? `<rect class="chosen" x="2" y="${y - .5}" width="${width - 5}" height="${row}" rx="3"/>` : "") +
        `<g class="owner-${colour}">${this.#drawCells(each, y, edges, first, last)}</g>` +
        `<text class="letter" x="${NAMES - 8}" y="${y + row / 2 + 4}" text-anchor="end">${letter}</text>`;
    });
    let y = band.top + timeline.rows.length * row + 8;
    for (const lane of timeline.lanes) {
      cells.push(this.#drawLane(lane, y, edges, first, last, width));
      y += this.#lane;
    }
    band.bottom = y;
    return html + cells.join("");
  }

  /** Cells of a row; neighbours that are equal are one, where there is no room to tell them apart. */
  #drawCells(row, y, edges, first, last) {
    const [begin, kinds, , preempted, ended = []] = row, high = this.#row;
    let html = "", step = Math.max(begin, first);
    const stop = Math.min(begin + kinds.length, last), isOut = new Set(preempted), isEnd = new Set(ended);
    while (step < stop) {
      const kind = kinds[step - begin], from = step, left = this.#x(edges[step]);
      step++;
      while (step < stop && kinds[step - begin] === kind && !isOut.has(step) &&
        (kind === "w" || kind === "i" || this.#x(edges[step + 1]) - this.#x(edges[step]) < SEPARATE)) step++;
      const wide = this.#x(edges[step]) - left, gap = wide >= SEPARATE ? 1 : 0;
      const at = `x="${(left + gap / 2).toFixed(1)}" y="${y + 1}" width="${Math.max(.6, wide - gap).toFixed(1)}" height="${high - 2}"`;
      if ("pdvwrs".includes(kind)) html += `<rect class="${kind}" ${at}/>`;
      else if (kind === "i") html += `<path class="i" d="M${left.toFixed(1)} ${y + high / 2}h${wide.toFixed(1)}"/>`;
      const tokens = kind === "p" && step - from === 1 ? String(tokensOf(row, from)) : "";
      if (tokens && wide > 7 * tokens.length + 4 && left >= NAMES)
        html += `<text class="on" x="${(left + wide / 2).toFixed(1)}" y="${y + high / 2 + 4}" text-anchor="middle">${tokens}</text>`;
      if (isOut.has(from)) {
        const middle = left + Math.min(wide, 12) / 2, c = y + high / 2;
        html += `<path class="out" d="M${middle - 4} ${c - 4}l8 8m-8 0l8 -8"/>`;
      }
    }
    for (const step of isEnd) if (step >= first && step < last) {
      const x = this.#x(edges[step + 1]);
      html += `<path class="end" d="M${(x - 1.5).toFixed(1)} ${y}v${high - 1}"/>`;
    }
    return `<g clip-path="url(#seen)">${html}</g>`;
  }

  #drawLane([name, , values, limit], y, edges, first, last, width) {
    const peak = Math.max(...values, 1), height = this.#lane - 6, bottom = y + height;
    let d = `M${NAMES} ${bottom}`;
    for (let step = first; step < last; step++)
      d += `V${(bottom - height * values[step] / peak).toFixed(1)}H${this.#x(edges[step + 1]).toFixed(1)}`;
    return `<text class="letter" x="${NAMES - 8}" y="${y + 11}" text-anchor="end">${LANES[name] ?? name}</text>` +
      `<text x="${NAMES - 8}" y="${y + 23}" text-anchor="end">≤ ${peak}</text>` +
      `<path class="lane" clip-path="url(#seen)" d="${d}V${bottom}Z"/>`;
  }

  /** The frame around the step that is shown. */
  #head() {
    const svg = this.#svg.querySelector(".rows"), band = this.#bands.find(each => each.name === this.#at?.name);
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

/** Tokens of a row's prefill in this step. */
function tokensOf([begin, kinds, tokens], step) {
  return tokens[kinds.slice(0, step - begin).split("p").length - 1];
}
