// The report page: one run, its timeline and its steps. The address names the step, and what part is
// seen if it is not all; the dock keeps its own state.
globalThis.run = JSON.parse($("run").textContent);
frames = unpack(run.frames);
run.swaps = frames.some(frame => frame.queues[2].length);
run.transfers = frames.some(frame => frame.queues[3].length || frame.queues[4].length);

document.documentElement.classList.add("workbench");
$("step-pane").append($("plan"));
$("pool-pane").append($("pool-facts"), $("pool"), document.querySelector(".legend"));
$("tables-pane").append($("tables").previousElementSibling, $("tables"));
$("blocks").remove();
$("still").hidden = true;
for (const id of ["live", "bar", "edge", "tabs"]) $(id).hidden = false;

const timeline = new Timeline($("chart"), (_, step, row) => {
  choose(row);
  go(indexOf(step));
}, tell);
const dock = new Dock($("dock"), $("waits-pane") ? "xray" : "report");

/** Put into the address what would be lost by a reload. */
function tell() {
  const said = [`step=${frames[current]?.step ?? 0}`], range = timeline.range;
  if (range) said.push(`seen=${range.map(each => Number(each.toFixed(2))).join(",")}`);
  if ($("unit")?.value === "seconds") said.push("unit=seconds");
  history.replaceState(null, "", "#" + said.join("&"));
}
const asked = name => new URLSearchParams(location.hash.slice(1)).get(name);

/** The frame that the address asks for. */
const linked = () => indexOf(Number(asked("step") || 0));

/** Select a request: its row of the timeline, and of the table of waits. */
function choose(row) {
  timeline.select("run", row);
  for (const each of document.querySelectorAll("#waits [data-row]"))
    each.classList.toggle("chosen", row !== null && Number(each.dataset.row) === row);
}

const draw = () => timeline.show({ run: { timeline: { ...run.timeline, owners: run.owners }, title: run.told } },
  $("unit")?.value ?? "steps");
$("unit")?.addEventListener("change", () => {
  draw();
  timeline.mark("run", frames[current].step);
  tell();
});
$("closer").addEventListener("click", () => timeline.zoom(.7));
$("farther").addEventListener("click", () => timeline.zoom(1 / .7));
$("whole").addEventListener("click", () => { timeline.range = null; });
$("waits")?.addEventListener("click", event => {
  const line = event.target.closest("[data-row]");
  if (!line) return;
  const row = Number(line.dataset.row), [first, kinds] = run.timeline.rows[row];
  choose(row);
  go(indexOf(first + Math.max(0, kinds.indexOf("w"))));
});
for (const head of document.querySelectorAll("#waits tbody th, #outputs-pane tbody th")) {
  const index = run.owners.findIndex(owner => owner.letter === head.textContent);
  if (index >= 0) head.innerHTML = badge(index);
}

addEventListener("hashchange", () => go(linked()));
const seen = asked("seen")?.split(",").map(Number), step = linked();
if ($("unit") && asked("unit") === "seconds") $("unit").value = "seconds";
draw();
if (seen?.length === 2) timeline.range = seen;
whenShown = frame => {
  timeline.mark("run", frame.step);
  tell();
};
fitLegend();
prepare();
layOut();
listen();
show(step);
