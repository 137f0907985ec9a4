// Chats with the model at the left, and shows the engine's pictures at the right; draw.js draws.
let run = {};

// -- the server -----------------------------------------------------------------------------------

let key = sessionStorage.getItem("key");
const headers = () => (key ? { Authorization: `Bearer ${key}` } : {});

async function send(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  if (answer.status === 401) $("unlock").hidden = false;
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Error(said.error?.message || said.error || `status ${answer.status}`);
}

/** The data of server-sent events, as they come. */
async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) yield event.slice("data: ".length);
  }
}
const wait = milliseconds => new Promise(done => setTimeout(done, milliseconds));

// -- the engine, live -----------------------------------------------------------------------------

async function watch() {
  for (;;) {
    try {
      for await (const event of eventsOf(await send("glass/events"))) show(JSON.parse(event));
    } catch { /* it is asked again */ }
    $("gone").hidden = false;
    await wait(1000);
  }
}

function show({ run: constants, frame: packed, timeline, numbers, pace, ended, requests }) {
  run = constants;
  const [frame] = unpack([packed]);
  $("gone").hidden = true;
  prepare();
  drawNumbers(numbers);
  drawPace(pace, ended);
  drawWords(frame);
  drawQueue(frame);
  drawTables(frame);
  drawPool(frame);
  drawTimeline(timeline);
  $("cached-means").hidden = $("shared-means").hidden = false;
  fitMarks([frame]);
  showOthers(requests);
  markMine();
}

function drawNumbers({ step, running, waiting, free, usable, prompt, cached, note }) {
  const shown = {
    "sequences running": running, "waiting": waiting, "blocks free": `${free} of ${usable}`,
    [`prompt tokens found in the prefix cache${note && ` (${note})`}`]: `${cached} of ${prompt}`,
    "steps": step + 1,
  };
  $("numbers").innerHTML = Object.entries(shown).map(([name, value]) =>
    `<div><dt>${name}</dt><dd>${value}</dd></div>`).join("");
}

/** As wide as there is room for, though not smaller than can be read; its end is what is seen. */
function drawTimeline(svg) {
  const chart = $("chart");
  const atEnd = chart.scrollLeft + chart.clientWidth >= chart.scrollWidth - 1;
  chart.innerHTML = svg;
  const picture = chart.firstElementChild;
  if (picture) picture.style.minWidth = Math.min(704, picture.width.baseVal.value) + "px";
  if (atEnd) chart.scrollLeft = chart.scrollWidth;
}

function drawPace(pace, ended) {
  if (ended) {
    $("state").textContent = "the run has ended; reload this page to step through it";
    for (const name of ["pause", "one-step", "resume", "pace"]) $(name).disabled = true;
    return;
  }
  $("state").textContent = pace === null ? "running" : pace ? `${plural(pace, "step")} a second`
    : "paused";
  $("pause").disabled = pace === 0;
  $("resume").disabled = pace === null && !$("pace").value;
}

const press = path => send(path, { method: "POST" }).catch(error => say(error.message));
$("pause").addEventListener("click", () => press("glass/pause"));
$("one-step").addEventListener("click", () => press("glass/step"));
const resume = () =>
  press("glass/resume" + ($("pace").value && "?steps_per_second=" + $("pace").value));
$("resume").addEventListener("click", resume);
$("pace").addEventListener("change", resume);

// -- the conversation -----------------------------------------------------------------------------

const messages = [];
const me = Math.random().toString(36).slice(2, 6);  // in the ids of this page's requests
let count = 0;
let asking = null;  // what ends the request that is on its way

function say(text, look = "") {
  const line = document.createElement("p");
  line.className = look;
  line.textContent = text;
  $("talk").append(line);
  line.scrollIntoView({ block: "end" });
  return line;
}

/** Letters of the sequences that write the answers here, once the engine knows them. */
function markMine() {
  for (const line of document.querySelectorAll("#talk [data-seq]")) {
    const owner = run.owners.find(owner => owner.id === line.dataset.seq);
    if (owner && !line.querySelector(".badge"))
      line.insertAdjacentHTML("afterbegin",
        `<span class="owner-${owner.colour} badge">${owner.letter}</span>`);
    const row = document.querySelector(`#tables [data-seq="${CSS.escape(line.dataset.seq)}"]`);
    row?.classList.add("yours");
  }
}

