"""Joins what an allocator has handed out with the storages that are alive, by address and to the byte.

A bare sum can be right by errors that cancel; here each new block must be exactly one storage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from refcheck import Problem


@dataclass(frozen=True)
class Block:
    """Memory that an allocator has handed out, in bytes: those asked for, those set aside, and who asked for them."""

    address: int
    requested: int
    size: int
    stack: tuple[str, ...] = ()

    def __str__(self) -> str:
        by = f", asked for by {' < '.join(self.stack)}" if self.stack else ""
        return f"{self.requested} bytes at {self.address:#x} ({self.size} set aside{by})"


@dataclass(frozen=True)
class Snapshot:
    """An allocator at one moment: its blocks in use, and its own counts of bytes asked for and set aside."""

    blocks: tuple[Block, ...]
    requested: int
    allocated: int


@dataclass(frozen=True)
class Storage:
    """A storage that is alive: where it lies, its bytes, and what it is, for messages."""

    address: int
    nbytes: int
    what: str


class Unexplained(Problem):
    """The allocator's ledger doesn't close; the message says which blocks or storages are left over."""


def join(before: Snapshot, after: Snapshot, storages: Iterable[Storage]) -> int:
    """Joins every block that is new with one storage and says how many bytes were set aside for them all.

    `storages` are all that must be new: what is saved, live outputs, leaves.  Raises `Unexplained`.
    """
    there = {(b.address, b.requested) for b in before.blocks}
    still = {(b.address, b.requested) for b in after.blocks}
    new = [b for b in after.blocks if (b.address, b.requested) not in there]
    gone = [b for b in before.blocks if (b.address, b.requested) not in still]
    told = [*_differences(new, [s for s in storages if s.nbytes])]
    told += [f"{b} are gone, which were there before" for b in gone]
    if not told:
        told += _counted("asked for", after.requested - before.requested, sum(b.requested for b in new))
        told += _counted("set aside", after.allocated - before.allocated, sum(b.size for b in new))
    if told:
        raise Unexplained(f"the allocator's ledger doesn't close: {'; '.join(told)}")
    return sum(b.size for b in new)


def _differences(new: Sequence[Block], storages: Iterable[Storage]) -> Iterator[str]:
    starts = {b.address: b for b in new}
    ordered = sorted(starts)
    owner: dict[int, Storage] = {}
    for s in storages:
        block = starts.get(s.address)
        if block is None:
            around = starts[ordered[at - 1]] if (at := bisect_right(ordered, s.address)) else None
            inside = around and s.address < around.address + around.size
            yield f"{s.what} ({s.nbytes} bytes) " + (f"lies inside a block: {around}" if inside else "has no block")
        elif s.address in owner:
            yield f"{s.what} and {owner[s.address].what} lie in one block: {block}"
        else:
            owner[s.address] = s
            if s.nbytes != block.requested:
                yield f"{s.what} has {s.nbytes} bytes, its block {block}"
    yield from (f"{b} belong to nothing" for b in new if b.address not in owner)


def _counted(what: str, risen: int, added: int) -> list[str]:
    return [] if risen == added else [f"bytes {what} rose by {risen}, the new blocks add up to {added}"]
