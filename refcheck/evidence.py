"""Records of measurements: one JSON file per environment, written by `measure`, never by hand.

A record is data.  Reading one runs nothing, and what does not follow from its own rows is refused.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib.util import find_spec
from operator import add, mul, sub, truediv
from pathlib import Path
from typing import Any

from sympy import Add, Expr, Integer, ceiling, expand, symbols

from refcheck import Problem
from refcheck.block import Block
from refcheck.saved import CLASSES, Allocated, Run, Saved, device_bytes, host_bytes, on
from refcheck.sizes import DEVICES, ITEMSIZE
from refcheck.spec import Layer

SCHEMA = 1
COMMIT = r"[0-9a-f]{7,40}(-dirty)?"
ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "evidence"


@dataclass(frozen=True)
class Environment:
    """Where a record was measured."""

    device: str
    torch: str
    cuda: str | None
    gpu: str | None
    driver: str | None
    python: str
    platform: str
    commit: str | None
    date: str

    @property
    def name(self) -> str:
        """The record's file name, without ``.json``; it says what the record is."""
        if self.device == "cpu":
            return f"torch-{self.torch}-cpu"
        suffix = "trace" if self.device == "cuda-trace" else re.sub("[^a-z0-9.]+", "-", (self.gpu or "gpu").lower())
        return f"torch-{self.torch}-cuda{self.cuda}-{suffix}"


@dataclass(frozen=True)
class Row:
    """What one implementation kept in one dtype, and the hash of the layer's module when it was measured."""

    layer: str
    implementation: str
    dtype: str
    source: str
    runs: tuple[Run, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.layer, self.implementation, self.dtype)


@dataclass(frozen=True)
class Missing:
    """A row that this GPU couldn't run, and why: it is too old, say, or its memory was full."""

    layer: str
    implementation: str
    dtype: str
    reason: str

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.layer, self.implementation, self.dtype)


@dataclass(frozen=True)
class Record:
    environment: Environment
    rows: tuple[Row, ...]
    missing: tuple[Missing, ...] = ()

    @cached_property
    def by_key(self) -> dict[tuple[str, str, str], Row]:
        return {row.key: row for row in self.rows}


def here(device: str) -> Environment:
    """The environment that this process measures in."""
    import torch

    gpu = device == "cuda"
    return Environment(
        device=device,
        torch=torch.__version__.partition("+")[0],
        cuda=None if device == "cpu" else torch.version.cuda,
        gpu=torch.cuda.get_device_name() if gpu else None,
        driver=_driver() if gpu else None,
        python=platform.python_version(),
        platform=f"{platform.system()}-{platform.machine()}".lower(),
        commit=commit(),
        date=datetime.now(UTC).date().isoformat(),
    )


def commit() -> str | None:
    """The commit of this checkout, with ``-dirty`` where files differ from it; None where there is no git."""
    return output("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def _driver() -> str | None:
    """The driver's version; containers often lack nvidia-smi, and the kernel knows it too."""
    try:
        module = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        module = ""
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", module)
    return found[0] if found else output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def output(*command: str) -> str | None:
    """The first line that a command prints; None if it fails, is not there, or takes half a minute."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else None


class _Code(ast.NodeTransformer):
    """A module without its prose: docstrings and ``dict(zh=…, en=…)``."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return ast.Constant("prose") if {k.arg for k in node.keywords} == {"zh", "en"} else self.generic_visit(node)


@cache
def source_hash(layer: Layer | Block) -> str:
    """A hash of the layer's module, and of the layers it is made from, that layout, comments and prose don't change."""
    text = "\n".join(ast.unparse(_Code().visit(tree)) for tree in _trees(layer.module).values())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _trees(module: str, seen: Mapping[str, ast.Module] | None = None) -> dict[str, ast.Module]:
    """The code of a layer's module and of the layers that it imports: an instance changes with what it is one of."""
    found = find_spec(module)
    assert found is not None and found.origin is not None
    trees = {**(seen or {}), module: ast.parse(Path(found.origin).read_text(encoding="utf-8"))}
    for node in ast.walk(trees[module]):
        if isinstance(node, ast.ImportFrom) and node.module:
            for other in _followed(node.module, (name.name for name in node.names)):
                if other not in trees:
                    trees = _trees(other, trees)
    return trees


def _followed(module: str, names: Iterable[str]) -> Iterable[str]:
    """The modules of an import that are part of a layer: other layers, blocks, and how tokens are routed to experts."""
    if module in ("refcheck.layers", "refcheck.blocks"):
        return [f"{module}.{name}" for name in names]
    return [module] if module.startswith(("refcheck.layers.", "refcheck.blocks.", "refcheck.routing")) else []


# --- closed forms as text -------------------------------------------------------------------------------------------

_OPERATORS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv}


