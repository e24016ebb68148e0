"""Pictures made from claims: inline SVG without a script, which the site's style sheet colours.

Lengths across are percentages and letters keep their size, so that one drawing serves a wide page and a telephone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from refcheck.block import Composed, Part
from refcheck.flow import made_from, reads
from refcheck.notation import human, plain, shape_plain
from refcheck.saved import ON_DEVICE, Saved, device_bytes
from refcheck.sizes import at_sizes
from refcheck.spec import Implementation, Layer
from refcheck.words import DEVICE, DRAWING, SHORT, WORDS

Sizes = Mapping[str, int]
IN, CARD, OUT = 16.0, (31.0, 38.0), 84.0  # %: labels end, cards from and width, labels begin
HEAD, ROW, LABEL = 30, 50, 38  # px: above the rows, of a card, of a label
LETTER = 7.2  # px: of the typewriter face at 12 px


def element(name: str, *inside: str, **attributes: object) -> str:
    """An element; its attributes are escaped, what stands inside already is. Spelt `class_`, `text_anchor`."""
    given = "".join(f' {k.rstrip("_").replace("_", "-")}="{_value(v)}"' for k, v in attributes.items() if v is not None)
    return f"<{name}{given}>{''.join(inside)}</{name}>" if inside else f"<{name}{given}/>"


def _value(v: object) -> str:
    return f"{v:.2f}".rstrip("0").rstrip(".") if isinstance(v, float) else escape(str(v))


def _percent(x: float) -> str:
    return f"{_value(x)}%"


def _text(x: float, y: float, text: str, css: str, right: bool = False, **more: object) -> str:
    """A line of text; in a form or shape (class "form") only letters are italic."""
    body = escape(text)
    if css == "form":
        body = re.sub(r"[\d()+/⌈⌉]+", lambda m: f"<tspan>{m[0]}</tspan>", body)
    return element("text", body, x=_percent(x), y=y, class_=css, text_anchor="end" if right else None, **more)


def _figure(drawing: str, height: float, css: str, label: str, description: str, caption: str) -> str:
    svg = element(
        "svg",
        element("desc", escape(description)),
        drawing,
        width="100%",
        height=height,
        role="group",
        aria_label=label,
    )
    return (
        element("figure", svg, element("figcaption", caption), class_=f"drawing {css}", data_search_exclude="") + "\n"
    )


# --- a layer ---------------------------------------------------------------------------------------------------------


def layer_picture(layer: Layer, lang: str, device: str, dtype: str, model: str, sizes: Sizes) -> str:
    """What goes into a layer's first implementation, what it keeps, and which gradient reads what is kept."""
    return _Flow(layer, layer.implementations[0], lang, device, dtype, model, sizes).figure()


