"""The ledger of a reader's own code: every storage that its autograd graph keeps, once, with all who keep it.

``record(case, "cuda-trace", "bfloat16")`` runs ``case(device, dtype) -> (outputs, params)``;
``with ledger(model) as led: loss = model(x)`` looks at a forward as it runs.  Both stop with a `Problem`, which says
what to do, rather than give a number that does not hold.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher

from refcheck import Problem
from refcheck.book import Ledger
from refcheck.calling import call
from refcheck.graph import explore
from refcheck.inventory import Inventory, named_parameters
from refcheck.measure import available
from refcheck.modules import Modules
from refcheck.observe import Census, Watch, key
from refcheck.symbolic import NOT_TRACED, Symbols, given
from refcheck.trace import Device, running


def record(
    case: Callable[..., Any],
    device: Any = "cuda-trace",
    dtype: Any = "bfloat16",
    *,
    arguments: Mapping[str, Any] = MappingProxyType({}),
    strict: bool = False,
    symbolic: Iterable[str] = (),
) -> Ledger:
    """The ledger of ``case(device, dtype, **arguments) -> (outputs, params)``, run here.

    `device` is ``"cpu"``, ``"cuda"`` or ``"cuda-trace"`` (concrete sizes, no GPU needed).  Raises `Problem` if the
    case raises, returns no tensor that has a gradient, needs values that fake tensors don't have, or overwrites what
    it saved; if `strict`, also where the ledger has notes.

    `symbolic` names arguments that become symbols of ``"cuda-trace"``: the ledger's bytes are then closed forms too,
    for sizes from 2 on (at 1 a copy or a broadcast may fall away) and where its `conditions` hold.
    """
    where, kind = _device(device), _dtype(dtype)
    sizes = _sizes(case, where, symbolic, arguments)
    available(where)
    with _random_state_kept():
        hooks = True
        try:
            led = _record(case, where, kind, arguments, sizes, hooks)
        except Problem as problem:
            if "saved tensor hooks" not in str(problem.__cause__):
                raise
            hooks = False  # torch.func doesn't run under any hooks
            led = _record(case, where, kind, arguments, sizes, hooks)
        if sizes and led.notes:
            led = _less_pinned(led, lambda: _record(case, where, kind, arguments, sizes, hooks))
    return _strictly(led) if strict else led


def _less_pinned(led: Ledger, again: Callable[[], Ledger]) -> Ledger:
    """The ledger, or that of a run with torch's composed operators in Python, where their C++ alone pins a size.

    At the given sizes the two must agree.
    """
    try:
        with enable_python_dispatcher():
            freer = again()
    except Problem:
        return led
    numbers = [(x.nbytes, x.host_nbytes, x.by_class()) for x in (led, freer)]
    return freer if len(freer.notes) < len(led.notes) and numbers[0] == numbers[1] else led


def _record(
    case: Callable[..., Any],
    where: str,
    dtype: torch.dtype,
    arguments: Mapping[str, Any],
    sizes: Mapping[str, int],
    hooks: bool,
) -> Ledger:
    symbols = Symbols.make(sizes) if sizes else None
    plain = symbols.plain if symbols else int
    traced, device = where == "cuda-trace", Device(where.removesuffix("-trace"))
    notes: list[str] = []
    torch.manual_seed(0)
    with Modules() as modules:
        environment = running(traced, notes, symbols and symbols.env)
        with environment as heed, Watch(Census(lambda: modules.current, heed), hooks) as watch, _guarded(symbols):
            outputs, params = call(case, device, dtype, {**arguments, **(symbols.arguments if symbols else {})})
        roots = [o.grad_fn for o in outputs if o.grad_fn is not None]
        del outputs  # from here on the graph, and `params`, keep things
        known = named_parameters(params, modules)
        modules.roots.clear()  # a module that only a closure in the graph holds is the graph's
        inventory = Inventory(watch, modules, explore(roots), known, str(device), plain)
        if inventory.unexplained:  # perhaps only a reference cycle, and that is not the graph
            del inventory
            gc.collect()
            inventory = Inventory(watch, modules, explore(roots), known, str(device), plain)
        entries, unseen = inventory.entries(), inventory.unseen()
        notes += inventory.notes()
        del inventory, roots
        if unseen:  # what lives on without the graph is kept by somebody else
            gc.collect()
            entries += [entry for k, entry in unseen.items() if k not in watch.census.alive]
    conditions: list[str] = []
    if symbols:
        entries = list(map(symbols.settle, entries))
        notes, conditions = [*notes, *symbols.pins()], symbols.conditions()
    return Ledger(where, str(dtype).removeprefix("torch."), tuple(entries), tuple(notes), sizes, tuple(conditions))


def _sizes(
    case: Callable[..., Any], where: str, symbolic: Iterable[str], arguments: Mapping[str, Any]
) -> dict[str, int]:
    """The sizes that shall be symbols, with their numbers.  Raises `Problem`."""
    if isinstance(symbolic, str):
        symbolic = symbolic.split(",")
    names = [name.strip() for name in symbolic]
    if names and where != "cuda-trace":
        raise Problem(f"{NOT_TRACED}, and this is {where}")
    return given(case, names, arguments) if names else {}


def _guarded(symbols: Symbols | None) -> AbstractContextManager[None]:
    return symbols.kept_out_of_parameters() if symbols else nullcontext()


@contextmanager
def ledger(model: torch.nn.Module | None = None, device: Any = None, strict: bool = False) -> Iterator[Ledger]:
    """Looks at what runs in the block, and fills the ledger that it gives when the block ends.

    What the graph of every tensor that is alive then keeps is listed: keep the loss in a variable, and call backward
    after the block.  `device` is that of the model's parameters, if not given.  Raises `Problem` at the block's end.
    """
    led = Ledger(_device(device) if device else _device_of(model), "", None)
    notes: list[str] = []
    start = torch._C._autograd._get_sequence_nr()
    with running(False, notes) as heed, Modules() as modules, Watch(Census(lambda: modules.current, heed)) as watch:
        yield led
    gc.collect()
    living = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor) and not watch.census.stray(o)]
    roots = [t.grad_fn for t in living if t.grad_fn is not None and t.grad_fn._sequence_nr() >= start]
    if not roots:
        raise Problem(
            "nothing that was made in the block and has a gradient is alive at its end: keep the loss in a variable, "
            "and see that something requires grad"
        )
    visible = {key(t) for t in living if t.layout is torch.strided}
    del living
    models = [model] if model is not None else []
    params = [p for m in models for p in m.parameters()]
    inventory = Inventory(watch, modules, explore(roots), named_parameters(params, modules, models), led.device)
    unseen = {k: entry for k, entry in inventory.unseen().items() if k not in visible}
    led.fill((*inventory.entries(), *unseen.values()), (*notes, *inventory.notes()))
    if strict:
        _strictly(led)


def _strictly(led: Ledger) -> Ledger:
    """The ledger, if it has no notes.  Raises `Problem`."""
    if led.notes:
        raise Problem(f"not the run that was asked for: {'; '.join(led.notes)}")
    return led


def _device_of(model: torch.nn.Module | None) -> str:
    first = next(model.parameters(), None) if model is not None else None
    return first.device.type if first is not None else "cuda" if torch.cuda.is_available() else "cpu"


def _device(device: Any) -> str:
    name = device.type if isinstance(device, torch.device) else str(device).partition(":")[0]
    if name not in ("cpu", "cuda", "cuda-trace"):
        raise Problem(f"device {name!r} is unknown: choose cpu, cuda or cuda-trace")
    return name


def _dtype(dtype: Any) -> torch.dtype:
    kind = dtype if isinstance(dtype, torch.dtype) else getattr(torch, str(dtype).removeprefix("torch."), None)
    if not isinstance(kind, torch.dtype):
        raise Problem(f"dtype {dtype!r} is unknown: choose bfloat16, float16, float32 or float64")
    return kind


@contextmanager
def _random_state_kept() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield
