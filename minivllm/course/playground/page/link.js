// The address: a preset, and what differs from it: `#preset=thrashing&1.num_blocks=60&code=...`.
const pipe = async (bytes, stream) => new Uint8Array(await new Response(
  new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());

let latest = { text: null, packed: "" };
/** A text for a link; the same text again is there at once, so that a reload finds the address. */
async function packed(text) {
  if (latest.text !== text) latest = { text, packed: await pack(text) };
  return latest.packed;
}
async function pack(text) {
  const bytes = await pipe(new TextEncoder().encode(text), new CompressionStream("deflate-raw"));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), c => c.charCodeAt(0));
  return new TextDecoder("utf-8", { fatal: true }).decode(await pipe(bytes, new DecompressionStream("deflate-raw")));
}

/**
 * The fragment for { workload, engines, axis, code }, as far as they differ from a preset.
 * policy: the code that needs no link. tab: { tab, chapter, ... }, where another tab than Play is open.
 * place: { engine, step } that is shown.
 */
export async function toLink({ workload, engines, axis, code }, { preset, policy, tab, place }) {
  const fields = new URLSearchParams({ preset: preset.name, ...tab });
  const { engine, step } = preset.opens;
  if (place && (place.engine !== engine || place.step !== step)) fields.set("at", `${place.engine}.${place.step}`);
  const add = (name, found, base) => {
    for (const [key, value] of Object.entries(found)) if (value !== base[key]) fields.set(name + key, value);
  };
  if (axis !== preset.axis) fields.set("axis", axis);
  add("", workload, preset.workload);
  for (const [name, engine] of Object.entries(engines)) add(`${name}.`, engine, preset.engines[name] ?? preset.engines[1]);
  if (!("2" in engines) && "2" in preset.engines) fields.set("engines", 1);
  if (code !== null && code !== policy) fields.set("code", await packed(code));
  return "#" + fields;
}

/** A value as Python is to get it; what is no number stays a text, and Python says what is wrong. */
const parse = text => text === "true" ? true : text === "false" ? false
  : /^-?\d{1,15}$/.test(text) ? Number(text) : text;

/**
 * Settings of a fragment, and what is wrong with it: { preset, settings, place, tab, problem }.
 * What it does not name is as in its preset, or the first; what is not known is left out, and said.
 */
export async function fromLink(fragment, presets, policy) {
  const fields = new URLSearchParams(fragment.slice(1)), unknown = [];
  const preset = presets.find(each => each.name === fields.get("preset")) ?? presets[0];
  const { workload, engines, axis } = preset;
  const settings = structuredClone({ workload, engines, axis, code: policy });
  const at = /^([12])\.(\d{1,4})$/.exec(fields.get("at") ?? "");
  const place = at ? { engine: at[1], step: Number(at[2]) } : preset.opens;
  let tab = {}, problem = "";
  for (const [key, text] of fields) {
    const [name, setting] = key.split(".");
    if (["tab", "chapter", "name", "draw", "answers"].includes(key)) tab[key] = text;
    else if (key === "axis" && ["steps", "seconds"].includes(text)) settings.axis = text;
    else if (key === "preset" && text === preset.name || key === "at" && at) continue;
    else if (key === "engines" && text === "1") delete settings.engines[2];
    else if (key === "code") {
      try { settings.code = await unpacked(text); } catch { problem = tr`The code in this link is damaged, and is left out.` + " "; }
    } else if (Object.hasOwn(workload, key)) settings.workload[key] = parse(text);
    else if ((name === "1" || name === "2") && setting && Object.hasOwn(engines[1], setting)) {
      settings.engines[name] ??= structuredClone(engines[1]);
      settings.engines[name][setting] = parse(text);
    } else unknown.push(key);
  }
  if (unknown.length)
    problem += tr`This link has settings that the page does not know: ${unknown.slice(0, 5).join(", ")}. They are left out.`;
  return { preset, settings, place, tab, problem };
}
