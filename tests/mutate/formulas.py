"""Formulas: every term of each gradient and each forward, and every key that a backward needs. `prove` must refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from refcheck.arrays import Array
from refcheck.evidence import ROOT
from refcheck.layers import LAYERS
from refcheck.prove import symbolic
from refcheck.spec import Implementation, Layer, Pair
from tests.mutate.gradients import Wrong, forwards, mutants, parsed
from tests.mutate.mutant import Group, Mutant


def groups() -> Iterator[Group]:
    for layer in LAYERS:
        files = (parsed(layer)[0].relative_to(ROOT).as_posix(),)
        yield Group(layer.id, "gradient", files, partial(_wrong, "gradient", layer, mutants))
        yield Group(layer.id, "forward", files, partial(_wrong, "forward", layer, forwards))
        yield Group(layer.id, "needed", files, partial(_keys, layer))


def _wrong(kind: str, layer: Layer, of: Any) -> Iterator[Mutant]:
    for wrong in of(layer):
        where = f"{layer.id} {wrong.pair}: {wrong.function}"
        yield Mutant(kind, where, wrong.place, (layer.id, wrong.pair), partial(_refuted, wrong))


def _refuted(wrong: Wrong) -> str:
    return str(wrong.refuted or "")


def _keys(layer: Layer) -> Iterator[Mutant]:
    """A needed tensor that is not saved, not read, or claimed nowhere."""
    for pair in layer.pairs:
        where = f"{layer.id} {pair.id}"
        for name in pair.symbolic[1]:
            unsaved = replace(pair, forward=partial(_without, pair, name))
            yield Mutant("needed", where, f"{name} is not saved", (name,), partial(_proof, layer, unsaved))
            unread = replace(pair, backward=partial(_not_reading, pair, name))
            yield Mutant("needed", where, f"{name} is not read", (name,), partial(_proof, layer, unread))
        more = replace(pair, forward=partial(_with, pair))
        yield Mutant("needed", where, "one more is saved", ("more",), partial(_proof, layer, more))
    for implementation in layer.implementations:
        for device in ("cpu", "cuda"):
            for name in implementation.saves(device).at:
                where = f"{layer.id} {implementation.id} {device}"
                claimed = partial(_claimed_without, implementation, device, name)
                yield Mutant("needed", where, f"no place is claimed for {name}", (name,), claimed)


def _without(pair: Pair, name: str, **given: Any) -> Any:
    output, saved = pair.forward(**given)
    return output, {n: value for n, value in saved.items() if n != name}


def _with(pair: Pair, **given: Any) -> Any:
    output, saved = pair.forward(**given)
    return output, {**saved, "more": Array((), lambda: 0)}


def _not_reading(pair: Pair, name: str, upstream: Any, saved: Mapping[str, Any]) -> Any:
    """The gradients as they are, the key taken past whatever remembers what is read."""
    return pair.backward(upstream, _Past(name, saved))


class _Past(dict[str, Any]):
    def __init__(self, name: str, saved: Mapping[str, Any]) -> None:
        super().__init__(saved)
        self.name, self.saved = name, saved

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key) if key == self.name else self.saved[key]


def _proof(layer: Layer, pair: Pair) -> str:
    return next((str(f) for f in symbolic(layer.id, pair) if not f.holds), "")


def _claimed_without(implementation: Implementation, device: str, name: str) -> str:
    saves = implementation.saves(device)
    fewer = replace(saves, at={n: place for n, place in saves.at.items() if n != name})
    try:
        replace(implementation, cpu=fewer, cuda=fewer, traced=None).claim(device, "bfloat16")
    except ValueError as error:
        return str(error)
    return ""
