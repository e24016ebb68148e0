"""The words in which a layer is described: inputs, pairs of formulas, implementations and what they save.

All of it is written by hand, from understanding; nothing here is ever filled in from a measurement.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from sympy import Expr, Integer, Mul, symbols, sympify

from refcheck import Problem
from refcheck.arrays import Array, Shape, variable
from refcheck.saved import Saved
from refcheck.sizes import DTYPES, ITEMSIZE


@dataclass(frozen=True)
class Input:
    """An input of a layer: its shape, its class, its dtype (None: the activation's) and, for integers, their bound.

    `drawn` says that the implementation makes it by itself, at random, by a rule or apart from the graph, and is not
    given it.  `grad` is false where no gradient is wanted although there could be one: of a frozen parameter, or data.
    """

    shape: Shape
    cls: str = "input"
    dtype: str | None = None
    below: Expr | None = None
    drawn: bool = False
    grad: bool = True

    @property
    def continuous(self) -> bool:
        """Whether there could be a gradient: it holds floats, and is no buffer."""
        return self.dtype in (None, *DTYPES) and self.cls != "buffer"

    @property
    def differentiable(self) -> bool:
        return self.continuous and self.grad


def activation(*shape: Expr) -> Input:
    return Input(shape)


def parameter(*shape: Expr, dtype: str | None = None) -> Input:
    return Input(shape, cls="parameter", dtype=dtype)


def without_grad(i: Input) -> Input:
    """The same with ``requires_grad=False``: a parameter is frozen, an activation is data, as in the first layer."""
    return replace(i, grad=False)


def detached(*shape: Expr) -> Input:
    """What the implementation computes under `no_grad`; to the gradient it is a constant."""
    return Input(shape, cls="activation", drawn=True, grad=False)


def mask(*shape: Expr) -> Input:
    """Zeros and ones that the layer draws, or makes by a rule; no gradient flows into them."""
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


class Uncompilable(Problem):
    """This torch can't compile here; the message says why."""


COMPUTED = "computed"  # the dtype that a row computes in


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
    several of them.  `dtypes` names those that differ from the input's of this name, or else from the activation's;
    `COMPUTED` is the row's, where inputs come in another.  `padded` gives the shape of those that a kernel keeps longer
    than the formula's, `expanded` that of the view in which it keeps an input that is no larger for it.
    `returns` names the dtypes of outputs that aren't in the activation's.  `numbers` are Python numbers that autograd
    wraps into tensors without a shape; they lie on the CPU and are not counted.
    """

    pair: Pair
    at: Mapping[str, str | tuple[str, ...]]
    dtypes: Mapping[str, str] = field(default_factory=dict)
    padded: Mapping[str, Shape] = field(default_factory=dict)
    expanded: Mapping[str, Shape] = field(default_factory=dict)
    returns: Mapping[str, str] = field(default_factory=dict)
    without_need: tuple[Unneeded, ...] = ()
    numbers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Implementation:
    """Torch code that runs a layer, and what it saves on the CPU and on CUDA.

    `run` takes the inputs and scalars that its signature names, and the row's `dtype` if it does.
    `recover(output, **inputs)` reads back what the code drew at random (a dropout mask) from its own output, so that
    the pair can be compared with it; where it can't, its dict is empty.  `absent` says why it can't run: on ``"cpu"``,
    on ``"cuda"`` or only on ``"cuda-trace"``, in a dtype, or in one on the other, as ``"cuda/float32"``; or in a torch
    that lacks it, as ``"torch<2.13"``.  `like` is an op of torch that must compute the same, where `run` is no op of
    torch, is a new one, or can't run on the CPU.  `traced` is what it keeps where CUDA is traced, if some of what it
    keeps there takes a GPU.  `told` are sizes that `run` takes as whole numbers, since no input's shape shows them (how
    many experts a token gets); `multiples` says of which number a size must be a multiple for `run` to take it, or to
    keep what it keeps at all larger sizes.
    """

    id: str
    title: Mapping[str, str]
    run: Callable[..., Any]
    cpu: Saves
    cuda: Saves
    recover: Callable[..., dict[str, Any]] | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    like: Callable[..., Any] | None = None
    traced: Saves | None = None
    told: Mapping[str, Expr] = field(default_factory=dict)
    multiples: Mapping[str, int] = field(default_factory=dict)

    def saves(self, device: str) -> Saves:
        if device == "cuda-trace" and self.traced:
            return self.traced
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
        """What the pair says is saved, unless padded, when these tensors went in and came out, computed in float64."""
        pair = self.saves(device).pair
        drawn = self.recover(*outputs, **inputs) if self.recover else {}
        if not drawn.keys() >= {name for name, i in pair.inputs.items() if i.drawn}:
            return {}  # what was drawn can't be read back here
        known = {n: t.double() if t.is_floating_point() else t for n, t in {**inputs, **drawn}.items()}
        _, saved = pair.forward(**known, **pair.scalars)
        return {n: saved[n] for n in pair.needed if n not in self.saves(device).padded}

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return (self.cpu.pair,) if self.cpu.pair is self.cuda.pair else (self.cuda.pair, self.cpu.pair)


def _several(places: str | tuple[str, ...]) -> tuple[str, ...]:
    return (places,) if isinstance(places, str) else places


def _read_off(saves: Saves, dtype: str) -> tuple[Saved, ...]:
    """What is kept, read off the pair, and what is listed without need; a copy in another dtype is no output."""
    output, saved, inputs = saves.pair.symbolic
    outputs = saves.pair.outputs(output)
    kept = {name: saved[name] for name in saves.pair.needed}
    at: dict[str, str | tuple[str, ...]] = {**saves.at, **{extra.name: extra.at for extra in saves.without_need}}
    extras = {e.name: e.tensor or saves.pair.inputs[e.name] for e in saves.without_need}
    kept |= {name: variable(name, extra.shape) for name, extra in extras.items()}
    if strange := {*saves.padded, *saves.expanded} - set(kept):
        raise ValueError(f"{saves.pair.id}: padded or expanded, but not saved: {', '.join(sorted(strange))}")
    if set(at) != set(kept):
        raise ValueError(f"{saves.pair.id}: places are claimed for {sorted(at)}, its pair saves {sorted(kept)}")
    rows = []
    for name, array in kept.items():
        first, *others = _several(at[name])
        node, _, attr = first.partition(".")
        given = extras.get(name) or next((i for n, i in saves.pair.inputs.items() if inputs[n] is array), None)
        kind = saves.dtypes.get(name) or (given and given.dtype) or dtype
        kind = dtype if kind == COMPUTED else kind
        stored = saves.padded.get(name, array.shape)
        rows.append(
            Saved(
                name=name,
                node=node,
                attr=attr,
                shape=tuple(map(sympify, saves.expanded.get(name, stored))),
                dtype=kind,
                nbytes=Mul(ITEMSIZE[kind], *stored),
                cls=_class(given, kind, dtype),
                shared_with=(
                    *others,
                    *(
                        ["output"]
                        if any(array is outputs[n] and kind == saves.returns.get(n, dtype) for n in outputs)
                        else []
                    ),
                ),
            )
        )
    for name, place in saves.numbers.items():
        node, _, attr = place.partition(".")
        rows.append(Saved(name, node, attr, (), "float64", Integer(8), "number"))
    return tuple(rows)


def _class(given: Input | None, kind: str, dtype: str) -> str:
    """The class of what is kept in dtype `kind`: an input's own, unless it is a copy of it in another dtype."""
    if given is None or kind == (given.dtype or dtype):
        return given.cls if given else "activation"
    return "weight copy" if given.cls == "parameter" else "activation"


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

    @property
    def told(self) -> Mapping[str, Expr]: ...

    @property
    def multiples(self) -> Mapping[str, int]: ...

    def inputs(self, device: str) -> Mapping[str, Input]: ...

    def needed(self, device: str) -> tuple[str, ...]: ...

    def outputs(self, output: Any) -> dict[str, Any]: ...

    def claim(self, device: str, dtype: str) -> tuple[Saved, ...]: ...

    def values(self, device: str, outputs: Iterable[Any], inputs: Mapping[str, Any]) -> dict[str, Any]: ...


def claim(measured: Measured, device: str, dtype: str) -> tuple[Saved, ...]:
    """What is claimed to be kept on this kind of device, with activations of this dtype."""
    return measured.claim(device, dtype)


def absence(measured: Measured, device: str, dtype: str, torch: str | None = None) -> str | None:
    """Why this can't run on this kind of device with this dtype, in this version of torch if one is given; or None."""
    family = device.partition("-")[0]
    lacking = (key for key in measured.absent if torch and _before(torch, key.partition("torch<")[2]))
    keys = (device, family, dtype, f"{family}/{dtype}", *lacking)
    return next((measured.absent[key] for key in keys if key in measured.absent), None)


def _before(version: str, first: str) -> bool:
    """Whether a version of torch, such as 2.9.1+cpu, comes before `first`, such as 2.13; nothing comes before ""."""
    return bool(first) and _release(version) < _release(first)


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


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
