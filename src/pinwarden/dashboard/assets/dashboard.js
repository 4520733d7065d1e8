// The only script of the dashboard: keys. Every page works without it. It never approves anything, writes no HTML, and
// evaluates nothing: the Content Security Policy has Trusted Types without any policy.
"use strict";
(() => {
  const typing = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;
  const move = (step) => {
    const stops = [...document.querySelectorAll("[data-stop]")];
    const here = stops.findIndex((stop) => stop.contains(document.activeElement));
    const next = stops[Math.min(stops.length - 1, Math.max(0, here + step))];
    const target = next && (next.querySelector("a, summary, input") || next);
    if (target) target.focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else return;
    event.preventDefault();
  });
})();
