"""Records: every number, shape and word of every row changed. Reading it, or comparing it with the claims, must fail.

What no claim speaks of (the sizes at which a row with nothing kept was measured, a guard) only measuring again can
see. For the newest torch the row as it is committed stands in for that: tests/test_check.py has it measured again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from refcheck import Problem, check, evidence, origin
from refcheck.blocks import BLOCKS
from refcheck.evidence import FOLDER, ROOT, Record, Row
from refcheck.layers import LAYERS
from refcheck.saved import CLASSES
from refcheck.spec import Layer
from tests.mutate.mutant import Group, Mutant

EVERY = (*LAYERS, *BLOCKS)


def groups() -> Iterator[Group]:
    records = evidence.read_all()
    newest = max((r.environment.torch for r in records.values()), key=lambda v: [int(n) for n in v.split(".")])
    for name, record in records.items():
        file = (FOLDER / f"{name}.json").relative_to(ROOT).as_posix()
        fresh = record.environment.torch == newest
        for layer in EVERY:
            yield Group(layer.id, "record", (file,), partial(_rows, layer, record, fresh))
        yield Group(name, "record", (file,), partial(_environment, record))


def _rows(layer: Layer, record: Record, fresh: bool) -> Iterator[Mutant]:
    name = record.environment.name
    for row in (row for row in record.rows if row.layer == layer.id):
        data = json.loads(evidence.to_json(Record(record.environment, (row,))))["rows"][0]
        where = f"{name} {' '.join(row.key)}"
        for field in ("layer", "implementation", "dtype", "source"):
            changed = {**data, field: f"{data[field]}x"}
            caught = partial(_foreign, record, changed, row)
            yield Mutant("record", where, f"{field} {data[field]}x", (row.layer, name), caught)
        for n, run in enumerate(data["runs"]):
            for what, changed in changes(run):
                caught = partial(_drift, layer, record, {**data, "runs": [changed]}, row, n, fresh)
                yield Mutant("record", f"{where} run {n}", what, (row.layer, row.implementation, row.dtype), caught)


def changes(run: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what was changed, the run with that one thing changed)."""
    for size, n in run["sizes"].items():
        yield f"{size} = {n + 1}", {**run, "sizes": {**run["sizes"], size: n + 1}}
    for total in ("bytes", "host_bytes"):
        yield f"{total} + 1", {**run, total: f"{run[total]} + 1"}
    yield "a guard", {**run, "guards": [*run["guards"], "B = 2"]}
    for n, s in enumerate(run["saved"]):

        def with_(*new: dict[str, Any], n: int = n) -> dict[str, Any]:
            return {**run, "saved": [*run["saved"][:n], *new, *run["saved"][n + 1 :]]}

        def counted(of: str, changed: dict[str, Any]) -> dict[str, Any]:
            """With the totals of a run changed by as much, so that it adds up."""
            return {**changed, **{t: f"{changed[t]} {of}" for t in ("bytes", "host_bytes")}}

        name = s["name"]
        yield f"{name} dropped", with_()
        yield f"{name} twice", with_(s, s)
        for field in ("name", "node", "attr"):
            yield f"{name} {field}", with_({**s, field: f"{s[field]}x"})
        for axis, length in enumerate(s["shape"]):
            longer = [*s["shape"][:axis], f"{length} + 1", *s["shape"][axis + 1 :]]
            yield f"{name} axis {axis}", with_({**s, "shape": longer})
        yield f"{name} an axis more", with_({**s, "shape": [*s["shape"], "2"]})
        yield f"{name} bytes", with_({**s, "bytes": f"{s['bytes']} + 1"})
        yield f"{name} bytes, totals too", counted("+ 1", with_({**s, "bytes": f"{s['bytes']} + 1"}))
        yield f"{name} dtype", with_({**s, "dtype": "int64" if s["dtype"] != "int64" else "uint64"})
        yield f"{name} class", with_({**s, "class": CLASSES[CLASSES.index(s["class"]) - 1]})
        yield f"{name} holders", with_({**s, "shared_with": s["shared_with"][1:] or ["elsewhere"]})


def _drift(layer: Layer, record: Record, data: dict[str, Any], row: Row, n: int, fresh: bool) -> str:
    """What is said of a row with its run `n` changed to the one run of `data`."""
    try:
        one = evidence._read_row(data, 0)
    except ValueError as error:
        return str(error)
    implementation = next(i for i in layer.implementations if i.id == row.implementation)
    where, changed = record.environment, replace(row, runs=(*row.runs[:n], *one.runs, *row.runs[n + 1 :]))
    seen = chain(
        check.against_claim(layer, implementation, where.device, one, where.name),
        check.against_sizes(implementation, where.device, changed, where.name),
        check.against_record(row, Record(where, (changed,)), where.device) if fresh else (),
    )
    return next(map(str, seen), "")


def _foreign(record: Record, data: dict[str, Any], row: Row) -> str:
    """A row under another key or hash: `check_record` of its layer's one row."""
    try:
        changed = evidence._read_row(data, 0)
    except ValueError as error:
        return str(error)
    layer = next(x for x in EVERY if x.id == row.layer)
    only = replace(record, rows=(changed,))
    known = [x for x in EVERY if x.id == row.layer]
    ours = {(row.layer, row.implementation), (changed.layer, changed.implementation)}
    drifts = (d for d in check.check_record(only, [layer], known) if (d.layer, d.implementation) in ours)
    return next((str(d) for d in drifts if d.dtype in (row.dtype, changed.dtype)), "")


def _environment(record: Record) -> Iterator[Mutant]:
    small = replace(record, rows=record.rows[:1])
    impossible = dict(
        device="tpu", torch="2.0.0", cuda="11.1", gpu="H200", driver="580.1", python="none", commit="good"
    )
    plausible = dict(python="3.9.1", platform="linux-other", commit="0123456789ab")
    dates = [("date", date) for date in ("soon", "2026-13-01", "2020-01-01", "2199-01-01")]
    for field, value in (*impossible.items(), *plausible.items(), *dates):
        data = json.loads(evidence.to_json(small))
        data["environment"][field] = value
        where = record.environment.name
        yield Mutant("environment", where, f"{field} = {value}", (where, field), partial(_refused, data, where))


def _refused(data: dict[str, Any], name: str) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.json"
        path.write_text(json.dumps(data), encoding="utf-8")
        try:
            record = evidence.read(path)
        except Problem as problem:
            return str(problem)
        return next((str(d) for d in origin.check_origin(record)), "")
