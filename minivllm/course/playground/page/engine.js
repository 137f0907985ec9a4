// Engine: where Python runs, as a page sees it. `new Engine(...)`, `await ask(request)`, `stop()`.

const SECONDS = 10;  // a request may take; then Python is stopped, and starts anew
// Python speaks the page's language, and so does this file where the page has read words.js.
const language = document.documentElement.lang.split("-")[0] || "en";
const tr = globalThis.tr ?? String.raw;
const PROGRESS = { starts: tr`Python is starting`, imports: tr`The scheduler is loading` };
/** Where what has texts lies: beside the English page for its own, else in a folder below. */
export const folder = language === "en" ? "" : `${language}/`;

/** Python in a web worker. The worker's files are beside this one. */
class WorkerEngine {
  #worker; #waiting = new Map(); #next = 0; #onState;

  /** onState is told each state, "ready" and "busy" as such and others in words; and true if it is the last. */
  constructor(onState = () => {}) {
    this.#onState = onState;
    this.#start();
  }

  #start() {
    this.ready = new Promise((resolve, reject) => {
      this.#worker = new Worker(new URL(folder ? `worker.js?lang=${language}` : "worker.js", import.meta.url), { type: "module" });
      this.#worker.onerror = event => this.#fail(reject, event.message || tr`a file is missing`);
      this.#worker.onmessage = ({ data }) => {
        if (data.progress) this.#onState(PROGRESS[data.progress]);
        else if (data.failed) this.#fail(reject, data.failed);
        else if (data.ready) { this.#onState("ready"); resolve(); }
        else this.#settle(data.id, data.reply);
      };
    });
    this.ready.catch(() => {});
  }

  #fail(reject, why) {
    this.#onState(tr`Python did not start: ${why}`, true);
    reject(new Error(tr`Python did not start: ${why}.`));
  }

  #settle(id, reply) {
    const { resolve, timer } = this.#waiting.get(id);
    clearTimeout(timer);
    this.#waiting.delete(id);
    if (!this.#waiting.size) this.#onState("ready");
    resolve(reply);
  }

  /** The reply to a request, or { error } if it takes longer than so many seconds. */
  async ask(request, seconds = SECONDS) {
    try { await this.ready; } catch (error) { return { error: error.message }; }
    return new Promise(resolve => {
      const id = this.#next++, late = tr`Stopped after ${seconds} seconds: it did not end.`;
      const timer = setTimeout(() => this.stop(late), 1000 * seconds);
      this.#waiting.set(id, { resolve, timer });
      this.#onState("busy");
      this.#worker.postMessage({ id, request });
    });
  }

  /** End what runs; all that are asked get the error. What Python had in memory is lost. */
  stop(error = tr`Stopped.`) {
    if (!this.#waiting.size) return;
    this.#worker.terminate();
    const stopped = [...this.#waiting.values()];
    this.#waiting.clear();
    this.#start();
    for (const { resolve, timer } of stopped) {
      clearTimeout(timer);
      resolve({ error, stopped: true });
    }
  }
}

/** The Python that serves this page: `minivllm playground`. The same face. */
class LocalEngine {
  #waiting = 0; #onState;
  ready = Promise.resolve();

  constructor(onState = () => {}) {
    this.#onState = onState;
    onState("ready");
  }

  async ask(request, seconds = SECONDS) {
    this.#waiting++;
    this.#onState("busy");
    try {
      return await this.#post("answer", { request, seconds });
    } catch (error) {
      return { error: tr`The program that serves this page does not answer; start it again.` };
    } finally {
      if (!--this.#waiting) this.#onState("ready");
    }
  }

  stop() {
    this.#post("stop", {}).catch(() => {});
  }

  async #post(path, body) {
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch(folder + path, { method: "POST", headers, body: JSON.stringify(body) });
    return answer.json();
  }
}

export const Engine = document.documentElement.dataset.engine === "local" ? LocalEngine : WorkerEngine;
