"""One line for each row while it is measured: a table that grows, and shows how far it is."""

from __future__ import annotations

from collections.abc import Iterator

from refcheck.evidence import Row
from refcheck.measure import SIZES
from refcheck.saved import ON_DEVICE, device_bytes, on
from refcheck.sizes import at_sizes
from refcheck.spec import Measured, claim

NUMBERS = ("claimed", "measured", "allocator", "in use", "set aside")


def header(device: str) -> Iterator[str]:
    """What the columns say, in bytes at the first sizes; where CUDA is traced there are no bytes yet."""
    if device == "cuda-trace":
        return
    yield f"{device}: bytes kept, at the first of {len(SIZES)} sizes: as claimed, as measured, as the allocator counts;"
    yield "then all that it has in use, with parameters, leaves and outputs, and what it has set aside for that."
    yield _columns("", "", *NUMBERS, "verdict")


def line(device: str, place: str, implementation: Measured, row: Row, drifts: int) -> str:
    """A row that was measured: how many bytes, and whether all agree at every size."""
    verdict = f"DRIFT ({drifts})" if drifts else "holds"
    name = f"{row.layer} {row.implementation} {row.dtype}"
    run = row.runs[0]
    if run.allocator is None:
        return f"{place} {device}: {name}: {verdict}"
    claimed = at_sizes(device_bytes(claim(implementation, device, row.dtype)), run.sizes)
    besides = sum(int(s.nbytes) for s in on(device, run.saved) if s.cls not in ON_DEVICE)
    numbers = (
        claimed,
        int(device_bytes(run.saved)),
        run.allocator.saved - besides,
        run.allocator.requested,
        run.allocator.allocated,
    )
    closed = sum(r.allocator is not None for r in row.runs)
    return _columns(place, name, *(f"{n:,}" for n in numbers), f"{verdict}, closed at {closed} of {len(row.runs)}")


def _columns(place: str, name: str, *cells: str) -> str:
    *numbers, verdict = cells
    return f"{place:>9} {name:<47}" + "".join(f"{n:>11}" for n in numbers) + f"  {verdict}"
