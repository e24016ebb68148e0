"""The layers, in the order in which a Transformer meets them; each id is a module, a page, a lab and a record key."""

from importlib import import_module

from refcheck.saved import device_bytes
from refcheck.sizes import at_sizes
from refcheck.spec import Layer, claim

LAYERS: tuple[Layer, ...] = tuple(
    import_module(f"refcheck.layers.{name}").LAYER
    for name in (
        "embedding",
        "positions",
        "layernorm",
        "rmsnorm",
        "linear",
        "layernorm_linear",
        "lora",
        "qkv",
        "qk_norm",
        "rope",
        "scores",
        "mask",
        "softmax",
        "dropout",
        "attention_dropout",
        "attention_value",
        "sdpa",
        "gqa",
        "out_proj",
        "residual",
        "ffn_gelu",
        "gelu",
        "relu",
        "ffn_swiglu",
        "swiglu",
        "moe_router",
        "moe",
        "ffn_dropout",
        "final_norm",
        "lm_head",
        "cross_entropy",
        "linear_cross_entropy",
        "autocast",
        "checkpoint",
    )
)


def claimed(layer: str, implementation: str, device: str, dtype: str, **sizes: int) -> int:
    """The bytes that an implementation is claimed to keep at these sizes.  Raises KeyError for what is not known."""
    implementations = {i.id: i for i in {known.id: known for known in LAYERS}[layer].implementations}
    return at_sizes(device_bytes(claim(implementations[implementation], device, dtype)), sizes)
