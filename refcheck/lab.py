"""What the lab notebooks share: on which device they run, and a plot of what is claimed and what is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import torch

from refcheck.audit import record
from refcheck.layers import claimed

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def sweep(layer: str, implementation: str, case: Callable[..., Any], dtype: str, **sizes: int | Sequence[int]) -> None:
    """Runs ``case(device, dtype, **sizes)`` once for each value of the one size that is a list, and plots the bytes.

    Raises AssertionError where what is measured is not what is claimed.
    """
    (name,) = (n for n, v in sizes.items() if not isinstance(v, int))
    values = list(sizes.pop(name))  # type: ignore[arg-type]
    expected, found = [], []
    for value in values:
        at: dict[str, Any] = {**sizes, name: value}
        expected.append(claimed(layer, implementation, DEVICE, dtype, **at))
        found.append(record(partial(case, **at), DEVICE, dtype).nbytes)
        verdict = "=" if expected[-1] == found[-1] else "≠"
        print(f"{name} = {value:>5}: claimed {expected[-1]:>12,} {verdict} {found[-1]:>12,} bytes measured on {DEVICE}")
    _plot(name, values, expected, found)
    assert expected == found, "what is measured is not what is claimed"


def _plot(name: str, values: list[int], expected: list[int], found: list[int]) -> None:
    _, ax = plt.subplots(figsize=(6.4, 3.2), dpi=150)
    ax.plot(values, [n / 2**20 for n in expected], color="#17624a", label="claimed")
    ax.plot(values, [n / 2**20 for n in found], "o", color="#8a5a00", label=f"measured on {DEVICE}")
    ax.set(xlabel=name, ylabel="MiB", ylim=(0, None))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    plt.show()
