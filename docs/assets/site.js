// Runs in the head, before anything is painted. The four names with __md_ are what Material's program expects to find;
// Material defines them in scripts inside the page, which a strict Content-Security-Policy forbids.
"use strict";

const { scope, root, other } = document.currentScript.dataset; // this edition, the whole site, the first page's twin
window.__md_scope = new URL(scope, location);
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

// The first page follows the browser's language, unless the reader has chosen one or comes from another page of the site.
// Only the Chinese first page has a twin to go to, so nothing can lead back.
const whole = new URL(root, location);
if (other && !__md_get("__language", localStorage, whole) && !document.referrer.startsWith(whole.href)) {
  const known = navigator.languages.map((tag) => tag.slice(0, 2)).find((tag) => tag === "zh" || tag === "en");
  if (known !== "zh") location.replace(new URL(other + location.search + location.hash, location));
}

// The other language opens at the section that is being read, and is the one that the reader wants from now on.
document.addEventListener("click", ({ target }) => {
  const link = target.closest?.("a[data-same-section]");
  if (!link) return;
  link.hash = location.hash;
  __md_set("__language", link.hreflang, localStorage, whole);
});

// A reference to copy has the page's full address and the day.
document.addEventListener("DOMContentLoaded", () => {
  const day = new Date().toISOString().slice(0, 10);
  for (const box of document.querySelectorAll(".cite")) {
    const { path, here } = box.dataset;
    const address = path.includes("://") ? path : new URL(here, __md_scope).href;
    for (const code of box.querySelectorAll("code")) {
      code.textContent = code.textContent.replaceAll(path, address).replaceAll("YYYY-MM-DD", day);
    }
  }
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
