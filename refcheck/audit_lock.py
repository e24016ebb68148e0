"""A lock: what an audit found, kept in the reader's project, so that a change of what is saved fails their CI."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from refcheck import Problem
from refcheck.book import UNCOUNTED, Entry, Ledger
from refcheck.evidence import replace

SCHEMA = 1
FIELDS: dict[str, Any] = {
    "module": str,
    "holders": list,
    "class": str,
    "dtype": str,
    "shape": list,
    "storage_bytes": int,
}
HEAD: dict[str, Any] = {"schema": int, "torch": str, "target": str, "arguments": dict, "inputs": list, "device": str}
HEAD |= {"dtype": str, "nbytes": int, "host_nbytes": int, "saved": list}

Line = tuple[str, tuple[str, ...], str, str, tuple[int, ...], int]  # as in FIELDS


@dataclass(frozen=True)
class Lock:
    """A lock as read: what to audit, and what was found."""

    torch: str
    target: str
    arguments: Mapping[str, Any]
    inputs: tuple[str, ...]
    device: str
    dtype: str
    nbytes: int
    saved: tuple[Line, ...]


def write(path: Path, led: Ledger, target: str, arguments: Mapping[str, Any], inputs: list[str]) -> None:
    """Writes a lock whole, or leaves the old one as it was.  Raises `Problem`."""
    facts = {
        "schema": SCHEMA,
        "torch": torch.__version__.partition("+")[0],
        "target": target,
        "arguments": dict(arguments),
        "inputs": inputs,
        "device": led.device,
        "dtype": led.dtype,
        "nbytes": led.nbytes,
        "host_nbytes": led.host_nbytes,
        "saved": [dict(zip(FIELDS, line, strict=True)) for line in lines(led)],
    }
    try:
        replace(path, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise Problem(f"can't write {path}: {error.strerror}; name a file in a folder that exists") from None


def read(path: Path) -> Lock:
    """The lock in a file.  Raises `Problem` if it is missing, damaged or edited."""
    try:
        data = _take(json.loads(path.read_text(encoding="utf-8")), "the lock", HEAD)
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']}, this version reads {SCHEMA}")
        saved = tuple(_line(_take(line, "a saved storage", FIELDS)) for line in data["saved"])
    except (ValueError, OSError, RecursionError) as error:
        raise Problem(f"{path}: {error}; write it again with: python -m refcheck audit … --write {path}") from None
    names = ("torch", "target", "arguments", "device", "dtype", "nbytes")
    return Lock(**{name: data[name] for name in names}, inputs=tuple(data["inputs"]), saved=saved)


def _take(data: Any, where: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(data, dict) or data.keys() != kinds.keys():
        raise ValueError(f"{where} does not have the fields {', '.join(kinds)}")
    for name, kind in kinds.items():
        if not isinstance(data[name], kind) or isinstance(data[name], bool):
            raise ValueError(f"{where}: {name} is {data[name]!r:.40}")
    return data


def _line(data: Mapping[str, Any]) -> Line:
    holders, shape = tuple(map(str, data["holders"])), tuple(map(int, data["shape"]))
    return (data["module"], holders, data["class"], data["dtype"], shape, data["storage_bytes"])


def lines(led: Ledger) -> list[Line]:
    """What a lock compares: every storage but parameters and Python numbers, in an order of its own."""
    return sorted(_entry_line(e) for e in led.entries if e.cls not in UNCOUNTED)


def _entry_line(e: Entry) -> Line:
    holders = tuple(sorted([e.holder, *e.shared_with]))
    return (e.module, holders, e.cls, e.dtype, tuple(map(int, e.shape)), int(e.storage_bytes))


def differences(lock: Lock, led: Ledger) -> Iterator[str]:
    """What appeared and what is gone since the lock was written, and the sum."""
    then, now = Counter(lock.saved), Counter(lines(led))
    for line, n in sorted((then - now).items()):
        yield _difference("gone", "-", line, n)
    for line, n in sorted((now - then).items()):
        yield _difference("appeared", "+", line, n)
    if led.nbytes != lock.nbytes:
        yield f"in all: {lock.nbytes:,} -> {led.nbytes:,} bytes on {led.device}"


def _difference(what: str, sign: str, line: Line, n: int) -> str:
    module, holders, cls, dtype, shape, nbytes = line
    place = f" in {module}" if module else ""
    return f"{', '.join(holders)} {what}{place}: {cls} {dtype} {shape}, {sign} {n * nbytes:,} bytes"
