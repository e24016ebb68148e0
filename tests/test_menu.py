"""What the calculator counts: blocks put together by choice, against blocks that are run."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from sympy import expand, sympify
from torch.utils.checkpoint import checkpoint

from refcheck import menu
from refcheck.block import Composed, Part
from refcheck.blocks import gpt2, llama3, qwen3
from refcheck.layers import (
    attention_value,
    ffn_gelu,
    ffn_swiglu,
    gqa,
    layernorm,
    linear,
    mask,
    qk_norm,
    qkv,
    relu,
    rope,
    scores,
    sdpa,
)
from refcheck.measure import SIZES, measure
from refcheck.models import MODELS
from refcheck.prove import example
from refcheck.saved import ON_DEVICE
from refcheck.sizes import B, D, M, T, at_sizes, d, g, h
from refcheck.spec import activation, buffer, parameter
from refcheck.words import CALCULATOR

WHERE = dict(device="cuda", dtype="bfloat16", recompute="none")
GPT, LLAMA, QWEN = ({**WHERE, **choices} for choices in (menu.GPT, menu.LLAMA, menu.QWEN))


def block(choices):
    """The block of these choices in torch code, from the layers' own implementations, and the parts claimed for it."""
    c = choices
    given = dict(x=activation(B, T, h * d), w_1=parameter(h * d), b_1=parameter(h * d))
    given |= dict(W_Q=parameter(h * d, g, h / g, d), W_K_g=parameter(h * d, g, d), W_V_g=parameter(h * d, g, d))
    given |= dict(cos=buffer(T, 2, d / 2, dtype=None), sin=buffer(T, 2, d / 2, dtype=None))
    given |= dict(w_Q=parameter(d), w_K=parameter(d))
    given |= dict(A=buffer(T, T, dtype=None), W_O=parameter(h * d, h * d), w_2=parameter(h * d), b_2=parameter(h * d))
    if c["ffn"].startswith("swiglu"):
        given |= dict(W_gate=parameter(h * d, M), W_up=parameter(h * d, M), W_down=parameter(M, h * d))
    else:
        given |= dict(W1=parameter(h * d, M), b1=parameter(M), W2=parameter(M, h * d), b2=parameter(h * d))
    left_out = {"b_1", "b_2"} if c["norm"] == "rmsnorm" else set()
    left_out |= {"A"} if c["attention"] != "eager" else set()
    left_out |= {"cos", "sin"} if c["heads"] == "plain" else set()
    left_out |= {"w_Q", "w_K"} if c["heads"] != "qk-norm" else set()

    separate = llama3.PROJECTIONS  # as qkv, which has no heads that are shared; parameters alone differ

    def norm(x, w, b, eps):
        if c["norm"] == "rmsnorm":
            return F.rms_norm(x, x.shape[-1:], w, eps)
        return F.layer_norm(x, x.shape[-1:], w, b, eps)

    def drop(x, p, where):
        return F.dropout(x, p, training=True) if c["dropout"] in where else x

    def turned(Q, t):
        return rope.eager(Q.unflatten(-1, t["cos"].shape[1:]), t["cos"], t["sin"]).flatten(-2)

    def project(u, t):
        """(B, g, h/g, T, d) for Q, (B, g, T, d) for K and V."""
        Q, K, V = (F.linear(u, t[n].flatten(1).mT) for n in ("W_Q", "W_K_g", "W_V_g"))
        Q, K, V = Q.unflatten(-1, (-1, *t["W_Q"].shape[3:])), *(x.unflatten(-1, t["W_K_g"].shape[1:]) for x in (K, V))
        if c["heads"] == "qk-norm":
            Q, K = qk_norm.eager(Q, K, t["w_Q"], t["w_K"], 1e-5).values()
        Q, K, V = (x.transpose(1, 2) for x in (Q, K, V))
        if c["heads"] != "plain":
            Q, K = turned(Q, t), turned(K, t)
        return Q.unflatten(1, t["W_Q"].shape[1:3]), K, V

    def attention(Q, K, V, A, p):
        if c["attention"] == "flash":
            return gqa.native(Q, K, V).flatten(1, 2)
        K, V, Q = gqa.repeat_kv(K, Q.shape[2]), gqa.repeat_kv(V, Q.shape[2]), Q.flatten(1, 2)
        if c["attention"] == "cudnn":
            return sdpa.cudnn(Q, K, V)
        P = F.softmax(mask.additive(scores.eager(Q, K), A), dim=-1)
        return attention_value.eager(drop(P, p, ["everywhere"]), V)

    def ffn(v, t):
        if c["ffn"] == "relu":
            return F.linear(F.relu(F.linear(v, t["W1"].mT, t["b1"])), t["W2"].mT, t["b2"])
        if c["ffn"] == "gelu":
            return ffn_gelu.eager(v, t["W1"], t["b1"], t["W2"], t["b2"])
        which = {"swiglu": "eager", "swiglu-recomputing": "recomputing"}[c["ffn"]]
        (found,) = (i for i in ffn_swiglu.LAYER.implementations if i.id == which)
        return found.run(v=v, W_gate=t["W_gate"], W_up=t["W_up"], W_down=t["W_down"])

    def whole(x, p, eps, t):
        given = *project(norm(x, t["w_1"], t.get("b_1"), eps), t), t.get("A"), p
        again = c["recompute"] == "attention"
        O = checkpoint(attention, *given, use_reentrant=False) if again else attention(*given)
        a = F.linear(O.transpose(1, 2).flatten(2), t["W_O"].mT)
        x_2 = x + drop(a, p, ["branches", "everywhere"])
        y = ffn(norm(x_2, t["w_2"], t.get("b_2"), eps), t)
        return x_2 + drop(y, p, ["branches", "everywhere"])

    def run(x, p, eps, **t):
        again = c["recompute"] == "block"
        return checkpoint(whole, x, p, eps, t, use_reentrant=False) if again else whole(x, p, eps, t)

    called = [line.part for line in menu.LINES if line.called(c) and line.stage != "outside"]
    parts = tuple(
        p for part in called for p in (separate if isinstance(part, Part) and part.layer is qkv.LAYER else [part])
    )
    inputs = {n: i for n, i in given.items() if n not in left_out}
    return Composed("chosen", dict(zh="", en=""), run, inputs, parts, scalars=dict(p=0.1, eps=1e-5))


