"""What the records say of versions of PyTorch: which rows are kept alike in all of them, and which a version lacks.

Every record is compared with the same claims, so a row that differs from one version to the next is a drift and fails
`python -m refcheck check`; a version that can't run a row must be named beside its claim, as ``"torch<2.13"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from refcheck.block import Block
from refcheck.blocks import BLOCKS
from refcheck.evidence import Record, Row
from refcheck.layers import LAYERS
from refcheck.notation import table
from refcheck.rows import records
from refcheck.saved import Saved
from refcheck.sizes import DTYPES
from refcheck.spec import Layer, absence
from refcheck.words import VERSIONS

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Version:
    """A record beside the newest of its kind of device: rows alike, rows that differ, what only one can run."""

    record: str
    torch: str
    device: str
    rows: int
    alike: int
    differ: tuple[Key, ...]
    lacks: Mapping[tuple[str, str], str]  # (layer, implementation) -> why this version can't run it


def compare(known: Mapping[str, Record], layers: Iterable[Layer | Block]) -> list[Version]:
    """Of each record, oldest first, how it compares with the newest on the same kind of device."""
    layers = tuple(layers)
    newest = {r.environment.device: r for r in sorted(known.values(), key=_age)}
    return [
        _compared(name, record, newest[record.environment.device], layers)
        for name, record in sorted(known.items(), key=lambda item: (item[1].environment.device, _age(item[1])))
    ]


def _age(record: Record) -> tuple[int, ...]:
    return tuple(int(n) for n in record.environment.torch.partition("+")[0].split("."))


def _compared(name: str, record: Record, newest: Record, layers: Iterable[Layer | Block]) -> Version:
    where = record.environment
    both = [key for key in record.by_key if key in newest.by_key]
    differ = tuple(key for key in both if _kept(record.by_key[key]) != _kept(newest.by_key[key]))
    dtype = DTYPES[0]
    lacks = {
        (layer.id, i.id): why
        for layer in layers
        for i in layer.implementations
        if (why := absence(i, where.device, dtype, where.torch))
        and absence(i, where.device, dtype, newest.environment.torch) is None
    }
    return Version(name, where.torch, where.device, len(record.rows), len(both) - len(differ), differ, lacks)


def _kept(row: Row) -> list[tuple[dict[str, int], set[Saved]]]:
    """What each run kept, whatever order it was found in."""
    return [(dict(run.sizes), {*run.saved}) for run in row.runs]


# --- for the page ----------------------------------------------------------------------------------------------------


def versions(lang: str) -> str:
    """Each record: its version of torch, its rows, how many are kept just as in the newest version, and which not."""
    words = VERSIONS[lang]
    body = []
    for v in compare(records(), (*LAYERS, *BLOCKS)):
        css = {"cpu": "cpu", "cuda-trace": "trace", "cuda": "gpu"}[v.device]
        differ = ", ".join(f"`{' '.join(key)}`" for key in v.differ) or "0"
        where = f'<span class="env {css}">{v.device}</span>'
        file = f"[`{v.record}.json`](evidence/{v.record}.json)"
        body.append([v.torch, where, str(v.rows), str(v.alike), differ, str(len(v.lacks)), file])
    heads = [words[w] for w in ("version", "environment", "rows", "alike", "differ", "lacks", "record")]
    return table(heads, body, right=(2, 3, 4, 5))


def lacking(lang: str) -> str:
    """Each implementation that some version can't run, in which versions, and why."""
    words, found = VERSIONS[lang], dict[tuple[str, str, str], list[str]]()
    for v in compare(records(), (*LAYERS, *BLOCKS)):
        for (layer, implementation), why in v.lacks.items():
            found.setdefault((layer, implementation, why), []).append(v.torch)
    titles = {layer.id: layer.title[lang] for layer in LAYERS}
    body = [
        [f"[{titles[layer]}](layers/{layer}.md)", f"`{implementation}`", ", ".join(where), words[why]]
        for (layer, implementation, why), where in found.items()
    ]
    return table([words[w] for w in ("layer", "implementation", "in", "why")], body)
