"""Wrong versions of a layer's functions, one small change each: every one must be refused."""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import ModuleType

from refcheck.prove import Finding, against_torch, symbolic
from refcheck.spec import Implementation, Layer, Pair


@dataclass(frozen=True)
class Wrong:
    """A pair of a layer with one function of its module changed; the module is run anew when it is first asked for."""

    layer: Layer
    pair: str
    function: str
    place: str
    changed: ast.FunctionDef

    def __str__(self) -> str:
        return f"{self.layer.id} {self.pair}: {self.function}, {self.place}"

    @cached_property
    def mutated(self) -> tuple[Implementation, Pair]:
        """The first implementation that uses the pair, and the pair, with the change in them."""
        path, tree = parsed(self.layer)
        body = [self.changed if getattr(n, "name", None) == self.function else n for n in tree.body]
        layer = run(ast.Module(body, []), self.layer, path)
        return next((i, p) for i in layer.implementations for p in i.pairs if p.id == self.pair)

    def findings(self) -> Iterator[Finding]:
        """What `prove` says of it, numbers first: they refute most, and soonest."""
        implementation, pair = self.mutated
        only = replace(implementation.cuda, pair=pair)
        numbers = against_torch(self.layer.id, replace(implementation, cpu=only, cuda=only))
        return chain(_until_it_raises(numbers), symbolic(self.layer.id, pair))

    @property
    def refuted(self) -> Finding | None:
        return next((f for f in self.findings() if not f.holds), None)


def _until_it_raises(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Tensors of unlike shapes raise in torch; on symbolic arrays that is a finding with its words."""
    try:
        yield from findings
    except Exception:
        return


def mutants(layer: Layer) -> Iterator[Wrong]:
    """One for each change to a function that only backward uses."""
    _, tree = parsed(layer)
    for function in backward_functions(tree):
        if pair := next((p for p in layer.pairs if reaches(p.backward, function.name)), None):
            for place, changed in changes(function):
                yield Wrong(layer, pair.id, function.name, place, changed)


def forwards(layer: Layer) -> Iterator[Wrong]:
    """One for each change to a function named forward…; its backward stays."""
    _, tree = parsed(layer)
    for function in (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("forward")):
        if pair := next((p for p in layer.pairs if reaches(p.forward, function.name)), None):
            for place, changed in changes(function):
                yield Wrong(layer, pair.id, function.name, place, changed)


def parsed(layer: Layer) -> tuple[Path, ast.Module]:
    path = Path(find_spec(layer.module).origin)
    return path, ast.parse(path.read_text(encoding="utf-8"))


def backward_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions named backward…, and those that they alone call."""
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    forward = {name for name in functions if name.startswith("forward")}
    for name in list(forward):
        forward |= calls(functions[name]) & set(functions)
    reached = {name for name in functions if name.startswith("backward")}
    for name in list(reached):
        reached |= calls(functions[name]) & set(functions)
    return [functions[name] for name in functions if name in reached - forward]


def calls(function: ast.FunctionDef) -> set[str]:
    return {n.func.id for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def reaches(function: Callable[..., object], name: str) -> bool:
    code = inspect.unwrap(function).__code__
    return code.co_name == name or name in code.co_names


def run(tree: ast.Module, layer: Layer, path: Path) -> Layer:
    module = ModuleType(layer.module)
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), module.__dict__)
    return module.LAYER


def changes(function: ast.FunctionDef) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every copy of the function with one sign, factor, exponent, index or key changed."""
    for n, node in enumerate(ast.walk(function)):
        for what, new in replacements(node):
            changed = copy.deepcopy(function)
            target = list(ast.walk(changed))[n]
            yield f"{ast.unparse(node)!r} becomes {what}", swap(changed, target, new)


def swap(tree: ast.AST, target: ast.AST, new: ast.AST) -> ast.AST:
    class Swap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is target else self.generic_visit(node)

    return Swap().visit(tree)


def replacements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.BinOp(left, ast.Add(), right):
            yield "a difference", ast.BinOp(left, ast.Sub(), right)
            yield "its first term", left
            yield "its second term", right
        case ast.BinOp(left, ast.Sub(), right):
            yield "a sum", ast.BinOp(left, ast.Add(), right)
            yield "its first term", left
        case ast.BinOp(left, ast.Mult() | ast.Div(), right):
            yield "its first factor", left
            if isinstance(node.op, ast.Mult):
                yield "its second factor", right
        case ast.BinOp(left, ast.Pow(), ast.Constant(power)):
            yield "one power more", ast.BinOp(left, ast.Pow(), ast.Constant(power + 1))
        case ast.UnaryOp(ast.USub(), operand):
            yield "positive", operand
        case ast.Call(ast.Name("einsum"), [ast.Constant(spec), *operands]):
            inputs, output = spec.split("->")
            letters = inputs.split(",")
            for wrong in sorted(
                {f"{','.join(letters)}->{output[::-1]}", f"{','.join(letters[::-1])}->{output}"} - {spec}
            ):
                yield wrong, ast.Call(ast.Name("einsum", ast.Load()), [ast.Constant(wrong), *operands], [])
        case ast.Call(ast.Attribute(value, "mean"), args, keywords):
            yield "a sum", ast.Call(ast.Attribute(value, "sum", ast.Load()), args, keywords)
        case ast.Call(ast.Name("dict"), [], [first, second, *rest]):
            if ast.dump(first.value) != ast.dump(second.value):
                exchanged = [ast.keyword(first.arg, second.value), ast.keyword(second.arg, first.value), *rest]
                yield "a dict with two values exchanged", ast.Call(node.func, [], exchanged)
            yield "a dict without its first key", ast.Call(node.func, [], [second, *rest])
