// The whole setting in the address: `#tab=play&num_requests=12&A.policy=fcfs&B.policy=yours&code=...`.
const bytes = text => String.fromCharCode(...new TextEncoder().encode(text));
const toBase64 = text => btoa(bytes(text)).replaceAll("+", "-").replaceAll("/", "_");
const fromBase64 = text => new TextDecoder("utf-8", { fatal: true }).decode(
  Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), c => c.charCodeAt(0)));

/** The fragment for settings { workload, engines, axis, code }; code is null if none is used. */
export function toLink({ workload, engines, axis, code }) {
  const fields = new URLSearchParams({ axis, ...workload });
  for (const [name, engine] of Object.entries(engines))
    for (const [key, value] of Object.entries(engine)) fields.set(`${name}.${key}`, value);
  if (code !== null) fields.set("code", toBase64(code));
  return "#" + fields;
}

/** A value as Python is to get it; what is no number stays a text, and Python says what is wrong. */
const parse = text => text === "true" ? true : text === "false" ? false
  : /^-?\d{1,15}$/.test(text) ? Number(text) : text;

/**
 * Settings of a fragment, and what is wrong with it: { settings, tab, problem }.
 * What it does not name is as in `base`; what is not known in `base` is left out, and said.
 */
export function fromLink(fragment, base) {
  const settings = structuredClone(base), unknown = [];
  let tab = {}, problem = "", hasB = false, isWhole = false;
  for (const [key, text] of new URLSearchParams(fragment.slice(1))) {
    const [name, setting] = key.split(".");
    if (["tab", "chapter", "name"].includes(key)) tab[key] = text;
    else if (key === "axis") settings.axis = text;
    else if (key === "code") {
      try { settings.code = fromBase64(text); } catch { problem = "The code in this link is damaged, and is left out. "; }
    } else if (Object.hasOwn(base.workload, key)) {
      settings.workload[key] = parse(text);
      isWhole = true;
    } else if ((name === "A" || name === "B") && setting && Object.hasOwn(base.engines.A, setting)) {
      settings.engines[name] ??= structuredClone(base.engines.A);
      settings.engines[name][setting] = parse(text);
      hasB ||= name === "B";
      isWhole = true;
    } else unknown.push(key);
  }
  if (isWhole && !hasB) delete settings.engines.B;
  if (unknown.length)
    problem += `This link has settings that the page does not know: ${unknown.slice(0, 5).join(", ")}. They are left out.`;
  return { settings, tab, problem };
}
