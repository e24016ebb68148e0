"""The audit of a reader's own code: what it finds, and what it refuses to answer."""

import json
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import refcheck
from refcheck import Problem
from refcheck.measure import Unavailable, available

BOTH = pytest.mark.parametrize("device", ["cpu", "cuda-trace"])


@pytest.fixture(autouse=True)
def _only_what_can_be_had(request):
    try:
        available((getattr(request.node, "callspec", None) and request.node.callspec.params.get("device")) or "cpu")
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def trace():
    try:
        available("cuda-trace")
    except Unavailable as reason:
        pytest.skip(str(reason))


def leaf(device, dtype, *shape):
    return torch.randn(*shape, device=device, dtype=dtype, requires_grad=True)


def classes(led):
    return {(e.cls, e.storage_bytes) for e in led.entries}


# --- what it finds --------------------------------------------------------------------------------------------------


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.deep = {"list": [x + 1]}
        ctx.closure = lambda: x
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


@BOTH
def test_ctx_attributes_and_closures(device):
    led = refcheck.record(lambda d, t: (Double.apply(leaf(d, t, 4, 8) * 3.0), []), device, "float32")
    assert {(e.holder, e.cls) for e in led.entries if e.cls != "number"} == {
        ("DoubleBackward.ctx.deep.list[0]", "ctx attribute"),
        ("DoubleBackward.ctx.closure.x", "ctx attribute"),
    }
    assert led.nbytes == 2 * 4 * 8 * 4


@BOTH
def test_what_only_the_census_finds(device):
    def case(d, t):
        y = leaf(d, t, 4, 8) + 1
        mask = torch.ones(4, 8, device=d, dtype=t) + 1
        y.register_hook(lambda g: g * mask)
        return y + 1, []

    (entry,) = refcheck.record(case, device, "float32").entries
    assert (entry.cls, entry.storage_bytes) == ("ctx attribute", 128)


@BOTH
def test_what_is_alive_for_another_reason_is_not_kept(device):
    cache = []

    def case(d, t):
        x = leaf(d, t, 4, 8)
        cache.append(x.detach() + 1)
        return x.sum(), []

    assert refcheck.record(case, device, "float32").nbytes == 0


@BOTH
def test_a_write_to_a_view_hides_its_node(device):
    def case(d, t):
        buffer = torch.zeros(4, 8, device=d, dtype=t)
        buffer[:2].mul_(leaf(d, t, 8))
        return buffer + 1, []

    (entry,) = [e for e in refcheck.record(case, device, "float32").entries if e.cls != "number"]
    assert (entry.holder, entry.storage_bytes) == ("CopySlices.inside", 2 * 8 * 4)


@BOTH
def test_checkpoint_keeps_its_inputs_and_the_random_state(device):
    def case(d, t):
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 8)).to(d, t)
        return checkpoint(model, leaf(d, t, 4, 8), use_reentrant=False), model

    led = refcheck.record(case, device, "float32")
    assert {e.cls for e in led.entries} == {"input", "rng"}
    rng = torch.get_rng_state().nbytes
    assert (led.nbytes, led.host_nbytes) == ((128 + rng, 0) if device == "cpu" else (128, rng))


@BOTH
def test_reentrant_checkpoint(device):
    case = lambda d, t: (checkpoint(torch.exp, leaf(d, t, 4, 8) + 1, use_reentrant=True, preserve_rng_state=False), [])  # noqa: E731
    assert refcheck.record(case, device, "float32").nbytes == 128


def test_unsafe_views_and_torch_func():
    """GRU writes to parts of a storage whose other parts are saved; torch.func does not run under anybody's hooks."""

    def gru(d, t):
        model = nn.GRU(24, 16, device=d, dtype=t)
        return model(leaf(d, t, 10, 2, 24))[0], model

    def gradients(d, t):
        return torch.func.vmap(torch.func.grad(lambda row: (row**3).sum()))(leaf(d, t, 4, 8) * 1.0), []

    assert refcheck.record(gru, "cpu", "float32").nbytes == 10880  # by a census alone, without any hooks
    assert refcheck.record(gradients, "cpu", "float32").nbytes == 144


@BOTH
def test_a_view_pins_its_storage(device):
    def case(d, t):
        whole = torch.ones(64, 64, device=d, dtype=torch.bool).triu(1)
        return leaf(d, t, 10, 10).masked_fill(whole[:10, :10], 0.0), []

    (entry,) = refcheck.record(case, device, "float32").entries
    assert (entry.bytes, entry.storage_bytes, entry.pinned_bytes) == (100, 4096, 3996)


