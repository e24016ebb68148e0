"""A run under `torch.compile`: forward and backward become one graph, and a cut through it decides what is kept.

The partitioner of AOTAutograd (`torch._functorch.partitioners.solve_min_cut`) looks for the cheapest cut.  What is kept
costs its bytes, twice if nobody would write it to memory otherwise, and 10 % more for each operator between it and the
backward; recomputing costs nothing.  But products of matrices, random numbers, reductions to less than a quarter and
what a product in the backward reads from memory are never recomputed.

The backend runs the two halves operator by operator, cut as for Inductor and with its decompositions; it needs no C++
compiler.  At the smallest sizes the cut falls elsewhere (`AT_LEAST`), and from there on always in the same place: what
grows with the tokens, the width or the vocabulary outweighs what doesn't.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from refcheck.spec import Implementation, Saves, Uncompilable

BACKEND = "aot_eager_decomp_partition"
KINDS = 64  # of sizes and dtypes, each compiled once; by default torch gives up after 8
NODE = "CompiledFunctionBackward.saved_tensors"
# A product with a single row of up to 16 × 16 is decomposed and may be recomputed; mean and variance are recomputed for
# rows of up to 8; three tokens' bool mask is cheaper than one fp32 count; in bf16 a short row of log-probabilities is
# cheaper than one of logits with two fp32 numbers.
AT_LEAST = dict(T=8, D=16, V=32)
CPU_ONLY = {
    "cuda": "torch.compile is run here on the CPU alone: on fake CUDA tensors no backward is compiled without a GPU, "
    "and nobody has measured it on one yet"
}


def places(*names: str) -> dict[str, str]:
    """Where compiled code keeps them, given in the order in which its graph makes or first views them."""
    return {name: f"{NODE}[{n}]" for n, name in enumerate(names)}


def compiled(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, compiled anew for each combination of sizes and dtypes, and once for each."""

    @functools.wraps(run)
    def run_compiled(**given: Any) -> Any:
        import torch

        if any(isinstance(t, torch.Tensor) and t.device.type != "cpu" for t in given.values()):
            raise NotImplementedError(CPU_ONLY["cuda"])
        _supported()
        with torch._dynamo.config.patch(recompile_limit=KINDS):
            return torch.compile(run, backend=BACKEND, fullgraph=True, dynamic=False)(**given)

    return run_compiled


def _supported() -> None:
    """Raises `Uncompilable` where this torch can't compile, on a Python that is newer than it, say."""
    try:
        from torch._dynamo.eval_frame import is_dynamo_supported
    except ImportError as error:
        raise Uncompilable(f"torch.compile can't be had here: {error}") from None
    if not is_dynamo_supported():
        raise Uncompilable("torch.compile doesn't run on this Python: take one that this torch supports")


def as_compiled(
    run: Callable[..., Any],
    cpu: Saves,
    recover: Callable[..., dict[str, Any]] | None = None,
    id: str = "compiled",
    title: str = "torch.compile",
) -> Implementation:
    """The implementation `compiled` of a layer: `run` compiled, that must compute the same as without."""
    return Implementation(
        id,
        dict(zh=f"{title}，只在 CPU 上", en=f"{title}, on the CPU only"),
        compiled(run),
        cpu=cpu,
        cuda=cpu,
        recover=recover,
        absent=CPU_ONLY,
        like=run,
        multiples=AT_LEAST,
    )
