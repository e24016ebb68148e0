"""A ledger as data: its entries, their sums, and how it shows itself as text, JSON and in a notebook."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from refcheck import Problem

HEAD = ("bytes", "class", "dtype", "shape", "held by", "module")
ROWS = 60  # of a table for people; JSON has all
NUMBER = attrgetter("storage_bytes")
UNCOUNTED = frozenset({"parameter", "number"})  # parameters are there anyway; Python numbers are counted apart


@dataclass(frozen=True)
class Form:
    """An entry's shape and bytes as closed forms, where sizes are symbols (SymPy's)."""

    shape: tuple[Any, ...]
    bytes: Any
    storage_bytes: Any

    def as_dict(self) -> dict[str, Any]:
        return {"shape": [*map(str, self.shape)], "bytes": str(self.bytes), "storage_bytes": str(self.storage_bytes)}


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
    form: Form | None = None

    @property
    def pinned_bytes(self) -> int:
        """Bytes kept alive by a view that doesn't use them."""
        return self.storage_bytes - self.bytes

    @property
    def holder(self) -> str:
        return f"{self.node}.{self.attr}"

    def as_dict(self) -> dict[str, Any]:
        facts = asdict(replace(self, form=None))
        facts["class"] = facts.pop("cls")
        del facts["form"]
        facts |= {"form": self.form.as_dict()} if self.form else {}
        return facts | {"pinned_bytes": self.pinned_bytes}


class Ledger:
    """What a graph keeps.  `device` is where it ran; `notes` say what makes its numbers those of another run.

    Where sizes were symbols, `sizes` are the numbers given for them and `conditions` say where the closed forms hold.
    """

    def __init__(
        self,
        device: str,
        dtype: str,
        entries: tuple[Entry, ...] | None,
        notes: tuple[str, ...] = (),
        sizes: Mapping[str, int] = MappingProxyType({}),
        conditions: tuple[str, ...] = (),
    ) -> None:
        self.device = device
        self.dtype = dtype
        self._entries = entries
        self.notes = notes
        self.sizes = sizes
        self.conditions = conditions

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
    def form(self) -> Any:
        """`nbytes` as a closed form (SymPy's); a plain number where no size was a symbol."""
        return sum(_form(e) for e in self._on(self.device.removesuffix("-trace")))

    @property
    def host_form(self) -> Any:
        """`host_nbytes` likewise."""
        return 0 if self.device == "cpu" else sum(_form(e) for e in self._on("cpu"))

    def at(self, **sizes: int) -> int:
        """`nbytes` at other sizes from 2 on, those of the trace where none is given.  Raises `Problem`."""
        from refcheck.forms import at

        if unknown := sizes.keys() - self.sizes.keys():
            raise Problem(
                f"{', '.join(sorted(unknown))}: no such symbol here; there is {', '.join(self.sizes) or 'none'}"
            )
        return at(self.form, {**self.sizes, **sizes})

    def class_forms(self) -> dict[str, Any]:
        """`by_class` likewise."""
        return _sums(self.entries, lambda e: e.cls, _form)

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
        facts: dict[str, Any] = {
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
        return facts | (self._symbols() if self.sizes else {})

    def _symbols(self) -> dict[str, Any]:
        """What is there besides where sizes were symbols: SymPy reads these strings."""
        return {
            "symbols": dict(self.sizes),
            "conditions": list(self.conditions),
            "nbytes_form": str(self.form),
            "host_nbytes_form": str(self.host_form),
            "by_class_form": {cls: str(form) for cls, form in self.class_forms().items()},
        }

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n"

    def __repr__(self) -> str:
        if self._entries is None:
            return "<Ledger: the block has not ended yet>"
        rows = [self._head(), *self._rows()]
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        lines = ["  ".join([row[0].rjust(widths[0]), *map(str.ljust, row[1:], widths[1:])]).rstrip() for row in rows]
        return "\n".join([self.summary(), *self._closed(), *lines, *self._remarks()])

    def summary(self) -> str:
        host = f", {self.host_nbytes:,} bytes on the host" if self.host_nbytes else ""
        numbers = f", {self.python_numbers} Python number(s)" if self.python_numbers else ""
        kept = sum(e.cls not in UNCOUNTED for e in self.entries)
        total = f"{self.nbytes:,} bytes kept on {self.device}{host}{numbers}"
        return f"{total}, in {kept} storage(s); parameters are not counted"

    def _head(self) -> tuple[str, ...]:
        return (HEAD[0], "closed form", *HEAD[1:]) if self.sizes else HEAD

    def _closed(self) -> list[str]:
        """The sums as closed forms, and where they hold."""
        from refcheck.forms import text

        if not self.sizes:
            return []
        given = ", ".join(f"{name} = {n}" for name, n in self.sizes.items())
        host = f", and on the host {text(self.host_form)}" if self.host_form != 0 else ""
        where = f", where {', '.join(self.conditions)}" if self.conditions else ""
        return [f"in bytes: {text(self.form)}{host}{where}; the numbers are those at {given}"]

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
        heads = "".join(f"<th>{h}</th>" for h in self._head())
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in row)}</tr>" for row in self._rows())
        remarks = "".join(f"<p>{html.escape(r)}</p>" for r in self._remarks())
        told = "".join(f"<p>{html.escape(line)}</p>" for line in (self.summary(), *self._closed()))
        return f"{told}<table><tr>{heads}</tr>{rows}</table>{remarks}"


def _cells(e: Entry) -> tuple[str, ...]:
    from refcheck.forms import text

    size = f"{e.storage_bytes:,}" + (f" ({e.bytes:,} used)" if e.pinned_bytes else "")
    form = e.form
    shape = f"({', '.join(map(text, form.shape) if form else map(str, e.shape))})"
    held = ", ".join([e.holder, *(other.removeprefix(e.node) for other in e.shared_with)])
    closed = (text(form.storage_bytes) + (f" ({text(form.bytes)} used)" if e.pinned_bytes else ""),) if form else ()
    return (size, *closed, e.cls, e.dtype, shape, held, e.module)


def _form(e: Entry) -> Any:
    return e.form.storage_bytes if e.form else e.storage_bytes


def _sums(
    entries: Iterable[Entry], group: Callable[[Entry], str], size: Callable[[Entry], Any] = NUMBER
) -> dict[str, Any]:
    """Sums of a size (bytes of storage) by group, in the order of their numbers, largest first."""
    sums: dict[str, Any] = {}
    order: dict[str, int] = {}
    for e in entries:
        sums[group(e)] = sums.get(group(e), 0) + size(e)
        order[group(e)] = order.get(group(e), 0) + e.storage_bytes
    return dict(sorted(sums.items(), key=lambda item: -order[item[0]]))
