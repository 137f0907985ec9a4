// The last steps of a run that goes on: as many as there is room for, on canvases as wide as that.
const ROW = 22, LANE = 46, NAMES = 84, CELL = 20;
const KINDS = { prefill: "prefill", decode: "decode", verify: "decode with drafts", waiting: "waiting",
  idle: "running, but not in this step", receiving: "K and V come", sending: "K and V are sent" };
let shownSteps = { first: 0, last: -1, rows: [] };  // what the pointer finds

/** The page's colours and letters, and solid and text of each owner; anew for another theme. */
let inks = null;
function readInks() {
  const of = (element, name) => getComputedStyle(element).getPropertyValue(name).trim();
  const probe = document.body.appendChild(document.createElement("i")), owners = new Map();
  const colours = {};
  for (const name of ["ink", "soft", "line", "card"]) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  const label = of(document.body, "--label");
  const ofOwner = colour => {
    const own = document.body.appendChild(document.createElement("i"));
    own.className = "owner-" + colour;
    owners.set(colour, [of(own, "--solid"), of(own, "--on")]);
    own.remove();
  };
  const get = colour => {
    if (!owners.has(colour)) ofOwner(colour);
    return owners.get(colour);
  };
  return { ...colours, label: `11px ${label}`, bold: `bold 12px ${label}`, get };
}

function sheet(id, width, height) {
  const canvas = $(id), ratio = devicePixelRatio || 1, pen = canvas.getContext("2d", { willReadFrequently: true });
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    Object.assign(canvas.style, { width: width + "px", height: height + "px" });
  }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

function drawTimeline(timeline) {
  const chart = $("chart"), rowsBox = $("rows");
  const width = room.chart, most = Math.floor((width - NAMES - 8) / CELL);
  const { last } = timeline || { last: -1 };
  const first = Math.max(timeline?.first ?? 0, last - most + 1);
  const rows = (timeline?.rows || []).map(([index, cells]) => [index, cells.filter(cell => cell[0] >= first)])
    .filter(([, cells]) => cells.length);
  chart.setAttribute("aria-label", timeline ? timeline.said : "Timeline: no step yet.");
  const ink = (inks ??= readInks()), x = step => NAMES + (step - first) * CELL;
  const high = Math.max(12, rows.length) * ROW, grows = high !== shownSteps.high;
  drawSteps(sheet("axis", width, 20), ink, first, last, x);
  const pen = sheet("cells", width, high);
  rows.forEach(([index, cells], i) => drawRow(pen, ink, owner(index), cells, i * ROW, x));
  const lanes = timeline?.lanes || [];
  const lanePen = sheet("lanes", width, Math.max(2, lanes.length) * (LANE + 8));
  lanes.forEach((lane, i) => drawLane(lanePen, ink, lane, i * (LANE + 8), timeline.first, first, x));
  shownSteps = { first, last, rows, high };
  if (grows) rowsBox.scrollTop = high;
}

function drawSteps(pen, ink, first, last, x) {
  Object.assign(pen, { font: ink.label, fillStyle: ink.soft, textAlign: "center", textBaseline: "middle" });
  for (let step = first; step <= last; step++) if (step % 5 === 0) pen.fillText(step, x(step) + CELL / 2, 11);
  pen.textAlign = "left";
  pen.fillText("step", 8, 11);
}