@BOTH
def test_classes_and_modules(device):
    def case(d, t):
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU()).to(d, t)
        return model(leaf(d, t, 4, 8) / 6**0.5), model

    led = refcheck.record(case, device, "float32")
    assert led.python_numbers == 1
    assert led.by_class()["buffer"] == 2 * 16 * 4
    assert led.by_class()["parameter"] > 0
    assert {e.name for e in led.entries if e.cls == "buffer"} == {"1.running_mean", "1.running_var"}
    assert set(led.by_module()) == {"Sequential.0", "Sequential.1", "Sequential.2"}
    assert sum(led.by_module().values()) == led.nbytes


@BOTH
def test_autocast_weight_copy(device):
    def case(d, t):
        w = leaf(d, torch.float32, 8, 8)
        with torch.autocast(d, torch.bfloat16):
            return F.linear(leaf(d, torch.float32, 4, 8), w), [w]

    led = refcheck.record(case, device, "float32")
    assert led.by_class() == {"weight copy": 128, "activation": 64}
    assert not led.notes


def test_a_chosen_attention_is_traced_also_inside_a_module(trace):
    def case(d, t):
        layer = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True, device=d, dtype=t)
        return layer(leaf(d, t, 2, 16, 24)), layer

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        led = refcheck.record(case, "cuda-trace", "bfloat16", strict=True)
        with pytest.raises(Problem, match="float16 and bfloat16 only"):
            refcheck.record(case, "cuda-trace", "float32")
    assert any(e.node == "ScaledDotProductFlashAttentionBackward0" for e in led.entries)
    assert "rng" in led.by_class()


def test_device_may_be_used_as_text_or_by_type(trace):
    def case(device, dtype):
        assert device == "cuda" and device.type == "cuda" and f"{device}" == "cuda"
        assert dtype is torch.float16
        with torch.autocast(device.type, dtype):
            return leaf(device, dtype, 2).exp(), []

    assert refcheck.record(case, device="cuda-trace", dtype="float16").nbytes == 2 * 4  # exp runs in float32 there


# --- the reader's own step ------------------------------------------------------------------------------------------


def test_ledger_around_a_step():
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), torch.randn(4, 8)
    with refcheck.ledger(model) as led:
        loss = F.mse_loss(model(x), torch.zeros(4, 8))
    assert led.by_class() == {"activation": 256 + 256 + 128, "parameter": 512, "input": 128 + 128}
    assert led.by_module() == {"Sequential.0": 128, "Sequential.1": 256, "Sequential.2": 256, "": 256}
    loss.backward()
    seen = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    F.mse_loss(model(x), torch.zeros(4, 8)).backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(seen, model.parameters(), strict=True))


def test_ledger_agrees_with_record():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True)
    x = torch.randn(2, 10, 24, requires_grad=True)
    with refcheck.ledger(model) as led:
        y = model(x)
    assert led.nbytes == refcheck.record(lambda d, t: (model(x), model), "cpu", "float32").nbytes
    assert y.shape == x.shape


def test_ledger_counts_what_a_local_variable_does_not_free():
    x = torch.randn(4, 8, requires_grad=True)
    with refcheck.ledger() as led:
        unused = torch.ones(1000)
        loss = (x.exp() * 2.0).sum()
    assert led.nbytes == 128
    assert loss.requires_grad and unused.numel() == 1000


def test_compiled_code_stays_compiled():
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), torch.randn(4, 8)
    compiled = torch.compile(model, backend="aot_eager")
    with pytest.warns(UserWarning, match="global hooks"), refcheck.ledger(model) as led:
        loss = compiled(x).sum()
    assert {e.node for e in led.entries} == {"CompiledFunctionBackward"}
    assert loss.requires_grad


def test_ledger_before_its_end_and_without_a_graph():
    with pytest.raises(Problem, match="not ended"), refcheck.ledger() as led:
        _ = led.nbytes
    with pytest.raises(Problem, match="keep the loss in a variable"), refcheck.ledger():
        pass
    with pytest.raises(Problem, match="before backward"), refcheck.ledger():
        loss = torch.ones(2, requires_grad=True).exp().sum()
        loss.backward()


def test_an_error_of_the_reader_passes_through():
    with pytest.raises(ZeroDivisionError), refcheck.ledger():
        _ = 1 / 0


# --- what it refuses, or says ---------------------------------------------------------------------------------------


