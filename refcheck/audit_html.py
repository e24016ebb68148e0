"""A ledger as one self-contained HTML file: a treemap by module, one by class, and the table."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping

from refcheck.book import Ledger

Box = tuple[float, float, float, float]  # left, top, width, height, in percent

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }
.map { position: relative; height: 22rem; margin: .5rem 0 2rem; background: #eee; }
.map div { position: absolute; overflow: hidden; box-sizing: border-box; border: 1px solid #fff; padding: .1rem .3rem;
  font-size: 12px; color: #111; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #ddd; padding: .15rem .6rem; text-align: left; vertical-align: top; }
td:first-child { text-align: right; white-space: nowrap; }
"""
COLOURS = ("#9ecae1", "#fdd0a2", "#c7e9c0", "#dadaeb", "#fcbba1", "#d9d9d9", "#c6dbef", "#fee6ce", "#e5f5e0", "#bcbddc")


def page(led: Ledger, title: str) -> str:
    """The whole file; it asks no other host for anything."""
    title = html.escape(title)
    facts = html.escape(json.dumps({"device": led.device, "dtype": led.dtype, "nbytes": led.nbytes}))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f'<h1>{title}</h1><h2 id="module">By module</h2>{treemap(led.by_module())}'
        f'<h2 id="class">By class</h2>{treemap(led.by_class())}'
        f'<h2 id="storages">Every storage once</h2><div class="scroll">{led._repr_html_()}</div>'
        f"<!-- {facts} --></html>\n"
    )


def treemap(sums: Mapping[str, int]) -> str:
    """Rectangles as large as the sums (bytes)."""
    kept = {name: n for name, n in sums.items() if n > 0}
    total = sum(kept.values())
    if not total:
        return '<div class="map"><div>nothing is kept</div></div>'
    boxes = []
    for n, (name, box) in enumerate(layout(list(kept.items()), (0, 0, 100, 100))):
        label = html.escape(f"{name or '(outside modules)'}: {kept[name]:,} bytes, {100 * kept[name] / total:.1f} %")
        place = "left:{:.3f}%;top:{:.3f}%;width:{:.3f}%;height:{:.3f}%".format(*box)
        boxes.append(f'<div style="{place};background:{COLOURS[n % len(COLOURS)]}" title="{label}">{label}</div>')
    return f'<div class="map">{"".join(boxes)}</div>'


def layout(items: list[tuple[str, int]], box: Box) -> Iterator[tuple[str, Box]]:
    """Splits a box among items, largest first, in two halves of nearly the same sum along the longer side."""
    if len(items) == 1:
        yield items[0][0], box
        return
    total = sum(n for _, n in items)
    cut, left_sum = 1, items[0][1]
    while cut < len(items) - 1 and left_sum + items[cut][1] <= total / 2:
        left_sum += items[cut][1]
        cut += 1
    share, (x, y, w, h) = left_sum / total, box
    wide = w * 2 >= h  # a map is about twice as wide as it is high
    first: Box = (x, y, w * share, h) if wide else (x, y, w, h * share)
    second: Box = (x + w * share, y, w * (1 - share), h) if wide else (x, y + h * share, w, h * (1 - share))
    yield from layout(items[:cut], first)
    yield from layout(items[cut:], second)
