// Questions of a page: a guess that opens its answer, and the quiz. Neither needs Python.
import { say } from "./words.js";

for (const form of document.querySelectorAll("form.guess")) form.addEventListener("submit", event => {
  event.preventDefault();
  const inputs = [...form.querySelectorAll("input")];
  form.querySelector("[role=status]").textContent = say("Your guess: {values}.", { values: inputs.map(it => it.value).join(", ") });
  const source = inputs.map(({ name, value }) => `${name} = ${value.trim() || "None"}`).join("\n");
  form.dispatchEvent(new CustomEvent("guessed", { bubbles: true, detail: source }));
  let next = form.closest(".cell");
  while ((next = next.nextElementSibling) && !next.matches("form, h2")) {
    for (const answer of [next, ...next.querySelectorAll("*")])
      if (answer.matches("details.answer, details.told")) answer.open = true;
    if (next.matches("details.told")) break;
  }
});

const KEY = `quiz ${location.pathname}`, quiz = document.querySelector(".quiz");
const kept = () => { try { return JSON.parse(localStorage.getItem(KEY)) ?? {}; } catch { return {}; } };
const questions = [...(quiz?.querySelectorAll("fieldset") ?? [])];

function judge(input) {
  const question = input.closest("fieldset"), said = question.querySelector("[role=status]");
  said.textContent = input.dataset.because;
  said.className = "right" in input.dataset ? "right" : "wrong";
  const right = questions.filter(it => it.querySelector("[data-right]:checked")).length;
  const done = questions.filter(it => it.querySelector(":checked")).length;
  quiz.querySelector(".score").textContent = done ? say("{right} of {all} are right.", { right, all: questions.length }) : "";
}

quiz?.addEventListener("change", ({ target }) => {
  judge(target);
  try { localStorage.setItem(KEY, JSON.stringify({ ...kept(), [target.name]: target.value })); } catch { /* not kept */ }
});
for (const [name, value] of Object.entries(kept())) {
  const input = quiz?.querySelector(`[name="${CSS.escape(name)}"][value="${CSS.escape(value)}"]`);
  if (input) { input.checked = true; judge(input); }
}
