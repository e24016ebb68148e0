"""The layers, in the order in which a Transformer meets them; each id is a module, a page, a lab and a record key."""

from importlib import import_module

from refcheck.spec import Layer

LAYERS: tuple[Layer, ...] = tuple(
    import_module(f"refcheck.layers.{name}").LAYER
    for name in (
        "layernorm",
        "linear",
        "softmax",
        "dropout",
        "residual",
        "gelu",
        "relu",
    )
)