@dataclass(frozen=True)
class _Flow:
    layer: Layer
    implementation: Implementation
    lang: str
    device: str
    dtype: str
    model: str
    sizes: Sizes

    def figure(self) -> str:
        words = DRAWING[self.lang]
        saves = self.implementation.saves(self.device)
        pair = saves.pair
        output, arrays, inputs = pair.symbolic
        kept = self.implementation.claim(self.device, self.dtype)
        extras = {extra.name for extra in saves.without_need}
        given = [name for name, i in pair.inputs.items() if not i.drawn]
        outputs = pair.outputs(output)
        same = [(n, s.name) for s in kept for n in given if _is_input(n, s, pair.inputs[n].cls, inputs, arrays, extras)]
        same += [
            (n, s.name) for s in kept if "output" in s.shared_with for n in outputs if arrays[s.name] is outputs[n]
        ]
        made = [
            (n, name) for name, froms in made_from(pair).items() for n in froms if n in given and (n, name) not in same
        ]
        gradients = reads(pair)
        read = [(name, f"d{x}") for x, names in gradients.items() for name in names]

        rows = max(len(kept), 1) * ROW
        labels = max(len(given) + len(outputs), len(gradients) + len(outputs)) * LABEL
        height = max(rows, labels)
        at_left = _spread([*given, *(f"\0{n}" for n in outputs)], height)
        at_right = _spread([*(f"d{x}" for x in gradients), *(f"d{n}" for n in outputs)], height)
        at_card = _spread([s.name for s in kept], height, ROW)
        known = {**inputs, **{f"\0{n}": y for n, y in outputs.items()}}
        held = {n for n, _ in same}
        left_of = {n: (f"\0{n}" if n in outputs and n not in given else n) for n, _ in same}

        drawn = [
            _text(IN, 14, words["forward"], "head", right=True),
            _text(CARD[0], 14, words["kept"], "head"),
            _text(OUT, 14, words["backward"], "head"),
            _curves(
                IN + 1,
                CARD[0],
                height,
                [("made", at_left[n], at_card[name]) for n, name in made]
                + [("same", at_left[left_of[n]], at_card[name]) for n, name in same],
            ),
            _curves(sum(CARD), OUT - 1, height, [("read", at_card[name], at_right[x]) for name, x in read]),
        ]
        for label, y in at_left.items():
            name = label.lstrip("\0")
            drawn += _label(name, y, name in held, shape_plain(known[label].shape, self.lang), arrow=label != name)
        for x, y in at_right.items():
            upstream = x[1:] in outputs and x[1:] not in gradients
            drawn.append(_text(OUT, HEAD + y + 4, f"{x} ←" if upstream else x, "name" + " upstream" * upstream))
        largest = max((at_sizes(s.nbytes, self.sizes) for s in kept if s.cls in ON_DEVICE), default=0)
        for s in kept:
            drawn.append(self._card(s, at_card[s.name], "unneeded" if s.name in extras else _weight(s), largest))
        if not kept:
            drawn.append(_text(CARD[0] + CARD[1] / 2, HEAD + height / 2 + 4, WORDS[self.lang]["nothing"], "none"))
        return _figure(
            "".join(drawn),
            HEAD + height,
            "flow",
            words["flow"].format(self.layer.title[self.lang]),
            self._description(kept, read),
            self._caption(kept, extras, {*given, *outputs} - held, made),
        )

    def _card(self, s: Saved, middle: float, css: str, largest: int) -> str:
        """A kept tensor: name and bytes, or what it is if they aren't counted; shape and dtype; its bar."""
        x, width, y = *CARD, HEAD + middle - ROW / 2 + 4
        inner, end = x + 1.2, x + width - 1.2
        bar, counted = "", s.cls in ON_DEVICE
        if counted and largest:
            share = at_sizes(s.nbytes, self.sizes) / largest
            bar = element("rect", x=_percent(x), y=y + 38, width=_percent(width * share), height=4, class_="bar")
        about = plain(s.nbytes) if counted else WORDS[self.lang][s.cls]
        link = f"#saved-{s.name}"
        return element(
            "a",
            element("rect", x=_percent(x), y=y, width=_percent(width), height=42, class_="box"),
            bar,
            _text(inner, y + 16, s.name, "name"),
            _text(end, y + 16, about, "form" if counted else "class", right=True),
            _text(inner, y + 31, shape_plain(s.shape, self.lang), "form" if s.shape else "class"),
            _text(end, y + 31, SHORT.get(s.dtype, s.dtype), "dtype", right=True),
            href=link,
            class_=f"kept {css}",
        )

    def _description(self, kept: Iterable[Saved], read: Iterable[tuple[str, str]]) -> str:
        words, read = DRAWING[self.lang], list(read)
        lines = []
        for s in kept:
            readers = words["and"].join(x for name, x in read if name == s.name)
            what = f"{s.name}, {shape_plain(s.shape, self.lang)}, {SHORT.get(s.dtype, s.dtype)}"
            lines.append(f"{what}: {words['read by'].format(readers) if readers else words['unread']}")
        return "; ".join(lines) or WORDS[self.lang]["nothing"]

    def _caption(self, kept: Sequence[Saved], extras: set[str], loose: set[str], made: Sequence[object]) -> str:
        """What the marks mean, of those that there are; then the sum."""
        words = DRAWING[self.lang]
        counted = [s for s in kept if s.cls in ON_DEVICE]
        total = at_sizes(device_bytes(kept), self.sizes)
        where = f"{DEVICE[self.device]}, {SHORT[self.dtype]}"
        lines = [
            (words["sum"].format(where, self.model, human(total)), True),
            (words["bar"], len(counted) > 1),
            (words["read"], any(reads(self.implementation.saves(self.device).pair).values())),
            (words["same"], bool(made)),
            (words["apart"], len(counted) < len(kept)),
            (words["loose"], bool(loose)),
            (words["extra"], bool(extras)),
        ]
        return "".join(element("span", escape(line)) for line, there in lines if there)


