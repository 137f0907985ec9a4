// Controls: the presets and the form, made from the ranges and choices that Python knows.
const WORKLOAD = [
  ["requests", "num_requests"], ["arrive", "arrivals"], ["every, in ms", "gap"],
  ["prompt tokens", "min_prompt", "max_prompt"], ["output tokens", "min_output", "max_output"],
  ["shared prefix", "shared_prefix"], ["one long prompt", "long_prompt"], ["seed", "seed"],
];
const ENGINE = {
  num_blocks: "blocks", block_size: "block size", max_num_batched_tokens: "token budget",
  max_num_seqs: "max_num_seqs", policy: "policy", enable_chunked_prefill: "chunked prefill",
  enable_prefix_caching: "prefix caching", preemption_mode: "preempt by",
  sliding_window: "sliding window", prefix_cache_retention_interval: "retention",
};
const HINTS = {
  num_blocks: "num_blocks: blocks in the pool, the null block included",
  block_size: "block_size: positions in a block",
  max_num_batched_tokens: "max_num_batched_tokens: the most tokens that a step computes",
  max_num_seqs: "max_num_seqs: the most requests that run at once",
  policy: "scheduling policy; yours is the one in the editor; with priority each request draws 0, 1 or 2",
  enable_chunked_prefill: "enable_chunked_prefill: may a prompt be split over steps?",
  enable_prefix_caching: "enable_prefix_caching: are blocks of equal prefixes reused?",
  preemption_mode: "preemption_mode: recompute a victim's tokens, or swap its blocks to the host",
  sliding_window: "tokens that half of the layers see, a KV cache group of their own; then a block has half " +
    "as many bytes; 0: all layers see all",
  prefix_cache_retention_interval: "prefix_cache_retention_interval: a window's blocks are kept for others once in " +
    "so many tokens, a multiple of the block size (that itself: all of them); 0: only before the ends of prompts",
  num_requests: "number of requests", arrivals: "how requests arrive",
  gap: "milliseconds between two arrivals, or their mean",
  min_prompt: "shortest prompt, in tokens", max_prompt: "longest prompt, in tokens",
  min_output: "shortest output, in tokens", max_output: "longest output, in tokens",
  shared_prefix: "tokens that all prompts begin with; 0: none",
  long_prompt: "tokens of one long prompt among the others; 0: none",
  seed: "of all that is drawn",
};

/** An input for a setting: a checkbox, a list of choices, or a number. */
function control(begin, key, value, label) {
  const about = `data-key="${key}" aria-label="${escape(label)}" title="${escape(HINTS[key])}"`;
  if (typeof value === "boolean") return `<input type="checkbox" ${about}>`;
  if (begin.choices[key])
    return `<select ${about}>${begin.choices[key].map(choice =>
      `<option value="${choice}">${choice.replace("_", " ")}</option>`).join("")}</select>`;
  const [low, high] = begin.ranges[key];
  return `<input type="number" inputmode="numeric" min="${low}" max="${high}" ${about}>`;
}

export class Controls {
  /** begin: what Python says of presets, ranges and choices. changed: called after each change. */
  constructor(begin, changed) {
    this.begin = begin;
    const { workload, engines: { A } } = begin.presets[0];
    $("workload").insertAdjacentHTML("beforeend", WORKLOAD.map(([name, ...keys]) =>
      `<div class="row"><span>${name}</span><span>` + keys.map(key =>
        control(begin, key, workload[key], HINTS[key])).join(" – ") + "</span></div>").join(""));
    $("engine-rows").innerHTML = Object.keys(ENGINE).map(key =>
      `<tr><th scope="row" title="${escape(HINTS[key])}">${ENGINE[key]}</th>` + ["A", "B"].map(name =>
        `<td data-engine="${name}">${control(begin, key, A[key], `${ENGINE[key]}, engine ${name}`)}</td>`)
        .join("") + "</tr>").join("");
    $("presets").innerHTML = begin.presets.map((preset, i) =>
      `<button type="button" data-preset="${i}" aria-pressed="false">${escape(preset.title)}</button>`).join("");
    $("presets").addEventListener("click", event => {
      const index = event.target.dataset.preset;
      if (index === undefined) return;
      const { workload, engines, axis } = begin.presets[index];
      this.write({ workload, engines, axis });
      changed();
    });
    for (const id of ["settings", "axis"]) $(id).addEventListener("change", event => {
      delete event.target.dataset.given;
      changed();
    });
    $("settings").addEventListener("submit", event => event.preventDefault());
  }

