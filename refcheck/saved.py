"""A kept storage, in the one form in which claims and measurements are compared, and what several of them add up to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sympy import Add, Expr

# What a kept storage is.  A row's bytes are those on its device, parameters left out: they are there anyway.
CLASSES = ("input", "activation", "parameter", "buffer", "weight copy", "rng", "host", "number")
ON_DEVICE = frozenset({"input", "activation", "buffer", "weight copy", "rng"})


@dataclass(frozen=True)
class Saved:
    """A kept storage, as claimed or as measured: the one form in which the two are compared.

    `shape` is the tensor's, `nbytes` are the bytes of its whole storage; both are closed forms, or numbers where the
    sizes are.  `shared_with` lists further holders and, if the storage is the output's too, ``"output"``.
    """

    name: str
    node: str
    attr: str
    shape: tuple[Expr, ...]
    dtype: str
    nbytes: Expr
    cls: str
    shared_with: tuple[str, ...] = ()

    @property
    def holders(self) -> tuple[str, ...]:
        """Every place that holds the storage, in one order; three linear layers of one input hold it three times."""
        return tuple(sorted((f"{self.node}.{self.attr}", *self.shared_with)))


@dataclass(frozen=True)
class Allocated:
    """What a forward left in use, as its allocator counts it, in bytes: asked for, and set aside for that.

    It is what is saved, and besides, each once: outputs that nothing saves, and leaves that nothing saves, such as a
    bias, which the graph holds because their gradients go there.
    """

    requested: int
    allocated: int
    outputs: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()

    @property
    def saved(self) -> int:
        """What is left for saved storages."""
        return self.requested - sum(self.outputs) - sum(self.leaves)


@dataclass(frozen=True)
class Run:
    """What one implementation kept at one set of sizes; `sizes` is empty where they are symbols."""

    sizes: Mapping[str, int]
    saved: tuple[Saved, ...]
    guards: tuple[str, ...] = ()
    allocator: Allocated | None = None


def device_bytes(saved: Iterable[Saved]) -> Expr:
    """Bytes kept on the row's device, parameters left out."""
    return Add(*(s.nbytes for s in saved if s.cls in ON_DEVICE))


def host_bytes(saved: Iterable[Saved]) -> Expr:
    """Bytes kept on the CPU by a row that runs elsewhere; Python numbers are not counted."""
    return Add(*(s.nbytes for s in saved if s.cls == "host"))


def on(device: str, saved: Iterable[Saved]) -> tuple[Saved, ...]:
    """Those that lie on the row's device, parameters too; on the CPU that is all, Python numbers too."""
    return tuple(s for s in saved if device == "cpu" or s.cls not in ("host", "number"))