def parse(text: str) -> Expr:
    """A closed form such as ``2*B*T*D + 8*B*T``: sizes, whole numbers, + - * / ** and ceiling.  Raises ValueError."""

    def value(node: ast.AST) -> Expr:
        match node:
            case ast.BinOp(left, ast.Pow(), ast.Constant(int(power))) if 0 <= power <= 8:
                return value(left) ** power
            case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Constant(int(number)) if abs(number) < 2**63:
                return Integer(number)
            case ast.Name(name) if name.isidentifier() and len(name) < 8:
                return symbols(name, integer=True, positive=True)
            case ast.UnaryOp(ast.USub(), operand):
                return -value(operand)
            case ast.Call(ast.Name("ceiling"), [inner], []):
                return ceiling(value(inner))
        raise ValueError(f"{text!r} is no closed form in the sizes")

    if not re.fullmatch(r"[A-Za-z0-9_ +*/(),-]+", text):  # no second line, no comment
        raise ValueError(f"{text!r} is no closed form in the sizes")
    try:
        form = value(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{text!r} is no closed form in the sizes") from None
    if not form.is_finite:  # divided by 0
        raise ValueError(f"{text!r} is no closed form in the sizes")
    return form


# --- JSON -----------------------------------------------------------------------------------------------------------


def saved_json(saved: Saved) -> dict[str, Any]:
    """A kept storage as the JSON of records and tables shows it."""
    return {
        "name": saved.name,
        "node": saved.node,
        "attr": saved.attr,
        "shape": [str(n) for n in saved.shape],
        "dtype": saved.dtype,
        "bytes": str(expand(saved.nbytes)),
        "class": saved.cls,
        "shared_with": list(saved.shared_with),
    }


def _run_json(run: Run) -> dict[str, Any]:
    allocator = {"allocator": asdict(run.allocator)} if run.allocator else {}
    return {
        "sizes": dict(run.sizes),
        "saved": [saved_json(s) for s in run.saved],
        "bytes": str(expand(device_bytes(run.saved))),
        "host_bytes": str(expand(host_bytes(run.saved))),
        "guards": list(run.guards),
        **allocator,
    }


def to_json(record: Record) -> str:
    rows = [
        {
            "layer": row.layer,
            "implementation": row.implementation,
            "dtype": row.dtype,
            "source": row.source,
            "runs": [_run_json(run) for run in row.runs],
        }
        for row in sorted(record.rows, key=lambda row: row.key)
    ]
    whole: dict[str, Any] = {"schema": SCHEMA, "environment": asdict(record.environment), "rows": rows}
    if record.missing:
        whole["missing"] = [asdict(m) for m in sorted(record.missing, key=lambda m: m.key)]
    if record.environment.device == "cuda":
        whole["digest"] = _digest(whole)
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _digest(whole: Mapping[str, Any]) -> str:
    """Of all that a record says.  It shows an edit, to the GPU's name for one, that leaves everything consistent."""
    text = json.dumps({k: v for k, v in whole.items() if k != "digest"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _take(data: Any, where: str, **types: Any) -> list[Any]:
    """The fields of a JSON object, all of them and no others, each of its type.  Raises ValueError."""
    if not isinstance(data, dict):
        raise ValueError(f"{where} is not an object")
    if missing := set(types) - set(data):
        raise ValueError(f"{where} lacks {', '.join(sorted(missing))}")
    if unknown := set(data) - set(types):
        raise ValueError(f"{where} has unknown fields: {', '.join(sorted(map(repr, unknown)))}")
    for name, kind in types.items():
        if not isinstance(data[name], kind) or (kind is int and isinstance(data[name], bool)):
            raise ValueError(f"{where}: {name} is {data[name]!r:.40}")
    return [data[name] for name in types]


def _read_saved(data: Any, where: str) -> Saved:
    kinds = dict(name=str, node=str, attr=str, shape=list, dtype=str, bytes=str, shared_with=list)
    name, node, attr, shape, dtype, nbytes, shared, cls = _take(data, where, **kinds, **{"class": str})
    where = f"{where} {name!r}"
    if dtype not in ITEMSIZE or cls not in CLASSES:
        raise ValueError(f"{where}: unknown dtype {dtype!r} or class {cls!r}")
    if not all(isinstance(s, str) for s in [*shape, *shared]):
        raise ValueError(f"{where}: shape and shared_with are lists of text")
    if not all(s.isprintable() for s in (name, node, attr, *shared)):
        raise ValueError(f"{where}: a name or a place of it can't be printed")
    return Saved(name, node, attr, tuple(map(parse, shape)), dtype, parse(nbytes), cls, tuple(shared))


def _read_run(data: Any, where: str, device: str) -> Run:
    optional = {name: dict for name in ("allocator",) if isinstance(data, dict) and name in data}
    sizes, saved, nbytes, host, guards, *allocator = _take(
        data, where, sizes=dict, saved=list, bytes=str, host_bytes=str, guards=list, **optional
    )
    read = tuple(_read_saved(s, where) for s in saved)
    run = Run(sizes, read, tuple(map(str, guards)), _read_allocator(allocator[0], where) if allocator else None)
    if run.allocator:
        _closed(run.allocator, on(device, read), device, where)
    for name, total, stated in (
        ("bytes", device_bytes(run.saved), nbytes),
        ("host_bytes", host_bytes(run.saved), host),
    ):
        if expand(total - parse(stated)) != 0:
            raise ValueError(f"{where}: {name} is {stated}, but its own rows add up to {expand(total)}")
    if not all(re.fullmatch("[A-Za-z]", name) and type(n) is int and n > 0 for name, n in sizes.items()):
        raise ValueError(f"{where}: sizes are letters, and whole numbers above 0")
    if not all(isinstance(guard, str) and guard.isprintable() for guard in guards):
        raise ValueError(f"{where}: guards are lines of text")
    return run


def _read_allocator(data: Any, where: str) -> Allocated:
    requested, allocated, *others = _take(data, where, requested=int, allocated=int, outputs=list, leaves=list)
    if not all(type(n) is int and n >= 0 for n in (requested, allocated, *others[0], *others[1])):
        raise ValueError(f"{where}: an allocator counts in whole bytes")
    return Allocated(requested, allocated, *map(tuple, others))


GRAIN = {"cpu": 1, "cuda": 512}  # bytes, to a multiple of which an allocator rounds each block up


def _closed(allocator: Allocated, saved: Iterable[Saved], device: str, where: str) -> None:
    """Raises ValueError unless the ledger closes: what was asked for is saved, an output or a leaf, and rounded up."""
    if device not in GRAIN:
        raise ValueError(f"{where}: {device} has no allocator")
    sizes = [s.nbytes for s in saved]
    if expand(Add(*sizes) - allocator.saved) != 0:
        raise ValueError(f"{where}: of {allocator.requested} bytes {allocator.saved} are saved, not {Add(*sizes)}")
    grain = GRAIN[device]
    least = sum(-(-int(n) // grain) * grain for n in (*sizes, *allocator.outputs, *allocator.leaves))
    if allocator.allocated < least or allocator.allocated % grain:
        raise ValueError(f"{where}: {allocator.allocated} bytes can't have been set aside for all, but {least}")


def _check_key(layer: str, implementation: str, dtype: str) -> None:
    """Raises ValueError for what can't be the name of a row: it is shown where it isn't known."""
    if dtype not in ITEMSIZE or not all(re.fullmatch(ID, name) for name in (layer, implementation)):
        raise ValueError(f"a row is called {layer!r:.40} {implementation!r:.40} {dtype!r:.40}")


def _read_missing(data: Any, device: str) -> Missing:
    missing = Missing(*_take(data, "missing", layer=str, implementation=str, dtype=str, reason=str))
    _check_key(*missing.key)
    if device != "cuda" or not missing.reason.strip():
        raise ValueError(f"{' '.join(missing.key)} is missing, and {device} can run it, or no reason is given")
    return missing


def _read_row(data: Any, n: int, device: str) -> Row:
    layer, implementation, dtype, source, runs = _take(
        data, f"row {n}", layer=str, implementation=str, dtype=str, source=str, runs=list
    )
    where = f"{layer} {implementation} {dtype}"
    _check_key(layer, implementation, dtype)
    if not re.fullmatch(r"[0-9a-f]{16}", source):
        raise ValueError(f"{where}: source is {source!r:.40}, no hash")
    if not runs:
        raise ValueError(f"{where}: no runs")
    return Row(layer, implementation, dtype, source, tuple(_read_run(run, where, device) for run in runs))


# How an environment writes itself; these come out on pages, so that nothing of HTML, Markdown or TeX is let in.
WRITTEN = {
    "torch": r"\d+\.\d+[\w.]*",
    "python": r"\d+\.\d+[\w.+]*",
    "cuda": r"\d+(\.\d+)*",
    "gpu": r"\w[\w ./()+-]*",
    "driver": r"\d[\w.]*",
    "platform": r"\w[\w.-]*",
}
ID = r"[a-z0-9]+([-_][a-z0-9]+)*"  # of a layer or an implementation


def _check(where: Environment) -> None:
    """Raises ValueError for an environment that can't be: no date, no commit, a GPU without one."""
    if where.device not in DEVICES:
        raise ValueError(f"its device is {where.device!r}")
    try:
        datetime.strptime(where.date, "%Y-%m-%d")
    except ValueError:
        raise ValueError(f"its date is {where.date!r}") from None
    if where.commit is not None and not re.fullmatch(COMMIT, where.commit):
        raise ValueError(f"its commit is {where.commit!r}")
    for name, pattern in WRITTEN.items():
        if (value := getattr(where, name)) is not None and not re.fullmatch(pattern, value, re.A):
            raise ValueError(f"its {name} is {value!r}")
    possible = {"cpu": (), "cuda-trace": ("cuda",), "cuda": ("cuda", "gpu", "driver")}[where.device]
    if stray := [n for n in ("cuda", "gpu", "driver") if getattr(where, n) is not None and n not in possible]:
        raise ValueError(f"its device is {where.device}, which has no {stray[0]}")
    needed = {"cpu": (), "cuda-trace": ("cuda",), "cuda": ("cuda", "gpu")}[where.device]
    if lacking := [n for n in needed if getattr(where, n) is None]:
        raise ValueError(f"its device is {where.device}, and it names no {lacking[0]}")


def read(path: Path) -> Record:
    """The record in a file.  Raises `Problem` if it is damaged, foreign, edited or misnamed."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        optional = {n: k for n, k in (("missing", list), ("digest", str)) if isinstance(data, dict) and n in data}
        schema, environment, rows, *_ = _take(data, "the record", schema=int, environment=dict, rows=list, **optional)
        if schema != SCHEMA:
            raise ValueError(f"its schema is {schema}, this version reads {SCHEMA}")
        text = (str, type(None))
        known = {
            f.name: str if f.name in ("device", "torch", "python", "platform", "date") else text
            for f in fields(Environment)
        }
        where = Environment(*_take(environment, "environment", **known))
        _check(where)
        record = Record(
            where,
            tuple(_read_row(row, n, where.device) for n, row in enumerate(rows)),
            tuple(_read_missing(m, where.device) for m in data.get("missing", ())),
        )
        if where.device == "cuda" and data.get("digest") != _digest(data):
            raise ValueError("it isn't as the machine wrote it: its digest is another")
        if where.name != path.stem:
            raise ValueError(f"its environment is that of {where.name}.json")
        keys = [row.key for row in record.rows] + [m.key for m in record.missing]
        if len({*keys}) != len(keys):
            raise ValueError("it has two rows of the same layer, implementation and dtype, or one that is missing too")
    except (ValueError, RecursionError, OSError) as error:
        raise Problem(f"{path}: {error}; restore it from git, or measure again: python -m refcheck measure") from None
    return record


def read_all(folder: Path = FOLDER) -> dict[str, Record]:
    """Every record in the folder, by name."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.json"))}


def merge(old: Record | None, new: Record, keep: Mapping[tuple[str, str, str], Any]) -> Record:
    """`new`, with those rows of `old` that it did not measure and that are still known."""
    rows = {**(old.by_key if old else {}), **new.by_key}
    missing = {m.key: m for m in (*(old.missing if old else ()), *new.missing)}
    return Record(
        new.environment,
        tuple(row for key, row in rows.items() if key in keep and key not in {m.key for m in new.missing}),
        tuple(m for key, m in missing.items() if key in keep and key not in new.by_key),
    )


def same(old: Record, new: Record) -> bool:
    """Whether two records of one environment say the same, whenever and by whatever commit they were made."""
    return all(
        sorted(a, key=lambda entry: entry.key) == sorted(b, key=lambda entry: entry.key)
        for a, b in ((old.rows, new.rows), (old.missing, new.missing))
    )


def write(record: Record, folder: Path = FOLDER) -> Path:
    """Writes the record whole, or leaves the old one as it was.  Raises `Problem`."""
    path = folder / f"{record.environment.name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace(path, to_json(record))
    except OSError as error:
        raise Problem(f"can't write {path}: {error.strerror}; make the folder writable and measure again") from None
    return path


@contextmanager
def locked(folder: Path = FOLDER) -> Iterator[None]:
    """Lets one process at a time read, merge and write the records of a folder; the others wait.

    The lock is on the folder itself: no file is left behind, and it ends with the process, however that ends.
    """
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise Problem(f"can't open {folder}: {error.strerror}; make it a folder that can be written to") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems; what is measured must not be lost for that
            print(f"{folder} can't be locked: {error.strerror}; let no other measurement write to it", file=sys.stderr)
        yield
    finally:
        os.close(handle)


def replace(path: Path, text: str) -> None:
    """Puts `text` at `path` in one step, whatever interrupts it; a device or a pipe is written to, not replaced."""
    path = path.resolve()  # through a link, to what it names
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