def _is_input(
    n: str, s: Saved, cls: str, inputs: Mapping[str, object], arrays: Mapping[str, object], extras: set[str]
) -> bool:
    """Whether a kept tensor is this input itself, and not a copy in another dtype."""
    return s.cls == cls and (s.name == n if s.name in extras else arrays.get(s.name) is inputs[n])


def _weight(s: Saved) -> str:
    return "counted" if s.cls in ON_DEVICE else "apart"


def _spread(names: Sequence[str], height: float, pitch: float | None = None) -> dict[str, float]:
    """The middles of so many labels, evenly over the height, or one pitch apart in its middle."""
    step = pitch or height / max(len(names), 1)
    top = (height - step * len(names)) / 2
    return {name: top + step * (n + 0.5) for n, name in enumerate(names)}


def _label(name: str, y: float, held: bool, shape: str, arrow: bool) -> Iterator[str]:
    """What goes in or comes out: in a dashed frame, with its shape, where the layer doesn't keep it."""
    middle = HEAD + y
    if held:
        yield _text(IN, middle + 4, f"{name} →" if arrow else name, "name", right=True)
        return
    width = LETTER * (len(name) + 2 * arrow) + 12
    yield element(
        "rect",
        x=_percent(IN),
        y=middle - 17,
        width=width,
        height=19,
        rx=3,
        class_="loose",
        transform=f"translate(-{_value(width - 6)})",
    )
    yield _text(IN, middle - 3, f"{name} →" if arrow else name, "name loose", right=True)
    yield _text(IN, middle + 15, shape, "form", right=True)


def _curves(x: float, to: float, height: float, lines: Iterable[tuple[str, float, float]]) -> str:
    """Curves between two columns, drawn on a sheet of its own that is stretched to fit between them."""
    paths = [
        element("path", d=f"M0 {_value(a)}C50 {_value(a)} 50 {_value(b)} 100 {_value(b)}", class_=css)
        for css, a, b in lines
    ]
    sheet = dict(
        x=_percent(x), y=HEAD, width=_percent(to - x), height=height, viewBox=f"0 0 100 {_value(float(height))}"
    )
    return element("svg", *paths, preserveAspectRatio="none", **sheet) if paths else ""


# --- a block ---------------------------------------------------------------------------------------------------------

FROM = 27.0  # %: where the bytes begin, right of the parts' names
LINE, LETTERS = 36, 14  # px: of a tensor, and of a line of a name
THIN = 0.2  # %: what is narrower is drawn as a line


def block_picture(block: Composed, lang: str, device: str, dtype: str, model: str, sizes: Sizes) -> str:
    """The parts from top to bottom; what each keeps more stands right of what was kept before it, and below stays."""
    words = DRAWING[lang]
    total = at_sizes(device_bytes(block.claim(device, dtype)), sizes)
    strips, marks, names, rules = [], [], [], []
    first: dict[str, float] = {}  # of each storage the middle of its strip
    so_far, y, said = 0.0, float(HEAD), []
    short = {part: LETTERS * len(_wrapped(part.layer.title[lang])) + 6 for part in block.parts}
    heights = (LINE * new or short[part] for part, new in _new_ones(block, device, dtype))
    bottom = HEAD + sum(heights)

    for part in block.parts:
        own = [(orig, s) for orig, s in zip(part.of.claim(device, dtype), part.claim(device, dtype), strict=True)]
        mine = [(orig, s) for orig, s in own if s.cls in ON_DEVICE]
        rules.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="rule"))
        names.append(_part_name(part, lang, y))
        marks += [
            element("circle", cx=_percent(first[s.name]), cy=y + 12, r=3, class_="reader")
            for _, s in mine
            if s.name in first
        ]
        new = [(orig, s) for orig, s in mine if s.name not in first]
        for orig, s in new:
            nbytes = at_sizes(s.nbytes, sizes)
            x, width = FROM + (100 - FROM) * so_far / total, (100 - FROM) * nbytes / total
            first[s.name] = x + width / 2
            strips.append(_strip(x, width, y, bottom))
            marks.append(_tensor(part, orig, s, x, width, y, human(nbytes), lang))
            said.append(f"{part.layer.title[lang]}: {s.name}, {shape_plain(s.shape, lang)}, {human(nbytes)}")
            so_far += nbytes
            y += LINE
        y += 0 if new else short[part]
    ends = [
        _text(0, 14, words["forward"], "head"),
        _text(100, 14, words["backward"], "head", right=True),
        element("line", x1=_percent(FROM), x2="100%", y1=bottom, y2=bottom, class_="axis"),
        _text(FROM, bottom + 18, "0", "size"),
        _text(100, bottom + 18, human(total), "size total", right=True),
    ]
    given = ", ".join(f"{n} = {v}" for n, v in sizes.items() if n in _symbols(block, device, dtype))
    caption = words["block"].format(f"{DEVICE[device]}, {SHORT[dtype]}", model, given)
    return _figure(
        "".join([*rules, *strips, *names, *marks, *ends]),
        bottom + 26,
        "stairs",
        words["stairs"].format(block.title[lang]),
        "; ".join(said),
        (" " if lang == "en" else "").join(element("span", escape(line)) for line in caption.split("\n")),
    )