def refusals():
    x = lambda d, t: leaf(d, t, 4, 8)  # noqa: E731

    def overwritten(d, t):
        y = x(d, t).sigmoid()
        z = y + 1
        y.mul_(2)
        return y + z, []

    def backward_inside(d, t):
        y = x(d, t).exp()
        y.sum().backward()
        return y, []

    return {
        "raises": (lambda d, t: 1 / 0, "ZeroDivisionError: division by zero"),
        "nothing": (lambda d, t: None, "returned nothing"),
        "no pair": (lambda d, t: x(d, t), r"a case returns \(outputs, params\)"),
        "no tensor": (lambda d, t: ("text", []), "no tensor"),
        "no grad": (lambda d, t: (torch.ones(2, device=d), []), "no output of .* has a gradient"),
        "detached": (lambda d, t: (x(d, t).exp().detach(), []), "no output of .* has a gradient"),
        "params": (lambda d, t: (x(d, t).exp(), ["w"]), "params that are no tensors"),
        "overwritten": (overwritten, "SigmoidBackward0.result is overwritten in place"),
        "backward": (backward_inside, "before backward"),
    }


@BOTH
@pytest.mark.parametrize("what", refusals())
def test_refusal(device, what):
    case, message = refusals()[what]
    with pytest.raises(Problem, match=message):
        refcheck.record(case, device, "float32")


@pytest.mark.parametrize(
    "case",
    [
        lambda d, t: ((y := leaf(d, t, 4, 8))[y > 0], []),
        lambda d, t: ((y := leaf(d, t, 4, 8)) * y.sum().item(), []),
        lambda d, t: ((y := leaf(d, t, 4, 8)) * len(y[0].nonzero()), []),
    ],
)
def test_what_depends_on_data_is_refused_when_traced(trace, case):
    with pytest.raises(Problem, match="depends on data"):
        refcheck.record(case, "cuda-trace", "float32")
    assert refcheck.record(case, "cpu", "float32").entries


