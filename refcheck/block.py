"""Blocks: layers put together, whose claims must add up to what the whole keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sympy import Expr

from refcheck.saved import Saved, device_bytes
from refcheck.sizes import D, d, h
from refcheck.spec import Implementation, Input, Layer


@dataclass(frozen=True, eq=False)
class Part:
    """A layer's implementation as one part of a block.

    `names` says what the block calls the layer's tensors, `sizes` how long it makes the layer's sizes.
    """

    layer: Layer
    implementation: str
    names: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[Expr, Expr] = field(default_factory=dict)

    @property
    def of(self) -> Implementation:
        (found,) = (i for i in self.layer.implementations if i.id == self.implementation)
        return found

    def needed(self, device: str) -> tuple[str, ...]:
        return tuple(self.names.get(name, name) for name in self.of.needed(device))

    def claim(self, device: str, dtype: str) -> tuple[Saved, ...]:
        """The layer's own claim, in the block's names and sizes."""
        kept = self.of.claim(device, dtype)
        return tuple(
            replace(
                s,
                name=self.names.get(s.name, s.name),
                shape=tuple(map(self._sized, s.shape)),
                nbytes=self._sized(s.nbytes),
            )
            for s in kept
        )

    def _sized(self, n: Expr) -> Expr:
        return n.subs(self.sizes, simultaneous=True).subs(D, h * d)


@dataclass(frozen=True, eq=False)
class Composed:
    """A block: torch code that runs it whole, and the parts whose claims must add up to what it keeps.

    Tensors of the same name are one storage.  What is an input of a part and not of the block is an activation.
    """

    id: str
    title: Mapping[str, str]
    run: Callable[..., Any]
    given: Mapping[str, Input]
    parts: tuple[Part, ...]
    scalars: Mapping[str, float] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    told: Mapping[str, Expr] = field(default_factory=dict)
    multiples: Mapping[str, int] = field(default_factory=dict)

    def inputs(self, device: str) -> Mapping[str, Input]:
        return self.given

    def needed(self, device: str) -> tuple[str, ...]:
        """What the parts need, each name once."""
        return tuple({name: None for part in self.parts for name in part.needed(device)})

    def outputs(self, output: Any) -> dict[str, Any]:
        return {"output": output}

    def claim(self, device: str, dtype: str) -> tuple[Saved, ...]:
        """The union of the parts' claims, each storage once."""
        kept: dict[str, Saved] = {}
        for s in (s for part in self.parts for s in part.claim(device, dtype)):
            cls = "activation" if s.cls == "input" and s.name not in self.given else s.cls
            others = [place for place in s.shared_with if place != "output"]
            if s.name in kept:
                if (s.nbytes, s.dtype) != (kept[s.name].nbytes, kept[s.name].dtype):
                    raise ValueError(f"{self.id}: two tensors that differ are called {s.name}")
                others = [*kept[s.name].shared_with, f"{s.node}.{s.attr}", *others]
                s = kept[s.name]
            kept[s.name] = replace(s, cls=cls, shared_with=tuple(others))
        return tuple(kept.values())

    def values(self, device: str, outputs: Iterable[Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """A block has no formula of its own: its tensors are known by their places and shapes."""
        return {}


@dataclass(frozen=True, eq=False)
class Block:
    """Layers put together, by one or several implementations; its id never is a layer's.

    `outside` is what a model has once, before its first block and after its last.
    """

    module: str
    title: Mapping[str, str]
    implementations: tuple[Composed, ...]
    outside: tuple[Part, ...] = ()

    @property
    def id(self) -> str:
        return self.module.rpartition(".")[2].replace("_", "-")

    def in_depth(self, device: str, dtype: str) -> tuple[Expr, Expr]:
        """Bytes that each block of a model keeps, and those kept once: buffers, which all share, and the outside."""
        inside = self.implementations[0].claim(device, dtype)
        shared = device_bytes(s for s in inside if s.cls == "buffer")
        once = Composed(f"{self.id}-outside", {}, lambda: None, {}, self.outside).claim(device, dtype)
        return device_bytes(inside) - shared, shared + device_bytes(once)
