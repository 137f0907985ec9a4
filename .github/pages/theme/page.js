// Every page: its colours, its search, and what scrolls sideways can be reached with the keyboard.
const tr = globalThis.tr ?? String.raw;
const SCROLLS = "pre, .figure, .map, .table, aside";
const root = document.documentElement, theme = document.querySelector("#theme");

function reachable() {
  for (const element of document.querySelectorAll(`:is(main, aside):is(${SCROLLS}), main :is(${SCROLLS})`)) {
    const scrolls = element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight + 1;
    if (scrolls && getComputedStyle(element).overflowX !== "visible") element.tabIndex = 0;
    else element.removeAttribute("tabindex");
  }
}

/** Figures ask what the system prefers; here they get what the reader has chosen. */
export function paint(where = document) {
  const chosen = root.dataset.theme, dark = /prefers-color-scheme: ?dark/;
  for (const { sheet } of where.querySelectorAll("svg style"))
    for (const rule of sheet?.cssRules ?? []) {
      if (rule.asks ??= dark.test(rule.media?.mediaText))
        rule.media.mediaText = { light: "not all", dark: "all" }[chosen] ?? "(prefers-color-scheme: dark)";
    }
  for (const source of where.querySelectorAll("picture source"))
    source.media = { light: "not all", dark: "all" }[chosen] ?? "(prefers-color-scheme: dark)";
}

theme.value = root.dataset.theme ?? "";
theme.addEventListener("change", () => {
  root.dataset.theme = theme.value;
  try { localStorage.setItem("theme", theme.value); } catch { /* then it holds for this page */ }
  paint();
});
if (theme.value) paint();

const half = document.querySelector(".half");  // the same place in the other language
half.addEventListener("click", () => { half.hash = location.hash; });
const isWide = matchMedia("(min-width: 68.75em)");  // then the list of the part is beside the text
const unfold = () => { for (const part of document.querySelectorAll("details.part")) part.open = isWide.matches; };
isWide.addEventListener("change", unfold);
unfold();
for (const button of document.querySelectorAll("button[data-copy]")) button.addEventListener("click", async () => {
  const { textContent } = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(textContent);
    button.textContent = tr`Copied`;
  } catch {
    getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
    button.textContent = tr`Selected`;
  }
});

const find = async () => (await import("./search.js")).open();
document.querySelector("#search").addEventListener("click", find);
if (location.hash === "#search") find();  // a link on a page that has no index
addEventListener("keydown", event => {
  if (event.key !== "/" || event.target.closest("input, textarea, select, [contenteditable]")) return;
  event.preventDefault();
  find();
});
new ResizeObserver(reachable).observe(document.body);
if (document.querySelector("#runner")) import("./cells.js");
if (document.querySelector(".guess, .quiz")) import("./asked.js");
if (document.querySelector("#toy")) import("./toy.js");
