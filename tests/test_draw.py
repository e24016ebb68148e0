"""Pictures: the edges are those that numbers show, every tensor has its size, and every link leads somewhere."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch

from refcheck import addresses, draw
from refcheck.blocks import BLOCKS
from refcheck.flow import made_from, reads
from refcheck.layers import LAYERS
from refcheck.models import MODELS
from refcheck.notation import human
from refcheck.prove import example, small
from refcheck.saved import ON_DEVICE, device_bytes
from refcheck.sizes import at_sizes
from refcheck.spec import absence

PAIRS = {  # from a random state no numbers can be drawn here
    f"{layer.id}-{pair.id}": pair
    for layer in LAYERS
    for pair in layer.pairs
    if all(i.dtype != "uint64" for i in pair.inputs.values())
}
SIZES = dict(B=1, **MODELS["Llama-3-8B"], R=16, E=8, k=2)
DRAWN = [
    (layer, d) for layer in LAYERS for d in ("cpu", "cuda") if not absence(layer.implementations[0], d, "bfloat16")
]


def other(tensor, below=None):
    """Other values that could stand in its place."""
    if tensor.dtype == torch.bool:
        return ~tensor
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        return (tensor + 1) % below if below else tensor.flip([*range(tensor.ndim)])
    return tensor * 1.25 + 0.125


def numbers(pair):
    """Small inputs of a pair, in float64, and the bounds of those that are whole numbers."""
    torch.manual_seed(0)
    sizes, given = small(pair), pair.inputs.items()
    below = {name: at_sizes(i.below, sizes) for name, i in given if i.below is not None}
    shape = {name: [at_sizes(n, sizes) for n in i.shape] for name, i in given}
    floats = {name: replace(i, dtype=None) if i.continuous else i for name, i in given}
    return {name: example(i, shape[name], below.get(name, 2)) for name, i in floats.items()}, below


def changed(before, after):
    return {name for name, t in before.items() if isinstance(t, torch.Tensor) and not torch.equal(t, after[name])}


def run(pair, inputs):
    return pair.forward(**inputs, **pair.scalars)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_gradient_changes_with_what_it_reads(pair):
    inputs, below = numbers(pair)
    output, saved = run(pair, inputs)
    upstream = pair.upstream({name: torch.randn_like(y) for name, y in pair.outputs(output).items()})
    gradients = pair.backward(upstream, saved)
    seen = {
        name: changed(gradients, pair.backward(upstream, {**saved, name: other(saved[name], below.get(name))}))
        for name in pair.needed
    }
    assert {x: {n for n in pair.needed if x in seen[n]} for x in gradients} == {x: {*n} for x, n in reads(pair).items()}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_kept_tensor_changes_with_what_it_is_made_from(pair):
    inputs, below = numbers(pair)
    _, saved = run(pair, inputs)
    seen = {n: changed(saved, run(pair, {**inputs, n: other(x, below.get(n))})[1]) for n, x in inputs.items()}
    for kept, froms in made_from(pair).items():
        found = {n for n in inputs if kept in seen[n]}
        counted = {n for n in {*froms} - found if n in below}  # how many targets there are doesn't change with them
        assert found == {*froms} - counted, kept


SVG = re.compile(r"<svg.*</svg>", re.S)


def parts(picture, css):
    """The links of one class in a picture, and whether it is well-formed XML."""
    found = ElementTree.fromstring(SVG.search(picture)[0])
    return [e for e in found.iter() if css in e.get("class", "").split()]


def percent(e, name):
    return float(e.get(name).removesuffix("%"))


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("layer, device", DRAWN, ids=lambda x: getattr(x, "id", x))
def test_every_kept_tensor_is_drawn_with_its_size(layer, device, lang):
    picture = draw.layer_picture(layer, lang, device, "bfloat16", "Llama-3-8B", SIZES)
    kept = layer.implementations[0].claim(device, "bfloat16")
    cards = parts(picture, "kept")
    assert [c.get("href") for c in cards] == [f"#saved-{s.name}" for s in kept]
    assert human(at_sizes(device_bytes(kept), SIZES)) in picture
    largest = max((at_sizes(s.nbytes, SIZES) for s in kept if s.cls in ON_DEVICE), default=0)
    for card, s in zip(cards, kept, strict=True):
        bars = [e for e in card if e.get("class") == "bar"]
        assert len(bars) == (s.cls in ON_DEVICE)
        for bar in bars:
            share = percent(bar, "width") / draw.CARD[1]
            assert abs(share - at_sizes(s.nbytes, SIZES) / largest) < 0.001
    edges = [*parts(picture, "read"), *parts(picture, "same"), *parts(picture, "made")]
    read = reads(layer.implementations[0].saves(device).pair)
    assert len(parts(picture, "read")) == sum(map(len, read.values())) <= len(edges)


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.id)
def test_a_block_is_drawn_to_the_byte(block, lang):
    picture = draw.block_picture(block.implementations[0], lang, "cuda", "bfloat16", "Llama-3-8B", SIZES)
    kept = {s.name: s for s in block.implementations[0].claim("cuda", "bfloat16") if s.cls in ON_DEVICE}
    total = at_sizes(device_bytes(kept.values()), SIZES)
    assert human(total) in picture
    bars, at = [e for e in parts(picture, "kept")], draw.FROM
    assert len(bars) == len(kept)
    for bar in bars:
        rect, name = bar[0], bar[1].text.strip()
        share = at_sizes(kept.pop(name).nbytes, SIZES) / total * (100 - draw.FROM)
        assert abs(percent(rect, "width") - max(share, draw.THIN)) < 0.01, name
        assert abs(percent(rect, "x") - at) < 0.01, name  # each begins where the one before ends
        at += share
    assert not kept and abs(at - 100) < 0.01


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.id)
def test_its_links_lead_to_published_addresses(block):
    published = addresses.read(addresses.LIST)
    picture = draw.block_picture(block.implementations[0], "en", "cuda", "bfloat16", "Llama-3-8B", SIZES)
    links = {href.removeprefix("../") for href in re.findall(r'href="([^"]+)"', picture)}
    assert links and links <= {*published}
