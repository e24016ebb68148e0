"""The layers, in the order in which a Transformer meets them; each id is a module, a page, a lab and a record key."""

from importlib import import_module

from refcheck.spec import Layer

LAYERS: tuple[Layer, ...] = tuple(
    import_module(f"refcheck.layers.{name}").LAYER
    for name in (
        "embedding",
        "layernorm",
        "rmsnorm",
        "linear",
        "qkv",
        "scores",
        "mask",
        "softmax",
        "dropout",
        "attention_dropout",
        "attention_value",
        "out_proj",
        "residual",
        "ffn_gelu",
        "gelu",
        "relu",
        "ffn_swiglu",
        "swiglu",
        "ffn_dropout",
        "final_norm",
        "lm_head",
        "cross_entropy",
    )
)
