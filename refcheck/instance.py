"""A layer that is another one under other names: the output projection is a linear layer, and so is the head."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from refcheck.spec import Implementation, Input, Layer, Pair, Saves, call

Names = Mapping[str, str]  # the general layer's name -> this layer's


class _Renamed(Mapping[str, Any]):
    """A dict read under other names, one key at a time, so that a key that is not read stays unread."""

    def __init__(self, under: Mapping[str, Any], names: Names) -> None:
        self.under, self.names = under, names

    def __getitem__(self, key: str) -> Any:
        return self.under[self.names.get(key, key)]

    def __iter__(self) -> Iterator[str]:
        back = {new: old for old, new in self.names.items()}
        return (back.get(key, key) for key in self.under)

    def __len__(self) -> int:
        return len(self.under)


def instance(
    module: str,
    title: Mapping[str, str],
    of: Layer,
    names: Names,
    inputs: Mapping[str, Input],
    only: Mapping[str, Mapping[str, str]] | None = None,
) -> Layer:
    """`of` with its tensors named and shaped as here; `only` picks implementations, with their titles here."""
    chosen = only or {i.id: i.title for i in of.implementations}
    pairs: dict[str, Pair] = {}
    return Layer(
        module,
        title,
        tuple(_implementation(i, chosen[i.id], names, inputs, pairs) for i in of.implementations if i.id in chosen),
    )


def _implementation(
    general: Implementation, title: Mapping[str, str], names: Names, inputs: Mapping[str, Input], pairs: dict[str, Pair]
) -> Implementation:
    return replace(
        general,
        title=title,
        run=_back(general.run, names),
        cpu=_saves(general.cpu, names, inputs, pairs),
        cuda=_saves(general.cuda, names, inputs, pairs),
        traced=general.traced and _saves(general.traced, names, inputs, pairs),
        recover=general.recover and _forth(_back(general.recover, names), names),
        like=general.like and _back(general.like, names),
    )


def _saves(general: Saves, names: Names, inputs: Mapping[str, Input], pairs: dict[str, Pair]) -> Saves:
    if general.pair.id not in pairs:
        pairs[general.pair.id] = _pair(general.pair, names, inputs)
    return replace(
        general,
        pair=pairs[general.pair.id],
        at=_keys(general.at, names),
        dtypes=_keys(general.dtypes, names),
        padded=_keys(general.padded, names),
        expanded=_keys(general.expanded, names),
        without_need=tuple(replace(e, name=names.get(e.name, e.name)) for e in general.without_need),
    )


def _pair(general: Pair, names: Names, inputs: Mapping[str, Input]) -> Pair:
    forward, backward = _back(general.forward, names), general.backward

    @functools.wraps(general.forward)
    def renamed_forward(**given: Any) -> tuple[Any, dict[str, Any]]:
        output, saved = forward(**given)
        return output, _keys(saved, names)

    @functools.wraps(general.backward)
    def renamed_backward(upstream: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
        return _keys(backward(upstream, _Renamed(saved, names)), names)

    mine = [names.get(name, name) for name in general.inputs]
    return replace(
        general,
        forward=renamed_forward,
        backward=renamed_backward,
        inputs={name: inputs[name] for name in mine},
        output=names.get(general.output, general.output),
    )


def _keys(values: Mapping[str, Any], names: Names) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in values.items()}


def _back(function: Callable[..., Any], names: Names) -> Callable[..., Any]:
    """`function`, called with this layer's names."""
    old = {new: name for name, new in names.items()}

    def renamed(*outputs: Any, **given: Any) -> Any:
        return call(function, {old.get(name, name): value for name, value in given.items()}, *outputs)

    return renamed


def _forth(function: Callable[..., dict[str, Any]], names: Names) -> Callable[..., dict[str, Any]]:
    """`function`, whose results are named as this layer names them."""
    return lambda *outputs, **given: _keys(function(*outputs, **given), names)
