"""The calculator's data: choices, models, parts and their claims, in one language, with closed forms as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sympy import Expr, Symbol, ceiling

from refcheck.block import Part
from refcheck.layers import LAYERS
from refcheck.menu import DEFAULT, GPT, LIMIT, LINES, LLAMA, QUESTIONS, QWEN, REPEATED, SIZES, Line, Recomputed, refused
from refcheck.models import MODELS
from refcheck.notation import monomials
from refcheck.saved import ON_DEVICE, Saved
from refcheck.sizes import DTYPES
from refcheck.spec import Implementation, absence
from refcheck.words import CALCULATOR, DEVICE, SHORT, WORDS

OF = {"GPT": GPT, "Llama": LLAMA, "Qwen3": QWEN}  # how each family is run
Kept = dict[str, dict[str, list[int]]]  # device -> dtype -> numbers of storages; a dtype that can't be is left out


def as_data(form: Expr | int) -> list[Any]:
    """A closed form as [numerator, denominator, [[factor, power], …]] for each term; ⌈form⌉ is a factor as well."""
    return [[int(n.p), int(n.q), [_factor(*power) for power in powers]] for n, powers in monomials(form)]


def _factor(factor: Expr, power: Expr) -> list[Any]:
    if not isinstance(factor, Symbol | ceiling) or not power.is_Integer:
        raise ValueError(f"({factor})^{power} is no power of a size, or of one rounded up")
    return [as_data(factor.args[0]) if isinstance(factor, ceiling) else factor.name, int(power)]


class Storages:
    """Every kept storage that the page may show, each once, in the order in which they are asked for."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[int, dict[str, Any]]] = {}

    def kept(self, part: Part | Recomputed) -> Kept:
        return {
            device: {
                dtype: [self._number(part, s) for s in part.claim(device, dtype) if s.cls in ON_DEVICE]
                for dtype in DTYPES
                if isinstance(part, Recomputed) or not absence(part.of, device, dtype)
            }
            for device in DEVICE
        }

    def _number(self, part: Part | Recomputed, s: Saved) -> int:
        data = dict(
            name=s.name,
            shape=[as_data(n) for n in s.shape],
            dtype=SHORT.get(s.dtype, s.dtype),
            bytes=as_data(s.nbytes),
            places=[f"{s.node}.{s.attr}", *(place for place in s.shared_with if place != "output")],
            needed=isinstance(part, Recomputed) or s.name in (*part.needed("cuda"), *part.needed("cpu")),
            once=s.cls == "buffer",
            path="" if isinstance(part, Recomputed) else _address(part, s.name),
        )
        return self.known.setdefault(repr(data), (len(self.known), data))[0]


def _address(part: Part, name: str) -> str:
    """Where a layer's page says of a tensor that it is saved; `name` is what the block calls it."""
    own = {new: old for old, new in part.names.items()}.get(name, name)
    first = part.layer.implementations[0] is part.of
    return f"layers/{part.layer.id}/#saved-{'' if first else f'{part.implementation}-'}{own}"


def _free(implementation: Implementation) -> set[str]:
    forms = (s.nbytes for device in DEVICE for s in implementation.claim(device, DTYPES[0]))
    return {symbol.name for form in forms for symbol in form.free_symbols}


def _line(line: Line, storages: Storages, lang: str) -> dict[str, Any]:
    layer = line.part.layer if isinstance(line.part, Part) else None
    return dict(
        stage=line.stage,
        when=_lists(line.when),
        title=layer.title[lang] if layer else CALCULATOR[lang]["recomputed"],
        path=f"layers/{layer.id}/" if layer else "",
        kept=storages.kept(line.part),
    )


def _lists(when: Mapping[str, str]) -> dict[str, list[str]]:
    return {question: ids.split() for question, ids in when.items()}


def _refused(lang: str) -> list[dict[str, Any]]:
    words, found = CALCULATOR[lang], []
    for when, at, missing in refused():
        why = (missing[0].of.title[lang], DEVICE[missing[1]], SHORT[missing[2]]) if missing else ()
        found.append(dict(when=_lists(when), at=at, reason=words["absent" if why else "unclaimed"].format(*why)))
    return found


def export(lang: str) -> dict[str, Any]:
    """Everything that the page needs: `lines` for a model, `table` for the rows of the static table."""
    storages = Storages()
    choices = {f"device.{i}": text for i, text in DEVICE.items()} | {f"dtype.{i}": text for i, text in SHORT.items()}
    choices |= CALCULATOR[lang]
    return dict(
        words={**WORDS[lang], **CALCULATOR[lang]},
        limit=LIMIT,
        sizes=SIZES,
        questions={q: {i: choices[f"{q}.{i}"] for i in ids} for q, ids in QUESTIONS.items()},
        models={
            name: dict(sizes={n: {**at, "B": 1}[n] for n in SIZES}, choices=OF[name.partition("-")[0]])
            for name, at in MODELS.items()
            if "E" not in at  # no part of a model has experts yet
        },
        default=dict(model=DEFAULT[0], choices=DEFAULT[1]),
        refused=_refused(lang),
        repeated=REPEATED,
        lines=[_line(line, storages, lang) for line in LINES],
        table={
            f"{layer.id} {i.id}": storages.kept(Part(layer, i.id))
            for layer in LAYERS
            for i in layer.implementations
            if _free(i) <= set(SIZES)  # a row with experts or ranks has no number here
        },
        storages=[data for _, data in storages.known.values()],
    )
