// Python in a web worker: Pyodide, the package from a zip, and one function that answers requests.
//
// In:  { id, request }             request is what `minivllm.course.playground.answer` takes
// Out: { progress: "..." }         while it starts: "starts", "imports"
//      { ready: true } or { failed: "..." }
//      { id, reply }               what `answer` returned; see there
// There is no message that stops it: engine.js terminates the worker, and starts another one.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const say = message => postMessage(message);
const language = new URL(import.meta.url).searchParams.get("lang");  // none: English

async function start() {
  say({ progress: "starts" });
  const zip = fetch(new URL("minivllm.zip", import.meta.url)).then(answer => {
    if (!answer.ok) throw new Error(`minivllm.zip: ${answer.status} ${answer.statusText}`);
    return answer.arrayBuffer();
  });
  const python = await loadPyodide({
    indexURL: new URL("pyodide/", import.meta.url).href, env: language ? { MINIVLLM_LANG: language } : {},
  });
  say({ progress: "imports" });
  python.unpackArchive(await zip, "zip", { extractDir: "/minivllm" });
  python.runPython("import sys; sys.path.insert(0, '/minivllm')");
  return python.pyimport("minivllm.course.playground.answer").answer;
}

const answer = start();
answer.then(() => say({ ready: true }), error => say({ failed: String(error) }));
onmessage = async ({ data: { id, request } }) => {
  const text = (await answer)(JSON.stringify(request));  // Python's errors are in the reply
  say({ id, reply: JSON.parse(text) });
};
