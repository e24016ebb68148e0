"""The calculator: each form, shape, word and choice that it exports changed. It must no longer say what is claimed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache, partial
from math import prod
from typing import Any

from sympy import Expr, Integer, Rational, ceiling, expand

from refcheck import calculator, sizes
from refcheck.block import Part
from refcheck.layers import LAYERS
from refcheck.menu import LINES, SIZES
from refcheck.models import MODELS
from refcheck.saved import ON_DEVICE, Saved
from refcheck.sizes import DTYPES, D, d, h
from refcheck.spec import absence
from refcheck.words import DEVICE, SHORT
from tests.mutate.mutant import Group, Mutant

FILES = ("refcheck/calculator.py", "refcheck/menu.py", "refcheck/notation.py", "refcheck/models.py")
Place = tuple[str, str, str]  # a line's number or a row of the table, a device, a dtype


@cache
def exported() -> dict[str, Any]:
    found: dict[str, Any] = calculator.export("en")
    return found


def groups() -> Iterator[Group]:
    yield Group("calculator", "calculator", FILES, _storages)
    yield Group("calculator", "calculator", FILES, _lists)
    yield Group("calculator", "calculator", FILES, _models)


# --- what is exported, against the claims -----------------------------------------------------------------------------


@cache
def claimed() -> dict[Place, tuple[Saved, ...]]:
    """What each line and each row of the table must hold, in order; a dtype that can't be is left out."""
    parts = {str(n): line.part for n, line in enumerate(LINES)}
    parts |= {
        key: Part(next(x for x in LAYERS if x.id == key.split()[0]), key.split()[1]) for key in exported()["table"]
    }
    return {
        (place, device, dtype): tuple(s for s in part.claim(device, dtype) if s.cls in ON_DEVICE)
        for place, part in parts.items()
        for device in DEVICE
        for dtype in DTYPES
        if not (isinstance(part, Part) and absence(part.of, device, dtype))
    }


def numbers(data: dict[str, Any]) -> dict[Place, list[int]]:
    """The numbers of the storages that each line and each row holds."""
    kept = {str(n): line["kept"] for n, line in enumerate(data["lines"])} | data["table"]
    return {(p, dev, t): found for p, by in kept.items() for dev, kinds in by.items() for t, found in kinds.items()}


def form(data: list[Any]) -> Expr:
    """The closed form that was exported as `data`."""
    return sum((Rational(p, q) * prod(_power(*power) for power in powers) for p, q, powers in data), Integer(0))


def _power(factor: Any, power: int) -> Expr:
    return (getattr(sizes, factor) if isinstance(factor, str) else ceiling(form(factor))) ** power


def unlike(data: dict[str, Any], storage: dict[str, Any], s: Saved) -> Iterator[str]:
    """How an exported storage differs from what is claimed."""
    if storage["name"] != s.name:
        yield f"name {storage['name']}, claimed {s.name}"
    if (dtype := SHORT.get(s.dtype, s.dtype)) != storage["dtype"]:
        yield f"{s.name}: dtype {storage['dtype']}, claimed {dtype}"
    if not _equal(form(storage["bytes"]), s.nbytes):
        yield f"{s.name}: {form(storage['bytes'])} bytes, claimed {s.nbytes}"
    if len(storage["shape"]) != len(s.shape) or not all(map(_equal, map(form, storage["shape"]), s.shape)):
        yield f"{s.name}: shape {[*map(form, storage['shape'])]}, claimed {s.shape}"
    if storage["places"] != [f"{s.node}.{s.attr}", *(place for place in s.shared_with if place != "output")]:
        yield f"{s.name}: held by {storage['places']}"
    if storage["once"] != (s.cls == "buffer"):
        yield f"{s.name}: once {storage['once']}, claimed as {s.cls}"


def _equal(a: Expr, b: Any) -> bool:
    return bool(expand((a - b).subs(h * d, D).subs(D, h * d)) == 0)


