"""Which module is running: the path of the innermost one, and of the one that made each node of the graph."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.modules import module as hooks


class Modules:
    """A context that follows the calls of modules.

    A path starts with the class of the outermost module called, as in ``GPT2Model.h.0.attn``; outside every module it
    is empty, and compiled code counts for the module that was compiled.  Nodes are numbered as they are made, so those
    that a call made are a range of numbers.
    """

    def __init__(self) -> None:
        self.roots: list[torch.nn.Module] = []
        self._open: list[tuple[str, int, int]] = []  # path, first node, the module's id
        self._names: dict[int, str] = {}
        self._spans: list[tuple[int, int, str]] = []  # first node, last node + 1, path; inner calls come first
        self._on = ExitStack()

    def __enter__(self) -> Modules:
        before = hooks.register_module_forward_pre_hook(self._enter)
        after = hooks.register_module_forward_hook(self._leave, always_call=True)
        self._on.callback(before.remove)
        self._on.callback(after.remove)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._on.close()

    @property
    def current(self) -> str:
        return self._open[-1][0] if self._open else ""

    def of(self, sequence: int) -> str:
        """The path of the innermost module in whose forward the node of this number was made."""
        return next((path for first, end, path in self._spans if first <= sequence < end), "")

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():  # what is traced here would become part of the compiled code, or break it
            return
        if not self._open:
            self._names = {id(m): name for name, m in module.named_modules()}
            if not any(module is root for root in self.roots):
                self.roots.append(module)
            path = type(module).__name__
        else:
            root = self._open[0][0]
            name = self._names.get(id(module))
            path = f"{root}.{name}" if name else f"{self.current}.{type(module).__name__}"
        self._open.append((path, torch._C._autograd._get_sequence_nr(), id(module)))

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not self._open or self._open[-1][2] != id(module):
            return
        path, first, _ = self._open.pop()
        self._spans.append((first, torch._C._autograd._get_sequence_nr(), path))
