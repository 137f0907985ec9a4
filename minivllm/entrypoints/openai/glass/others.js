// Requests of other clients: a line each, opened on click. And load that this page makes as one.
const MOST = 32;  // lines that stay in the conversation
const STATES = { running: tr`running`, waiting: tr`waiting`, preempted: tr`preempted`, finished: tr`finished` };
const KINDS = { Chat: tr`Chat`, Completion: tr`Completion`, Request: tr`Request` };
let past = null;  // ids of the requests that were finished when the page was opened
let serverId = null;
let numClients = 0;
const cards = new Map();  // by request id, of those that the engine still knows

function showOthers({ requests, server }) {
  const talk = $("talk");
  if (serverId !== null && serverId !== server.id) begin();
  serverId = server.id;
  past ??= new Set(requests.filter(request => !request.going).map(request => request.id));
  const known = new Set(requests.map(request => request.id));
  for (const [id, card] of cards) if (!known.has(id)) {
    card.classList.remove("going");
    cards.delete(id);
  }
  for (const request of requests) {
    if (request.id.startsWith(`chatcmpl-${me}-`) || past.has(request.id)) continue;
    const isNew = !cards.has(request.id);
    if (isNew) cards.set(request.id, talk.appendChild(newCard()));
    if (isNew && isAtEnd) requestAnimationFrame(scrollToEnd);
    fillCard(cards.get(request.id), request);
  }
  const shown = talk.querySelectorAll(".other");
  for (let i = 0; i < shown.length - MOST; i++) shown[i].remove();
}

/** Another server has been started: its requests are new ones. */
function begin() {
  past = null;
  cards.forEach(card => card.classList.remove("going"));
  cards.clear();
  say(tr`The server was started again.`, "problem");
}

function newCard() {
  const card = document.createElement("details");
  card.className = "other";
  card.innerHTML = "<summary></summary><div></div>";
  card.dataset.client = ++numClients;
  card.addEventListener("toggle", () => card.request && fillCard(card, card.request));
  return card;
}

/** What is closed has no text: it comes when it is opened. */
function fillCard(card, request) {
  const { going, kind, state, tokens, prompt, answers } = request;
  card.request = request;
  card.classList.toggle("going", going);
  patch(card.firstChild, [`<span>${badge(answers[0][0], going ? "" : "still")}${tr`client ${card.dataset.client}`} · ` +
    `${plural(tokens, "token")} · ${STATES[state]}</span>`]);
  if (card.open) card.lastChild.innerHTML = `<small>${KINDS[kind]}</small><p class="prompt">${escape(prompt)}</p>` +
    answers.map(([index, text]) => `<p>${badge(index)}${escape(text)}</p>`).join("");
}

// -- load -----------------------------------------------------------------------------------------

const QUESTIONS = [
  "Who are you?", "What is the capital of France?", "Tell me a story about a king.", "What is a cat?",
  "How do I make tea?", "Why is the sky blue?", "Tell me about the sea.", "What can you do?",
];
const chatOf = (content, most) =>
  ({ messages: [{ role: "user", content }], max_tokens: most, temperature: 0.7 });
const words = (first, tokens) => first + " and then it went on and on".repeat(Math.ceil(tokens / 7));

/** Send requests as other clients would; what fails is said once. */
const asOthers = bodies => Promise.all(bodies.map(([path, body]) => post(path, body)))
  .catch(error => say(inWords(error), "problem"));

/** Prompts that are each a third of the longest, of which the pool has not room for all. */
function filling() {
  const { length } = last.server, part = Math.floor(length / 3), slots = run.numBlocks * run.blockSize;
  const number = clamp(Math.ceil(1.5 * slots / (2 * part)), 4, 64);
  return Array.from({ length: number }, (_, i) => ["v1/completions",
    { prompt: words(`Story ${i + 1}:`, part - 10), max_tokens: part, ignore_eos: true, temperature: 0.7 }]);
}

async function samePrefixTwice() {
  const length = Math.min(6 * run.blockSize, Math.floor(last.server.length / 3));
  const begins = words(`Number ${numClients} said:`, length), most = 4 * run.blockSize;
  const body = end => ({ prompt: begins + end, max_tokens: most, ignore_eos: true, stream: true });
  try {
    const first = eventsOf(await post("v1/completions", body(" Then he left.")));
    await first.next();  // its prompt is in the cache now
    const second = eventsOf(await post("v1/completions", body(" Then she came.")));
    for (const stream of [first, second]) for await (const _ of stream);
  } catch (error) {
    say(inWords(error), "problem");
  }
}

$("eight").addEventListener("click", () =>
  asOthers(QUESTIONS.map(question => ["v1/chat/completions", chatOf(question, 60)])));
$("fill").addEventListener("click", () => asOthers(filling()));
$("twice").addEventListener("click", samePrefixTwice);
