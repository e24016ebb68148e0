"""The ledger of a reader's own code: every storage that its autograd graph keeps, once, with all who keep it.

``record(case, "cuda-trace", "bfloat16")`` runs ``case(device, dtype) -> (outputs, params)``;
``with ledger(model) as led: loss = model(x)`` looks at a forward as it runs.  Both stop with a `Problem`, which says
what to do, rather than give a number that does not hold.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_leaves

from refcheck import Problem
from refcheck.book import Entry, Ledger
from refcheck.graph import Graph, Holder, explore
from refcheck.measure import available
from refcheck.modules import Modules
from refcheck.observe import RNG_ATTRIBUTES, Birth, Census, Watch, by_storage, is_number, key
from refcheck.trace import Device, running

RNG_STATES = RNG_ATTRIBUTES | {"fwd_cpu_state", "fwd_device_states", "fwd_gpu_states"}  # the last two: checkpointing
FRESH = ("aten::empty", "aten::new_empty")  # no input of anybody's: an operator fills it


def record(
    case: Callable[..., Any],
    device: Any = "cuda-trace",
    dtype: Any = "bfloat16",
    *,
    arguments: Mapping[str, Any] = MappingProxyType({}),
    strict: bool = False,
) -> Ledger:
    """The ledger of ``case(device, dtype, **arguments) -> (outputs, params)``, run here.

    `device` is ``"cpu"``, ``"cuda"`` or ``"cuda-trace"`` (concrete sizes, no GPU needed).  Raises `Problem` if the
    case raises, returns no tensor that has a gradient, needs values that fake tensors don't have, or overwrites what
    it saved; if `strict`, also where the ledger has notes.
    """
    where, kind = _device(device), _dtype(dtype)
    available(where)
    with _random_state_kept():
        try:
            led = _record(case, where, kind, arguments, hooks=True)
        except Problem as problem:
            if "saved tensor hooks" not in str(problem.__cause__):
                raise
            led = _record(case, where, kind, arguments, hooks=False)  # torch.func doesn't run under any hooks
    return _strictly(led) if strict else led


def _record(
    case: Callable[..., Any], where: str, dtype: torch.dtype, arguments: Mapping[str, Any], hooks: bool
) -> Ledger:
    traced, device = where == "cuda-trace", Device(where.removesuffix("-trace"))
    notes: list[str] = []
    torch.manual_seed(0)
    with Modules() as modules:
        with running(traced, notes) as heed, Watch(Census(lambda: modules.current, heed), hooks) as watch:
            outputs, params = _call(case, device, dtype, arguments)
        roots = [o.grad_fn for o in outputs if o.grad_fn is not None]
        del outputs  # from here on the graph, and `params`, keep things
        known = named_parameters(params, modules)
        modules.roots.clear()  # a module that only a closure in the graph holds is the graph's
        inventory = Inventory(watch, modules, explore(roots), known, str(device))
        if inventory.unexplained:  # perhaps only a reference cycle, and that is not the graph
            del inventory
            gc.collect()
            inventory = Inventory(watch, modules, explore(roots), known, str(device))
        entries, unseen = inventory.entries(), inventory.unseen()
        notes += inventory.notes()
        del inventory, roots
        if unseen:  # what lives on without the graph is kept by somebody else
            gc.collect()
            entries += [entry for k, entry in unseen.items() if k not in watch.census.alive]
    return Ledger(where, str(dtype).removeprefix("torch."), tuple(entries), tuple(notes))


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


# --- calling the case -----------------------------------------------------------------------------------------------


def _call(case: Callable[..., Any], device: Device, dtype: torch.dtype, arguments: Mapping[str, Any]) -> Any:
    """(output tensors, parameters) of a case.  Raises `Problem`."""
    if not torch.is_grad_enabled():
        raise Problem(
            "gradients are switched off around the audit, so nothing is saved: leave no_grad or inference_mode"
        )
    name = getattr(case, "__name__", repr(case))
    try:
        returned = case(device, dtype, **arguments)
    except Problem:
        raise
    except Exception as error:
        raise Problem(f"{name} {_where(error)}{_why(error)}") from error
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise Problem(
            f"{name} returned {_kind(returned)}: a case returns (outputs, params), params being a list, if need be []"
        )
    outputs = [t for t in tree_leaves(returned[0]) if isinstance(t, torch.Tensor)]
    params = returned[1].parameters() if isinstance(returned[1], torch.nn.Module) else returned[1]
    params = [params] if isinstance(params, torch.Tensor) else list(params or [])
    if not outputs:
        raise Problem(
            f"{name} returned no tensor as its output, but {_kind(returned[0])}: return the loss or the output"
        )
    if not any(o.requires_grad for o in outputs):
        raise Problem(
            f"no output of {name} has a gradient, so no graph is kept: let an input or a parameter require grad, and "
            "don't detach the output or run under no_grad"
        )
    if not all(isinstance(p, torch.Tensor) for p in params):
        raise Problem(f"{name} returned params that are no tensors: return a list of parameters, or a module")
    return outputs, params


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _where(error: BaseException) -> str:
    own = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if "/torch/" not in f.filename and "/refcheck/" not in f.filename
    ]
    return f"(line {own[-1].lineno} of {own[-1].filename}) " if own else ""


def _why(error: Exception) -> str:
    """What stopped a case, and what to do."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return (
            f"uses a value or a size that depends on data ({text}), which cuda-trace can't know: give it as a number, "
            "compare instead of selecting, or audit with --device cpu or cuda"
        )
    if (
        isinstance(error, UnsupportedOperatorException)
        or "fake impl" in text
        or "Meta" in text
        or "meta kernel" in text
    ):
        return (
            f"uses an operator that fake tensors can't run ({text}): register a fake kernel for it "
            "(torch.library.register_fake), or audit with --device cpu or cuda"
        )
    if "hasPrimaryContext" in text:
        return (
            "runs a backward, or compiles one, which fake CUDA tensors can't without a GPU: return the loss before "
            "backward, or audit with --device cpu or cuda"
        )
    if "no NVIDIA driver" in text:
        return f"asks for a GPU itself ({text}), and there is none: audit with --device cpu, or cuda on a GPU machine"
    if isinstance(error, torch.OutOfMemoryError) or "not enough memory" in text:
        return f"ran out of memory ({text}): give smaller sizes, or use --device cuda-trace, which allocates nothing"
    return f"raised {type(error).__name__}: {text}"