// -- requests of other clients --------------------------------------------------------------------

const MOST = 32;  // that stay in the conversation
let past = null;  // ids of the requests that were finished when the page was opened
const cards = new Map();  // by request id, of those that the engine still knows

/** A card in the conversation for each: its kind, its prompt, and its answers as they grow. */
function showOthers(requests) {
  const talk = $("talk"), atEnd = talk.scrollTop + talk.clientHeight >= talk.scrollHeight - 2;
  past ??= new Set(requests.filter(request => !request.going).map(request => request.id));
  const known = new Set(requests.map(request => request.id));
  for (const [id, card] of cards) if (!known.has(id)) {
    card.classList.remove("going");
    cards.delete(id);
  }
  for (const { id, going, kind, prompt, answers } of requests) {
    if (id.startsWith(`chatcmpl-${me}-`) || past.has(id)) continue;
    if (!cards.has(id)) {
      const card = document.createElement("section");
      card.className = "other";
      cards.set(id, card);
      talk.append(card);
    }
    cards.get(id).classList.toggle("going", going);
    cards.get(id).innerHTML = `<small>${kind} of another client</small>` +
      `<p class="prompt">${escape(prompt)}</p>` +
      answers.map(([index, text]) => `<p>${badge(index)}${escape(text)}</p>`).join("");
  }
  const shown = talk.querySelectorAll(".other");
  for (let i = 0; i < shown.length - MOST; i++) shown[i].remove();
  if (atEnd) talk.scrollTop = talk.scrollHeight;
}

// -- asking ---------------------------------------------------------------------------------------

async function ask(text) {
  const n = Number($("n").value), name = `${me}-${++count}`;
  messages.push({ role: "user", content: text });
  say(text, "mine");
  const lines = Array.from({ length: n }, (_, i) => {
    const line = say("", "going");
    line.dataset.seq = `chatcmpl-${name}-0` + (i ? `/${i}` : "");
    return line.appendChild(document.createElement("span"));
  });
  const texts = Array(n).fill("");
  asking = new AbortController();
  $("send").disabled = true;
  $("hang-up").hidden = false;
  let end = "";
  try {
    const answer = await send("v1/chat/completions", {
      method: "POST", signal: asking.signal,
      headers: { "Content-Type": "application/json", "X-Request-Id": name },
      body: JSON.stringify({ messages, n, stream: true, max_tokens: Number($("most").value),
        temperature: Number($("temperature").value) }),
    });
    for await (const event of eventsOf(answer)) {
      if (event === "[DONE]") break;
      const chunk = JSON.parse(event);
      if (chunk.error) throw new Error(chunk.error.message);
      for (const { index, delta } of chunk.choices) {
        texts[index] += delta.content || "";
        lines[index].textContent = texts[index];
      }
      $("talk").scrollTop = $("talk").scrollHeight;
    }
  } catch (error) {
    end = error.name === "AbortError" ? "You hung up." : error.message;
  }
  lines.forEach(line => line.parentNode.classList.remove("going"));
  if (end) lines[0].insertAdjacentHTML("afterend", `<small>${escape(end)}</small>`);
  if (texts[0]) messages.push({ role: "assistant", content: texts[0] });
  else messages.pop();  // no answer came: as if it had not been asked
  asking = null;
  $("send").disabled = false;
  $("hang-up").hidden = true;
}

$("ask").addEventListener("submit", event => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || asking) return;
  $("text").value = "";
  ask(text);
});
$("text").addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
});
$("hang-up").addEventListener("click", () => asking?.abort());
$("anew").addEventListener("click", () => {
  asking?.abort();
  messages.length = 0;
  document.querySelectorAll("#talk > :not(.other.going)").forEach(line => line.remove());
});
$("unlock").addEventListener("submit", event => {
  event.preventDefault();
  key = $("key").value;
  sessionStorage.setItem("key", key);
  $("unlock").hidden = true;
});
new ResizeObserver(() => run.blockSize && layOut()).observe($("pool"));
watch();
