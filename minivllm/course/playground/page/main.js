// The page: settings in, results out. Python is asked again whenever a setting has changed.
import { Controls } from "./controls.js";
import { Editor } from "./editor.js";
import { Engine } from "./engine.js";
import { learn } from "./learn.js";
import { fromLink, toLink } from "./link.js";
import { showResults } from "./results.js";

const engine = new Engine(state => {
  $("python").textContent = state === "ready" ? "Python is ready." : state === "busy" ? "Python runs…"
    : state + (state.includes("did not") ? "." : "…");
  $("python").className = state === "ready" ? "ready" : "";
  $("stop").hidden = state !== "busy";
});
const begin = await (await fetch("begin.json")).json();
const editor = new Editor($("policy"), "Your policy, in Python", "Run it", () => {
  isTrusted = true;
  changed();
});
const controls = new Controls(begin, () => changed());
let isTrusted = true;  // code that came with a link runs only after its reader has said so
let note = "", isAsking = false, next = null;

const settings = () => {
  const found = controls.read();
  const own = Object.values(found.engines).some(each => each.policy === "yours");
  return { ...found, code: own ? editor.code : null };
};

function tell(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

/** Take a setting's change over: into the address, and to Python. */
function changed() {
  const found = settings();
  history.replaceState(null, "", toLink(found));
  $("policy-part").hidden = found.code === null;
  controls.showPreset(controls.preset(found));
  ask(found);
}

/** One question at a time; of those that come meanwhile, the last is asked next. */
async function ask(wanted) {
  if (isAsking) {
    next = wanted;
    return;
  }
  isAsking = true;
  for (next = wanted; next;) {
    wanted = next;
    next = null;
    await askOne(wanted);
  }
  isAsking = false;
}

async function askOne({ workload, engines, axis, code }) {
  if (code !== null && !isTrusted) {
    tell(`${note}This link brings a policy. Read it below; “Run it” runs it.`);
    return;
  }
  $("results").setAttribute("aria-busy", "true");
  const reply = await engine.ask({ call: "run", workload, engines, axis, source: code });
  $("results").removeAttribute("aria-busy");
  const inCode = code !== null && reply.line !== undefined;
  if (code !== null) editor.say(reply.printed ?? "");
  if (inCode) editor.fail(reply.error, reply.line);
  const where = inCode && reply.line ? `Your policy, line ${reply.line}: ` : "";
  tell(note + (reply.error ? where + reply.error : ""));
  controls.mark(reply.error ?? "");
  note = "";
  $("results").classList.toggle("stale", "error" in reply);
  if (!reply.error) showResults(reply);
}

/** Show what the address asks for; without one, the first preset, whose run is there already. */
function open() {
  const { presets: [{ workload, engines, axis }], policy } = begin;
  const base = { workload, engines, axis, code: policy };
  const { settings: wanted, tab, problem } = fromLink(location.hash, base);
  note = problem && problem + " ";
  editor.code = wanted.code;
  isTrusted = wanted.code === policy;
  controls.write(wanted);
  learning.open(tab);
  const found = settings();
  $("policy-part").hidden = found.code === null;
  const preset = controls.preset(found);
  controls.showPreset(preset);
  if (preset === begin.presets[0] && found.axis === axis) {
    tell(note);
    note = "";
    showResults(begin.first);
  } else ask(found);
}

$("stop").addEventListener("click", () => engine.stop("Stopped."));
$("copy-link").addEventListener("click", async () => {
  const link = location.href.split("#")[0] + toLink(settings());
  history.replaceState(null, "", link);
  try {
    await navigator.clipboard.writeText(link);
    $("copied").textContent = "Copied: it holds all settings.";
  } catch {
    $("copied").textContent = "The link is in the address bar.";
  }
});
$("settings-part").open = matchMedia("(min-width: 64rem)").matches;  // where there is room
const learning = learn(begin, engine);
addEventListener("hashchange", open);
open();
