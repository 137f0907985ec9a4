// Editor: Python in a text area with line numbers and colours; an error is said, and its line marked.
let count = 0;
const PYTHON = new RegExp([
  String.raw`(?<note>#.*)`, String.raw`(?<text>"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\.|[^"\n\\])*"?|'(?:\\.|[^'\n\\])*'?)`,
  String.raw`(?<word>\b(?:and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|match|case|nonlocal|not|or|pass|raise|return|try|while|with|yield|None|True|False)\b)`,
  String.raw`(?<number>\b\d[\w.]*)`,
].join("|"), "g");
const coloured = code => {
  let html = "", end = 0;
  for (const found of code.matchAll(PYTHON)) {
    const [kind] = Object.entries(found.groups).find(([, text]) => text !== undefined);
    html += escape(code.slice(end, found.index)) + `<span class="py-${kind}">${escape(found[0])}</span>`;
    end = found.index + found[0].length;
  }
  return html + escape(code.slice(end)) + "\n";
};

export class Editor {
  #area; #lines; #colours; #mark; #said; #run; #typed;

  /**
   * Fills an element.
   * label: of the text area. button: what runs it. run: called with the code.
   * typed: called with the code after each key.
   */
  constructor(element, label, button, run, typed = () => {}) {
    const id = `editor-${++count}`;
    element.innerHTML = `<div class="editor"><pre class="lines" aria-hidden="true"></pre>` +
      `<div class="mark" hidden></div><div class="code"><pre class="colours" aria-hidden="true"></pre><textarea id="${id}" spellcheck="false" wrap="off" ` +
      `autocapitalize="off" autocomplete="off" aria-describedby="${id}-said"></textarea></div></div>` +
      `<p class="under"><button type="button" class="main">${button}</button> ` +
      `<span class="soft">${tr`or Ctrl+Enter`}</span></p>` +
      `<pre class="said" id="${id}-said" role="status" aria-label="${tr`What Python says`}"></pre>`;
    this.#area = element.querySelector("textarea");
    this.#area.setAttribute("aria-label", label);
    this.#colours = element.querySelector(".colours");
    this.#lines = element.querySelector(".lines");
    this.#mark = element.querySelector(".mark");
    this.#said = element.querySelector(".said");
    this.#run = () => run(this.code);
    this.#typed = typed;
    this.#area.addEventListener("scroll", () => { this.#colours.scrollLeft = this.#area.scrollLeft; });
    element.querySelector("button").addEventListener("click", this.#run);
    this.#area.addEventListener("input", () => { this.#changed(); });
    this.#area.addEventListener("keydown", event => this.#key(event));
  }

  get code() { return this.#area.value; }
  set code(text) {
    this.#area.value = text;
    this.#fit();
    this.say("");
  }

  /** Say something below the code: "right", "wrong" or nothing special. */
  say(text, look = "") {
    this.#clearLine();
    this.#said.className = `said ${look}`;
    this.#said.textContent = text;
    this.#said.toggleAttribute("tabindex", this.#said.scrollHeight > this.#said.clientHeight);  // keys scroll it
  }

  /** Say what is wrong, and mark the line. */
  fail(error, line) {
    this.say(line ? tr`Line ${line}: ${error}` : error, "wrong");
    if (!line) return;
    this.#area.setAttribute("aria-invalid", "true");
    this.#mark.style.top = `calc(.6rem + ${line - 1} * 1.5em)`;
    this.#mark.hidden = false;
    this.#lines.children[line - 1]?.classList.add("bad");
  }

  #clearLine() {
    this.#mark.hidden = true;
    this.#area.removeAttribute("aria-invalid");
    this.#lines.querySelector(".bad")?.classList.remove("bad");
  }

  #changed() {
    this.#fit();
    this.#clearLine();
    this.#typed(this.code);
  }

  /** As high as its lines: only sideways there is something to scroll. */
  #fit() {
    const number = Math.max(6, this.code.split("\n").length);
    this.#area.rows = number;
    this.#colours.innerHTML = coloured(this.code);
    this.#lines.innerHTML = Array.from({ length: number }, (_, i) => `<span>${i + 1}</span>`).join("\n");
  }

  /** Ctrl+Enter runs; Enter keeps the indentation. (Tab goes on to the button, as everywhere.) */
  #key(event) {
    if (event.key !== "Enter") return;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.#run();
      return;
    }
    const before = this.code.slice(0, this.#area.selectionStart).split("\n").at(-1);
    const indent = before.match(/^ */)[0] + (before.trimEnd().endsWith(":") ? "    " : "");
    if (!indent) return;
    event.preventDefault();
    this.#area.setRangeText("\n" + indent, this.#area.selectionStart, this.#area.selectionEnd, "end");
    this.#changed();
  }
}
