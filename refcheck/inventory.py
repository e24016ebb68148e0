"""From what was seen of a forward to the entries of its ledger: every storage once, with its holders and its class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from sympy import Min, sympify

from refcheck import Problem
from refcheck.book import Entry
from refcheck.graph import Graph, Holder
from refcheck.modules import Modules
from refcheck.observe import Birth, Watch, by_storage, is_number, is_rng, key

FRESH = ("aten::empty", "aten::new_empty")  # no input of anybody's: an operator fills it


def named_parameters(
    params: Iterable[torch.Tensor], modules: Modules, models: Iterable[torch.nn.Module] = ()
) -> dict[int, tuple[str, str]]:
    """The storages of parameters and buffers: (name, class).  A parameter of no module is named by its place."""
    known = {key(p): (f"params[{n}]", "parameter") for n, p in enumerate(params)}
    for root in (*modules.roots, *models):
        known |= {key(b): (name, "buffer") for name, b in root.named_buffers() if key(b) not in known}
        known |= {key(p): (name, "parameter") for name, p in root.named_parameters()}
    return known


@dataclass
class Inventory:
    """What was seen of one forward, ready to be written down as entries."""

    watch: Watch
    modules: Modules
    graph: Graph
    known: Mapping[int, tuple[str, str]]
    device: str
    plain: Callable[[Any], Any] = int  # of a length or a number of bytes: an int, or in SymPy where sizes are symbols
    hidden: list[Holder] = field(init=False)
    found: dict[int, tuple[Holder, ...]] = field(init=False)
    leaves: dict[int, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        shown = {id(h.token) for h in self.graph.holders if h.token is not None}
        self.hidden = [
            Holder(*_hider(self.graph), t.tensor, token=t) for t in self.watch.packed() if id(t) not in shown
        ]
        self.found = by_storage((*self.graph.holders, *self.hidden))
        self.leaves = {key(t): t for t in self.graph.leaves}
        for holder in (*self.graph.holders, *self.hidden):
            self._check_unwritten(holder)

    def _check_unwritten(self, h: Holder) -> None:
        if h.token is not None and h.token.overwritten:
            raise Problem(
                f"{h} is overwritten in place after it was saved, so its backward would fail: use an operator that "
                "returns a new tensor"
            )

    @property
    def unexplained(self) -> bool:
        """Whether something is alive that no node shows."""
        return bool(self.hidden or self.unseen())

    def entries(self) -> list[Entry]:
        return [self._entry(k, holders) for k, holders in self.found.items()]

    def notes(self) -> list[str]:
        lines = [
            f"hooks of somebody else packed tensors ({name}): listed is what they hold, not what they wrote elsewhere"
            for name in sorted(self.graph.hooks)
        ]
        if not self.watch.on and _hider(self.graph)[0] == "CopySlices":
            lines.append("an operator that writes to a view in place hides which of its inputs it saves")
        if self.watch.others:
            lines.append(
                "saved_tensors_hooks of somebody else were on around the block: what autograd packed was not watched"
            )
        return lines

    def unseen(self) -> dict[int, Entry]:
        """Storages that are alive although nothing that can be read holds them."""
        births = self.watch.census.births
        left = self.watch.census.alive - self.found.keys() - self.leaves.keys()
        return {k: self._unseen(k, births[k]) for k in left if k not in self.known or self.known[k][1] == "buffer"}

    def _unseen(self, k: int, birth: Birth) -> Entry:
        name, cls = self.known.get(k, ("?", "ctx attribute"))
        return Entry(
            name=name,
            node="?",
            attr=f"made by {birth.op}",
            module=birth.module,
            shape=tuple(map(self.plain, birth.shape)),
            dtype=str(birth.dtype).removeprefix("torch."),
            device=birth.device,
            bytes=self.plain(birth.nbytes),
            storage_bytes=self.plain(birth.nbytes),
            cls="host" if birth.device == "cpu" and self.device != "cpu" else cls,
        )

    def _entry(self, k: int, holders: tuple[Holder, ...]) -> Entry:
        first, *others = sorted(holders, key=lambda h: h.how != "saved")
        storage = self.plain(first.tensor.untyped_storage().nbytes())
        cls = self._class(k, holders)
        return Entry(
            name=self.known[k][0] if k in self.known else first.attr,
            node=first.node,
            attr=first.attr,
            module=self.modules.of(first.sequence),
            shape=tuple(map(self.plain, first.tensor.shape)),
            dtype=str(first.tensor.dtype).removeprefix("torch."),
            device=first.tensor.device.type,
            bytes=_least(storage, _used(holders, self.plain)),
            storage_bytes=storage,
            cls=cls,
            shared_with=tuple(map(str, others)),
        )

    def _class(self, k: int, holders: tuple[Holder, ...]) -> str:
        t, birth = holders[0].tensor, self.watch.census.births.get(k)
        if self.known.get(k, ("", ""))[1] == "parameter" or isinstance(self.leaves.get(k), torch.nn.Parameter):
            return "parameter"
        if is_number(t):
            return "number"
        if any(is_rng(h) for h in holders):
            return "rng"
        if t.device.type == "cpu" and self.device != "cpu":
            return "host"
        if k in self.known:
            return "buffer"
        if k in self.leaves or (self._given(birth) if birth else not _compiled(holders)):
            return "input"
        if (
            birth
            and birth.op == "aten::_to_copy"
            and any(self.known.get(p, ("", ""))[1] == "parameter" for p in birth.parents)
        ):
            return "weight copy"
        return "activation" if any(h.how == "saved" for h in holders) else "ctx attribute"

    def _given(self, birth: Birth) -> bool:
        """Whether a storage was made from nothing, outside every module: what a case feeds its forward with."""
        return not birth.parents and not birth.module and not birth.op.startswith(FRESH)


def _compiled(holders: Iterable[Holder]) -> bool:
    """Whether compiled code may have made a storage: the census doesn't see what is allocated inside of it."""
    return any(h.node.startswith("CompiledFunction") for h in holders)


def _hider(graph: Graph) -> tuple[str, str]:
    """The node that must hold what no node shows: one that writes to a view in place hides the operator it runs."""
    inplace = any(node.name().endswith("CopySlices") for node in graph.nodes)
    return ("CopySlices", "inside") if inplace else ("?", "packed")


def _used(holders: tuple[Holder, ...], plain: Callable[[Any], Any]) -> Any:
    """Bytes that the holders' views use, each distinct view once: an upper bound where views overlap."""
    views = {
        (plain(t.storage_offset()), tuple(map(plain, t.shape)), tuple(map(plain, t.stride())), t.dtype)
        for t in (h.tensor for h in holders)
    }
    total = 0
    for _, shape, stride, dtype in views:
        elements = dtype.itemsize
        for n, step in zip(shape, stride, strict=True):
            elements *= n if step != 0 else int(n != 0)
        total += elements
    return total


def _least(a: Any, b: Any) -> Any:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else Min(sympify(a).expand(), sympify(b).expand())
