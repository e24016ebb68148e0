"""The words in which a layer is described: sizes, inputs, pairs of formulas, implementations and what they save.

All of it is written by hand, from understanding; nothing here is ever filled in from a measurement.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sympy import Add, Expr, Integer, Mul, symbols, sympify

from refcheck.arrays import Array, Shape, variable

# B batch · T sequence length · D = h·d hidden size · h heads · d head size · M FFN width · V vocabulary
B, T, D, h, d, M, V = symbols("B T D h d M V", integer=True, positive=True)

DTYPES = ("bfloat16", "float16", "float32")
ITEMSIZE = {
    "bool": 1,
    "uint8": 1,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int64": 8,
    "uint64": 8,
}  # bytes
DEVICES = ("cpu", "cuda-trace", "cuda")

# What a kept storage is.  A row's bytes are those on its device, parameters left out: they are there anyway.
CLASSES = ("input", "activation", "parameter", "buffer", "weight copy", "rng", "host", "number")
ON_DEVICE = frozenset({"input", "activation", "buffer", "weight copy", "rng"})


@dataclass(frozen=True)
class Input:
    """An input of a layer: its shape, its class, its dtype (None: the activation's) and, for integers, their bound.

    `drawn` says that the implementation makes it by itself, at random, and is not given it.
    """

    shape: Shape
    cls: str = "input"
    dtype: str | None = None
    below: Expr | None = None
    drawn: bool = False

    @property
    def differentiable(self) -> bool:
        return self.dtype is None and self.cls != "buffer"


def at_sizes(expression: Expr | int, sizes: Mapping[str, int]) -> int:
    """The value of a closed form in B, T, D, … at given sizes; raises KeyError for a size that is not given."""
    expression = sympify(expression)
    return int(expression.subs({s: sizes[s.name] for s in expression.free_symbols}))


def activation(*shape: Expr) -> Input:
    return Input(shape)


def parameter(*shape: Expr) -> Input:
    return Input(shape, cls="parameter")


def mask(*shape: Expr) -> Input:
    """Zeros and ones that the layer draws; no gradient flows into them."""
    return Input(shape, cls="activation", dtype="bool", drawn=True)


def buffer(*shape: Expr, dtype: str | None = "bool") -> Input:
    """A tensor that is there before the forward and that all layers share, such as a causal mask."""
    return Input(shape, cls="buffer", dtype=dtype)


def tokens(*shape: Expr, below: Expr) -> Input:
    """Whole numbers from 0 to below - 1."""
    return Input(shape, dtype="int64", below=below)


@dataclass(frozen=True, eq=False)
class Pair:
    """A forward and its backward.

    ``forward(**inputs, **scalars)`` returns ``(output, saved)``; ``backward(upstream gradient, saved)`` returns the
    gradient of every differentiable input and can see nothing else.  `saved` is what is **needed**.  Where there are
    several outputs, `output` and the upstream gradient are dicts.
    """

    id: str
    forward: Callable[..., tuple[Any, dict[str, Any]]]
    backward: Callable[[Any, Mapping[str, Any]], dict[str, Any]]
    inputs: Mapping[str, Input]
    scalars: Mapping[str, float] = field(default_factory=dict)
    output: str = "y"

    @cached_property
    def symbolic(self) -> tuple[Any, dict[str, Any], dict[str, Array]]:
        """(output, saved, inputs) as arrays of symbolic shape."""
        inputs = {name: variable(name, tuple(map(sympify, i.shape)), i.below) for name, i in self.inputs.items()}
        scalars = dict(zip(self.scalars, map(_positive, self.scalars), strict=True))
        output, saved = self.forward(**inputs, **scalars)
        return output, saved, inputs

    def outputs(self, output: Any) -> dict[str, Any]:
        """The output, or outputs, under their names."""
        return output if isinstance(output, dict) else {self.output: output}

    def upstream(self, gradients: dict[str, Any]) -> Any:
        """Gradients of the outputs, as `backward` takes them."""
        return gradients if isinstance(self.symbolic[0], dict) else gradients[self.output]

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the tensors that backward reads; numbers such as p or ε are no tensors."""
        return tuple(name for name, value in self.symbolic[1].items() if isinstance(value, Array))

    @property
    def source(self) -> str:
        """The text of the two functions, and of those of their module that they call, as the pages show it."""
        shown = [inspect.unwrap(self.forward), inspect.unwrap(self.backward)]
        for f in shown:  # grows as it goes
            called = [f.__globals__.get(name) for name in f.__code__.co_names]
            shown += [c for c in called if inspect.isfunction(c) and c.__module__ == f.__module__ and c not in shown]
        return "\n\n".join(map(inspect.getsource, shown))


def _positive(name: str) -> Expr:
    return symbols(name, positive=True)


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


def absence(implementation: Implementation | Composed, device: str, dtype: str) -> str | None:
    """Why this can't run on this kind of device with this dtype; None if it can."""
    family = device.partition("-")[0]
    keys = (family, dtype, f"{family}/{dtype}")
    return next((implementation.absent[key] for key in keys if key in implementation.absent), None)


def device_bytes(saved: Iterable[Saved]) -> Expr:
    """Bytes kept on the row's device, parameters left out."""
    return Add(*(s.nbytes for s in saved if s.cls in ON_DEVICE))


def host_bytes(saved: Iterable[Saved]) -> Expr:
    """Bytes kept on the CPU by a row that runs elsewhere; Python numbers are not counted."""
    return Add(*(s.nbytes for s in saved if s.cls == "host"))


@dataclass(frozen=True)
class Run:
    """What one implementation kept at one set of sizes; `sizes` is empty where they are symbols."""

    sizes: Mapping[str, int]
    saved: tuple[Saved, ...]
    guards: tuple[str, ...] = ()


def call(run: Callable[..., Any], given: Mapping[str, Any], *first: Any) -> Any:
    """Calls `run` with `first`, and with those of `given` that its signature names (all of them if it takes any)."""
    names = inspect.signature(run).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in names.values())
    return run(*first, **{k: v for k, v in given.items() if takes_any or k in names})