def _symbols(block: Composed, device: str, dtype: str) -> set[str]:
    return {str(s) for kept in block.claim(device, dtype) for s in kept.nbytes.free_symbols} | {"D"}


def _new_ones(block: Composed, device: str, dtype: str) -> Iterator[tuple[Part, int]]:
    """Each part, and how many storages it is the first to keep."""
    seen: set[str] = set()
    for part in block.parts:
        new = {s.name for s in part.claim(device, dtype) if s.cls in ON_DEVICE} - seen
        seen |= new
        yield part, len(new)


def _place(part: Part, name: str = "") -> str:
    """The address of a part's implementation, or of a tensor that it keeps, from a page beside layers/."""
    prefix = "saved" if part.of is part.layer.implementations[0] and name else f"saved-{part.implementation}"
    return f"../layers/{part.layer.id}/#{prefix}" + (f"-{name}" if name else "")


def _part_name(part: Part, lang: str, y: float) -> str:
    """The layer's title, on two lines where it is long, linked to its page."""
    lines = _wrapped(part.layer.title[lang])
    text = element(
        "text",
        *(element("tspan", escape(line), x="0", dy=LETTERS * bool(n)) for n, line in enumerate(lines)),
        y=y + 16,
        class_="part",
    )
    return element("a", text, href=_place(part))


def _wrapped(title: str) -> list[str]:
    """A title on at most two lines; what stands in brackets is left out."""
    words = re.sub(r"\s*[(（].*?[)）]", "", title).split(" ")
    if len(" ".join(words)) <= 15:
        return [" ".join(words)]
    cut = min(range(1, len(words)), key=lambda n: max(len(" ".join(words[:n])), len(" ".join(words[n:]))), default=1)
    return [" ".join(words[:cut]), *([" ".join(words[cut:])] if words[cut:] else [])]


def _strip(x: float, width: float, y: float, bottom: float) -> str:
    """The time for which a tensor is kept: from its part down to the end, and back."""
    if width < THIN:
        return element("line", x1=_percent(x), x2=_percent(x), y1=y, y2=bottom, class_="thin")
    return element("rect", x=_percent(x), y=y, width=_percent(width), height=bottom - y, class_="strip")


def _tensor(part: Part, orig: Saved, s: Saved, x: float, width: float, y: float, size: str, lang: str) -> str:
    """A kept tensor: its bar, as long as its bytes, and beside it, where there is room, its name, size and shape."""
    after = x + width < 62
    at = x + width + 0.8 if after else x - 0.8
    bar = element("rect", x=_percent(x), y=y, width=_percent(max(width, THIN)), height=LINE - 4, class_="bar")
    line = element(
        "text",
        f'{escape(s.name)} <tspan class="size">{escape(size)}</tspan>',
        x=_percent(at),
        y=y + 14,
        class_="name",
        text_anchor=None if after else "end",
    )
    shape = _text(at, y + 28, shape_plain(s.shape, lang), "form", right=not after)
    return element("a", bar, line, shape, href=_place(part, orig.name), class_="kept")
