// The page: settings in, results out. Python is asked again whenever a setting has changed.
import { Controls } from "./controls.js";
import { Editor } from "./editor.js";
import { Engine, folder } from "./engine.js";
import { learn } from "./learn.js";
import { fromLink, toLink } from "./link.js";
import { dock, place, showAxis, showResults, showSteps, whenMoved } from "./results.js";

const PAUSE = 500;  // milliseconds after the last key, before a policy is run
const QUIET = 150;  // after the last change, before the steps are asked for
const engine = new Engine((state, isLast) => {
  $("python").textContent = state === "ready" ? tr`Python is ready` : state === "busy" ? tr`Python is running…`
    : isLast ? tr`${state}.` : `${state}…`;
  $("python").className = state === "ready" ? "ready" : "";
  $("stop").hidden = state !== "busy";
});
const get = async name => (await fetch(folder + name)).json();
const [begin, questions] = [await get("begin.json"), get("questions.json")];
const editor = new Editor($("policy"), tr`Your policy, in Python`, tr`Run it`, () => {
  clearTimeout(typing);
  isTrusted = true;
  changed();
}, code => {
  localStorage.setItem("minivllm-policy", code);
  clearTimeout(typing);
  if (isTrusted) typing = setTimeout(changed, PAUSE);
});
const controls = new Controls(begin, changed, found => { preset = found; opens = found.opens; });
let isTrusted = true;  // code that came with a link runs only after its reader has said so
let preset = begin.presets[0], opens = preset.opens, learning = null, firstTab = {}, written = "";
let note = "", isAsking = false, next = null, typing = null, quiet = null, moving = null;

const settings = () => {
  const found = controls.read();
  const own = Object.values(found.engines).some(each => each.policy === "yours");
  return { ...found, code: own ? editor.code : null };
};

function tell(text) {
  $("error").textContent = text.replace(/\bEngine ([12]): /, (_, name) => tr`Engine ${name}: `);
  $("error").hidden = !text;
}

/** The whole setting and the open tab, into the address. */
async function keepAddress() {
  const tab = learning?.at ?? firstTab, at = opens ?? place();
  const link = await toLink(settings(), { preset, policy: begin.policy, tab, place: at });
  written = link;
  history.replaceState(null, "", link);
  return link;
}

/** Take a setting's change over: into the address, and to Python. */
function changed() {
  const found = settings();
  fit(found);
  keepAddress();
  ask(found);
}

/** The policy is beside the timeline where there is room, else in the dock. */
const isWide = matchMedia("(min-width: 73.75rem)");
function fit({ code }) {
  const isUsed = code !== null, beside = isUsed && isWide.matches;
  (beside ? $("beside") : $("policy-pane")).append($("policy-part"));
  $("play-panel").classList.toggle("with-policy", beside);
  $("policy-part").hidden = !isUsed;
  $("no-policy").hidden = isUsed;
  $("dock-policy").hidden = beside;
  if (beside && $("dock-policy").getAttribute("aria-selected") === "true") dock.open("step-pane");
}
isWide.addEventListener("change", () => fit(settings()));

/** One question at a time; of those that come meanwhile, the last is asked next. */
async function ask(wanted) {
  clearTimeout(quiet);
  if (isAsking) {
    next = wanted;
    return;
  }
  isAsking = true;
  for (next = wanted; next;) {
    wanted = next;
    next = null;
    if (await askOne(wanted) && !next) quiet = setTimeout(() => askSteps(wanted), QUIET);
  }
  isAsking = false;
}

/** Ask for the numbers and the timeline; true if there are some. */
async function askOne({ workload, engines, axis, code }) {
  tell("");
  controls.mark("");
  if (code !== null && !isTrusted) {
    tell(note + tr`This link contains a policy. Read it, then press “Run it”.`);
    return false;
  }
  $("centre").setAttribute("aria-busy", "true");
  const reply = await engine.ask({ call: "run", workload, engines, source: code });
  $("centre").removeAttribute("aria-busy");
  const isInCode = code !== null && reply.line !== undefined;
  if (code !== null) editor.say(reply.printed ?? "");
  if (isInCode) editor.fail(reply.error, reply.line);
  const isMarked = !isInCode && controls.mark(reply.error ?? "");
  tell(note + (reply.error && !isInCode && !isMarked ? reply.error : ""));
  note = "";
  $("centre").classList.toggle("stale", "error" in reply);
  if (reply.error) return false;
  take(reply, axis, engines);
  return true;
}

function take(reply, axis, engines) {
  showResults(reply, { axis, opens, titles: controls.titles(engines), focus: preset.numbers });
  opens = null;
}

async function askSteps({ workload, engines, code }) {
  if (isAsking) return;
  const reply = await engine.ask({ call: "steps", workload, engines, source: code });
  if (!reply.error && !isAsking) showSteps(reply);
}

/** Show what the address asks for; without one, the first preset, whose run is there already. */
async function open() {
  if (location.hash === written && written) return;
  const kept = localStorage.getItem("minivllm-policy");
  const found = await fromLink(location.hash, begin.presets, begin.policy);
  ({ preset } = found);
  opens = found.place;
  note = found.problem && found.problem + " ";
  const hasCode = found.settings.code !== begin.policy;
  editor.code = hasCode ? found.settings.code : kept ?? begin.policy;
  isTrusted = !hasCode || found.settings.code === kept;
  controls.write(found.settings);
  controls.showPreset(preset);
  firstTab = found.tab;
  const wanted = settings();
  fit(wanted);
  if (controls.preset(wanted) === begin.presets[0]) {
    tell(note);
    note = "";
    take(begin.first, wanted.axis, wanted.engines);
    showSteps(begin.steps);
  } else ask(wanted);
  learning ??= learn(await questions, engine, keepAddress);
  learning.open(found.tab);
}

$("stop").addEventListener("click", () => {
  clearTimeout(typing);
  next = null;
  engine.stop();
});
$("axis").addEventListener("change", () => { keepAddress(); showAxis(controls.read().axis); });
$("use-policy").addEventListener("click", () => controls.usePolicy());
$("copy-link").addEventListener("click", async () => {
  const link = location.href.split("#")[0] + await keepAddress();
  try {
    await navigator.clipboard.writeText(link);
    $("copied").textContent = tr`Link copied. It holds all settings.`;
  } catch {
    $("copied").textContent = tr`The link is in the address bar.`;
  }
});
const fold = isOpen => {
  $("play-panel").classList.toggle("folded", !isOpen);
  $("fold").setAttribute("aria-expanded", isOpen);
  $("fold").textContent = isOpen ? "«" : "»";
};
$("fold").addEventListener("click", () => fold($("play-panel").classList.contains("folded")));
whenMoved(() => {
  clearTimeout(moving);
  moving = setTimeout(keepAddress, PAUSE);
});
for (const link of document.querySelectorAll(".language"))
  link.addEventListener("click", () => { link.hash = location.hash; });
addEventListener("hashchange", open);
await open();
