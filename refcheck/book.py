"""A ledger as data: its entries, their sums, and how it shows itself as text, JSON and in a notebook."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from refcheck import Problem

HEAD = ("bytes", "class", "dtype", "shape", "held by", "module")
ROWS = 60  # of a table for people; JSON has all
UNCOUNTED = frozenset({"parameter", "number"})  # parameters are there anyway; Python numbers are counted apart


@dataclass(frozen=True)
class Entry:
    """A storage that the graph keeps, as its first holder sees it.

    `bytes` are those that the holders' views use, `storage_bytes` those that are kept alive: the whole storage.
    """

    name: str
    node: str
    attr: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    bytes: int
    storage_bytes: int
    cls: str
    shared_with: tuple[str, ...] = ()

    @property
    def pinned_bytes(self) -> int:
        """Bytes kept alive by a view that doesn't use them."""
        return self.storage_bytes - self.bytes

    @property
    def holder(self) -> str:
        return f"{self.node}.{self.attr}"

    def as_dict(self) -> dict[str, Any]:
        facts = asdict(self)
        facts["class"] = facts.pop("cls")
        return facts | {"pinned_bytes": self.pinned_bytes}


class Ledger:
    """What a graph keeps.  `device` is where it ran; `notes` say what makes its numbers those of another run."""

    def __init__(self, device: str, dtype: str, entries: tuple[Entry, ...] | None, notes: tuple[str, ...] = ()) -> None:
        self.device = device
        self.dtype = dtype
        self._entries = entries
        self.notes = notes

    def fill(self, entries: tuple[Entry, ...], notes: tuple[str, ...]) -> None:
        """Writes the ledger of a block that has ended."""
        self._entries, self.notes = entries, notes

    @property
    def entries(self) -> tuple[Entry, ...]:
        if self._entries is None:
            raise Problem("the block has not ended yet: read the ledger after it")
        return self._entries

    def _on(self, device: str) -> list[Entry]:
        return [e for e in self.entries if e.device == device and e.cls not in UNCOUNTED]

    @property
    def nbytes(self) -> int:
        """Bytes of every distinct storage that the graph keeps on the device, whole, parameters left out."""
        return sum(e.storage_bytes for e in self._on(self.device.removesuffix("-trace")))

    @property
    def host_nbytes(self) -> int:
        """Likewise on the CPU, where the device is another; Python numbers are left out."""
        return 0 if self.device == "cpu" else sum(e.storage_bytes for e in self._on("cpu"))

    @property
    def python_numbers(self) -> int:
        """How many Python numbers the graph keeps, each as a tensor of 8 or 16 bytes on the CPU."""
        return sum(e.cls == "number" for e in self.entries)

    def by_class(self) -> dict[str, int]:
        """Bytes of storage by class, largest first; parameters, numbers and the host's are there too."""
        return _sums(self.entries, lambda e: e.cls)

    def by_module(self) -> dict[str, int]:
        """Bytes on the device by the module whose node was met first; they add up to `nbytes`."""
        return _sums(self._on(self.device.removesuffix("-trace")), lambda e: e.module)

    def as_dict(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "dtype": self.dtype,
            "nbytes": self.nbytes,
            "host_nbytes": self.host_nbytes,
            "python_numbers": self.python_numbers,
            "by_class": self.by_class(),
            "by_module": self.by_module(),
            "notes": list(self.notes),
            "entries": [e.as_dict() for e in self.entries],
        }

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n"

    def __repr__(self) -> str:
        if self._entries is None:
            return "<Ledger: the block has not ended yet>"
        rows = [HEAD, *self._rows()]
        widths = [max(len(row[n]) for row in rows) for n in range(len(HEAD))]
        lines = ["  ".join([row[0].rjust(widths[0]), *map(str.ljust, row[1:], widths[1:])]).rstrip() for row in rows]
        return "\n".join([self.summary(), *lines, *self._remarks()])

    def summary(self) -> str:
        host = f", {self.host_nbytes:,} bytes on the host" if self.host_nbytes else ""
        numbers = f", {self.python_numbers} Python number(s)" if self.python_numbers else ""
        kept = sum(e.cls not in UNCOUNTED for e in self.entries)
        total = f"{self.nbytes:,} bytes kept on {self.device}{host}{numbers}"
        return f"{total}, in {kept} storage(s); parameters are not counted"

    def _rows(self) -> list[tuple[str, ...]]:
        largest = sorted(self.entries, key=lambda e: (e.cls in UNCOUNTED, -e.storage_bytes))
        return [_cells(e) for e in largest[:ROWS]]

    def _remarks(self) -> list[str]:
        more = len(self.entries) - ROWS
        return [
            *([f"… and {more} smaller ones, in to_json()"] if more > 0 else []),
            *(f"note: {n}" for n in self.notes),
        ]

    def _repr_html_(self) -> str:
        if self._entries is None:
            return html.escape(repr(self))
        heads = "".join(f"<th>{h}</th>" for h in HEAD)
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in row)}</tr>" for row in self._rows())
        remarks = "".join(f"<p>{html.escape(r)}</p>" for r in self._remarks())
        return f"<p>{html.escape(self.summary())}</p><table><tr>{heads}</tr>{rows}</table>{remarks}"


def _cells(e: Entry) -> tuple[str, ...]:
    size = f"{e.storage_bytes:,}" + (f" ({e.bytes:,} used)" if e.pinned_bytes else "")
    shape = f"({', '.join(map(str, e.shape))})"
    held = ", ".join([e.holder, *(other.removeprefix(e.node) for other in e.shared_with)])
    return (size, e.cls, e.dtype, shape, held, e.module)


def _sums(entries: Iterable[Entry], group: Callable[[Entry], str]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for e in entries:
        sums[group(e)] = sums.get(group(e), 0) + e.storage_bytes
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
