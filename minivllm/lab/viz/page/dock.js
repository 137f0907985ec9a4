// Dock: panes below the timeline, one of them open, as high as the reader wants. Its look is in
// dock.css; the HTML is a [role=tablist] of [role=tab] buttons with aria-controls, the panes, and
// above them a [role=separator] with tabindex 0, by which it is resized: with the pointer, and with
// the arrow keys. What is open and how high it is stays over a reload.
//
//   dock = new Dock(element, name)  name: under which it is kept, such as "report"
//   dock.open(id)                   opens the pane with this id; one that is hidden is not opened
const LEAST = 120;  // pixels

export class Dock {
  #dock; #key; #tabs;

  constructor(dock, name) {
    this.#dock = dock;
    this.#key = `minivllm-dock-${name}`;
    this.#tabs = [...dock.querySelectorAll("[role=tab]")];
    for (const tab of this.#tabs) tab.addEventListener("click", () => this.open(tab.getAttribute("aria-controls")));
    dock.querySelector("[role=tablist]").addEventListener("keydown", event => this.#move(event));
    const edge = dock.querySelector("[role=separator]");
    edge.setAttribute("aria-valuemin", LEAST);
    edge.addEventListener("pointerdown", event => edge.setPointerCapture(event.pointerId));
    edge.addEventListener("pointermove", event => {
      if (edge.hasPointerCapture(event.pointerId)) this.#resize(dock.getBoundingClientRect().bottom - event.clientY);
    });
    edge.addEventListener("keydown", event => {
      const by = { ArrowUp: 24, ArrowDown: -24 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.#resize(dock.offsetHeight + by);
    });
    const { pane, height } = this.#kept();
    this.open(document.getElementById(pane) ? pane : this.#tabs[0].getAttribute("aria-controls"));
    if (height) this.#resize(height);
    else this.#tell();
  }

  open(id) {
    for (const tab of this.#tabs) {
      const isOpen = tab.getAttribute("aria-controls") === id;
      tab.setAttribute("aria-selected", isOpen);
      tab.tabIndex = isOpen ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !isOpen;
    }
    this.#keep({ pane: id });
  }

  #move(event) {
    const at = this.#tabs.indexOf(event.target), last = this.#tabs.length - 1;
    const to = { ArrowLeft: at ? at - 1 : last, ArrowRight: at < last ? at + 1 : 0, Home: 0, End: last }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.#tabs[to].focus();
    this.#tabs[to].click();
  }

  #resize(height) {
    const most = Math.max(LEAST, innerHeight * .7);
    height = Math.round(Math.min(most, Math.max(LEAST, height)));
    this.#dock.style.setProperty("--dock", `${height}px`);
    this.#keep({ height });
    this.#tell();
  }
  #tell() {
    const edge = this.#dock.querySelector("[role=separator]");
    edge.setAttribute("aria-valuemax", Math.round(Math.max(LEAST, innerHeight * .7)));
    edge.setAttribute("aria-valuenow", this.#dock.offsetHeight);
  }

  #kept() {
    try { return JSON.parse(localStorage.getItem(this.#key)) ?? {}; } catch { return {}; }
  }
  #keep(news) {
    try { localStorage.setItem(this.#key, JSON.stringify({ ...this.#kept(), ...news })); } catch { /* no room, or not allowed */ }
  }
}