  /** Show these settings. */
  write({ workload, engines, axis }) {
    this.#inputs("#workload").forEach(input => this.#set(input, workload[input.dataset.key]));
    for (const name of ["A", "B"])
      this.#inputs(`[data-engine=${name}]`).forEach(input =>
        this.#set(input, (engines[name] ?? engines.A)[input.dataset.key]));
    $("with-b").checked = "B" in engines;
    document.querySelectorAll("[name=axis]").forEach(input => { input.checked = input.value === axis; });
    this.#fit();
  }

  /** The settings that are shown: { workload, engines, axis }. */
  read() {
    this.#fit();
    const values = where => Object.fromEntries(
      this.#inputs(where).map(input => [input.dataset.key, this.#get(input)]));
    const engines = { A: values("[data-engine=A]") };
    if ($("with-b").checked) engines.B = values("[data-engine=B]");
    const axis = document.querySelector("[name=axis]:checked")?.value ?? "steps";
    return { workload: values("#workload"), engines, axis };
  }

  /** The preset that has exactly these settings, but for the axis. */
  preset({ workload, engines }) {
    const same = (a, b) => a === b || (a instanceof Object && b instanceof Object &&
      Object.keys({ ...a, ...b }).every(key => same(a[key], b[key])));
    return this.begin.presets.find(p => same(p.workload, workload) && same(p.engines, engines));
  }

  /** Say what is wrong beside the control that an error names: "engine B's num_blocks must be ...". */
  mark(error) {
    document.querySelectorAll("#settings .wrong").forEach(said => said.remove());
    document.querySelectorAll("#settings [aria-invalid]").forEach(input => input.removeAttribute("aria-invalid"));
    const [, name, key] = /^(?:engine ([AB])(?:'s|:) )?(\w+) must/i.exec(error) ?? [];
    const where = name ? `[data-engine=${name.toUpperCase()}]` : "#workload";
    const input = key && document.querySelector(`${where} [data-key="${key}"]`);
    if (!input) return;
    input.setAttribute("aria-invalid", "true");
    const row = input.closest("tr, .row"), id = "what-is-wrong";
    const text = `<small class="wrong" id="${id}">${escape(error)}</small>`;
    row.insertAdjacentHTML("afterend", name ? `<tr class="wrong"><td colspan="3">${text}</td></tr>` : text);
    input.setAttribute("aria-describedby", id);
  }

  showPreset(preset) {
    document.querySelectorAll("[data-preset]").forEach((button, i) =>
      button.setAttribute("aria-pressed", this.begin.presets[i] === preset));
    $("lesson").textContent = preset ? preset.lesson
      : "Settings of your own. The link in the address holds all of them.";
  }

  #inputs(where) {
    return [...document.querySelectorAll(`${where} [data-key]`)];
  }
  /** A value that the control cannot show, of a broken link, is kept until it is changed. */
  #set(input, value) {
    delete input.dataset.given;
    const shown = input.type === "checkbox" ? typeof value === "boolean"
      : input.type === "number" ? typeof value === "number"
      : [...input.options].some(option => option.value === value);
    if (!shown) input.dataset.given = value;
    if (input.type === "checkbox") input.checked = value === true;
    else input.value = shown ? value : "";
  }
  #get(input) {
    if (input.dataset.given !== undefined) return input.dataset.given;
    if (input.type === "checkbox") return input.checked;
    return input.type === "number" && input.value !== "" ? Number(input.value) : input.value;
  }
  /** B's column can be changed only if there is a B. */
  #fit() {
    this.#inputs("[data-engine=B]").forEach(input => { input.disabled = !$("with-b").checked; });
  }
}
