"""Sizes of published models: T is the length of the sequences that they were trained on, L the number of blocks.

GPT-2: Radford et al. 2019, table 2, and OpenAI's released hparams.  GPT-3: Brown et al. 2020, table 2.1; every other
block of it has sparse attention, which is not modelled here.  Llama 3: Grattafiori et al. 2024, table 3.  Mixtral:
Jiang et al. 2024, table 1.  Qwen3: Yang et al. 2025, table 1, and the released config.json; those of its models in
which h·d is not D (0.6B, 4B, 32B) are not listed, because the layers here take D = h·d.
"""

from collections.abc import Mapping


def _gpt(T: int, D: int, h: int, L: int) -> dict[str, int]:
    return dict(T=T, D=D, h=h, d=D // h, M=4 * D, V=50257, g=h, L=L)


def _grouped(T: int, D: int, h: int, M: int, V: int, L: int) -> dict[str, int]:
    return dict(T=T, D=D, h=h, d=128, M=M, V=V, g=8, L=L)


MODELS: Mapping[str, Mapping[str, int]] = {
    "GPT-2": _gpt(T=1024, D=768, h=12, L=12),
    "GPT-2-medium": _gpt(T=1024, D=1024, h=16, L=24),
    "GPT-2-large": _gpt(T=1024, D=1280, h=20, L=36),
    "GPT-2-XL": _gpt(T=1024, D=1600, h=25, L=48),
    "GPT-3-6.7B": _gpt(T=2048, D=4096, h=32, L=32),
    "GPT-3": _gpt(T=2048, D=12288, h=96, L=96),
    "Llama-3-8B": _grouped(T=8192, D=4096, h=32, M=14336, V=128256, L=32),
    "Llama-3-70B": _grouped(T=8192, D=8192, h=64, M=28672, V=128256, L=80),
    "Llama-3-405B": _grouped(T=8192, D=16384, h=128, M=53248, V=128256, L=126),
    "Qwen3-1.7B": _grouped(T=32768, D=2048, h=16, M=6144, V=151936, L=28),
    "Qwen3-8B": _grouped(T=32768, D=4096, h=32, M=12288, V=151936, L=36),
    "Qwen3-14B": _grouped(T=32768, D=5120, h=40, M=17408, V=151936, L=40),
    "Mixtral-8x7B": dict(_grouped(T=32768, D=4096, h=32, M=14336, V=32000, L=32), E=8, k=2),
}
