// Chats with the model.
const messages = [];
const me = Math.random().toString(36).slice(2, 6);  // in the ids of this page's requests
let count = 0;
let asking = null;  // what ends the request that is on its way

let isAtEnd = true;  // of the conversation: then it follows
const scrollToEnd = () => { $("talk").scrollTop = $("talk").scrollHeight; };
$("talk").addEventListener("scroll", () => {
  const talk = $("talk");
  isAtEnd = talk.scrollTop + talk.clientHeight >= talk.scrollHeight - 2;
});

function say(text, look = "") {
  const line = document.createElement("p");
  line.className = look;
  line.textContent = text;
  $("talk").append(line);
  scrollToEnd();
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

/** The lines of the answers, one for each sample, and the texts in them. */
function makeLines(n, name) {
  return Array.from({ length: n }, (_, i) => {
    const line = say("", "going");
    line.dataset.seq = `chatcmpl-${name}-0` + (i ? `/${i}` : "");
    return line.appendChild(document.createElement("span"));
  });
}

/** Read an answer's events into the lines. Returns the texts' ends: why each is over. */
async function readAnswer(answer, lines) {
  const reasons = lines.map(() => null);
  for await (const event of eventsOf(answer)) {
    if (event === "[DONE]" && !reasons.includes("abort")) return reasons;
    if (event === "[DONE]") break;
    const chunk = JSON.parse(event);
    if (chunk.error) throw new Error(chunk.error.message);
    for (const { index, delta, finish_reason: reason } of chunk.choices) {
      lines[index].textContent += delta.content || "";
      reasons[index] = reason || reasons[index];
    }
    if (isAtEnd) requestAnimationFrame(scrollToEnd);
  }
  throw new Error(tr`The server stopped before the answer ended.`);
}

async function ask(text) {
  const n = Number($("n").value), most = Number($("most").value), name = `${me}-${++count}`;
  messages.push({ role: "user", content: text });
  say(text, "mine");
  const lines = makeLines(n, name);
  asking = new AbortController();
  $("send").disabled = true;
  $("stop").hidden = false;
  const note = (line, said) => line.insertAdjacentHTML("afterend", `<small>${escape(said)}</small>`);
  try {
    const body = { messages, n, stream: true, max_tokens: most, temperature: Number($("temperature").value) };
    const answer = await post("v1/chat/completions", body,
      { signal: asking.signal, headers: { "X-Request-Id": name } });
    const reasons = await readAnswer(answer, lines);
    lines.forEach((line, i) => reasons[i] === "length" && note(line, tr`Cut after ${plural(most, "token")}.`));
  } catch (error) {
    const began = lines[0].textContent;
    const broke = began && error instanceof TypeError ? tr`The server stopped before the answer ended.` : inWords(error);
    note(lines[0], error.name === "AbortError" ? tr`You stopped it.` : broke);
    lines.forEach(line => line.parentNode.classList.add("cut"));
  }
  lines.forEach(line => line.parentNode.classList.remove("going"));
  if (lines[0].textContent) messages.push({ role: "assistant", content: lines[0].textContent });
  else messages.pop();  // no answer came: as if it had not been asked
  asking = null;
  $("send").disabled = false;
  $("stop").hidden = true;
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
$("stop").addEventListener("click", () => asking?.abort());
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
whenShown = picture => {
  showOthers(picture);
  markMine();
};