RUN = [
    {**choices, **other}
    for choices, other in (
        (GPT, {}),
        (GPT, dict(dropout="branches", ffn="relu")),
        (GPT, dict(dropout="off", norm="rmsnorm", dtype="float32")),
        (LLAMA, {}),
        (QWEN, {}),
        (LLAMA, dict(heads="plain")),
        (QWEN, dict(attention="eager")),
        (LLAMA, dict(attention="cudnn", ffn="swiglu-recomputing")),
        (LLAMA, dict(attention="eager", norm="layernorm", dropout="everywhere")),
        (LLAMA, dict(ffn="gelu", dropout="branches", dtype="float16")),
    )
]


def name_of(choices):
    return " ".join(choices[q] for q in ("heads", "attention", "dropout", "norm", "ffn", "dtype"))


@pytest.mark.parametrize("device", ["cpu", "cuda-trace"])
@pytest.mark.parametrize("choices", RUN, ids=name_of)
def test_a_block_that_is_run_keeps_what_its_rows_add_up_to(choices, device):
    """Storage by storage: bytes, dtype, class and every holder.  Two of one shape and place are not told apart."""
    chosen = block(choices)
    if choices["attention"] == "cudnn" and device == "cpu":
        pytest.skip("cuDNN runs on GPUs only")
    claimed = chosen.claim(device, choices["dtype"])
    for run in measure(chosen, device, choices["dtype"]):
        mine = Counter((at(s.nbytes, run.sizes), s.dtype, s.cls, s.holders) for s in claimed)
        assert mine == Counter((s.nbytes, s.dtype, s.cls, s.holders) for s in run.saved)


def at(form, sizes):
    return sympify(at_sizes(form, sizes)) if sizes else expand(form)


RECOMPUTED = [{**choices, "recompute": how} for choices in (GPT, LLAMA) for how in ("attention", "block")]


