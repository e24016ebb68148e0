"""Whether one shape can be seen as another: an op may fold (B, T, D) into (B·T, D) before it saves its input."""

from __future__ import annotations

from itertools import combinations

from sympy import Expr, expand, prod

Lengths = tuple[Expr, ...]


def same_elements(claimed: Lengths, measured: Lengths) -> bool:
    """Whether the measured shape can hold the claimed one: axes may be merged, exchanged, or be 1 long."""
    if not measured:
        return all(n == 1 for n in claimed)
    first, rest = measured[0], measured[1:]
    for count in range(len(claimed) + 1):
        for chosen in combinations(range(len(claimed)), count):
            if expand(prod([claimed[i] for i in chosen]) - first) == 0:
                left = tuple(n for i, n in enumerate(claimed) if i not in chosen)
                if same_elements(left, rest):
                    return True
    return False


def folds(claimed: Lengths, measured: Lengths) -> bool:
    """Whether neighbouring axes of the claimed shape, merged in their order, give the measured one."""
    if not measured:
        return all(n == 1 for n in claimed)
    for count in range(len(claimed) + 1):
        if expand(prod(claimed[:count]) - measured[0]) == 0 and folds(claimed[count:], measured[1:]):
            return True
    return False
