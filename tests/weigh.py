"""The first load of some pages: python -m tests.weigh SITE

Requests, bytes as a server would send them (gzip -6 where that helps), and how far the layout shifts while it loads.
"""

import gzip
import sys
from pathlib import Path

from tests.browser import CHROMIUM, running, serving

PAGES = ("", "table/", "layers/layernorm/", "layers/softmax/", "layers/sdpa/", "layers/softmax/slides/")
GOAL = dict(requests=12, bytes=250 * 1024)  # of a layer's page
PACKED = (".woff2", ".png")  # already compressed
SHIFT = """() => new Promise((done) => {
  let sum = 0;
  new PerformanceObserver((list) => list.getEntries().forEach((e) => { if (!e.hadRecentInput) sum += e.value; }))
    .observe({ type: "layout-shift", buffered: true });
  setTimeout(() => done(sum), 300);
})"""


def sent(url, body):
    return len(body if url.endswith(PACKED) else min(gzip.compress(body, 6), body, key=len))


def load(browser, url, **device):
    """(requests, bytes, layout shift) of one page in a fresh profile."""
    context = browser.new_context(locale="zh-CN", **device)
    page, answers = context.new_page(), []
    page.on("response", lambda r: r.status == 200 and answers.append(r))
    page.goto(url, wait_until="networkidle")
    shift = page.evaluate(SHIFT)
    sizes = {answer.url: sent(answer.url, answer.body()) for answer in answers}
    context.close()
    return sizes, shift


def main(site):
    over = 0
    with serving(site) as address, running() as browser:
        for path in (lang + page for lang in ("", "en/") for page in PAGES):
            sizes, shift = load(browser, address + path, viewport=dict(width=390, height=844))
            many, total = len(sizes), sum(sizes.values())
            heavy = many > GOAL["requests"] or total > GOAL["bytes"]
            over += heavy and "layers/" in path
            print(f"{path or '.':32} {many:3} requests {total / 1024:7.1f} KiB, shift {shift:.3f}{' over' * heavy}")
    return over


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m tests.weigh SITE (make site builds SITE)")
    if CHROMIUM is None:
        sys.exit("weigh: no Chromium here; on Debian: apt install chromium")
    main(Path(sys.argv[1]))
