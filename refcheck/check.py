"""Compares what is claimed with what is measured, and both with the committed records.

A drift is never mended here: it says where, what is claimed, what was measured, and the one command to run once it is
understood which of the two is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sympy import Add, Expr, expand, sympify

from refcheck.block import Block
from refcheck.evidence import Record, Row, here, source_hash
from refcheck.fold import same_elements
from refcheck.measure import measure, sizes_of
from refcheck.saved import Run, Saved, on
from refcheck.sizes import DTYPES, at_sizes
from refcheck.spec import Layer, Measured, absence, claim

Key = tuple[str, str, str]
PAGE = "page"


@dataclass(frozen=True)
class Drift:
    """One cell that does not agree."""

    layer: str
    implementation: str
    dtype: str
    where: str  # a record's name, or "fresh cpu"
    tensor: str
    what: str
    claimed: str
    measured: str
    mend: str

    def __str__(self) -> str:
        place = " ".join(filter(None, (self.layer, self.implementation, self.dtype)))
        what = " ".join(filter(None, (self.tensor, self.what)))
        verb = "found" if self.where == PAGE else "measured"
        return f"{place} [{self.where}] {what}: claimed {self.claimed}, {verb} {self.measured} → {self.mend}"


def cases(
    layers: Iterable[Layer | Block], device: str, dtypes: Iterable[str] = DTYPES, torch: str | None = None
) -> Iterator[tuple[Layer | Block, Measured, str]]:
    """Every implementation in every dtype in which it can run on this device, and in this version of torch."""
    dtypes = tuple(dtypes)
    for layer in layers:
        for implementation in layer.implementations:
            for dtype in dtypes:
                if absence(implementation, device, dtype, torch) is None:
                    yield layer, implementation, dtype


def key(layer: Layer | Block, implementation: Measured, dtype: str) -> Key:
    return (layer.id, implementation.id, dtype)


def measure_row(layer: Layer | Block, implementation: Measured, device: str, dtype: str) -> Row:
    """A fresh row, as a record would hold it."""
    return Row(*key(layer, implementation, dtype), source_hash(layer), measure(implementation, device, dtype))


def against_claim(layer: Layer | Block, implementation: Measured, device: str, row: Row, where: str) -> Iterator[Drift]:
    """Where a measured row, fresh or recorded, differs from the claim."""
    module = layer.module.replace(".", "/") + ".py"
    again = f"look at {module}, then: python -m refcheck measure --layer {layer.id} --device {device}"
    claimed = {s.name: s for s in claim(implementation, device, row.dtype)}
    for run in row.runs:
        sizes = f" at {', '.join(f'{n}={v}' for n, v in run.sizes.items())}" if run.sizes else ""
        for tensor, what, mine, theirs in (*_differences(claimed, run), *_unclosed(run, device)):
            yield Drift(*row.key, where + sizes, tensor, what, mine, theirs, again)


def _differences(claimed: Mapping[str, Saved], run: Run) -> Iterator[tuple[str, str, str, str]]:
    measured = {s.name: s for s in run.saved}
    for s in run.saved:
        if s.name not in claimed or measured[s.name] is not s:
            found = f"{s.node}.{s.attr} {_shape(s.shape)} {s.dtype}, {s.nbytes} bytes"
            yield s.name, "", "not kept" if s.name not in claimed else "kept once", found
    for name, c in claimed.items():
        if name not in measured:
            yield name, "", f"kept by {c.node}.{c.attr}", "not kept there"
            continue
        m = measured[name]
        shape, nbytes = tuple(_at(n, run) for n in c.shape), _at(c.nbytes, run)
        if not same_elements(shape, m.shape):
            yield name, "shape", _shape(shape), _shape(m.shape)
        if c.dtype != m.dtype:
            yield name, "dtype", c.dtype, m.dtype
        if expand(nbytes - m.nbytes) != 0:
            yield name, "bytes", str(nbytes), str(m.nbytes)
        if c.cls != m.cls:
            yield name, "class", c.cls, m.cls
        if c.holders != m.holders:
            yield name, "place", ", ".join(c.holders), ", ".join(m.holders)


CLOSED = ("cuda",)  # where a run without the allocator's word counts for nothing


def _unclosed(run: Run, device: str) -> Iterator[tuple[str, str, str, str]]:
    """What the allocator has that isn't measured, in bytes; where it is in the record, the ledger must close."""
    if run.allocator is None:
        if device in CLOSED:
            yield "", "allocator", "a closed ledger", "none"
        return
    kept = Add(*(s.nbytes for s in on(device, run.saved)))
    if expand(kept - run.allocator.saved) != 0:
        yield "", "allocator", f"{kept} bytes saved", f"{run.allocator.saved}"


