// The only script: copy buttons, and g/j/k to move. Every page works without it.
"use strict";
for (const button of document.querySelectorAll("button.copy")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, textarea, select")) return;
  const target = { g: 'nav a[href="/"]', k: 'a[rel="prev"]', j: 'a[rel="next"]' }[event.key];
  const link = target && document.querySelector(target);
  if (link) link.click();
});
if (location.hash) {
  const opened = document.getElementById(location.hash.slice(1));
  if (opened && opened.tagName === "DETAILS") opened.open = true;
}
