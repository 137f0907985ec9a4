// Labs, quiz and exercises: asked and graded by Python as in the notebooks. And the tabs.
import { Editor } from "./editor.js";

const TABS = ["play", "lab", "quiz", "exercises"];
const options = (names, titles = names) =>
  names.map((name, i) => `<option value="${name}">${escape(titles[i])}</option>`).join("");
const folded = help => Object.entries(help).map(([title, text]) =>
  `<details><summary>${escape(title)}</summary><pre tabindex="0">${escape(text)}</pre></details>`).join("");
const look = text => /^(passed|right)/.test(text) ? "right" : /^(FAILED|not yet)/.test(text) ? "wrong" : "";

/** asked: what Python asks. chosen: called when another tab or chapter is open. */
export function learn(asked, engine, chosen) {
  const opened = new Set(), exercises = new Map(asked.chapters), chapters = [...exercises.keys()];
  let tab = "play";

  /** Code of a lab or an exercise stays in this browser. */
  const saved = (key, otherwise) => localStorage.getItem(`minivllm-${key}`) ?? otherwise;
  const save = (key, code) => localStorage.setItem(`minivllm-${key}`, code);

  function choose(wanted) {
    tab = wanted;
    for (const name of TABS) {
      const isChosen = name === tab;
      $(`tab-${name}`).setAttribute("aria-selected", isChosen);
      $(`tab-${name}`).tabIndex = isChosen ? 0 : -1;
      $(`${name}-panel`).hidden = !isChosen;
    }
    if (!opened.has(tab)) first[tab]();
    opened.add(tab);
    chosen();
  }
  const first = { play() {}, lab: showLab, quiz: showQuiz, exercises: showExercises };
  $("tabs").addEventListener("click", event => {
    const name = event.target.id.replace("tab-", "");
    if (TABS.includes(name)) choose(name);
  });
  $("tabs").addEventListener("keydown", event => {
    const at = TABS.indexOf(event.target.id.replace("tab-", ""));
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: TABS.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(TABS[(to + TABS.length) % TABS.length]);
    $(`tab-${tab}`).focus();
  });

  // -- labs ---------------------------------------------------------------------------------------

  const labEditor = new Editor($("lab-editor"), "The function of this lab, in Python", "Grade it",
    async source => {
      labEditor.say("Python runs…");
      showShare();
      const reply = await engine.ask({ call: "grade_lab", name: $("lab-name").value, source,
        seed: Number($("lab-seed").value), kept: kept() }, 30);
      if (reply.error) return labEditor.fail(reply.error, reply.line);
      labEditor.say(reply.text, look(reply.text));
      showShare(reply.equal, Number($("lab-seed").value) ? "the engine's" : "vLLM's");
      keep(reply.file);
      await showProgress();
    }, code => save(`lab-${$("lab-name").value}`, code));
  /** At how many of a lab's steps the code is right. */
  function showShare(share, whose) {
    $("lab-share").hidden = !share;
    if (!share) return;
    $("lab-steps").max = share[1];
    $("lab-steps").value = share[0];
    $("lab-equal").textContent = `${share[0]} of ${plural(share[1], "step")} equal ${whose}`;
  }
  async function showLab() {
    showShare();
    const { task, stub } = asked.tasks[$("lab-name").value];
    $("lab-task").textContent = task;
    labEditor.code = saved(`lab-${$("lab-name").value}`, stub);
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
  $("lab-name").innerHTML = options(Object.keys(asked.labs), Object.values(asked.labs));
  $("lab-name").addEventListener("change", () => { showLab(); chosen(); });

  // -- quiz ---------------------------------------------------------------------------------------

  function showQuiz() {
    $("questions").innerHTML = asked.quizzes[$("quiz-chapter").value].map(({ text, choices }, i) =>
        `<fieldset data-question="${i}"><legend>${i + 1}. ${escape(text)}</legend>` +
        Object.entries(choices).map(([letter, choice]) =>
          `<label><input type="radio" name="question-${i}" value="${letter}"> ${escape(choice)}</label>`)
          .join("") + `<p class="said" role="status"></p></fieldset>`).join("");
  }
  $("quiz-chapter").innerHTML = options(chapters);
  $("quiz-chapter").addEventListener("change", () => { showQuiz(); chosen(); });
  $("questions").addEventListener("change", event => {
    const question = event.target.closest("[data-question]"), said = question.querySelector(".said");
    const { verdicts } = asked.quizzes[$("quiz-chapter").value][question.dataset.question];
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
    }, code => save(`exercise-${$("exercise-name").value}`, code));
  async function showExercise() {
    const { name, seed } = drawn();
    const reply = seed === 0 ? asked.exercises[name]
      : await engine.ask({ call: "exercise", name, seed }, 30);
    if (reply.error) return exerciseEditor.fail(reply.error);
    $("exercise-text").textContent = reply.text;
    exerciseEditor.code = saved(`exercise-${name}`, "");
    $("exercise-help").innerHTML = folded(reply.help);
  }
  function showExercises() {
    const names = exercises.get($("exercise-chapter").value);
    $("exercise-name").innerHTML = options(names, names.map(name => name.split(".")[1]));
    return showExercise();
  }
  $("exercise-chapter").innerHTML = options(chapters);
  $("exercise-chapter").addEventListener("change", () => { showExercises(); chosen(); });
  for (const id of ["exercise-name", "exercise-seed"]) $(id).addEventListener("change", showExercise);

  return {
    /** Open a tab, of a chapter or a lab if the link names one. */
    open({ tab, chapter, name }) {
      if (chapter) ["quiz", "exercises"].forEach(each => opened.delete(each));
      for (const id of ["quiz-chapter", "exercise-chapter"]) $(id).value = exercises.has(chapter) ? chapter : "05";
      if (name in asked.labs) $("lab-name").value = name;
      choose(TABS.includes(tab) ? tab : "play");
    },
    /** What is open, as the address says it. */
    get at() {
      return tab === "play" ? {} : tab === "lab" ? { tab, name: $("lab-name").value }
        : { tab, chapter: $(tab === "quiz" ? "quiz-chapter" : "exercise-chapter").value };
    },
  };
}
