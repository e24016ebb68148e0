"""The ledger against a census that shares nothing with it: no hooks, no walk, only what is freed with the graph."""

import gc
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.checkpoint import checkpoint

import refcheck
from refcheck.blocks import BLOCKS
from refcheck.measure import SIZES as SMALL
from refcheck.measure import Unavailable, available
from refcheck.saved import ON_DEVICE
from refcheck.sizes import at_sizes
from refcheck.trace import Device, running


class Made(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.storages = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_iter(out):
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                self.storages.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes(), t.device.type))
        return out

    def alive(self):
        return {k for k, (ref, *_) in self.storages.items() if not ref.expired()}


def leaves(roots):
    seen, stack = {}, list(roots)
    while stack:
        if (node := stack.pop()) not in seen:
            seen[node] = getattr(node, "variable", None)
            stack += [n for n, _ in node.next_functions if n is not None]
    return {v.untyped_storage()._cdata for v in seen.values() if v is not None}


def freed_with_the_graph(case, device, dtype):
    """(bytes on the device, bytes elsewhere) of what dies with the graph, parameters and other leaves left out."""
    place = Device(device.removesuffix("-trace"))
    torch.manual_seed(0)
    with running(device == "cuda-trace", []), Made() as made:
        outputs, model = case(place, getattr(torch, dtype))
    roots = [o.grad_fn for o in tree_iter(outputs) if isinstance(o, torch.Tensor) and o.grad_fn is not None]
    parameters = {p.untyped_storage()._cdata for p in model.parameters()}
    del outputs, model
    gc.collect()
    kept = made.alive() - parameters - leaves(roots)
    roots.clear()
    gc.collect()
    sizes = [made.storages[k][1:] for k in kept - made.alive()]
    return sum(n for n, at in sizes if at == place), sum(n for n, at in sizes if at != place)


