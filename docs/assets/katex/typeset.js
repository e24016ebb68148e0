// Runs at build time, in the same engine as KaTeX. Only what refcheck/site.py calls.
const macros = {
  "\\needed": "\\htmlClass{needed}{#1}", // a forward value that this gradient uses
  "\\saved": "\\htmlClass{saved}{#1}", // a tensor that an implementation keeps
};
// Search reads a formula once, as text: neither its TeX source nor its drawn glyphs.
const unsearched = ['<annotation ', '<span class="katex-html" '];
function typeset(tex, displayMode) {
  const strict = (code) => (code === "htmlExtension" ? "ignore" : "error");
  const html = katex.renderToString(tex, { displayMode, macros: { ...macros }, trust: true, strict, fleqn: true });
  const quiet = unsearched.reduce((all, tag) => all.replace(tag, tag + 'data-search-exclude="" '), html);
  return displayMode ? `<div class="equation scroll" tabindex="0">${quiet}</div>` : quiet;
}
