"""What is said of a GPU before and while it is measured, tried without one: torch's answers are made up here."""

from types import SimpleNamespace

import pytest
import torch

from refcheck import Problem, close, gpu, measure
from refcheck.blocks import BLOCKS
from refcheck.layers import LAYERS

GIB = gpu.GIB


@pytest.fixture
def card(monkeypatch):
    """Makes up a GPU: how much of its memory is free, its allocator, its architecture."""

    def put(free=70.0, total=80.0, backend="native", major=9, reserved=0.0):
        gpu.prepare.cache_clear()
        cuda, capped = torch.cuda, []
        made = SimpleNamespace(name="GPU", major=major, minor=0)
        monkeypatch.setattr(cuda, "is_available", lambda: True)
        monkeypatch.setattr(cuda, "get_allocator_backend", lambda: backend)
        monkeypatch.setattr(cuda, "mem_get_info", lambda: (int(free * GIB), int(total * GIB)))
        monkeypatch.setattr(cuda, "memory_reserved", lambda: int(reserved * GIB))
        monkeypatch.setattr(cuda, "get_device_properties", lambda: made)
        monkeypatch.setattr(cuda, "set_per_process_memory_fraction", capped.append)
        monkeypatch.setattr(cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(cuda, "synchronize", lambda: None)
        return capped

    monkeypatch.delenv("PYTORCH_NO_CUDA_MEMORY_CACHING", raising=False)
    yield put
    gpu.prepare.cache_clear()


@pytest.mark.parametrize("total, fraction", [(80, 0.05), (8, 0.5), (3, 1.0)])
def test_the_memory_we_take_is_capped(total, fraction, card):
    (capped,) = [card(free=total - 1, total=total)]
    measure.available("cuda")
    assert capped == [pytest.approx(fraction)]


UNUSABLE = {
    "another allocator": (dict(backend="cudaMallocAsync"), "cudaMallocAsync.*unset PYTORCH_CUDA_ALLOC_CONF"),
    "a full one": (dict(free=0.4, total=8.0), r"only 0.4 GiB.*CUDA_VISIBLE_DEVICES"),
}


@pytest.mark.parametrize("made, said", UNUSABLE.values(), ids=UNUSABLE)
def test_a_gpu_that_cannot_be_used_is_said_in_a_line(made, said, card):
    card(**made)
    with pytest.raises(measure.Unavailable, match=said) as told:
        measure.available("cuda")
    assert "\n" not in str(told.value)


def test_an_allocator_that_is_switched_off(card, monkeypatch):
    card()
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    with pytest.raises(measure.Unavailable, match="unset PYTORCH_NO_CUDA_MEMORY_CACHING"):
        measure.available("cuda")


def test_a_driver_that_does_not_answer(card, monkeypatch):
    card()

    def mem_get_info():
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore")

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    with pytest.raises(measure.Unavailable, match=r"busy or unavailable; see nvidia-smi") as told:
        measure.available("cuda")
    assert "\n" not in str(told.value)


def test_what_a_reader_should_know_is_noted(card):
    card()
    assert len([*gpu.notes()]) > 1  # 10 GiB are somebody else's
    card(free=79.5)
    assert len([*gpu.notes()]) == 1
    card(free=79.5, major=7)
    assert "too old" in [*gpu.notes()][1]


LIMITS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB",
    "CUDA error: no kernel image is available for execution on the device",
    "Torch was not compiled with flash attention.",
    "FlashAttention only supports Ampere GPUs or newer; this GPU architecture is sm_75",
    "BFloat16 is not supported on this device: compute capability 8.0 is required",
    "cuDNN is not available for this build",
)
FINDINGS = (
    "mat1 and mat2 shapes cannot be multiplied (6x4 and 5x3)",
    "element 0 of tensors does not require grad and does not have a grad_fn",
    "Expected all tensors to be on the same device",
)


@pytest.mark.parametrize("message", LIMITS)
def test_what_a_gpu_cannot_run_is_no_fault_of_the_claim(message, card):
    card()
    assert isinstance(gpu.unfit(RuntimeError(message), ()), gpu.Unfit)
    assert isinstance(gpu.unfit(RuntimeError("No available kernel. Aborting execution."), [message]), gpu.Unfit)


@pytest.mark.parametrize("message", FINDINGS)
def test_any_other_error_is_a_finding(message, card):
    card()
    assert gpu.unfit(RuntimeError(message), ()) is None


def test_a_gpu_that_answers_no_more(card, monkeypatch):
    card()

    def synchronize():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert isinstance(gpu.unfit(RuntimeError("whatever"), ()), gpu.Lost)


@pytest.mark.parametrize(
    "message, kind", [(LIMITS[0], gpu.Unfit), (LIMITS[2], gpu.Unfit), (FINDINGS[0], measure.Failed)]
)
def test_a_row_that_raises_is_told_and_the_rest_goes_on(message, kind, card, monkeypatch):
    card()

    def broken(*given, **more):
        raise RuntimeError(message)

    monkeypatch.setattr(measure, "_real", broken)
    softmax = next(layer for layer in LAYERS if layer.id == "softmax").implementations[0]
    with pytest.raises(kind) as told:
        measure.measure(softmax, "cuda", "bfloat16")
    assert isinstance(told.value, Problem) and "\n" not in str(told.value)


@pytest.mark.parametrize("layer", [*LAYERS, *BLOCKS], ids=lambda layer: layer.id)
def test_sizes_on_a_gpu_are_several_and_not_padded(layer):
    for implementation in layer.implementations:
        found = measure.sizes_of(implementation, "cuda")
        assert len(found) == len(measure.SIZES)
        assert all(s["d"] % 8 == s["T"] % 8 == 0 for s in found)
        assert all(a % b == 0 for s in found for a, b in ((s["h"], s["g"]),))


def test_a_gpu_is_warmed_up_before_its_ledger_is_read(monkeypatch):
    runs, x = [], torch.randn(4, 4, requires_grad=True)

    def build():
        runs.append(1)
        return [x.exp()], []

    def watched(device, run, thoroughly):
        assert len(runs) == close.WARM_UPS == 2
        raise KeyboardInterrupt

    monkeypatch.setattr(close, "watched", watched)
    with pytest.raises(KeyboardInterrupt):
        close.close(build, "cuda", [])