def named_parameters(
    params: Iterable[torch.Tensor], modules: Modules, models: Iterable[torch.nn.Module] = ()
) -> dict[int, tuple[str, str]]:
    """The storages of parameters and buffers: (name, class).  A parameter of no module is named by its place."""
    known = {key(p): (f"params[{n}]", "parameter") for n, p in enumerate(params)}
    for root in (*modules.roots, *models):
        known |= {key(b): (name, "buffer") for name, b in root.named_buffers() if key(b) not in known}
        known |= {key(p): (name, "parameter") for name, p in root.named_parameters()}
    return known


# --- from what was seen to entries ----------------------------------------------------------------------------------


@dataclass
class Inventory:
    """What was seen of one forward, ready to be written down as entries."""

    watch: Watch
    modules: Modules
    graph: Graph
    known: Mapping[int, tuple[str, str]]
    device: str
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
            shape=birth.shape,
            dtype=str(birth.dtype).removeprefix("torch."),
            device=birth.device,
            bytes=birth.nbytes,
            storage_bytes=birth.nbytes,
            cls="host" if birth.device == "cpu" and self.device != "cpu" else cls,
        )

    def _entry(self, k: int, holders: tuple[Holder, ...]) -> Entry:
        first, *others = sorted(holders, key=lambda h: h.how != "saved")
        storage = first.tensor.untyped_storage().nbytes()
        cls = self._class(k, holders)
        return Entry(
            name=self.known[k][0] if k in self.known else first.attr,
            node=first.node,
            attr=first.attr,
            module=self.modules.of(first.sequence),
            shape=tuple(first.tensor.shape),
            dtype=str(first.tensor.dtype).removeprefix("torch."),
            device=first.tensor.device.type,
            bytes=min(storage, _used(holders)),
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
        if any(h.attr.rpartition(".")[2].partition("[")[0] in RNG_STATES for h in holders):
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


def _used(holders: tuple[Holder, ...]) -> int:
    """Bytes that the holders' views use, each distinct view once: an upper bound where views overlap."""
    views = {(h.tensor.storage_offset(), tuple(h.tensor.shape), h.tensor.stride(), h.tensor.dtype) for h in holders}
    total = 0
    for _, shape, stride, dtype in views:
        elements = dtype.itemsize
        for n, step in zip(shape, stride, strict=True):
            elements *= n if step else min(n, 1)
        total += elements
    return total
