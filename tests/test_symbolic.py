"""Closed forms of a trace: they hold at sizes that were not traced, and what would make them wrong is told."""

import json
from pathlib import Path

import pytest
import torch
from sympy import sympify
from torch import nn

import refcheck
from refcheck import Problem
from refcheck.__main__ import main
from refcheck.forms import at, text
from refcheck.measure import Unavailable, available
from tests.cases import gpt2, llama

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parent / "cases" / "cases.json").read_text(encoding="utf-8"))
}
ASKED = ["attention_eager_dropout", "attention_einsum", "autocast_no_cache", "gelu_mlp", "gqa_repeat_kv_eager"]
ASKED += ["lm_head_ce_upcast", "lora_linear", "mask_masked_fill", "offload_to_cpu", "rmsnorm_builtin", "swiglu_ffn"]
ASKED += ["checkpoint_nonreentrant", "custom_ctx_attribute", "dropout_train"]
SMALL_GPT2 = {"L": 1, "D": 24, "h": 4, "V": 31, "C": 64}
SMALL_LLAMA = {"L": 1, "D": 32, "h": 4, "g": 2, "d": 8, "M": 48, "V": 37}


@pytest.fixture(autouse=True)
def _only_where_it_can_be_traced():
    try:
        available("cuda-trace")
    except Unavailable as reason:
        pytest.skip(str(reason))


def leaf(device, dtype, *shape):
    return torch.randn(*shape, device=device, dtype=dtype, requires_grad=True)


def sized(snippet):
    """A public question's case, its batch of 2 and length of 10 made arguments."""
    code = snippet.replace("case(device, dtype)", "case(device, dtype, B=2, T=10)")
    code = code.replace("B, T, h, g, d = 2, 10,", "h, g, d =").replace("B, T, D, h, d = 2, 10,", "D, h, d =")
    names = {}
    exec(code.replace("2, 10", "B, T").replace("10, 10", "T, T").replace("2, 3, T", "B, 3, T"), names)
    return names["case"]


@pytest.mark.parametrize("name", ASKED)
def test_a_form_at_other_sizes_is_the_trace_there(name):
    case = sized(CASES[name]["snippet"])
    led = refcheck.record(case, symbolic=("B", "T"))
    assert not any("closed forms" in note for note in led.notes)
    assert led.nbytes == CASES[name]["expected"]["cuda-trace/bfloat16"]["total_bytes"]
    for sizes in ({"B": 3, "T": 17}, {"B": 16, "T": 5}):
        traced = refcheck.record(case, arguments=sizes)
        assert (led.at(**sizes), at(led.host_form, sizes)) == (traced.nbytes, traced.host_nbytes)
        assert sorted(at(e.form.storage_bytes, sizes) for e in led.entries) == sorted(
            e.storage_bytes for e in traced.entries
        )


@pytest.mark.parametrize(
    ("case", "arguments"),
    [(gpt2.case, SMALL_GPT2), (llama.case, SMALL_LLAMA)],
    ids=["gpt2", "llama"],
)
def test_one_layer_times_its_number_is_the_whole_model(case, arguments):
    sizes = {"B": 3, "T": 11}
    found = refcheck.by_depth(case, "L", arguments=arguments | sizes, symbolic="B,T")
    assert {s.name for s in found.form.free_symbols} == {"B", "T", "L"}
    for layers, B, T in ((1, 3, 11), (4, 2, 9), (6, 5, 12)):
        traced = refcheck.record(case, arguments={**arguments, "L": layers, "B": B, "T": T})
        assert found.at(L=layers, B=B, T=T) == traced.nbytes


def test_a_layer_of_gpt2_by_hand():
    """Eager attention keeps P and dropped P in bf16 and a bool mask, per head; the rest is counted off the block."""
    D, h = 24, 4
    scores = h * sympify("B*T**2") * (2 + 2 + 1)
    # inputs of both norms, of qkv, out, up (D each), q, k, v (3 D), of GELU and down (4 D each); two bool masks (D)
    width = sympify("B*T") * (2 * D * (5 + 3 + 8) + 2 * D)
    statistics = sympify("B*T") * 4 * 4
    found = refcheck.by_depth(gpt2.case, "L", arguments=SMALL_GPT2 | {"T": 11}, symbolic="B,T")
    claimed = str((scores + width + statistics).expand())
    assert str(found.layer_form) == claimed


