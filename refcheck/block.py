"""Blocks: layers put together, whose claims must add up to what the whole keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from refcheck.saved import Saved
from refcheck.sizes import D, d, h
from refcheck.spec import Implementation, Input, Layer


@dataclass(frozen=True, eq=False)
class Part:
    """A layer's implementation as one part of a block; `names` says what the block calls the layer's tensors."""

    layer: Layer
    implementation: str
    names: Mapping[str, str] = field(default_factory=dict)

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
                shape=tuple(n.subs(D, h * d) for n in s.shape),
                nbytes=s.nbytes.subs(D, h * d),
            )
            for s in kept
        )


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
                others = [*kept[s.name].shared_with, f"{s.node}.{s.attr}", *others]
                s = kept[s.name]
            kept[s.name] = replace(s, cls=cls, shared_with=tuple(others))
        return tuple(kept.values())

    def values(self, device: str, outputs: Iterable[Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """A block has no formula of its own: its tensors are known by their places and shapes."""
        return {}


@dataclass(frozen=True, eq=False)
class Block:
    """Layers put together, by one or several implementations; its id never is a layer's."""

    module: str
    title: Mapping[str, str]
    implementations: tuple[Composed, ...]

    @property
    def id(self) -> str:
        return self.module.rpartition(".")[2].replace("_", "-")
