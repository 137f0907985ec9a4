// The report page: one run, its timeline, and the step in the address.
const run = JSON.parse(document.getElementById("run").textContent);
frames = unpack(run.frames);
run.swaps = frames.some(frame => frame.queues[2].length);
run.transfers = frames.some(frame => frame.queues[3].length || frame.queues[4].length);

/** A frame around this step's column of the timeline. */
function markTimeline(step) {
  const chart = document.querySelector("#chart svg"), now = $("now");
  const at = name => Number(chart.getAttribute("data-" + name));
  const left = at("x") + (step - at("first")) * at("step") - 1, width = Math.max(2, at("step") + 2);
  Object.assign(now.style, { left: left + "px", width: width + "px", top: at("top") - 2 + "px",
    height: at("bottom") - at("top") + 4 + "px" });
  now.classList.toggle("thin", at("step") < 8);
  now.hidden = false;
  const view = $("chart");
  if (left < view.scrollLeft || left + width > view.scrollLeft + view.clientWidth)
    view.scrollLeft = left - view.clientWidth / 2;
}

whenShown = frame => {
  markTimeline(frame.step);
  history.replaceState(null, "", "#step=" + frame.step);
};

/** The frame that the address asks for. */
const linked = () => indexOf(Number(new URLSearchParams(location.hash.slice(1)).get("step") || 0));

addEventListener("hashchange", () => go(linked()));
document.querySelector("#chart svg").addEventListener("click", event => {
  const chart = event.currentTarget, at = name => Number(chart.getAttribute("data-" + name));
  const x = event.clientX - chart.getBoundingClientRect().left;
  const step = at("first") + Math.floor((x - at("x")) / at("step"));
  if (x >= at("x")) go(indexOf(step));
});
$("still").hidden = true;
$("live").hidden = $("help").hidden = false;
fitLegend();
if (location.hash) document.querySelector(".controls").scrollIntoView();
prepare();
listen();
show(linked());
