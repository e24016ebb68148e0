// Runs in the head, before anything is painted. The four names with __md_ are what Material's program expects to find;
// Material defines them in scripts inside the page, which a strict Content-Security-Policy forbids.
"use strict";

window.__md_scope = new URL(document.currentScript.dataset.scope, location);
window.__md_hash = (text) => [...text].reduce((sum, c) => (sum << 5) - sum + c.charCodeAt(0), 0);
window.__md_get = (key, storage = localStorage, scope = __md_scope) => {
  try {
    return JSON.parse(storage.getItem(`${scope.pathname}.${key}`));
  } catch {
    return null;
  }
};
window.__md_set = (key, value, storage = localStorage, scope = __md_scope) => {
  try {
    storage.setItem(`${scope.pathname}.${key}`, JSON.stringify(value));
  } catch {} // storage may be switched off
};

// Light or dark: what the reader chose, else what the system says, set as soon as there is a body.
function dress(body) {
  const chosen = __md_get("__palette")?.color;
  const follows = !chosen || chosen.media === "(prefers-color-scheme)";
  const dark = follows ? matchMedia("(prefers-color-scheme: dark)").matches : chosen.scheme === "ink";
  body.setAttribute("data-md-color-scheme", dark ? "ink" : "paper");
}
new MutationObserver((_, observer) => {
  if (!document.body) return;
  observer.disconnect();
  dress(document.body);
}).observe(document.documentElement, { childList: true });

// The other language opens at the section that is being read.
document.addEventListener("click", ({ target }) => {
  const link = target.closest?.("a[data-same-section]");
  if (link) link.hash = location.hash;
});

// Material puts a <nav> on every code block; for a screen reader that is a landmark too many.
addEventListener("load", () => {
  for (const nav of document.querySelectorAll("nav.md-code__nav")) {
    const box = document.createElement("div");
    box.className = nav.className;
    box.append(...nav.childNodes);
    nav.replaceWith(box);
  }
});
