// Light, dark or as the system has it; the site keeps the choice under the same name.
try { document.documentElement.dataset.theme = localStorage.getItem("theme") ?? ""; } catch { /* not allowed */ }
addEventListener("DOMContentLoaded", () => {
  const choice = document.getElementById("theme");
  choice.value = document.documentElement.dataset.theme ?? "";
  choice.hidden = false;
  choice.addEventListener("change", () => {
    document.documentElement.dataset.theme = choice.value;
    try { localStorage.setItem("theme", choice.value); } catch { /* not allowed */ }
  });
});
