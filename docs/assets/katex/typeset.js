// Runs at build time, in the same engine as KaTeX. Only what refcheck/site.py calls.
const macros = {
  "\\needed": "\\htmlClass{needed}{#1}", // a forward value that this gradient uses
  "\\saved": "\\htmlClass{saved}{#1}", // a tensor that an implementation keeps
};
function typeset(tex, displayMode) {
  const strict = (code) => (code === "htmlExtension" ? "ignore" : "error");
  const html = katex.renderToString(tex, { displayMode, macros: { ...macros }, trust: true, strict, fleqn: true });
  return displayMode ? `<div class="equation scroll" tabindex="0">${html}</div>` : html;
}