class Partly(nn.Module):
    """Writes in place to views, and saves a slice of a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(64, 64))
        self.proj = nn.Linear(24, 24)

    def forward(self, x):
        h = self.proj(x).clone()
        h[:, 0] = h[:, 0] * 2
        h[:, 1].mul_(x[:, 1])
        return (h * self.table[:10, :24]).softmax(-1)


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.layer, self.reentrant = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True), reentrant

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=self.reentrant, preserve_rng_state=False).relu()


class CheckpointedBuffer(nn.Module):
    """The closure of the checkpoint keeps a module, and so its buffer, which no node saves."""

    def forward(self, x):
        return checkpoint(Partly().to(x.device, x.dtype), x, use_reentrant=False, preserve_rng_state=False)


class Offloaded(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))

    def forward(self, x):
        with torch.autograd.graph.save_on_cpu():
            return self.inner(x)


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True)

    def forward(self, x):
        with torch.autocast(x.device.type, torch.bfloat16):
            return F.cross_entropy(self.inner(x).flatten(0, 1), torch.zeros(20, dtype=torch.long, device=x.device))


X = (2, 10, 24)
MODELS = {
    "encoder layer": (lambda: nn.TransformerEncoderLayer(24, 3, 48, batch_first=True), X),
    "decoder layer": (lambda: nn.TransformerDecoderLayer(24, 3, 48, batch_first=True), X, (2, 7, 24)),
    "lstm": (lambda: nn.LSTM(24, 16, 2, dropout=0.1), X),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()
        ),
        (2, 3, 8, 8),
    ),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(4, 24), nn.SiLU(inplace=True)), (2, 24, 10)),
    "inplace dropout": (lambda: nn.Sequential(nn.Linear(24, 24), nn.PReLU(), nn.Dropout(0.1, inplace=True)), X),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(24, 24)), (2, 24)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(24, 24)), (2, 24)),
    "views": (Partly, (3, 10, 24)),
    "checkpoint": (lambda: Checkpointed(False), X),
    "reentrant checkpoint": (lambda: Checkpointed(True), X),
    "checkpoint of a buffer": (CheckpointedBuffer, (3, 10, 24)),
    "offload": (Offloaded, X),
    "autocast": (Autocast, X),
}


def compare(case, device, dtype):
    try:
        available(device)
    except Unavailable as reason:
        pytest.skip(str(reason))
    led = refcheck.record(case, device, dtype)
    assert (led.nbytes, led.host_nbytes) == freed_with_the_graph(case, device, dtype)
    assert led.nbytes + led.host_nbytes > 0


RUNS = pytest.mark.parametrize(("device", "dtype"), [("cpu", "float32"), ("cuda-trace", "bfloat16")])


@RUNS
@pytest.mark.parametrize("name", MODELS)
def test_model(name, device, dtype):
    make, *shapes = MODELS[name]

    def case(d, t):
        model = make().to(device=d, dtype=t)
        return model(*(torch.randn(s, device=d, dtype=t, requires_grad=True).clone() for s in shapes)), model

    compare(case, device, dtype)


SIZES = dict(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=128,
)
GPT2 = dict(n_embd=64, n_layer=2, n_head=4, vocab_size=128, bos_token_id=0, eos_token_id=0)


@RUNS
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["GPT2", "Llama", "Qwen3", "Gemma", "Mistral", "Phi"])
def test_model_of_transformers(name, attention, device, dtype):
    transformers = pytest.importorskip("transformers", reason="optional: needs transformers")
    heads = {} if name in ("GPT2", "Phi") else {"head_dim": 16}
    config = getattr(transformers, f"{name}Config")(**(GPT2 if name == "GPT2" else SIZES | heads))
    config._attn_implementation = attention
    make = getattr(transformers, f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")

    def case(d, t):
        model = make(config).to(device=d, dtype=t)
        ids = torch.zeros(2, 16, dtype=torch.long, device=d)
        return model(input_ids=ids, labels=ids, use_cache=False).loss, model

    compare(case, device, dtype)


# --- torch's own tracker of memory ------------------------------------------------------------------------------------


class Whole(nn.Module):
    """A block as a module, so that the tracker can tell parameters and buffers from the rest."""

    def __init__(self, whole, sizes):
        super().__init__()
        self.whole = whole
        for name, given in whole.given.items():
            tensor = torch.randn([at_sizes(n, sizes) for n in given.shape])
            if given.cls == "parameter":
                self.register_parameter(name, nn.Parameter(tensor))
            elif given.cls == "buffer":
                self.register_buffer(name, tensor)

    def forward(self, x):
        return self.whole.run(x, **dict(self.named_parameters()), **dict(self.named_buffers()), **self.whole.scalars)


def tracked(whole, sizes):
    """What MemTracker counts as activations after the forward, and how long the output's storage is, in bytes."""
    tools = pytest.importorskip("torch.distributed._tools.mem_tracker", reason="this torch has no MemTracker")
    torch.manual_seed(0)
    model = Whole(whole, sizes)
    x = torch.randn([at_sizes(n, sizes) for n in whole.given["x"].shape], requires_grad=True)
    tracker = tools.MemTracker()
    tracker.track_external(model, x)
    with tracker:
        y = model(x)
    counted = tracker.get_tracker_snapshot()[torch.device("cpu")]
    return counted[tools._MemRefType.ACT], y.untyped_storage().nbytes()


@pytest.mark.parametrize("sizes", SMALL[:2], ids=str)
@pytest.mark.parametrize(
    "whole", [i for block in BLOCKS for i in block.implementations], ids=lambda i: f"{i.run.__module__[16:]}-{i.id}"
)
def test_torch_s_tracker_of_memory_counts_the_ledger(whole, sizes):
    """Two differences, both by definition: what came from outside is no activation there, the block's output is one."""
    kept = {s.name: at_sizes(s.nbytes, sizes) for s in whole.claim("cpu", "float32") if s.cls in ON_DEVICE}
    outside = {s.name for s in whole.claim("cpu", "float32") if s.cls in ("input", "buffer")}
    assert outside == {"x"} | ({"cos", "sin"} & kept.keys())
    counted, output = tracked(whole, sizes)
    assert counted == sum(kept.values()) - sum(kept[name] for name in outside) + output


def test_torch_s_tracker_of_memory_notices_what_a_block_keeps_besides():
    (whole,) = BLOCKS[0].implementations

    held = []

    def run(x, **given):
        held.append(x * 2)
        return whole.run(x, **given)

    more = tracked(replace(whole, run=run), SMALL[0])[0] - tracked(whole, SMALL[0])[0]
    assert more == held[0].untyped_storage().nbytes() > 0
