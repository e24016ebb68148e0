"""Saved for Backward: what each layer of a Transformer keeps for the backward pass, proven and measured."""


class Problem(Exception):
    """Something the user can mend: its message says in one line what is wrong and what to do."""
