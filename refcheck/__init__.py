"""Saved for Backward: what each layer of a Transformer keeps for the backward pass, proven and measured."""


class Problem(Exception):
    """Something the user can mend: its message says in one line what is wrong and what to do."""


def __getattr__(name: str) -> object:
    """The audit's own names, imported when first asked for: `import refcheck` alone stays light."""
    if name in ("record", "ledger", "Ledger"):
        from refcheck import audit

        return getattr(audit, name)
    if name == "by_depth":
        from refcheck import depth

        return depth.by_depth
    raise AttributeError(f"module 'refcheck' has no attribute {name!r}")
