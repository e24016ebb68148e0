"""Wrong versions of a layer's backward, one small change each: every one must be refused."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from refcheck.spec import Layer, Pair


def mutants(layer: Layer) -> Iterator[tuple[str, Pair]]:
    """(what was changed, the pair that the change reaches), for each change to a function that only backward uses."""
    path = Path(find_spec(layer.module).origin)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for function in backward_functions(tree):
        for place, changed in changes(function):
            mutated = copy.deepcopy(tree)
            mutated.body = [changed if getattr(n, "name", None) == function.name else n for n in mutated.body]
            for pair in run(mutated, layer, path).pairs:
                if reaches(pair, function.name):
                    yield f"{layer.id} {pair.id}: {place}", pair


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


def reaches(pair: Pair, name: str) -> bool:
    code = pair.backward.__code__
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
            yield f"{function.name}, {ast.unparse(node)!r} becomes {what}", swap(changed, target, new)


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
