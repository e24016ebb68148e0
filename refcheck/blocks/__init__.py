"""Blocks: layers put together, measured as a whole, and equal to the byte to the sum of their rows."""

from importlib import import_module

from refcheck.block import Block

BLOCKS: tuple[Block, ...] = tuple(
    import_module(f"refcheck.blocks.{name}").BLOCK for name in ("article", "gpt2", "llama3", "qwen3")
)
