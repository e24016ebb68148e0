"""Screenshots of the key pages, to be looked at: python -m tests.shots SITE FOLDER

Both languages, wide and narrow, light and dark; whole pages, cut at a few screens.  Says what is wider than its page.
"""

import sys
from itertools import product
from pathlib import Path

from tests.browser import CHROMIUM, running, serving

PAGES = ("", "table/", "blocks/", "errata/", "cite/", "glossary/", "principle/")
LAYERS = ("softmax", "layernorm", "sdpa", "moe", "lora", "linear-cross-entropy")
SIZES = {1440: 1000, 390: 844}
TALLEST = 12000  # pixels


def main(site, target):
    pages = [*PAGES, *(f"layers/{name}/{view}" for name in LAYERS for view in ("", "slides/"))]
    pages = [page for page in pages if (site / page / "index.html").exists()]
    target.mkdir(parents=True, exist_ok=True)
    with serving(site) as address, running() as browser:
        for width, scheme in product(SIZES, ("light", "dark")):
            viewport = dict(width=width, height=SIZES[width])
            context = browser.new_context(viewport=viewport, color_scheme=scheme, locale="zh-CN")
            page = context.new_page()
            for lang, path in product(("zh", "en"), pages):
                page.goto(address + ("en/" if lang == "en" else "") + path)
                page.wait_for_load_state("networkidle")
                height = page.evaluate("document.documentElement.scrollHeight")
                name = f"{path.strip('/').replace('/', '-') or 'index'}-{lang}-{width}-{scheme}.png"
                clip = dict(x=0, y=0, width=width, height=min(height, TALLEST))
                page.screenshot(path=target / name, full_page=True, clip=clip)
                wide = page.evaluate("document.documentElement.scrollWidth")
                print(name, f"is {wide - width} px too wide" if wide > width else "")
            context.close()


if __name__ == "__main__":
    if len(sys.argv) != 3 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m tests.shots SITE FOLDER (make site builds SITE)")
    if CHROMIUM is None:
        sys.exit("shots: no Chromium here; on Debian: apt install chromium")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