class Growing(nn.Module):
    """The n-th layer is n times as wide: not linear in their number."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8 * n, 8 * (n + 1)) for n in range(1, layers + 1))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


def growing(device, dtype, B=3, L=2):
    model = Growing(L).to(device, dtype)
    return model(leaf(device, dtype, B, 8)), model


def pinned(device, dtype, B=3, T=5):
    return leaf(device, dtype, B, int(T)).exp(), []


def branching(device, dtype, B=3, T=5):
    x = leaf(device, dtype, B, T)
    return x.exp() if T <= 64 else x.sum(), []


def wide(device, dtype, D=8):
    model = nn.Linear(D, 2 * D).to(device, dtype)
    return model(leaf(device, dtype, 3, D)), model


def chosen(device, dtype, B=3):
    x = leaf(device, dtype, B)
    return x[x > 0].exp(), []


def unset(device, dtype, B, T=1):
    return leaf(device, dtype, B, T).exp(), []


@pytest.mark.parametrize(
    ("case", "asked", "message"),
    [
        (pinned, {"symbolic": "B,T", "strict": True}, "T was taken for 5"),
        (branching, {"symbolic": "B,X"}, "no argument 'X' to make a symbol of; it has B, T"),
        (branching, {"symbolic": "B,T", "device": "cpu"}, "only where it is traced: --device cuda-trace"),
        (branching, {"symbolic": "B,T", "arguments": {"B": 5}}, "B and T are both 5"),
        (wide, {"symbolic": "D"}, "Linear.weight would have 2?D in its shape"),
        (chosen, {"symbolic": "B"}, "depends on data"),
        (unset, {"symbolic": "B"}, "B has no number"),
        (unset, {"symbolic": "T"}, "T is 1, and torch takes only whole numbers from 2 on"),
    ],
)
def test_what_has_no_closed_form_is_told(case, asked, message):
    with pytest.raises(Problem, match=message):
        refcheck.record(case, **asked)


@pytest.mark.parametrize(
    ("layers", "asked", "message"),
    [
        ("L", {}, "not linear in L: .* bytes at 1, .* at 2, .* at 3"),
        ("N", {}, "no argument 'N' that counts layers; it has B, L"),
        ("L", {"symbolic": "B,L"}, "so it is no symbol"),
        ("L", {"arguments": {"L": 0}}, "no number of layers"),
    ],
)
def test_what_is_not_linear_is_told(layers, asked, message):
    with pytest.raises(Problem, match=message):
        refcheck.by_depth(growing, layers, **asked)


def test_pins_are_notes_and_branches_conditions():
    led = refcheck.record(pinned, symbolic=("B", "T"))
    assert [str(led.form), *led.notes] == ["10*B", "T was taken for 5: the closed forms hold there alone"]
    other = {"B": 4, "T": 9}
    assert at(led.form, other) != refcheck.record(pinned, arguments=other).nbytes  # as the note says
    led = refcheck.record(branching, symbolic=("B", "T"))
    assert (str(led.form), led.notes, led.conditions) == ("2*B*T", (), ("T ≤ 64",))
    assert led.at(B=7) == 70
    with pytest.raises(Problem, match="X: no such symbol here; there is B, T"):
        led.at(X=7)
    assert "closed form" in led._repr_html_()
    assert "in bytes: 2BT, where T ≤ 64; the numbers are those at B = 3, T = 5" in repr(led)


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ("8*B*T + 2*D*B*T", "2BTD + 8BT"),
        ("B*h*T**2", "BhT²"),
        ("1048576*B", "1,048,576B"),
        ("2*batch*length", "2·batch·length"),
        ("T*ceiling(T/8) + B", "B + T⌈T/8⌉"),
        ("0", "0"),
    ],
)
def test_a_form_as_text(form, told):
    names = {n: sympify(n) for n in ("B", "h", "batch", "length")}
    assert text(sympify(form, names)) == told


def test_command(tmp_path, capsys):
    out = tmp_path / "led.json"
    linear = ["audit", "torch.nn:Linear", "--arg", "in_features=16", "--arg", "out_features=64"]
    named = ["--input", "B,T,16", "--arg", "B=2", "--arg", "T=5", "--symbolic", "B,T"]
    assert main([*linear, *named, "--json", str(out)]) == 0
    facts = json.loads(out.read_text())
    assert (facts["symbols"], facts["nbytes"], facts["nbytes_form"]) == ({"B": 2, "T": 5}, 320, "32*B*T")
    assert facts["entries"][0]["form"]["storage_bytes"] == "32*B*T"
    assert "in bytes: 32BT; the numbers are those at B = 2, T = 5" in capsys.readouterr().out
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import torch\n\ndef case(device, dtype, B=3, L=9):\n"
        "    x = torch.randn(B, 4, device=device, dtype=dtype, requires_grad=True)\n"
        "    for _ in range(L):\n        x = x.exp()\n    return x, []\n"
    )
    assert main(["audit", f"{mine}:case", "--layers", "L", "--symbolic", "B", "--json", str(out)]) == 0
    assert "kept on cuda-trace: L·(8B) + 0; 216 at B = 3, L = 9" in capsys.readouterr().out
    assert json.loads(out.read_text())["form"] == "8*B*L"
    assert main(["audit", f"{mine}:case", "--layers", "L", "--write", str(out)]) == 2
