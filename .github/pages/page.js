// Every page: what scrolls sideways can be reached with the keyboard; a notebook and a film begin.
const SCROLLS = "pre, pre > code, .figure, .map, .md-typeset__table, .md-typeset__scrollwrap";

function reachable() {
  for (const element of document.querySelectorAll(`.md-content :is(${SCROLLS})`)) {
    if (element.scrollWidth > element.clientWidth) element.tabIndex = 0;
    else element.removeAttribute("tabindex");
  }
}

new ResizeObserver(reachable).observe(document.body);
if (document.querySelector("#runner")) import("./cells.js");
if (document.querySelector("#film")) import("./film.js");
