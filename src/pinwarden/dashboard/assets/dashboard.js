// The only script of the dashboard: keys, and live updates. Every page works without it. It never decides anything and
// writes no HTML: the Content Security Policy has Trusted Types without any policy.
"use strict";
(() => {
  const script = document.currentScript;

  // Keys: j and k move between changes. They do nothing while a person types, and none of them decides.
  const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;
  const move = (step) => {
    const stops = [...document.querySelectorAll("[data-stop]")];
    const here = stops.findIndex((stop) => stop.contains(document.activeElement));
    const next = stops[Math.min(stops.length - 1, Math.max(0, here + step))];
    const target = next && (next.querySelector("a, summary, input") || next);
    if (target) target.focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else return;
    event.preventDefault();
  });

  // Live updates: when something changed, the page is read again as a document, and its live parts replace those here.
  // A part in which a person works stays as it is.
  const parts = () => [...document.querySelectorAll("[data-live]")];
  const isInUse = (part) => part.contains(document.activeElement) || part.querySelector("input:checked, details[open]");
  const notice = (text) => {
    document.getElementById("live-notice").textContent = text;
  };
  const update = () => {
    const request = new XMLHttpRequest();
    request.open("GET", location.href);
    request.responseType = "document";
    request.onload = () => {
      if (request.status !== 200 || !request.response) return;
      let updated = 0;
      for (const part of parts()) {
        const fresh = request.response.getElementById(part.id);
        if (!fresh || fresh.isEqualNode(part)) continue;
        if (isInUse(part)) {
          notice("This page changed. Reload it to see the changes.");
          document.getElementById("live-notice").className = "notice info";
          continue;
        }
        part.replaceWith(document.adoptNode(fresh));
        updated += 1;
      }
      if (updated) notice("The page was updated.");
    };
    request.send();
  };
  if (parts().length) {
    const events = new EventSource(new URL("../events", script.src));
    events.addEventListener("changed", update);
    events.addEventListener("error", () => {
      // After a lost connection something may have changed unseen; the browser connects again by itself.
      events.addEventListener("open", update, { once: true });
    });
  }
})();
