// Arrow keys, Page Up and Page Down turn the slides; the address follows, so that a slide can be linked to.
const slides = [...document.querySelectorAll("main > section")];
const count = document.querySelector("nav > output");
let shown = 0;

function turn(to) {
  slides[Math.min(Math.max(to, 0), slides.length - 1)].scrollIntoView();
}
const keys = {
  ArrowRight: () => turn(shown + 1), ArrowDown: () => turn(shown + 1), PageDown: () => turn(shown + 1), " ": () => turn(shown + 1),
  ArrowLeft: () => turn(shown - 1), ArrowUp: () => turn(shown - 1), PageUp: () => turn(shown - 1),
  Home: () => turn(0), End: () => turn(slides.length - 1),
};
addEventListener("keydown", (event) => {
  const box = event.target.closest?.(".scroll"); // a wide table or formula scrolls sideways by itself
  const sideways = box && box.scrollWidth > box.clientWidth && /Left|Right/.test(event.key);
  const tall = slides[shown].scrollHeight > innerHeight + 1 && /Up|Down/.test(event.key); // and a tall slide up and down
  if (event.ctrlKey || event.metaKey || event.altKey || sideways || tall || !Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
});
const watch = new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) {
    if (!isIntersecting) continue;
    shown = slides.indexOf(target);
    count.textContent = `${shown + 1} / ${slides.length}`;
    const at = target.querySelector("h1, h2").id;
    if (shown || location.hash) history.replaceState(null, "", `#${at}`);
  }
}, { rootMargin: "-50% 0px -49% 0px" });
slides.forEach((slide) => watch.observe(slide));
