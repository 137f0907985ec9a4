// Light, dark or as the system has it; the site keeps the choice under the same name.
try { document.documentElement.dataset.theme = localStorage.getItem("theme") ?? ""; } catch {}
addEventListener("DOMContentLoaded", () => {
  const choice = document.getElementById("theme");
  choice.value = document.documentElement.dataset.theme;
  choice.addEventListener("change", () => {
    document.documentElement.dataset.theme = choice.value;
    localStorage.setItem("theme", choice.value);
  });
});
