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
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from operator import add, mul, sub
from pathlib import Path
from typing import Any

from sympy import Expr, Integer, expand, symbols

from refcheck import Problem
from refcheck.block import Block
from refcheck.saved import CLASSES, Run, Saved, device_bytes, host_bytes
from refcheck.sizes import DEVICES, ITEMSIZE
from refcheck.spec import Layer

SCHEMA = 1
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
        suffix = "trace" if self.device == "cuda-trace" else (self.gpu or "gpu").lower().replace(" ", "-")
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
class Record:
    environment: Environment
    rows: tuple[Row, ...]

    @property
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
        driver=_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if gpu else None,
        python=platform.python_version(),
        platform=f"{platform.system()}-{platform.machine()}".lower(),
        commit=_output("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"),
        date=datetime.now(UTC).date().isoformat(),
    )


def _output(*command: str) -> str | None:
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
    """A hash of the layer's module that layout, comments and prose don't change."""
    found = find_spec(layer.module)
    assert found is not None and found.origin is not None
    text = ast.unparse(_Code().visit(ast.parse(Path(found.origin).read_text(encoding="utf-8"))))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- closed forms as text -------------------------------------------------------------------------------------------

_OPERATORS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul}


def parse(text: str) -> Expr:
    """A closed form such as ``2*B*T*D + 8*B*T``: sizes, whole numbers, + - * and **.  Raises ValueError."""

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
        raise ValueError(f"{text!r} is no closed form in the sizes")

    try:
        return value(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{text!r} is no closed form in the sizes") from None


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
    return {
        "sizes": dict(run.sizes),
        "saved": [saved_json(s) for s in run.saved],
        "bytes": str(expand(device_bytes(run.saved))),
        "host_bytes": str(expand(host_bytes(run.saved))),
        "guards": list(run.guards),
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
    whole = {"schema": SCHEMA, "environment": asdict(record.environment), "rows": rows}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


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
    return Saved(name, node, attr, tuple(map(parse, shape)), dtype, parse(nbytes), cls, tuple(shared))


def _read_run(data: Any, where: str) -> Run:
    sizes, saved, nbytes, host, guards = _take(
        data, where, sizes=dict, saved=list, bytes=str, host_bytes=str, guards=list
    )
    run = Run(sizes, tuple(_read_saved(s, where) for s in saved), tuple(map(str, guards)))
    for name, total, stated in (
        ("bytes", device_bytes(run.saved), nbytes),
        ("host_bytes", host_bytes(run.saved), host),
    ):
        if expand(total - parse(stated)) != 0:
            raise ValueError(f"{where}: {name} is {stated}, but its own rows add up to {expand(total)}")
    if not all(isinstance(n, int) and n > 0 for n in sizes.values()):
        raise ValueError(f"{where}: sizes are whole numbers above 0")
    return run


def _read_row(data: Any, n: int) -> Row:
    layer, implementation, dtype, source, runs = _take(
        data, f"row {n}", layer=str, implementation=str, dtype=str, source=str, runs=list
    )
    where = f"{layer} {implementation} {dtype}"
    if not runs:
        raise ValueError(f"{where}: no runs")
    return Row(layer, implementation, dtype, source, tuple(_read_run(run, where) for run in runs))


def _check(where: Environment) -> None:
    """Raises ValueError for an environment that can't be: no date, no commit, a GPU without one."""
    if where.device not in DEVICES:
        raise ValueError(f"its device is {where.device!r}")
    try:
        datetime.strptime(where.date, "%Y-%m-%d")
    except ValueError:
        raise ValueError(f"its date is {where.date!r}") from None
    if where.commit is not None and not re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", where.commit):
        raise ValueError(f"its commit is {where.commit!r}")
    for name in ("torch", "python"):
        if not re.match(r"\d+\.\d+", getattr(where, name)):
            raise ValueError(f"its {name} is {getattr(where, name)!r}")
    possible = {"cpu": (), "cuda-trace": ("cuda",), "cuda": ("cuda", "gpu", "driver")}[where.device]
    if stray := [n for n in ("cuda", "gpu", "driver") if getattr(where, n) is not None and n not in possible]:
        raise ValueError(f"its device is {where.device}, which has no {stray[0]}")
    if where.device == "cuda" and where.gpu is None:
        raise ValueError("its device is cuda, and it names no gpu")


def read(path: Path) -> Record:
    """The record in a file.  Raises `Problem` if it is damaged, foreign, edited or misnamed."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        schema, environment, rows = _take(data, "the record", schema=int, environment=dict, rows=list)
        if schema != SCHEMA:
            raise ValueError(f"its schema is {schema}, this version reads {SCHEMA}")
        text = (str, type(None))
        known = {
            f.name: str if f.name in ("device", "torch", "python", "platform", "date") else text
            for f in fields(Environment)
        }
        where = Environment(*_take(environment, "environment", **known))
        record = Record(where, tuple(_read_row(row, n) for n, row in enumerate(rows)))
        _check(where)
        if where.name != path.stem:
            raise ValueError(f"its environment is that of {where.name}.json")
        if len(record.by_key) != len(rows):
            raise ValueError("it has two rows of the same layer, implementation and dtype")
    except (ValueError, RecursionError, OSError) as error:
        raise Problem(f"{path}: {error}; restore it from git, or measure again: python -m refcheck measure") from None
    return record


def read_all(folder: Path = FOLDER) -> dict[str, Record]:
    """Every record in the folder, by name."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.json"))}


def merge(old: Record | None, new: Record, keep: Mapping[tuple[str, str, str], Any]) -> Record:
    """`new`, with those rows of `old` that it did not measure and that are still known."""
    rows = {**(old.by_key if old else {}), **new.by_key}
    return Record(new.environment, tuple(row for key, row in rows.items() if key in keep))


def write(record: Record, folder: Path = FOLDER) -> Path:
    """Writes the record whole, or leaves the old one as it was.  Raises `Problem`."""
    path = folder / f"{record.environment.name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace(path, to_json(record))
    except OSError as error:
        raise Problem(f"can't write {path}: {error.strerror}; make the folder writable and measure again") from None
    return path


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