@dataclass(frozen=True)
class Unneeded:
    """A tensor that PyTorch keeps although no formula needs it, with the reason."""

    name: str
    at: str
    reason: Mapping[str, str]  # zh, en
    tensor: Input | None = None  # None: the input of this name


@dataclass(frozen=True, eq=False)
class Saves:
    """What an implementation keeps on one kind of device: what its pair needs, held where `at` says.

    `at` maps a saved name to the autograd node and attribute that hold it, e.g. ``"SoftmaxBackward0.result"``, or to
    several of them.  `dtypes` names those that differ from the activation's.  `numbers` are Python numbers that
    autograd wraps into tensors without a shape; they lie on the CPU and are not counted.
    """

    pair: Pair
    at: Mapping[str, str | tuple[str, ...]]
    dtypes: Mapping[str, str] = field(default_factory=dict)
    without_need: tuple[Unneeded, ...] = ()
    numbers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Implementation:
    """Torch code that runs a layer, and what it saves on the CPU and on CUDA.

    `run` takes the inputs and scalars that its signature names.  `recover(output, **inputs)` reads back what the code
    drew at random (a dropout mask) from its own output, so that the pair can be compared with it.  `absent` says why it
    can't run: on ``"cpu"``, on ``"cuda"``, in a dtype, or in one on the other, as ``"cuda/float32"``.  `like` is an op
    of torch that must compute the same, where `run` is no op of torch or can't run on the CPU.
    """

    id: str
    title: Mapping[str, str]
    run: Callable[..., Any]
    cpu: Saves
    cuda: Saves
    recover: Callable[..., dict[str, Any]] | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    like: Callable[..., Any] | None = None

    def saves(self, device: str) -> Saves:
        return self.cpu if device == "cpu" else self.cuda

    def inputs(self, device: str) -> Mapping[str, Input]:
        return self.saves(device).pair.inputs

    def needed(self, device: str) -> tuple[str, ...]:
        return self.saves(device).pair.needed

    @property
    def scalars(self) -> Mapping[str, float]:
        return self.cuda.pair.scalars

    def outputs(self, output: Any) -> dict[str, Any]:
        return self.cuda.pair.outputs(output)

    def claim(self, device: str, dtype: str) -> tuple[Saved, ...]:
        return _read_off(self.saves(device), dtype)

    def values(self, device: str, outputs: Iterable[Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What the pair says is saved when these torch tensors went in and came out, computed in float64."""
        pair = self.saves(device).pair
        drawn = self.recover(*outputs, **inputs) if self.recover else {}
        known = {n: t.double() if t.is_floating_point() else t for n, t in {**inputs, **drawn}.items()}
        _, saved = pair.forward(**known, **pair.scalars)
        return {n: saved[n] for n in pair.needed}

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return (self.cpu.pair,) if self.cpu.pair is self.cuda.pair else (self.cuda.pair, self.cpu.pair)


def _several(places: str | tuple[str, ...]) -> tuple[str, ...]:
    return (places,) if isinstance(places, str) else places


def _read_off(saves: Saves, dtype: str) -> tuple[Saved, ...]:
    """What is kept, read off the pair, and what is listed without need."""
    output, saved, _ = saves.pair.symbolic
    outputs = saves.pair.outputs(output).values()
    kept = {name: saved[name] for name in saves.pair.needed}
    at: dict[str, str | tuple[str, ...]] = {**saves.at, **{extra.name: extra.at for extra in saves.without_need}}
    extras = {e.name: e.tensor or saves.pair.inputs[e.name] for e in saves.without_need}
    kept |= {name: variable(name, extra.shape) for name, extra in extras.items()}
    if set(at) != set(kept):
        raise ValueError(f"{saves.pair.id}: places are claimed for {sorted(at)}, its pair saves {sorted(kept)}")
    rows = []
    for name, array in kept.items():
        first, *others = _several(at[name])
        node, _, attr = first.partition(".")
        given = extras.get(name) or saves.pair.inputs.get(name)
        kind = saves.dtypes.get(name) or (given and given.dtype) or dtype
        rows.append(
            Saved(
                name=name,
                node=node,
                attr=attr,
                shape=tuple(map(sympify, array.shape)),
                dtype=kind,
                nbytes=Mul(ITEMSIZE[kind], *array.shape),
                cls=given.cls if given and kind == (given.dtype or dtype) else "activation",  # else it is a copy
                shared_with=(*others, *(["output"] if any(array is o for o in outputs) else [])),
            )
        )
    for name, place in saves.numbers.items():
        node, _, attr = place.partition(".")
        rows.append(Saved(name, node, attr, (), "float64", Integer(8), "number"))
    return tuple(rows)


def claim(implementation: Implementation | Composed, device: str, dtype: str) -> tuple[Saved, ...]:
    """What is claimed to be kept on this kind of device, with activations of this dtype."""
    return implementation.claim(device, dtype)


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
class Layer:
    """A layer: its module, its title in both languages, and its implementations."""

    module: str
    title: Mapping[str, str]
    implementations: tuple[Implementation, ...]

    @property
    def id(self) -> str:
        return self.module.rpartition(".")[2].replace("_", "-")

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Each pair once, the first being the one that the layer's page derives."""
        return tuple({pair.id: pair for impl in self.implementations for pair in impl.pairs}.values())


@dataclass(frozen=True, eq=False)
class Block:
    """Layers put together, by one or several implementations; its id never is a layer's."""

    module: str
    title: Mapping[str, str]
    implementations: tuple[Composed, ...]

    @property
    def id(self) -> str:
        return self.module.rpartition(".")[2].replace("_", "-")
