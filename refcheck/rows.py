"""The table for programs: one row per layer, implementation, environment and dtype, as JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from sympy import expand

from refcheck import check
from refcheck.block import Block
from refcheck.blocks import BLOCKS
from refcheck.evidence import Record, read_all, saved_json
from refcheck.layers import LAYERS
from refcheck.saved import device_bytes, host_bytes
from refcheck.sizes import DEVICES, DTYPES
from refcheck.spec import Layer, Measured, absence, claim

EVERY: tuple[Layer | Block, ...] = (*LAYERS, *BLOCKS)


@cache
def records() -> dict[str, Record]:
    """The committed records, read once in a process."""
    return read_all()


@cache
def supported(layer: Layer | Block) -> dict[str, tuple[str, ...]]:
    """For each device the names of the records that hold this layer and agree with its claims."""
    found: dict[str, list[str]] = {device: [] for device in DEVICES}
    for name, record in records().items():
        if any(row.layer == layer.id for row in record.rows) and not list(check.check_record(record, [layer], EVERY)):
            found[record.environment.device].append(name)
    return {device: tuple(names) for device, names in found.items()}


def behind(layer: Layer | Block, implementation: Measured, device: str, dtype: str) -> list[str]:
    """Of those records, the ones that have this row: a torch can lack it, and a GPU be unable to run it."""
    names = supported(layer)[device]
    return [n for n in names if check.key(layer, implementation, dtype) in records()[n].by_key]


def rows(
    layers: Iterable[Layer | Block] = EVERY, devices: Iterable[str] = DEVICES, dtypes: Iterable[str] = DTYPES
) -> Iterator[dict[str, Any]]:
    """One row per layer, implementation, environment and dtype: needed, saved, bytes, and the records that agree."""
    devices, dtypes = tuple(devices), tuple(dtypes)
    for layer in layers:
        for implementation in layer.implementations:
            for dtype in dtypes:
                for device in devices:
                    yield _row(layer, implementation, device, dtype)


def _row(layer: Layer | Block, implementation: Measured, device: str, dtype: str) -> dict[str, Any]:
    """A row; where the implementation can't run, `absent` says why, and nothing is claimed."""
    absent = absence(implementation, device, dtype)
    saved = () if absent else claim(implementation, device, dtype)
    return {
        "layer": layer.id,
        "implementation": implementation.id,
        "environment": device,
        "dtype": dtype,
        "needed": [] if absent else list(implementation.needed(device)),
        "saved": [saved_json(s) for s in saved],
        "bytes": None if absent else str(expand(device_bytes(saved))),
        "host_bytes": None if absent else str(expand(host_bytes(saved))),
        "measured": [] if absent else behind(layer, implementation, device, dtype),
        "absent": absent,
    }


def as_csv(found: Iterable[Mapping[str, Any]]) -> str:
    """The rows as CSV, one line each, the saved tensors in one cell."""
    text = io.StringIO()
    columns = [
        "layer",
        "implementation",
        "environment",
        "dtype",
        "needed",
        "saved",
        "bytes",
        "host_bytes",
        "measured",
        "absent",
    ]
    out = csv.DictWriter(text, columns, lineterminator="\n")
    out.writeheader()
    for row in found:
        saved = [f"{s['name']} ({', '.join(s['shape'])}) {s['dtype']}" for s in row["saved"]]
        joined = {"needed": "; ".join(row["needed"]), "saved": "; ".join(saved), "measured": "; ".join(row["measured"])}
        out.writerow({**row, **joined})
    return text.getvalue()
