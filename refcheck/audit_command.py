"""The command ``audit``: finds the reader's code, runs it, and shows, writes or checks its ledger."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from refcheck import Problem

ABOUT = "say what PyTorch keeps for the backward of your own code"
TARGET = "FILE.py:function or package.module:Class: a function(device, dtype, …) -> (outputs, params), or a module"

PATHS = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION", "math": "MATH"}


def add_parser(commands: Any, devices: Iterable[str], dtypes: Iterable[str]) -> None:
    """Adds the sub-parser; `run` is what `__main__` calls."""
    parser = commands.add_parser("audit", help=ABOUT, description=ABOUT)
    parser.set_defaults(run=run)
    parser.add_argument("target", nargs="?", metavar="TARGET", help=f"{TARGET}; that of the lock, with --check")
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="an argument; may be repeated")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SHAPE[:DTYPE]",
        help="an input of a module's forward, as in 2,16,64 or 2,16:int64 or B,T,64 with --arg B=2; may be repeated",
    )
    parser.add_argument("--device", choices=tuple(devices), help="cuda-trace, if not given")
    parser.add_argument("--dtype", choices=tuple(dtypes), help="bfloat16, if not given")
    parser.add_argument(
        "--attention", choices=PATHS, help="the path of scaled_dot_product_attention: without a GPU none is chosen"
    )
    parser.add_argument(
        "--symbolic",
        metavar="NAME,NAME",
        help="arguments that become symbols on cuda-trace: bytes as closed forms in them",
    )
    parser.add_argument(
        "--layers", metavar="NAME", help="the argument that counts layers: run it at 1, 2 and 3, say bytes as a*L + c"
    )
    parser.add_argument("--strict", action="store_true", help="stop where another run than the one asked for was seen")
    parser.add_argument("--json", metavar="FILE", help="write the ledger as JSON; - for standard output")
    parser.add_argument("--html", metavar="FILE", help="write the ledger as one HTML file with a treemap")
    lock = parser.add_mutually_exclusive_group()
    lock.add_argument("--write", metavar="LOCK", help="write what is saved to a lock file")
    lock.add_argument("--check", metavar="LOCK", help="fail if what is saved differs from the lock file")


def run(args: argparse.Namespace) -> int:
    """Runs the audit; 0, or 1 if it differs from the lock.  Raises `Problem`."""
    from refcheck import audit, audit_html, audit_lock, depth

    if args.layers and (args.write or args.check or args.html):
        raise Problem("--layers says how bytes grow with depth: audit without it for --write, --check or --html")
    lock = audit_lock.read(Path(args.check)) if args.check else None
    target = args.target or (lock.target if lock else None)
    if not target:
        raise Problem(f"nothing to audit: name {TARGET}")
    arguments = dict(map(_argument, args.arg)) or (dict(lock.arguments) if lock else {})
    inputs = args.input or (list(lock.inputs) if lock else [])
    device = args.device or (lock.device if lock else "cuda-trace")
    dtype = args.dtype or (lock.dtype if lock else "bfloat16")
    symbolic = args.symbolic.split(",") if args.symbolic else []
    case = _case(_load(target), target, inputs)
    _accepts(case, target, arguments)
    if args.json != "-":
        print(f"running {target} on {device} in {dtype}", file=sys.stderr, flush=True)
    if args.layers:
        with _attention(args.attention):
            found = depth.by_depth(
                case, args.layers, device, dtype, arguments=arguments, strict=args.strict, symbolic=symbolic
            )
        _put(args.json, found.to_json())
        if args.json != "-":
            print(found)
        return 0
    with _attention(args.attention):
        led = audit.record(case, device, dtype, arguments=arguments, strict=args.strict, symbolic=symbolic)
    _put(args.json, led.to_json())
    if args.html:
        _put(args.html, audit_html.page(led, f"{target}, {device}, {dtype}"))
    if args.write:
        audit_lock.write(Path(args.write), led, target, arguments, inputs)
    if args.json != "-":
        print(led)
    if lock is None:
        return 0
    drifts = list(audit_lock.differences(lock, led))
    for drift in drifts:
        print(f"DRIFT {drift}", file=sys.stderr if args.json == "-" else sys.stdout)
    if drifts:
        given = [*(f"--arg {n}={v!r}" for n, v in arguments.items()), *(f"--input {i}" for i in inputs)]
        again = " ".join(["python -m refcheck audit", target, *given, "--write", args.check])
        print(f"refcheck: {args.check} was written with torch {lock.torch}; if this is meant: {again}", file=sys.stderr)
    return 1 if drifts else 0


def _attention(path: str | None) -> AbstractContextManager[None]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(getattr(SDPBackend, PATHS[path])) if path else nullcontext()


def _put(path: str | None, text: str) -> None:
    from refcheck.evidence import replace

    if path == "-":
        print(text, end="")
    elif path:
        try:
            replace(Path(path), text)
        except OSError as error:
            raise Problem(
                f"can't write {path}: {error.strerror}; name a file in a folder that exists and is writable"
            ) from None


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise Problem(f"--arg {text!r} is not NAME=VALUE, as in --arg B=4")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _load(target: str) -> Any:
    """The object that a target names.  Raises `Problem`."""
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise Problem(f"{target!r} names nothing: give {TARGET}")
    try:
        module = _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    except Problem:
        raise
    except Exception as error:
        raise Problem(f"{where} can't be imported: {type(error).__name__}: {error}") from error
    if not callable(found := getattr(module, name, None)):
        what = "is no function or class" if hasattr(module, name) else "is not there"
        raise Problem(f"{target}: {name} {what}; {where} has {_names(module)}")
    return found


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise Problem(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> Any:
    sys.path.insert(0, "")
    return importlib.import_module(name)


def _names(module: Any) -> str:
    own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
    return ", ".join(own[:8]) or "none of its own"


def _case(found: Any, target: str, inputs: list[str]) -> Callable[..., Any]:
    """A case as `audit.record` takes it: the function itself, or a module's class run on inputs of the given shapes."""
    import torch

    if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
        if inputs:
            raise Problem(f"--input is for the class of a module, and {target} is none: let it make its own inputs")
        return found
    if not inputs:
        raise Problem(f"{target} is a module: say what its forward gets, as in --input 2,16,64 or --input 2,16:int64")
    given = [_shape(text) for text in inputs]
    names = list(dict.fromkeys(n for shape, _ in given for n in shape if isinstance(n, str)))

    def case(device: Any, dtype: Any, **arguments: Any) -> Any:
        sizes = {name: arguments.pop(name) for name in names}
        module = found(**arguments).to(device=device, dtype=dtype)
        shapes = ((tuple(sizes[n] if isinstance(n, str) else n for n in shape), kind) for shape, kind in given)
        return module(*(_tensor(shape, kind or dtype, device) for shape, kind in shapes)), module

    case.__name__ = found.__name__
    case.__signature__ = _signature(found, names)  # type: ignore[attr-defined]
    return case