@pytest.mark.parametrize("choices", RECOMPUTED, ids=lambda c: f"{c['attention']} {c['recompute']}")
def test_a_block_that_is_recomputed_keeps_what_its_rows_add_up_to(choices):
    """With checkpoint, autograd's hooks see what is handed to it and nothing of what is run again."""
    chosen, sizes, seen = block(choices), SIZES[0], {}
    given = {
        name: example(i, [at_sizes(n, sizes) for n in i.shape], 1).bfloat16().requires_grad_(i.differentiable)
        for name, i in chosen.given.items()
    }
    ours = {t.data_ptr() for name, t in given.items() if name != "x"}

    def pack(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in ours and t.dim():
            seen[storage.data_ptr()] = storage  # held, so that no address is used twice
        return t

    x = given.pop("x").clone()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = chosen.run(x, **given, **chosen.scalars)
    kept = [s for s in chosen.claim("cpu", "bfloat16") if s.cls in ON_DEVICE and s.cls != "buffer"]
    assert sorted(s.nbytes() for s in seen.values()) == sorted(at_sizes(s.nbytes, sizes) for s in kept)
    assert out.shape == x.shape


@pytest.mark.parametrize(
    "choices, whole", [(GPT, gpt2), (LLAMA, llama3), (QWEN, qwen3)], ids=["gpt2", "llama3", "qwen3"]
)
def test_the_block_of_a_model_is_the_one_that_is_measured(choices, whole):
    for device in ("cuda", "cpu"):
        mine = menu.kept({**choices, "device": device}, True)
        theirs = [s for s in whole.BLOCK.implementations[0].claim(device, "bfloat16") if s.cls in ON_DEVICE]
        assert {s.name: s.nbytes for s in mine} == {s.name: s.nbytes for s in theirs}


def test_blocks_count_many_times_and_the_rest_once():
    sizes = dict(MODELS["Llama-3-8B"], B=1)
    block_bytes, model = menu.totals(LLAMA, sizes)
    tables = 2 * 2 * sizes["T"] * sizes["d"]  # of cosines and sines, bf16, which all blocks share
    assert model - menu.totals(LLAMA, {**sizes, "L": 31})[1] == block_bytes - tables
    assert menu.totals(LLAMA, {**sizes, "L": 1})[1] - block_bytes == at_sizes(
        sum(s.nbytes for s in menu.kept(LLAMA, False)), sizes
    )


def test_what_all_blocks_share_counts_once(monkeypatch):
    where = menu.core(Part(mask.LAYER, "where"), attention="eager")
    sizes = dict(MODELS["GPT-2"], B=2)
    without = menu.totals(GPT, sizes)
    monkeypatch.setattr(menu, "LINES", (*menu.LINES, where))
    shared = sizes["T"] ** 2
    assert menu.totals(GPT, sizes) == (without[0] + shared, without[1] + shared)


def test_two_tensors_of_one_name_are_refused():
    twice = (Part(relu.LAYER, "eager", dict(g="x")), Part(layernorm.LAYER, "eager"))
    with pytest.raises(ValueError, match="two tensors that differ are called x"):
        Composed("model", {}, lambda: None, {}, twice).claim("cuda", "bfloat16")


def test_a_part_takes_the_sizes_that_its_block_gives_it():
    (x, W) = Part(linear.LAYER, "eager", {}, {D: M, M: D}).claim("cuda", "bfloat16")
    assert (x.shape, x.nbytes) == ((B, T, M), 2 * B * T * M)
    assert W.shape == (M, h * d)


def test_every_choice_is_named_in_both_languages_and_changes_something():
    for question, ids in menu.QUESTIONS.items():
        for words in (CALCULATOR[lang] for lang in ("zh", "en")):
            assert question in ("dtype",) or words[question]
            assert question in ("device", "dtype") or all(words[f"{question}.{i}"] for i in ids)
        sums = {i: menu.totals({**GPT, question: i}, dict(MODELS["GPT-2"], B=2)) for i in ids}
        assert len(set(sums.values())) > 1, question
    assert CALCULATOR["zh"].keys() == CALCULATOR["en"].keys()
    named = {(q, i) for line in menu.LINES for q, ids in line.when.items() for i in ids.split()}
    assert named <= {(q, i) for q, ids in menu.QUESTIONS.items() for i in ids}


def test_models_have_their_published_sizes():
    """Blocks, width, heads, FFN: the sources are named in refcheck/models.py."""
    shown = {n: (m["L"], m["D"], m["h"], m["g"], m["M"], m["V"], m["T"]) for n, m in MODELS.items()}
    assert shown["GPT-2"] == (12, 768, 12, 12, 3072, 50257, 1024)
    assert shown["GPT-2-XL"] == (48, 1600, 25, 25, 6400, 50257, 1024)
    assert shown["GPT-3"] == (96, 12288, 96, 96, 49152, 50257, 2048)
    assert shown["Llama-3-70B"] == (80, 8192, 64, 8, 28672, 128256, 8192)
    assert shown["Llama-3-405B"] == (126, 16384, 128, 8, 53248, 128256, 8192)
    assert shown["Qwen3-8B"] == (36, 4096, 32, 8, 12288, 151936, 32768)
    assert all(m["D"] == m["h"] * m["d"] and m["h"] % m["g"] == 0 for m in MODELS.values())
