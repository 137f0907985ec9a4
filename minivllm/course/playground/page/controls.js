// Controls: the presets, sliders for what differs, and the form with all settings.
const WORKLOAD = [
  [tr`requests`, "num_requests"], [tr`arrive`, "arrivals"], [tr`every, in ms`, "gap"],
  [tr`prompt tokens`, "min_prompt", "max_prompt"], [tr`output tokens`, "min_output", "max_output"],
  [tr`shared prefix`, "shared_prefix"], [tr`one long prompt`, "long_prompt"], [tr`seed`, "seed"],
];
const ENGINE = {
  num_blocks: tr`blocks`, block_size: tr`block size`, max_num_batched_tokens: tr`token budget`,
  max_num_seqs: "max_num_seqs", policy: tr`policy`, enable_chunked_prefill: tr`chunked prefill`,
  enable_prefix_caching: tr`prefix caching`, preemption_mode: tr`preempt by`,
  sliding_window: tr`sliding window`, prefix_cache_retention_interval: tr`retention`,
};
const HINTS = {
  num_blocks: tr`num_blocks: blocks in the pool, the null block included`,
  block_size: tr`block_size: positions in a block`,
  max_num_batched_tokens: tr`max_num_batched_tokens: the most tokens that a step computes`,
  max_num_seqs: tr`max_num_seqs: the most requests that run at once`,
  policy: tr`policy: which request runs next. “yours” is the one in the editor; for “priority” each request has 0, 1 or 2, at random`,
  enable_chunked_prefill: tr`enable_chunked_prefill: may a prompt be split over steps?`,
  enable_prefix_caching: tr`enable_prefix_caching: are blocks of equal prefixes reused?`,
  preemption_mode: tr`preemption_mode: recompute a victim's tokens, or swap its blocks to the host`,
  sliding_window: tr`sliding_window: half of the layers see only so many tokens, and have blocks of their own; 0: all layers see all tokens`,
  prefix_cache_retention_interval: tr`prefix_cache_retention_interval: with a window, the prefix cache can be used up to each multiple of so many tokens (a multiple of the block size); 0: only up to the end of a prompt`,
  num_requests: tr`number of requests`, arrivals: tr`how requests arrive`,
  gap: tr`milliseconds between two arrivals, or their mean`,
  min_prompt: tr`shortest prompt, in tokens`, max_prompt: tr`longest prompt, in tokens`,
  min_output: tr`shortest output, in tokens`, max_output: tr`longest output, in tokens`,
  shared_prefix: tr`tokens that all prompts begin with; 0: none`,
  long_prompt: tr`tokens of one long prompt among the others; 0: none`,
  seed: tr`seed of the random numbers: lengths, arrivals, priorities`,
};
/** A choice in words; names of policies are vLLM's. */
const CHOICES = { together: tr`together`, evenly: tr`evenly`, randomly: tr`randomly`, yours: tr`yours`,
  recompute: tr`recompute`, swap: tr`swap` };
const inWords = choice => CHOICES[choice] ?? choice.replace("_", " ");

const LABEL = { ...ENGINE, ...Object.fromEntries(WORKLOAD.map(([name, ...keys]) => keys.map(key => [key, name])).flat()),
  min_prompt: tr`shortest prompt`, max_prompt: tr`longest prompt`, min_output: tr`shortest output`, max_output: tr`longest output` };
const ofEngine = (key, name) => tr`${ENGINE[key]}, engine ${name}`;

/** An input for a setting: a checkbox, a list of choices, or a number. */
function control(begin, key, label, range = null) {
  const about = `data-key="${key}" aria-label="${escape(label)}" title="${escape(HINTS[key])}"`;
  if (key.startsWith("enable_")) return `<input type="checkbox" ${about}>`;
  if (begin.choices[key])
    return `<select ${about}>${begin.choices[key].map(choice =>
      `<option value="${choice}">${inWords(choice)}</option>`).join("")}</select>`;
  const [low, high] = range ?? begin.ranges[key];
  const type = range ? "range" : "number";
  return `<input type="${type}" inputmode="numeric" min="${low}" max="${high}" ${about}>`;
}

export class Controls {
  #slid = "";  // settings that have sliders