function drawRow(pen, ink, { letter, id, colour }, cells, y, x) {
  const [solid, on] = ink.get(colour), middle = y + ROW / 2 + .5;
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.font = ink.bold;
  pen.fillStyle = ink.ink;
  pen.fillText(letter, 8, middle);
  pen.font = ink.label;
  pen.textAlign = "center";
  for (const [step, kind, tokens, accepted, events = []] of cells) {
    const left = x(step) + 1, top = y + 2, wide = CELL - 2, high = ROW - 4;
    const is = name => events.includes(name);
    pen.strokeStyle = kind === "verify" ? ink.ink : kind === "waiting" ? ink.line : solid;
    pen.lineWidth = 1;
    pen.setLineDash(["receiving", "sending"].includes(kind) || is("planned before its token was known") ? [2, 2] : []);
    if (["prefill", "decode", "verify"].includes(kind)) {
      pen.globalAlpha = kind === "prefill" ? 1 : .4;
      pen.fillStyle = solid;
      pen.fillRect(left, top, wide, high);
      pen.globalAlpha = 1;
    }
    pen.strokeRect(left + .5, top + .5, wide - 1, high - 1);
    pen.setLineDash([]);
    if (kind === "waiting") hatch(pen, ink, left, top, wide, high);
    const label = kind === "prefill" ? String(tokens) : kind === "verify" ? "+" + (1 + accepted)
      : { receiving: "↓", sending: "↑" }[kind] || "";
    pen.fillStyle = kind === "prefill" ? on : ink.ink;
    if (label.length < 4) pen.fillText(label, left + wide / 2, middle);
    if (is("preempted")) cross(pen, ink, left + wide / 2, middle);
    if (is("wasted")) line(pen, ink.ink, left, top, left + wide, top + high);
    pen.fillStyle = ink.ink;
    if (is("finished")) pen.fillRect(left + wide - 3, top, 4, high);
    if (is("dropped")) pen.fillRect(left + wide - 1, top, 1, high);
  }
}

function line(pen, colour, x1, y1, x2, y2) {
  pen.strokeStyle = colour;
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
  pen.stroke();
}

function hatch(pen, ink, left, top, wide, high) {
  pen.strokeStyle = ink.soft;
  pen.beginPath();
  for (let i = 4; i < wide + high; i += 6) {
    pen.moveTo(left + Math.max(0, i - high), top + Math.min(i, high));
    pen.lineTo(left + Math.min(i, wide), top + Math.max(0, i - wide));
  }
  pen.stroke();
}

function cross(pen, ink, x, y) {
  for (const [colour, width] of [[ink.card, 5], [ink.ink, 2]]) {
    pen.lineWidth = width;
    line(pen, colour, x - 5, y - 5, x + 5, y + 5);
    line(pen, colour, x - 5, y + 5, x + 5, y - 5);
  }
  pen.lineWidth = 1;
}

/** Bars of what each step used; a line says where the limit is, if it is near. */
function drawLane(pen, ink, [name, limitName, values, limit], y, from, first, x) {
  const seen = values.slice(first - from), peak = Math.max(0, ...seen);
  const top = limit <= 2 * peak || name === "blocks" ? limit : Math.max(1, peak), bottom = y + LANE + 4;
  Object.assign(pen, { font: ink.bold, fillStyle: ink.ink, textAlign: "left", textBaseline: "alphabetic" });
  pen.fillText(name, 8, y + 16);
  pen.font = ink.label;
  pen.fillStyle = ink.soft;
  pen.fillText(limit ? `${limitName} ${limit}` : "", 8, y + 31);
  pen.fillText(`peak ${peak}`, 8, y + 45);
  pen.textAlign = "center";
  seen.forEach((value, i) => {
    const high = value / top * LANE, left = x(first + i) + 2;
    pen.fillStyle = ink.line;
    pen.fillRect(left, bottom - high, CELL - 4, high);
    pen.fillStyle = ink.ink;
    if (value && value < 1000) pen.fillText(value, left + CELL / 2 - 2, bottom - 3);
  });
  const end = x(first + seen.length);
  line(pen, ink.line, NAMES, bottom + .5, end, bottom + .5);
  if (top !== limit) return;
  pen.setLineDash([4, 3]);
  line(pen, ink.soft, NAMES, bottom - LANE + .5, end, bottom - LANE + .5);
  pen.setLineDash([]);
}

/** Words on the cell under the pointer. */
function sayCell(event) {
  const box = $("cells").getBoundingClientRect(), { first, last, rows } = shownSteps;
  const step = first + Math.floor((event.clientX - box.left - NAMES) / CELL);
  const row = rows[Math.floor((event.clientY - box.top) / ROW)];
  const cell = row && step <= last && row[1].find(cell => cell[0] === step);
  if (!row) $("cells").title = "";
  else if (!cell) $("cells").title = owner(row[0]).id;
  else {
    const [, kind, tokens, , events = []] = cell;
    $("cells").title = [`${owner(row[0]).letter}, step ${step}: ${KINDS[kind]}`,
      ...(tokens ? [plural(tokens, "token")] : []), ...events].join(", ");
  }
}
$("cells").addEventListener("pointermove", sayCell);
