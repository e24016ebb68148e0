"""How what is kept grows with a model's depth: a·L + c, from the model at one, two and three layers.

Layers of a kind keep the same, so the third must add what the second added, storage by storage; where it doesn't, there
is no answer.  What holds at L = 1, 2, 3 is then taken to hold for every L: a model that builds its later layers
otherwise (every fourth one global, say) is to be counted by groups of layers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sympy import Expr, Symbol, expand, sympify

from refcheck import Problem
from refcheck.audit import record
from refcheck.book import UNCOUNTED, Entry, Ledger
from refcheck.forms import at, text

PROBED = (1, 2, 3)  # layers: the first two give a and c, the third is the check
Kind = tuple[str, str, str, Expr]  # class, dtype, where: "device" or "host", bytes of the storage


@dataclass(frozen=True)
class Depth:
    """Bytes kept as a·L + c.  `layer` is what each layer adds, `rest` what there is besides, each with how often.

    `name` is the argument that counts layers, `sizes` the numbers that were given for it and for the symbols.
    """

    name: str
    device: str
    dtype: str
    layer: Mapping[Kind, int]
    rest: Mapping[Kind, int]
    sizes: Mapping[str, int]
    conditions: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def form(self) -> Expr:
        """Bytes on the device as a closed form in L and the symbols."""
        return expand(self._bytes(self.layer, "device") * self._count + self._bytes(self.rest, "device"))

    @property
    def host_form(self) -> Expr:
        return expand(self._bytes(self.layer, "host") * self._count + self._bytes(self.rest, "host"))

    @property
    def layer_form(self) -> Expr:
        """Bytes on the device that each layer adds."""
        return self._bytes(self.layer, "device")

    @property
    def rest_form(self) -> Expr:
        """Bytes on the device that don't grow with depth."""
        return self._bytes(self.rest, "device")

    @property
    def _count(self) -> Symbol:
        return Symbol(self.name, integer=True, positive=True)

    @staticmethod
    def _bytes(kinds: Mapping[Kind, int], where: str) -> Expr:
        return expand(sum((n * kind[3] for kind, n in kinds.items() if kind[2] == where), start=sympify(0)))

    def at(self, **sizes: int) -> int:
        """Bytes on the device at given sizes, those of the call where none is given.  Raises `Problem`."""
        if unknown := sizes.keys() - {self.name, *self.sizes}:
            raise Problem(f"{', '.join(sorted(unknown))}: no such size here; there is {', '.join(self.sizes)}")
        return at(self.form, {**self.sizes, **sizes})

    def as_dict(self) -> dict[str, Any]:
        """SymPy reads the forms."""
        return {
            "device": self.device,
            "dtype": self.dtype,
            "layers": self.name,
            "probed": list(PROBED),
            "sizes": dict(self.sizes),
            "nbytes": self.at() if self.name in self.sizes else None,
            "form": str(self.form),
            "layer_form": str(self.layer_form),
            "rest_form": str(self.rest_form),
            "host_form": str(self.host_form),
            "layer": [_facts(kind, n) for kind, n in self.layer.items()],
            "rest": [_facts(kind, n) for kind, n in self.rest.items()],
            "conditions": list(self.conditions),
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n"

    def __repr__(self) -> str:
        given = ", ".join(f"{name} = {n}" for name, n in self.sizes.items())
        here = f"; {self.at():,} at {given}" if self.name in self.sizes else ""
        where = f", where {', '.join(self.conditions)}" if self.conditions else ""
        host = f"; on the host {text(self.host_form)}" if self.host_form != 0 else ""
        return "\n".join(
            [
                f"bytes kept on {self.device}: {self.name}·({text(self.layer_form)}) + {text(self.rest_form)}"
                f"{host}{where}{here}; parameters are not counted",
                f"traced at {self.name} = {', '.join(map(str, PROBED))}",
                f"each layer adds {text(self.layer_form)}:",
                *_lines(self.layer),
                f"beside the layers {text(self.rest_form)}:",
                *_lines(self.rest),
                *(f"note: {n}" for n in self.notes),
            ]
        )


def by_depth(
    case: Callable[..., Any],
    layers: str,
    device: Any = "cuda-trace",
    dtype: Any = "bfloat16",
    *,
    arguments: Mapping[str, Any] = MappingProxyType({}),
    strict: bool = False,
    symbolic: Iterable[str] = (),
) -> Depth:
    """What ``case(device, dtype, **arguments)`` keeps as a·L + c, L being its argument named `layers`.

    The other arguments are those of `audit.record`.  Raises `Problem`, also where the growth is not linear.
    """
    names = _split(symbolic)
    if layers in names:
        raise Problem(f"{layers} counts layers, so it is no symbol of the trace: leave it out of the symbolic ones")
    _check(case, layers, arguments)
    ledgers = [
        record(case, device, dtype, arguments={**arguments, layers: n}, strict=strict, symbolic=names) for n in PROBED
    ]
    one, two, three = (_kinds(led) for led in ledgers)
    layer = two - one
    if one - two or three - two != layer or two - three:
        raise Problem(f"what is kept is not linear in {layers}: {_told(one, two, three)}; audit the whole model")
    if layer - one:
        raise Problem(
            f"the first of the {layers} keeps less than the second: {_told(one, two, three)}; audit the whole"
        )
    whole = arguments.get(layers, _default(case, layers))
    led = ledgers[0]
    sizes = {**led.sizes, **({layers: whole} if isinstance(whole, int) else {})}
    conditions = dict.fromkeys(condition for led in ledgers for condition in led.conditions)
    notes = dict.fromkeys(note for led in ledgers for note in led.notes)
    return Depth(layers, led.device, led.dtype, layer, one - layer, sizes, tuple(conditions), tuple(notes))


def _split(symbolic: Iterable[str]) -> list[str]:
    return [name.strip() for name in (symbolic.split(",") if isinstance(symbolic, str) else symbolic)]


def _check(case: Callable[..., Any], layers: str, arguments: Mapping[str, Any]) -> None:
    from inspect import Parameter, signature

    parameters = signature(case).parameters
    if layers not in parameters and not any(p.kind == Parameter.VAR_KEYWORD for p in parameters.values()):
        has = ", ".join(list(parameters)[2:]) or "none"
        raise Problem(
            f"{getattr(case, '__name__', case)!s} has no argument {layers!r} that counts layers; it has {has}"
        )
    whole = arguments.get(layers, 1)
    if not isinstance(whole, int) or isinstance(whole, bool) or whole < 1:
        raise Problem(f"{layers} is {whole!r}, which is no number of layers")


def _default(case: Callable[..., Any], layers: str) -> Any:
    from inspect import signature

    parameter = signature(case).parameters.get(layers)
    return parameter.default if parameter else None


def _kinds(led: Ledger) -> Counter[Kind]:
    """The storages of a ledger as kinds, largest first; who holds them is left out, as layers have names."""
    own = led.device.removesuffix("-trace")
    counted = [e for e in led.entries if e.cls not in UNCOUNTED]
    return Counter(_kind(e, own) for e in sorted(counted, key=lambda e: -e.storage_bytes))


def _kind(e: Entry, own: str) -> Kind:
    size = expand(e.form.storage_bytes if e.form else sympify(e.storage_bytes))
    return (e.cls, e.dtype, "device" if e.device == own else "host", size)


def _told(*kept: Counter[Kind]) -> str:
    totals = (sum((n * kind[3] for kind, n in kinds.items()), start=sympify(0)) for kinds in kept)
    return ", ".join(f"{text(total)} bytes at {n}" for n, total in zip(PROBED, totals, strict=True))


def _facts(kind: Kind, n: int) -> dict[str, Any]:
    cls, dtype, where, size = kind
    return {"count": n, "class": cls, "dtype": dtype, "where": where, "storage_bytes": str(size)}


def _lines(kinds: Mapping[Kind, int]) -> Iterable[str]:
    rows = [
        (f"{n} ×", text(size), cls, dtype, "on the host" if where == "host" else "")
        for (cls, dtype, where, size), n in kinds.items()
    ] or [("", "nothing", "", "", "")]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