def _at(n: Expr, run: Run) -> Expr:
    return sympify(at_sizes(n, run.sizes)) if run.sizes else n


def _shape(shape: tuple[Expr, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


def against_record(row: Row, record: Record, device: str) -> Iterator[Drift]:
    """Where a fresh row differs from the committed one of the same environment."""
    name, old = record.environment.name, record.by_key.get(row.key)
    again = f"python -m refcheck measure --layer {row.layer} --device {device}"
    if old is None:
        yield Drift(*row.key, name, "", "row", "measured just now", "not recorded", again)
        return
    fresh = {(tuple(run.sizes.items()), s.name): s for run in row.runs for s in run.saved}
    kept = {(tuple(run.sizes.items()), s.name): s for run in old.runs for s in run.saved}
    for at in sorted(fresh.keys() | kept.keys(), key=str):
        if fresh.get(at) != kept.get(at):
            yield Drift(*row.key, name, at[1], "recorded", str(kept.get(at)), str(fresh.get(at)), again)
    for what in ("sizes", "guards"):
        mine, theirs = ([getattr(run, what) for run in r.runs] for r in (old, row))
        if mine != theirs:
            yield Drift(*row.key, name, "", what, str(mine), str(theirs), again)
    for then, now in zip((run.allocator for run in old.runs), (run.allocator for run in row.runs), strict=False):
        if then and now and then.requested != now.requested:
            yield Drift(*row.key, name, "", "bytes asked for", str(then.requested), str(now.requested), again)


def check_record(record: Record, layers: Iterable[Layer | Block], every: Iterable[Layer | Block]) -> Iterator[Drift]:
    """Where a committed record differs from the claims: its rows, their hashes, and which rows it has."""
    device, name, torch = record.environment.device, record.environment.name, record.environment.torch
    known = {key(*case): case for case in cases(every, device, torch=torch)}
    for row in record.rows:
        if row.key not in known:
            again = f"python -m refcheck measure --device {device}"
            yield Drift(*row.key, name, "", "row", "no such row", "recorded", again)
    for layer, implementation, dtype in cases(layers, device, torch=torch):
        again = f"python -m refcheck measure --layer {layer.id} --device {device}"
        found = record.by_key.get(key(layer, implementation, dtype))
        if found is None and key(layer, implementation, dtype) in {m.key for m in record.missing}:
            continue
        if found is None:
            yield Drift(layer.id, implementation.id, dtype, name, "", "row", "a row", "not recorded", again)
        elif found.source != source_hash(layer):
            yield Drift(
                *found.key, name, "", "module", f"as it is now ({source_hash(layer)})", f"as of {found.source}", again
            )
        else:
            yield from against_claim(layer, implementation, device, found, name)
            yield from against_sizes(implementation, device, found, name)


def against_sizes(implementation: Measured, device: str, row: Row, where: str) -> Iterator[Drift]:
    """Where a recorded row was measured at other sizes than now, or has guards although its sizes were numbers."""
    again = f"python -m refcheck measure --layer {row.layer} --device {device}"
    mine, theirs = sizes_of(implementation, device), [dict(run.sizes) for run in row.runs]
    if mine != theirs:
        yield Drift(*row.key, where, "", "sizes", str(mine), str(theirs), again)
    if guards := [guard for run in row.runs if run.sizes for guard in run.guards]:
        yield Drift(*row.key, where, "", "guards", "none", ", ".join(guards), again)


def check_fresh(
    row: Row,
    layer: Layer | Block,
    implementation: Measured,
    device: str,
    records: Mapping[str, Record],
) -> list[Drift]:
    """A fresh row against the claim, and against the record of this very environment if there is one."""
    drifts = list(against_claim(layer, implementation, device, row, f"fresh {device}"))
    if record := records.get(here_name(device)):
        drifts += against_record(row, record, device)
    return drifts


def here_name(device: str) -> str:
    """The name of the record that this process would write."""
    return here(device).name
