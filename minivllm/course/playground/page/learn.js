// Labs, quiz and exercises: asked and graded by Python as in the notebooks. And the tabs.
import { Editor } from "./editor.js";

const TABS = ["play", "lab", "quiz", "exercises"];
const options = (names, titles = names) =>
  names.map((name, i) => `<option value="${name}">${escape(titles[i])}</option>`).join("");
const folded = help => Object.entries(help).map(([title, text]) =>
  `<details><summary>${escape(title)}</summary><pre tabindex="0">${escape(text)}</pre></details>`).join("");
const look = right => ({ true: "right", false: "wrong" })[right] ?? "";

/** asked: what Python asks. chosen: called when another tab or chapter is open. */
export function learn(asked, engine, chosen) {
  const opened = new Set(), exercises = new Map(asked.chapters), chapters = [...exercises.keys()];
  let tab = "play", linked = "";  // the exercise that a link names

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

  const labEditor = new Editor($("lab-editor"), tr`The function of this lab, in Python`, tr`Grade it`,
    async source => {
      labEditor.say(tr`Python is running…`);
      showShare();
      const reply = await engine.ask({ call: "grade_lab", name: $("lab-name").value, source,
        seed: Number($("lab-seed").value), kept: kept() }, 30);
      if (reply.error) return labEditor.fail(reply.error, reply.line);
      labEditor.say(reply.text, look(reply.right));
      showShare(reply.equal, Number($("lab-seed").value) !== 0);
      keep(reply.file);
      await showProgress();
    }, code => save(`lab-${$("lab-name").value}`, code));
  /** At how many of a lab's steps the code is right: steps that were drawn, or vLLM's. */
  function showShare(share, isDrawn) {
    $("lab-share").hidden = !share;
    if (!share) return;
    const [equal, total] = share, all = plural(total, "step");
    $("lab-steps").max = total;
    $("lab-steps").value = equal;
    $("lab-equal").textContent = isDrawn ? tr`${equal} of ${all} equal the engine's` : tr`${equal} of ${all} equal vLLM's`;
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
  function showVerdict(choice) {
    const question = choice.closest("[data-question]"), said = question.querySelector(".said");
    const { verdicts } = asked.quizzes[$("quiz-chapter").value][question.dataset.question];
    const { text, right } = verdicts[choice.value];
    said.textContent = text;
    said.className = `said ${look(right)}`;
  }
  /** A letter for each question, "-" for one without an answer. */
  const answers = () => [...$("questions").children].map(each => each.querySelector(":checked")?.value ?? "-").join("");
  function giveAnswers(letters) {
    for (const [i, letter] of [...letters].entries()) {
      const choice = [...document.getElementsByName(`question-${i}`)].find(each => each.value === letter);
      if (!choice) continue;
      choice.checked = true;
      showVerdict(choice);
    }
  }
  $("quiz-chapter").innerHTML = options(chapters);
  $("quiz-chapter").addEventListener("change", () => { showQuiz(); chosen(); });
  $("questions").addEventListener("change", event => { showVerdict(event.target); chosen(); });

  // -- exercises ----------------------------------------------------------------------------------

  const drawn = () => ({ name: $("exercise-name").value, seed: Number($("exercise-seed").value) });
  const exerciseEditor = new Editor($("exercise-editor"), tr`Your answer, in Python`, tr`Grade it`,
    async source => {
      exerciseEditor.say(tr`Python is running…`);
      const reply = await engine.ask({ call: "grade_exercise", ...drawn(), source }, 30);
      if (reply.error) exerciseEditor.fail(reply.error, reply.line);
      else exerciseEditor.say(reply.text, look(reply.right));
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
    if (names.includes(linked)) $("exercise-name").value = linked;
    return showExercise();
  }
  $("exercise-chapter").innerHTML = options(chapters);
  $("exercise-chapter").addEventListener("change", () => { showExercises(); chosen(); });
  for (const id of ["exercise-name", "exercise-seed"]) $(id).addEventListener("change", () => { showExercise(); chosen(); });
  $("lab-seed").addEventListener("change", () => chosen());

  return {
    /** Open a tab, with what the link names: a chapter, a lab or an exercise, its seed, answers of the quiz. */
    open({ tab, chapter, name, draw = "0", answers = "" }) {
      linked = name;
      if (chapter) ["quiz", "exercises"].forEach(each => opened.delete(each));
      for (const id of ["quiz-chapter", "exercise-chapter"]) $(id).value = exercises.has(chapter) ? chapter : "05";
      if (name in asked.labs) $("lab-name").value = name;
      for (const id of ["lab-seed", "exercise-seed"]) $(id).value = draw;
      choose(TABS.includes(tab) ? tab : "play");
      if (tab === "quiz" && chapter) giveAnswers(answers);
    },
    /** What is open, as the address says it. */
    get at() {
      const drawn = id => ($(id).value === "0" ? {} : { draw: $(id).value });
      if (tab === "lab") return { tab, name: $("lab-name").value, ...drawn("lab-seed") };
      if (tab === "quiz")
        return { tab, chapter: $("quiz-chapter").value, ...(/[^-]/.test(answers()) && { answers: answers() }) };
      if (tab === "exercises") return { tab, chapter: $("exercise-chapter").value,
        name: $("exercise-name").value, ...drawn("exercise-seed") };
      return {};
    },
  };
}
