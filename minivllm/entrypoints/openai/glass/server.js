// The server: what is sent to it, and its events.
let key = sessionStorage.getItem("key");
const headers = () => (key ? { Authorization: `Bearer ${key}` } : {});

async function send(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  if (answer.status === 401 && $("unlock")) $("unlock").hidden = false;
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Error(said.error?.message || said.error || tr`The server answers with status ${answer.status}.`);
}

const post = (path, body, options = {}) => send(path, {
  method: "POST", body: JSON.stringify(body), ...options,
  headers: { "Content-Type": "application/json", ...options.headers },
});

/** An error in words: a browser's own are none, where the network has failed. */
const inWords = error => (error instanceof TypeError ? tr`The server cannot be reached.` : error.message);

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
