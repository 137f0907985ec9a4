// Labs, quiz and exercises: asked and graded by Python as in the notebooks. And the tabs.
import { Editor } from "./editor.js";

const TABS = ["play", "lab", "quiz", "exercises"];
const options = (names, titles = names) =>
  names.map((name, i) => `<option value="${name}">${escape(titles[i])}</option>`).join("");
const folded = help => Object.entries(help).map(([title, text]) =>
  `<details><summary>${escape(title)}</summary><pre tabindex="0">${escape(text)}</pre></details>`).join("");
const look = text => /^(passed|right)/.test(text) ? "right" : /^(FAILED|not yet)/.test(text) ? "wrong" : "";

export function learn(begin, engine) {
  const opened = new Set(), exercises = new Map(begin.chapters), chapters = [...exercises.keys()];

  function choose(tab) {
    for (const name of TABS) {
      const isChosen = name === tab;
      $(`tab-${name}`).setAttribute("aria-selected", isChosen);
      $(`tab-${name}`).tabIndex = isChosen ? 0 : -1;
      $(`${name}-panel`).hidden = !isChosen;
    }
    if (!opened.has(tab)) first[tab]();
    opened.add(tab);
  }
  const first = { play() {}, lab: showLab, quiz: showQuiz, exercises: showExercises };
  $("tabs").addEventListener("click", event => {
    const tab = event.target.id.replace("tab-", "");
    if (TABS.includes(tab)) choose(tab);
  });
  $("tabs").addEventListener("keydown", event => {
    const at = TABS.indexOf(event.target.id.replace("tab-", ""));
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: TABS.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const tab = TABS[(to + TABS.length) % TABS.length];
    choose(tab);
    $(`tab-${tab}`).focus();
  });

  // -- labs ---------------------------------------------------------------------------------------

  const labEditor = new Editor($("lab-editor"), "The function of this lab, in Python", "Grade it",
    async source => {
      labEditor.say("Python runs…");
      const reply = await engine.ask({ call: "grade_lab", name: $("lab-name").value, source,
        seed: Number($("lab-seed").value), kept: kept() }, 30);
      if (reply.error) return labEditor.fail(reply.error, reply.line);
      labEditor.say(reply.text, look(reply.text));
      keep(reply.file);
      await showProgress();
    });
  async function showLab() {
    const { task, stub } = begin.tasks[$("lab-name").value];
    $("lab-task").textContent = task;
    labEditor.code = stub;
    $("lab-help").innerHTML = "";
    await showProgress();
  }
  // Progress is a file of the reader's. Python's own is lost with the worker, so the page keeps it.
  const FILE = "minivllm-progress.json";
  const kept = () => localStorage.getItem(FILE) ?? "";
  function keep(file) {
    localStorage.setItem(FILE, file);
    $("lab-save").href = `data:application/json,${encodeURIComponent(file)}`;
  }
  async function showProgress(request = { call: "lab_progress", kept: kept() }) {
    const reply = await engine.ask(request, 30);
    $("lab-status").textContent = reply.error ?? reply.text;
    if (!reply.error) keep(reply.file);
    return reply.next;
  }
  $("lab-peek").addEventListener("click", async () => {
    const reply = await engine.ask({ call: "peek_lab", name: $("lab-name").value, kept: kept() }, 30);
    if (reply.error) return labEditor.fail(reply.error);
    keep(reply.file);
    $("lab-help").innerHTML = folded(reply.help);
    $("lab-help").lastElementChild.open = true;
    await showProgress();
  });
  $("lab-next").addEventListener("click", async () => {
    const name = await showProgress();
    if (name) $("lab-name").value = name;
    await showLab();
  });
  $("lab-open").addEventListener("change", async event => {
    const file = await event.target.files[0]?.text();
    if (file !== undefined) await showProgress({ call: "open_progress", file });
    event.target.value = "";
  });
  $("lab-name").innerHTML = options(Object.keys(begin.labs), Object.values(begin.labs));
  $("lab-name").addEventListener("change", showLab);

  // -- quiz ---------------------------------------------------------------------------------------

  function showQuiz() {
    $("questions").innerHTML = begin.quizzes[$("quiz-chapter").value].map(({ text, choices }, i) =>
        `<fieldset data-question="${i}"><legend>${i + 1}. ${escape(text)}</legend>` +
        Object.entries(choices).map(([letter, choice]) =>
          `<label><input type="radio" name="question-${i}" value="${letter}"> ${escape(choice)}</label>`)
          .join("") + `<p class="said" role="status"></p></fieldset>`).join("");
  }
  $("quiz-chapter").innerHTML = options(chapters);
  $("quiz-chapter").addEventListener("change", showQuiz);
  $("questions").addEventListener("change", event => {
    const question = event.target.closest("[data-question]"), said = question.querySelector(".said");
    const { verdicts } = begin.quizzes[$("quiz-chapter").value][question.dataset.question];
    const { text, right } = verdicts[event.target.value];
    said.textContent = text;
    said.className = `said ${right ? "right" : "wrong"}`;
  });

  // -- exercises ----------------------------------------------------------------------------------

  const drawn = () => ({ name: $("exercise-name").value, seed: Number($("exercise-seed").value) });
  const exerciseEditor = new Editor($("exercise-editor"), "Your answer, in Python", "Answer",
    async source => {
      exerciseEditor.say("Python runs…");
      const reply = await engine.ask({ call: "grade_exercise", ...drawn(), source }, 30);
      if (reply.error) exerciseEditor.fail(reply.error, reply.line);
      else exerciseEditor.say(reply.text, look(reply.text));
    });
  async function showExercise() {
    const { name, seed } = drawn();
    const reply = seed === 0 ? begin.exercises[name]
      : await engine.ask({ call: "exercise", name, seed }, 30);
    if (reply.error) return exerciseEditor.fail(reply.error);
    $("exercise-text").textContent = reply.text;
    exerciseEditor.code = "";
    $("exercise-help").innerHTML = folded(reply.help);
  }
  function showExercises() {
    const names = exercises.get($("exercise-chapter").value);
    $("exercise-name").innerHTML = options(names, names.map(name => name.split(".")[1]));
    return showExercise();
  }
  $("exercise-chapter").innerHTML = options(chapters);
  $("exercise-chapter").addEventListener("change", showExercises);
  for (const id of ["exercise-name", "exercise-seed"]) $(id).addEventListener("change", showExercise);

  /** Open a tab, of a chapter if the link names one. */
  return { open({ tab, chapter }) {
    if (chapter) ["quiz", "exercises"].forEach(name => opened.delete(name));
    for (const id of ["quiz-chapter", "exercise-chapter"])
      $(id).value = exercises.has(chapter) ? chapter : "05";
    choose(TABS.includes(tab) ? tab : "play");
  } };
}