def _shape(text: str) -> tuple[tuple[int | str, ...], Any]:
    """Lengths, or the names of sizes, and the dtype of an input."""
    import torch

    sizes, _, kind = text.partition(":")
    dtype = getattr(torch, kind, None) if kind else None
    try:
        shape = tuple(n if n.isidentifier() else int(n) for n in map(str.strip, sizes.split(",")))
    except ValueError:
        shape = (-1,)
    if any(isinstance(n, int) and n < 0 for n in shape) or (kind and not isinstance(dtype, torch.dtype)):
        raise Problem(f"--input {text!r} is not SHAPE or SHAPE:DTYPE, as in 2,16,64 or 2,16:int64")
    return shape, dtype


def _tensor(shape: tuple[Any, ...], dtype: Any, device: Any) -> Any:
    """Random numbers that require grad, as within a model; zeros where the dtype has no gradient."""
    import torch

    if dtype.is_floating_point:
        return torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    return torch.zeros(shape, device=device, dtype=dtype)


def _signature(found: Any, names: Iterable[str]) -> inspect.Signature:
    """What a module's class takes, after the device and dtype that every case takes, and the named sizes of inputs.

    Raises `Problem` if the class takes an argument of such a name.
    """
    first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("device_", "dtype_")]
    own = [p.replace(kind=p.kind) for p in inspect.signature(found).parameters.values()]
    keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    own = [p if p.kind in keyword else p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p.kind != 2]
    if taken := {p.name for p in own}.intersection(names):
        raise Problem(f"{found.__name__} itself takes {', '.join(sorted(taken))}: name the size of the input otherwise")
    sizes = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    return inspect.Signature([*first, *sizes, *own])


def _accepts(case: Callable[..., Any], target: str, arguments: dict[str, Any]) -> None:
    """Raises `Problem` if the case can't be called so."""
    try:
        inspect.signature(case).bind("cpu", None, **arguments)
    except TypeError as error:
        raise Problem(f"{target} can't be called with device, dtype and {arguments or 'no --arg'}: {error}") from None
    except ValueError:  # no signature to be had
        return