def wrong(data: dict[str, Any], places: Iterator[Place] | list[Place]) -> Iterator[str]:
    """How an export differs from the claims at these places, one line each."""
    held = numbers(data)
    for place in places:
        found = [data["storages"][n] for n in held.get(place, ())]
        if place not in held or len(found) != len(claimed()[place]):
            yield f"{_title(place)}: {len(found)} tensors, claimed {[s.name for s in claimed()[place]]}"
            continue
        for storage, s in zip(found, claimed()[place], strict=True):
            for what in unlike(data, storage, s):
                yield f"{_title(place)}: {what}"


def _title(place: Place) -> str:
    line, device, dtype = place
    name = exported()["lines"][int(line)]["path"] or "recomputed" if line.isdigit() else line
    return f"{name} {device} {dtype}"


# --- mutants ----------------------------------------------------------------------------------------------------------


def _storages() -> Iterator[Mutant]:
    used: dict[int, list[Place]] = {}
    for place, found in numbers(exported()).items():
        for n in found:
            used.setdefault(n, []).append(place)
    for n, storage in enumerate(exported()["storages"]):
        for what, changed in changes(storage):
            caught = partial(
                _wrong, [*exported()["storages"][:n], changed, *exported()["storages"][n + 1 :]], used[n][0]
            )
            yield Mutant("calculator", f"storage {n}, {_title(used[n][0])}", what, (storage["name"],), caught)


def changes(storage: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what was changed, the storage with that one thing changed)."""
    yield "name", {**storage, "name": f"{storage['name']}x"}
    yield "dtype", {**storage, "dtype": "fp32" if storage["dtype"] != "fp32" else "bf16"}
    yield "once", {**storage, "once": not storage["once"]}
    yield "a place", {**storage, "places": [f"{storage['places'][0]}x", *storage["places"][1:]]}
    for what, other in _forms(storage["bytes"]):
        yield f"bytes, {what}", {**storage, "bytes": other}
    for axis, n in enumerate(storage["shape"]):
        for what, other in _forms(n):
            yield (
                f"axis {axis}, {what}",
                {**storage, "shape": [*storage["shape"][:axis], other, *storage["shape"][axis + 1 :]]},
            )


def _forms(data: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    for t, (_, _, powers) in enumerate(data):
        for at, what in ((0, "a coefficient"), (1, "a denominator")):
            other = copy.deepcopy(data)
            other[t][at] += 1
            yield what, other
        for k, (factor, _) in enumerate(powers):
            other = copy.deepcopy(data)
            other[t][2][k][1] += 1
            yield f"a power of {factor}", other
            other = copy.deepcopy(data)
            other[t][2][k][0] = "V" if factor != "V" else "M"
            yield f"another size for {factor}", other
        yield "a term less", data[:t] + data[t + 1 :]


def _wrong(storages: list[Any], place: Place) -> str:
    return next(wrong({**exported(), "storages": storages}, [place]), "")


def _lists() -> Iterator[Mutant]:
    for place, found in numbers(exported()).items():
        for n in range(len(found)):
            caught = partial(_without, place, n)
            name = exported()["storages"][found[n]]["name"]
            yield Mutant("calculator", _title(place), f"{name} left out", (_title(place),), caught)


def _without(place: Place, n: int) -> str:
    line, device, dtype = place
    data = {**exported(), "lines": [*exported()["lines"]], "table": {**exported()["table"]}}
    kept = copy.deepcopy(data["lines"][int(line)]["kept"] if line.isdigit() else data["table"][line])
    del kept[device][dtype][n]
    if line.isdigit():
        data["lines"][int(line)] = {**data["lines"][int(line)], "kept": kept}
    else:
        data["table"][line] = kept
    return next(wrong(data, [place]), "")


def _models() -> Iterator[Mutant]:
    for name, model in exported()["models"].items():
        for size in model["sizes"]:
            yield Mutant("calculator", name, f"{size} + 1", (name, size), partial(_model, name, size))


def _model(name: str, size: str) -> str:
    offered = exported()["models"][name]["sizes"] | {size: exported()["models"][name]["sizes"][size] + 1}
    real = {n: {**MODELS[name], "B": 1}[n] for n in SIZES}
    return next((f"{name}: {n} = {offered[n]}, not {real[n]}" for n in SIZES if offered[n] != real[n]), "")
