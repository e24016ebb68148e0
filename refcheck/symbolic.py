"""Named sizes of a reader's code as symbols: the trace's bytes are closed forms in them.

Each name becomes a symbolic integer of torch's, its given number the hint by which a branch is taken.  What the trace
took for a number all the same is told, and so is under which conditions its branches are those that were taken.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from sympy import Eq, Expr, Symbol, ceiling, expand, floor, sympify
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._sympy.functions import CeilToInt, CleanDiv, FloorDiv, IntTrueDiv

from refcheck import Problem
from refcheck.book import Entry, Form
from refcheck.forms import at, text

NOT_TRACED = "sizes are symbols only where it is traced: --device cuda-trace"
PARAMETERS = "a module's sizes stay numbers, symbols are for what it gets: batch, length"


def given(case: Callable[..., Any], names: Iterable[str], arguments: Mapping[str, Any]) -> dict[str, int]:
    """The number of each size that shall be a symbol: as given, else the case's default.  Raises `Problem`."""
    names = tuple(dict.fromkeys(names))
    taken = list(inspect.signature(case).parameters.values())[2:]  # after device and dtype
    defaults = {p.name: p.default for p in taken if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    sizes: dict[str, int] = {}
    for name in names:
        if name not in defaults and name not in arguments:
            has = ", ".join(defaults) or "none"
            raise Problem(
                f"{getattr(case, '__name__', case)!s} has no argument {name!r} to make a symbol of; it has {has}"
            )
        value = arguments.get(name, defaults.get(name))
        if value is inspect.Parameter.empty:
            raise Problem(f"{name} has no number to trace with: give one, as in --arg {name}=4")
        if not isinstance(value, int) or isinstance(value, bool) or value < 2:
            raise Problem(
                f"{name} is {value!r}, and torch takes only whole numbers from 2 on for symbols: --arg {name}=4"
            )
        if twin := next((n for n, v in sizes.items() if v == value), None):
            raise Problem(f"{twin} and {name} are both {value}, which would make them one: give two different numbers")
        sizes[name] = value
    return sizes


@dataclass(frozen=True)
class Symbols:
    """Sizes as torch's symbolic integers, and the way back from what torch says of them to SymPy."""

    sizes: Mapping[str, int]
    env: ShapeEnv
    known: Mapping[Symbol, Symbol]  # torch's symbol -> ours
    arguments: Mapping[str, Any]  # name -> SymInt

    @classmethod
    def make(cls, sizes: Mapping[str, int]) -> Symbols:
        env = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
        known, arguments = {}, {}
        for name, hint in sizes.items():
            source = ConstantSource(name)
            theirs = env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
            known[theirs] = Symbol(name, integer=True, positive=True)
            arguments[name] = env.create_symintnode(theirs, hint=hint, source=source)
        return cls(sizes, env, known, arguments)

    def plain(self, n: Any) -> Expr:
        """A number or a symbolic integer of torch's, in SymPy."""
        return self._ours(n.node.expr) if isinstance(n, torch.SymInt) else sympify(n)

    def _ours(self, form: Any) -> Any:
        """An expression of torch's in our symbols and in SymPy's functions."""
        form = form.replace(CeilToInt, ceiling).replace(IntTrueDiv, lambda a, b: a / b)
        form = form.replace(FloorDiv, lambda a, b: floor(a / b)).replace(CleanDiv, lambda a, b: a / b)
        return form.xreplace(self.known)

    @contextmanager
    def kept_out_of_parameters(self) -> Iterator[None]:
        """Within, a module that would have a symbol in its parameters stops with a `Problem`."""

        def look(module: torch.nn.Module, name: str, parameter: Any) -> None:
            for n in () if parameter is None else parameter.shape:
                if isinstance(n, torch.SymInt):
                    form = text(self.plain(n))
                    raise Problem(f"{type(module).__name__}.{name} would have {form} in its shape: {PARAMETERS}")

        handle = register_module_parameter_registration_hook(look)
        try:
            yield
        finally:
            handle.remove()

    def settle(self, entry: Entry) -> Entry:
        """An entry whose lengths and bytes are SymPy's: its numbers at the given sizes, beside the closed forms."""
        form = Form(tuple(map(expand, entry.shape)), expand(entry.bytes), expand(entry.storage_bytes))
        return replace(
            entry,
            shape=tuple(at(n, self.sizes) for n in form.shape),
            bytes=at(form.bytes, self.sizes),
            storage_bytes=at(form.storage_bytes, self.sizes),
            form=form,
        )

    def pins(self) -> list[str]:
        """A line for every size that the trace took for a number, or for another size."""
        fixed = [(self._ours(a), self._ours(b)) for a, b in self.env.replacements.items()]
        lines = [f"{text(a)} was taken for {text(b)}: the closed forms hold there alone" for a, b in fixed]
        settled = {a for a, _ in fixed}
        return lines + [
            f"the closed forms hold only where {told}"
            for told, guard in self._guards()
            if isinstance(guard, Eq) and not guard.free_symbols & settled
        ]

    def conditions(self) -> list[str]:
        """Where the branches are those that were taken: other comparisons of sizes than those that pin one."""
        return [told for told, guard in self._guards() if not isinstance(guard, Eq)]

    def _guards(self) -> list[tuple[str, Any]]:
        guards = [self._ours(g.expr) for g in self.env.guards]
        return list({str(g): (_compared(g), g) for g in guards if g.free_symbols}.values())


def _compared(guard: Any) -> str:
    signs = {"==": "=", "!=": "≠", "<=": "≤", ">=": "≥"}
    if not getattr(guard, "is_Relational", False):
        return str(guard)
    return f"{text(guard.lhs)} {signs.get(guard.rel_op, guard.rel_op)} {text(guard.rhs)}"
