"""The words in which a layer is described: inputs, pairs of formulas, implementations and what they save.

All of it is written by hand, from understanding; nothing here is ever filled in from a measurement.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from sympy import Expr, Integer, Mul, symbols, sympify

from refcheck.arrays import Array, Shape, variable
from refcheck.saved import Saved
from refcheck.sizes import ITEMSIZE


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


class Measured(Protocol):
    """What can be run, measured and compared with its claim: an implementation of a layer, or of a block."""

    @property
    def id(self) -> str: ...

    @property
    def title(self) -> Mapping[str, str]: ...

    @property
    def run(self) -> Callable[..., Any]: ...

    @property
    def scalars(self) -> Mapping[str, float]: ...

    @property
    def absent(self) -> Mapping[str, str]: ...

    def inputs(self, device: str) -> Mapping[str, Input]: ...

    def needed(self, device: str) -> tuple[str, ...]: ...

    def outputs(self, output: Any) -> dict[str, Any]: ...

    def claim(self, device: str, dtype: str) -> tuple[Saved, ...]: ...

    def values(self, device: str, outputs: Iterable[Any], inputs: Mapping[str, Any]) -> dict[str, Any]: ...


def claim(measured: Measured, device: str, dtype: str) -> tuple[Saved, ...]:
    """What is claimed to be kept on this kind of device, with activations of this dtype."""
    return measured.claim(device, dtype)


def absence(measured: Measured, device: str, dtype: str) -> str | None:
    """Why this can't run on this kind of device with this dtype; None if it can."""
    family = device.partition("-")[0]
    keys = (family, dtype, f"{family}/{dtype}")
    return next((measured.absent[key] for key in keys if key in measured.absent), None)


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