  /** begin: what Python says of presets, ranges and choices. changed: called after each change.
   * chosen: called with a preset, before that. */
  constructor(begin, changed, chosen) {
    this.begin = begin;
    this.changed = changed;
    $("workload").insertAdjacentHTML("beforeend", WORKLOAD.map(([name, ...keys]) =>
      `<div class="row"><span>${name}</span><span>` + keys.map(key =>
        control(begin, key, HINTS[key])).join(" – ") + "</span></div>").join(""));
    $("engine-rows").innerHTML = Object.keys(ENGINE).map(key =>
      `<tr><th scope="row" title="${escape(HINTS[key])}">${ENGINE[key]}</th>` + ["1", "2"].map(name =>
        `<td data-engine="${name}">${control(begin, key, ofEngine(key, name))}</td>`)
        .join("") + "</tr>").join("");
    $("presets").innerHTML = begin.presets.map(({ name, title }) =>
      `<option value="${name}">${escape(title)}</option>`).join("");
    $("presets").addEventListener("change", () => {
      const preset = begin.presets.find(each => each.name === $("presets").value);
      chosen(preset);
      this.write(preset);
      this.showPreset(preset);
      changed();
    });
    $("settings").addEventListener("change", event => {
      delete event.target.dataset.given;
      this.#slide();
      changed();
    });
    $("sliders").addEventListener("input", event => this.#moved(event.target));
    for (const id of ["settings", "sliders"]) $(id).addEventListener("submit", event => event.preventDefault());
  }

  /** Show these settings. */
  write({ workload, engines, axis }) {
    this.#inputs("#workload").forEach(input => this.#set(input, workload[input.dataset.key]));
    for (const name of ["1", "2"])
      this.#inputs(`#settings [data-engine="${name}"]`).forEach(input =>
        this.#set(input, (engines[name] ?? engines[1])[input.dataset.key]));
    $("with-2").checked = "2" in engines;
    document.querySelectorAll("[name=axis]").forEach(input => { input.checked = input.value === axis; });
    this.#slid = "";
    this.#fit();
    this.#slide();
  }

  /** The settings that are shown: { workload, engines, axis }. */
  read() {
    this.#fit();
    const values = where => Object.fromEntries(
      this.#inputs(where).map(input => [input.dataset.key, this.#get(input)]));
    const engines = { 1: values('#settings [data-engine="1"]') };
    if ($("with-2").checked) engines[2] = values('#settings [data-engine="2"]');
    const axis = document.querySelector("[name=axis]:checked")?.value ?? "steps";
    return { workload: values("#workload"), engines, axis };
  }

  /** The preset that has exactly these settings, but for the axis. */
  preset({ workload, engines }) {
    const same = (a, b) => a === b || (a instanceof Object && b instanceof Object &&
      Object.keys({ ...a, ...b }).every(key => same(a[key], b[key])));
    return this.begin.presets.find(p => same(p.workload, workload) && same(p.engines, engines));
  }

  /** Name of each run: the settings in which it differs from the other. */
  titles(engines) {
    const [one, two] = [engines[1], engines[2] ?? engines[1]];
    const differ = Object.keys(ENGINE).filter(key => one[key] !== two[key]);
    const said = (key, value) => value === true ? ENGINE[key] : value === false ? tr`no ${ENGINE[key]}`
      : `${ENGINE[key]} ${key in this.begin.choices ? inWords(String(value)) : value}`;
    return Object.fromEntries(Object.entries(engines).map(([name, engine]) =>
      [name, differ.map(key => said(key, engine[key])).join(word(", ")) || said("policy", engine.policy)]));
  }

  /** Let engine 2 use the policy in the editor. */
  usePolicy() {
    $("with-2").checked = true;
    this.#set(this.#input("2", "policy"), "yours");
    this.#fit();
    this.#slide();
    this.changed();
  }

  /**
   * Say what is wrong beside the control that an error names ("engine 2's num_blocks must be ..."),
   * by the control's own name; true if there is one.
   */
  mark(error) {
    document.querySelectorAll("#rail .wrong").forEach(said => said.remove());
    document.querySelectorAll("#rail [aria-invalid]").forEach(input => input.removeAttribute("aria-invalid"));
    const [, name, key] = /^(?:engine ([12])(?:'s|:) )?(\w+) must/i.exec(error) ?? [];
    const input = key && this.#input(name, key), slider = key && this.#input(name, key, "#sliders");
    if (!input) return false;
    const text = error.replace(/^engine [12](?:'s|:) /i, "").replace(key, LABEL[key])
      .replace(/\b(?:max|min)_(?:prompt|output)\b/, other => LABEL[other])
      .replace(/^(.*) must be (.*), got (.*)\.$/s, (_, what, allowed, got) => tr`${what} must be ${allowed}, got ${got}.`);
    const seen = slider ?? input;
    if (!slider) $("settings-part").open = true;
    for (const each of [input, slider]) each?.setAttribute("aria-invalid", "true");
    seen.setAttribute("aria-describedby", "what-is-wrong");
    const said = `<small class="wrong" id="what-is-wrong" role="alert">${escape(text)}</small>`;
    const isCell = seen.closest("tr") !== null;
    seen.closest("tr, .row, .slide").insertAdjacentHTML("afterend",
      isCell ? `<tr class="wrong"><td colspan="3">${said}</td></tr>` : said);
    return true;
  }

  showPreset(preset) {
    $("presets").value = preset.name;
    $("lesson-title").textContent = preset.title;
    $("lesson").textContent = preset.lesson;
  }

  // -- sliders --------------------------------------------------------------------------------------

  /** Sliders for the settings in which the engines differ; those that are there stay. */
  #slide() {
    const { engines } = this.read();
    const differ = engines[2] ? Object.keys(ENGINE).filter(key => engines[1][key] !== engines[2][key]) : [];
    const keys = new Set([...this.#slid.split(" ").filter(key => key && engines[2]), ...differ]);
    const names = Object.keys(ENGINE).filter(key => keys.has(key)).join(" ");
    if (names !== this.#slid) {
      this.#slid = names;
      $("sliders").innerHTML = names.split(" ").filter(Boolean).map(key => this.#drawSlider(key, engines)).join("") ||
        `<p class="soft">${engines[2] ? tr`Both engines are equal: change one under “All settings”.` : tr`There is one engine. Add a second one under “All settings”.`}</p>`;
    }
    for (const input of this.#inputs("#sliders")) {
      this.#set(input, engines[input.closest("[data-engine]").dataset.engine][input.dataset.key]);
      this.#showValue(input);
    }
  }

  /** A slider goes to four times the larger of the two values. */
  #drawSlider(key, engines) {
    const [low, high] = this.begin.ranges[key] ?? [0, 0];
    const most = Math.max(...["1", "2"].map(name => Number(engines[name][key]) || 0), 2);
    return `<div class="slide"><span title="${escape(HINTS[key])}">${ENGINE[key]}</span>` + ["1", "2"].map(name =>
      `<label data-engine="${name}"><span class="run-${name}">${name}</span>` +
      `${control(this.begin, key, ofEngine(key, name), [low, Math.min(high, 4 * most)])}<output></output></label>`).join("") + "</div>";
  }
  #showValue(input) {
    if (input.type === "range") input.nextElementSibling.textContent = Number(input.value).toLocaleString("en");
  }
  #moved(slider) {
    this.#showValue(slider);
    const input = this.#input(slider.closest("[data-engine]").dataset.engine, slider.dataset.key);
    this.#set(input, this.#get(slider));
    this.changed();
  }

  #input(name, key, form = "#settings") {
    const where = name ? `[data-engine="${name}"]` : "#workload";
    return document.querySelector(`${form} ${where} [data-key="${key}"]`);
  }
  #inputs(where) {
    return [...document.querySelectorAll(`${where} [data-key]`)];
  }
  /** A value that the control cannot show, of a broken link, is kept until it is changed. */
  #set(input, value) {
    delete input.dataset.given;
    const isNumber = ["number", "range"].includes(input.type);
    const shown = input.type === "checkbox" ? typeof value === "boolean"
      : isNumber ? typeof value === "number"
      : [...input.options].some(option => option.value === value);
    if (!shown) input.dataset.given = value;
    if (input.type === "checkbox") input.checked = value === true;
    else input.value = shown ? value : "";
  }
  #get(input) {
    if (input.dataset.given !== undefined) return input.dataset.given;
    if (input.type === "checkbox") return input.checked;
    return ["number", "range"].includes(input.type) && input.value !== "" ? Number(input.value) : input.value;
  }
  /** The second engine's column can be changed only if there is one. */
  #fit() {
    this.#inputs('#settings [data-engine="2"]').forEach(input => { input.disabled = !$("with-2").checked; });
  }
}
