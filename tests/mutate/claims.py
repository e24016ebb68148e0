"""Claims: each kept tensor dropped, doubled, renamed, and each of its properties changed. `check` must name it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from refcheck import check
from refcheck.blocks import BLOCKS
from refcheck.evidence import ROOT, Record, Row, read_all
from refcheck.fold import same_elements
from refcheck.layers import LAYERS
from refcheck.saved import Saved
from refcheck.sizes import D, M, V
from refcheck.spec import Layer, Measured, claim
from tests.mutate.gradients import parsed
from tests.mutate.mutant import Group, Mutant


def groups() -> Iterator[Group]:
    """By layer and record, of the newest torch on each kind of device: the claims are the same for all versions."""
    newest = {r.environment.device: r for r in sorted(read_all().values(), key=_version)}
    for layer in (*LAYERS, *BLOCKS):
        for record in newest.values():
            files = (parsed(layer)[0].relative_to(ROOT).as_posix(),)
            yield Group(layer.id, "claim", files, partial(_of, layer, record))


def _version(record: Record) -> list[int]:
    return [int(n) for n in record.environment.torch.split(".")]


def _of(layer: Layer, record: Record) -> Iterator[Mutant]:
    device = record.environment.device
    for _, implementation, dtype in check.cases([layer], device, torch=record.environment.torch):
        row = record.by_key.get(check.key(layer, implementation, dtype))
        for what, tensor, wrong in wrong_claims(claim(implementation, device, dtype)) if row else ():
            where = f"{layer.id} {implementation.id} {dtype} {device}"
            caught = partial(_drift, layer, _Claiming(wrong), device, row)
            yield Mutant("claim", where, f"{tensor}: {what}", (layer.id, implementation.id, dtype, tensor), caught)


@dataclass(frozen=True)
class _Claiming:
    """What claims this, whatever is asked."""

    saved: tuple[Saved, ...]

    def claim(self, device: str, dtype: str) -> tuple[Saved, ...]:
        return self.saved


def _drift(layer: Layer, implementation: Measured, device: str, row: Row) -> str:
    for run in row.runs:  # one that drifts is enough
        if drifts := [*check.against_claim(layer, implementation, device, replace(row, runs=(run,)), "record")]:
            return "; ".join(map(str, drifts))
    return ""


def _alike(a: Saved, b: Saved) -> bool:
    """Whether all that a measurement shows of one fits the other: it may see a matrix transposed."""
    return (a.dtype, a.nbytes, a.cls, a.holders) == (b.dtype, b.nbytes, b.cls, b.holders) and same_elements(
        a.shape, b.shape
    )


def wrong_claims(claimed: Iterable[Saved]) -> Iterator[tuple[str, str, tuple[Saved, ...]]]:
    """(what is wrong, tensor, the claim with that one thing changed)."""
    claimed = tuple(claimed)
    for n, s in enumerate(claimed):

        def with_(*new: Saved, n: int = n) -> tuple[Saved, ...]:
            return (*claimed[:n], *new, *claimed[n + 1 :])

        yield "dropped", s.name, with_()
        yield "doubled", f"{s.name}2", with_(s, replace(s, name=f"{s.name}2"))
        yield "renamed", f"{s.name}_", with_(replace(s, name=f"{s.name}_"))
        yield "dtype", s.name, with_(replace(s, dtype="bool" if s.dtype == "uint8" else "uint8"))
        yield "bytes", s.name, with_(replace(s, nbytes=2 * s.nbytes))
        yield "class", s.name, with_(replace(s, cls="rng" if s.cls == "host" else "host"))
        yield "node", s.name, with_(replace(s, node="OtherBackward0"))
        yield "attribute", s.name, with_(replace(s, attr="elsewhere"))
        yield "output", s.name, with_(replace(s, shared_with=() if s.shared_with else ("output",)))
        for axis, length in enumerate(s.shape):
            wrong = M if length == V else V
            yield f"axis {axis}", s.name, with_(replace(s, shape=(*s.shape[:axis], wrong, *s.shape[axis + 1 :])))
        yield "an axis more", s.name, with_(replace(s, shape=(*s.shape, D)))
    for s, other in pairwise(claimed):
        if _alike(s, other):  # then only the proofs can tell which is which
            continue
        exchanged = {s.name: other.name, other.name: s.name}
        both = (replace(c, name=exchanged.get(c.name, c.name)) for c in claimed)
        yield f"exchanged with {other.name}", s.name, tuple(both)