def test_an_operator_without_a_fake_kernel(trace):
    @torch.library.custom_op("refcheck_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with pytest.raises(Problem, match="register_fake"):
        refcheck.record(lambda d, t: (twice(leaf(d, t, 2)), []), "cuda-trace", "float32")


def test_grad_switched_off_around_it():
    with torch.no_grad(), pytest.raises(Problem, match="gradients are switched off"):
        refcheck.record(lambda d, t: (leaf(d, t, 2).exp(), []), "cpu", "float32")


def test_unknown_device_and_dtype():
    with pytest.raises(Problem, match="device 'tpu' is unknown"):
        refcheck.record(lambda d, t: None, "tpu")
    with pytest.raises(Problem, match="dtype 'float99' is unknown"):
        refcheck.record(lambda d, t: None, "cpu", "float99")


def attention(d, t):
    q = leaf(d, t, 2, 3, 16, 8)
    return F.scaled_dot_product_attention(q, q, q), []


def test_attention_without_a_choice_is_said(trace):
    assert "math path" in refcheck.record(attention, "cuda-trace", "bfloat16").notes[0]
    with pytest.raises(Problem, match="math path"):
        refcheck.record(attention, "cuda-trace", "bfloat16", strict=True)
    with sdpa_kernel(SDPBackend.MATH):
        assert not refcheck.record(attention, "cuda-trace", "bfloat16", strict=True).notes
    assert not refcheck.record(attention, "cpu", "bfloat16", strict=True).notes


@pytest.mark.skipif(torch.cuda.is_available(), reason="autocast works on a GPU")
def test_autocast_that_switched_itself_off_is_said():
    x = torch.randn(4, 8, requires_grad=True)
    with (
        pytest.raises(Problem, match="autocast switched itself off"),
        refcheck.ledger(strict=True),
        torch.autocast("cuda"),
    ):
        loss = x.exp().sum()
    assert loss.requires_grad


def test_hooks_of_somebody_else_are_said():
    def inside(d, t):
        with torch.autograd.graph.saved_tensors_hooks(lambda s: (s + 1,), lambda packed: packed[0]):
            return leaf(d, t, 4, 8).exp(), []

    led = refcheck.record(inside, "cpu", "float32")
    assert led.nbytes == 128 and "hooks of somebody else" in led.notes[0]
    with torch.autograd.graph.saved_tensors_hooks(lambda s: (s + 1,), lambda packed: packed[0]):
        around = refcheck.record(lambda d, t: (leaf(d, t, 4, 8).exp(), []), "cpu", "float32")
    assert around.nbytes == 128 and "were on around the block" in " ".join(around.notes)


# --- how it shows itself, and the command ---------------------------------------------------------------------------

FILE = """
import torch, torch.nn.functional as F
from torch import nn
ACT = F.relu
class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        return self.down(ACT(self.up(x)))
def case(device, dtype, B=2):
    m = Block().to(device, dtype)
    return m(torch.randn(B, 8, device=device, dtype=dtype, requires_grad=True)), m
def attention(device, dtype):
    q = torch.randn(2, 3, 16, 8, device=device, dtype=dtype, requires_grad=True)
    return F.scaled_dot_product_attention(q, q, q), []
"""


def test_shows_itself():
    led = refcheck.record(lambda d, t: (leaf(d, t, 4, 8).exp(), []), "cpu", "float32")
    assert "128 bytes kept on cpu" in repr(led) and "ExpBackward0.result" in repr(led)
    assert "<td>ExpBackward0.result</td>" in led._repr_html_()
    facts = json.loads(led.to_json())
    assert facts["nbytes"] == 128 and facts["entries"][0]["class"] == "activation"


@pytest.fixture
def audit(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)

    def run(*words):
        from refcheck.__main__ import main

        return main(["audit", *(w.replace("mine.py", str(tmp_path / "mine.py")) for w in words)])

    return run


def test_command(audit, tmp_path, capsys):
    page, facts = tmp_path / "o.html", tmp_path / "o.json"
    words = ["mine.py:case", "--arg", "B=4", "--device", "cpu", "--dtype", "float32", "--json", str(facts)]
    assert audit(*words, "--html", str(page)) == 0
    assert "bytes kept on cpu" in capsys.readouterr().out
    assert json.loads(facts.read_text())["nbytes"] == 4 * 8 * 4 + 4 * 32 * 4
    assert "http" not in page.read_text() and "Block.down" in page.read_text()
    assert audit("mine.py:Block", "--arg", "width=8", "--input", "4,8", "--device", "cpu", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["nbytes"] == 4 * 8 * 2 + 4 * 32 * 2


def test_lock(audit, tmp_path, capsys):
    lock = str(tmp_path / "saved.lock.json")
    assert audit("mine.py:case", "--device", "cpu", "--write", lock) == 0
    assert audit("--check", lock) == 0
    (tmp_path / "mine.py").write_text(FILE.replace("ACT = F.relu", "ACT = F.gelu"))
    assert audit("--check", lock) == 1
    said = capsys.readouterr().out
    assert "GeluBackward0.self appeared" in said and "in all: 160 -> 288 bytes" in said
    for text in (
        "",
        "[]",
        "{}",
        "not JSON",
        (tmp_path / "saved.lock.json").read_text().replace('"schema": 1', '"schema": 9'),
    ):
        (tmp_path / "saved.lock.json").write_text(text)
        assert audit("--check", lock) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine.py"], "names nothing"),
        ([], "nothing to audit"),
        (["no/such.py:case"], "there is no file"),
        (["no.such.module:case"], "can't be imported"),
        (["mine.py:nope"], "is not there; .* has Block, case, attention"),
        (["mine.py:ACT_"], "is not there"),
        (["mine.py:case", "--arg", "B"], "is not NAME=VALUE"),
        (["mine.py:case", "--arg", "X=1"], "unexpected keyword argument 'X'"),
        (["mine.py:case", "--input", "2,3"], "is for the class of a module"),
        (["mine.py:Block"], "say what its forward gets"),
        (["mine.py:Block", "--input", "2,8.5"], "is not SHAPE"),
        (["mine.py:Block", "--input", "2,x"], "missing a required argument: 'x'"),
        (["mine.py:Block", "--input", "2,9"], "RuntimeError"),
        (["mine.py:case", "--json", "/no/such/folder/x.json"], "can't write"),
        (["--check", "/no/such/lock.json"], "No such file"),
    ],
)
def test_bad_words_give_one_line(audit, capsys, words, message):
    assert audit(*words, "--device", "cpu") == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("refcheck: ")]
    assert len(lines) == 1
    import re

    assert re.search(message, lines[0])


def test_strict_command(trace, audit, capsys):
    assert audit("mine.py:attention") == 0
    assert "note: scaled_dot_product_attention" in capsys.readouterr().out
    assert audit("mine.py:attention", "--strict") == 2
    assert audit("mine.py:attention", "--strict", "--attention", "flash") == 0


def test_import_stays_light():
    code = "import sys, refcheck; assert 'torch' not in sys.modules and 'sympy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
