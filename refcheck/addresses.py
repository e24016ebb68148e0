"""The addresses that people cite: every heading, display and row of the built site, kept in docs/addresses.txt.

    python -m refcheck.addresses SITE

adds what is new to the list.  If an address has vanished, or a formula now stands at another, it says so, writes
nothing and exits with 1: what has been published stays.
"""

from __future__ import annotations

import hashlib
import html
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIST = ROOT / "docs" / "addresses.txt"
APART = ("en", "lab")  # the English edition has the same addresses under en/; notebooks are not cited by section
ID = re.compile(r'<[a-z][^>]* id="(?!__|fn)([^"]+)"')
TEX = re.compile(r'<div class="stated" id="([^"]+)">.*?<annotation [^>]*>(.*?)</annotation>', re.S)


def published(site: Path) -> dict[str, str]:
    """Each address of the site under `site`, and, where a formula stands, what tells it from others."""
    found = {}
    for path in sorted(site.rglob("index.html")):
        name = path.parent.relative_to(site)
        if name.parts[:1] in [(part,) for part in APART]:
            continue
        page = "" if name == Path(".") else f"{name.as_posix()}/"
        text = path.read_text(encoding="utf-8")
        body = text.partition("<article")[2].partition("</article>")[0]
        formulas = {at: _mark(tex) for at, tex in TEX.findall(body)}
        found[page] = ""
        found |= {f"{page}#{at}": formulas.get(at, "") for at in ID.findall(body)}
    if not found:
        raise ValueError(f"{site} holds no page; build it first: make site")
    return found


def _mark(tex: str) -> str:
    """The same for a formula in both languages, however it is spaced."""
    plain = re.sub(r"\\text\{.*?\}|\s", "", html.unescape(tex))
    return hashlib.sha256(plain.encode()).hexdigest()[:8]


def broken(known: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """What was published and is gone, or says now what another address said; a corrected formula is neither."""
    where = {(address.partition("#")[0], mark): address for address, mark in now.items() if mark}
    for address, mark in known.items():
        moved = where.get((address.partition("#")[0], mark))
        if address not in now:
            yield f"{address} has vanished"
        elif mark and now[address] != mark and moved:
            yield f"the formula of {address} is now at {moved}; name the new one before it: % #some-name"


def read(path: Path) -> dict[str, str]:
    """The list: one address a line, and after it what tells its formula from others."""
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {words[0] if words[0] != "." else "": "".join(words[1:]) for words in lines if words}


def write(found: Mapping[str, str], path: Path) -> None:
    lines = sorted(f"{address or '.'} {mark}".strip() for address, mark in found.items())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m refcheck.addresses SITE", file=sys.stderr)
        return 2
    try:
        known, now = read(LIST) if LIST.exists() else {}, published(Path(arguments[0]))
    except ValueError as error:
        print(f"addresses: {error}", file=sys.stderr)
        return 1
    faults = [*broken(known, now)]
    for fault in faults:
        print(f"addresses: {fault}", file=sys.stderr)
    if not faults:
        write(now, LIST)
        print(f"addresses: {len(now)}, of which {len(now.keys() - known.keys())} are new")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
