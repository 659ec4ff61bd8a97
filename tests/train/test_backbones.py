"""Backbones: published layouts, pooling, frozen batch normalisation, dropout, weights by file."""

import copy

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from peaccel.train import backbones
from peaccel.train.backbones.bn_inception import BNInception
from peaccel.train.backbones.iresnet import IResNet
from peaccel.train.backbones.pooling import Avg

TINY_CLIP = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 9, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def create(name, seed=0, **options):
    torch.manual_seed(seed)
    return backbones.create(name, **options)


def images(n, *shape):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("name", "options", "shape", "maps", "features"),
    [
        ("small_cnn", {}, (1, 28, 84), (64, 3, 10), 256),
        ("bn_inception", {}, (3, 64, 96), (1024, 2, 3), 1024),
        ("iresnet18", {}, (3, 112, 112), (512, 7, 7), 512),
        ("resnet18", {}, (3, 64, 64), (512, 2, 2), 512),
        ("densenet121", {}, (3, 64, 64), (1024, 2, 2), 1024),
        ("vit_tiny_patch16_224", {"img_size": 32}, (3, 32, 32), (5, 192), 192),
        ("clip_image:ViT-B-32", TINY_CLIP, (3, 32, 32), (24,), 24),
    ],
)
@torch.no_grad()
def test_shapes(name, options, shape, maps, features):
    backbone = create(name, **options).eval()
    x = images(2, *shape)
    assert backbone.maps(x).shape == (2, *maps)
    assert backbone(x).shape == (2, features) and backbone.features == features
    assert len(backbone.input.mean) == len(backbone.input.std) == shape[0]
    assert torch.equal(backbone(x), create(name, **options).eval()(x))
    assert not torch.equal(backbone(x), create(name, seed=1, **options).eval()(x))


@pytest.mark.parametrize(
    ("name", "size", "scale"),
    [("bn_inception", (224, 224), (-128, 127)), ("iresnet18", (112, 112), (-1, 1)), ("small_cnn", (28, 84), (0, 1))],
)
def test_input_says_how_images_are_scaled(name, size, scale):
    expected = create(name).input
    assert expected.size == size
    ends = [(x - expected.mean[0]) / expected.std[0] for x in (0, 1)]  # the normalised range of the first channel, red
    assert ends == pytest.approx(scale)


def test_timm_says_what_images_it_expects():
    assert create("resnet18", in_chans=1).input == backbones.ImageInput((224, 224), (0.449,), (0.226,), 0.95)
    vit = create("vit_tiny_patch16_224", img_size=(32, 48)).input
    assert vit == backbones.ImageInput((32, 48), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 0.9)


@torch.no_grad()
def test_text_tower_reads_its_tokens():
    tower = create("clip_text:ViT-B-32", **TINY_CLIP).eval()
    tokens = tower.input.tokenize(["three seven two", "three ? two"])
    assert tokens.shape == (2, 9) and tower.features == 24
    alone, both = tower(tokens[:1]), tower(tokens)
    torch.testing.assert_close(both[:1], alone)
    assert not torch.allclose(both[0], both[1])


def bn_inception_names():
    branches = ["1x1", "3x3_reduce", "3x3", "double_3x3_reduce", "double_3x3_1", "double_3x3_2", "pool_proj"]
    units = ["conv1_7x7_s2", "conv2_3x3_reduce", "conv2_3x3"]
    for block in ("3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        units += [f"inception_{block}_{b}" for b in (branches[1:-1] if block in ("3c", "4e") else branches)]
    return [f"{u}.{n}" for u in units for n in NORM[:2]] + [f"{u}_bn.{n}" for u in units for n in NORM]


def test_bn_inception_has_the_published_layout():
    network = BNInception()
    state = network.state_dict()
    assert set(state) == set(bn_inception_names())
    assert state["inception_4e_double_3x3_2.weight"].shape == (256, 256, 3, 3)
    assert state["inception_5b_pool_proj.weight"].shape == (128, 1024, 1, 1)
    assert sum(p.numel() for p in network.parameters()) == 10_270_240  # 11 295 240 less a classifier of 1000
    assert network.maps(images(2, 3, 64, 64)).shape == (2, 1024, 2, 2)
    with pytest.raises(ValueError, match=r"shape \(1, 3, 60, 64\), expected H and W multiples of 32"):
        network.maps(images(1, 3, 60, 64))


@torch.no_grad()
def test_bn_inception_reads_blue_first():
    network = BNInception().eval()
    network.conv1_7x7_s2.weight.data[:, 1:] = 0  # the published first channel is blue
    x = images(1, 3, 32, 32)
    for channel, matters in enumerate((False, False, True)):
        changed = x.clone()
        changed[:, channel] += 1
        assert torch.equal(network.maps(changed), network.maps(x)) is not matters


def iresnet_names(counts):
    names = ["conv1.weight", "prelu.weight", "fc.weight", "fc.bias"]
    names += [f"{bn}.{n}" for bn in ("bn1", "bn2", "features") for n in NORM]
    for layer, count in enumerate(counts, 1):
        names += [f"layer{layer}.0.downsample.0.weight", *(f"layer{layer}.0.downsample.1.{n}" for n in NORM)]
        for block in (f"layer{layer}.{i}." for i in range(count)):
            names += [f"{block}{n}.weight" for n in ("conv1", "conv2", "prelu")]
            names += [f"{block}{bn}.{n}" for bn in ("bn1", "bn2", "bn3") for n in NORM]
    return names


@pytest.mark.parametrize(
    ("depth", "counts", "millions"),
    [(18, (2, 2, 2, 2), 24.03), (34, (3, 4, 6, 3), 34.14), (50, (3, 4, 14, 3), 43.59), (100, (3, 13, 30, 3), 65.16)],
)
def test_iresnet_has_the_published_layout(depth, counts, millions):
    with torch.device("meta"):
        network = IResNet(depth)
    state = network.state_dict()
    assert set(state) == set(iresnet_names(counts))
    assert state["fc.weight"].shape == (512, 25088) and state["layer3.0.downsample.0.weight"].shape == (256, 128, 1, 1)
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.01)


@torch.no_grad()
def test_iresnet_gives_map_and_embedding_of_one_pass():
    backbone = create("iresnet18").eval()
    x = images(2, 3, 112, 112)
    maps = backbone.maps(x)
    assert backbone.map_shape() == maps.shape[1:] and maps.flatten(1).shape == (2, 25088)
    assert torch.equal(backbone.pool(maps), backbone(x))
    assert "features.weight" not in dict(backbone.network.named_parameters())  # published as fixed at 1


def published(backbone):
    """The state dict as its publisher has it: without our own names around it, with a classifier."""
    network = backbone.network
    inner = next((getattr(network, n) for n in ("model", "layers", "tower") if hasattr(network, n)), network)
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in inner.state_dict().items()}


@pytest.mark.parametrize(
    ("name", "classifier", "shape"),
    [
        ("bn_inception", "last_linear", (3, 64, 64)),
        ("iresnet18", None, (3, 112, 112)),
        ("resnet18", "fc", (3, 64, 64)),
        ("densenet121", "classifier", (3, 64, 64)),
        ("small_cnn", None, (1, 28, 84)),
    ],
)
@torch.no_grad()
def test_weights_by_file(name, classifier, shape, tmp_path):
    backbone = create(name)
    state = published(backbone)
    if classifier:
        state |= {f"{classifier}.weight": torch.zeros(10, backbone.features), f"{classifier}.bias": torch.zeros(10)}
    torch.save(state, tmp_path / "w.pth")
    save_file({k: v for k, v in state.items() if "num_batches" not in k}, tmp_path / "w.safetensors")
    x = images(2, *shape)
    for file in ("w.pth", "w.safetensors"):
        again = create(name, seed=1, weights=tmp_path / file, frozen_bn=True)
        assert torch.equal(again.eval()(x), backbone.eval()(x))


@torch.no_grad()
def test_tower_takes_its_part_of_a_whole_model(tmp_path):
    import open_clip

    torch.manual_seed(0)
    model = open_clip.model.CLIP(**TINY_CLIP).eval()
    torch.save(model.state_dict(), tmp_path / "clip.pth")
    image = create("clip_image:ViT-B-32", seed=1, weights=tmp_path / "clip.pth", **TINY_CLIP).eval()
    text = create("clip_text:ViT-B-32", seed=1, weights=tmp_path / "clip.pth", **TINY_CLIP).eval()
    x, tokens = images(2, 3, 32, 32), text.input.tokenize(["one", "two"])
    assert torch.equal(image(x), model.encode_image(x)) and torch.equal(text(tokens), model.encode_text(tokens))


def test_embedding_that_is_not_wanted_is_left_out(tmp_path):
    torch.save(published(create("iresnet18")), tmp_path / "w.pth")
    backbone = create("iresnet18", weights=tmp_path / "w.pth", pooling="none")
    assert not any(name.startswith(("network.fc", "network.features")) for name in backbone.state_dict())


def test_weights_that_do_not_fit_are_named(tmp_path):
    state = published(create("resnet18"))
    before = copy.deepcopy(state)
    del state["conv1.weight"], state["bn1.bias"]
    state |= {"stem.weight": torch.zeros(1), "bn1.weight": torch.zeros(7)}
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(ValueError) as raised:
        create("resnet18", weights=tmp_path / "w.pth")
    assert str(raised.value) == (
        f"{tmp_path / 'w.pth'}: resnet18: weights do not fit; missing: conv1.weight, bn1.bias; "
        "unexpected: stem.weight; of another shape: bn1.weight (7,), expected (64,)"
    )
    torch.save(before, tmp_path / "w.pth")
    with pytest.raises(ValueError, match=r"missing: conv1_7x7_s2.weight, .* and \d+ more; unexpected: conv1.weight"):
        create("bn_inception", weights=tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("w.pth", {"epoch": 3, "state_dict": {}}, "holds epoch, state_dict beside tensors, expected a state dict"),
        ("w.pth", [1], "holds a list, expected a state dict"),
        ("w.pth", nn.ReLU(), "is no state dict that torch.load"),
        ("w.pth", b"word", "is no state dict that torch.load"),
        ("w.safetensors", b"word", "is no safetensors file"),
    ],
)
def test_files_of_something_else(file, content, message, tmp_path):
    if isinstance(content, bytes):
        (tmp_path / file).write_bytes(content)
    else:
        torch.save(content, tmp_path / file)
    with pytest.raises(ValueError, match=message) as raised:
        create("small_cnn", weights=tmp_path / file)
    assert "\n" not in str(raised.value)


def test_what_cannot_be_created(monkeypatch, tmp_path):
    for name, nearest in [
        ("iresnet5", "iresnet50"),
        ("resnet5O", "resnet50"),
        ("resnet50.a1_in1", "resnet50.a1_in1k"),
        ("clip_text:ViT-B32", "clip_text:ViT-B-32"),
        ("hf-hub:timm/resnet50", None),
    ]:
        with pytest.raises(ValueError, match=f"unknown backbone .*did you mean '{nearest or '.*'}'"):
            backbones.create(name)
    with pytest.raises(FileNotFoundError, match=r"none\.pth: there is no such file"):
        backbones.create("small_cnn", weights=tmp_path / "none.pth")
    with pytest.raises(ValueError, match=r"pooling is 'max', expected one of own, avg, avg\+max, gem, none"):
        backbones.create("small_cnn", pooling="max")
    with pytest.raises(ValueError, match=r"dropout is 1, expected a rate in \[0, 1\)"):
        backbones.create("small_cnn", dropout=1)
    for name, options in (("vit_tiny_patch16_224", {"img_size": 32}), ("clip_image:ViT-B-32", TINY_CLIP)):
        with pytest.raises(ValueError, match="pooling is 'gem', expected 'own'"):
            backbones.create(name, pooling="gem", **options)
    monkeypatch.setattr(backbones, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="did you mean 'iresnet50'\\? More are there once timm is installed"):
        backbones.create("resnet50")
    with pytest.raises(ImportError, match=r"needs open_clip: pip install 'peaccel\[clip\]'"):
        backbones.create("clip_text:ViT-B-32")


@pytest.mark.parametrize("pooling", ["avg", "avg+max", "gem", "none"])
@torch.no_grad()
def test_poolings(pooling):
    backbone = create("resnet18", pooling=pooling).eval()
    x = images(2, 3, 64, 64)
    maps = backbone.maps(x)
    above = maps.clamp(min=1e-6)
    expected = {
        "avg": maps.mean((2, 3)),
        "avg+max": maps.mean((2, 3)) + maps.amax((2, 3)),
        "gem": (above**3).mean((2, 3)) ** (1 / 3),
        "none": maps,
    }[pooling]
    torch.testing.assert_close(backbone(x), expected)
    assert backbone.features == 512


def test_gem_lies_between_average_and_maximum():
    maps = images(2, 3, 4, 5).double() * 10
    torch.testing.assert_close(backbones.GeM(1)(maps), Avg()(maps))
    # the largest of 20 entries has at least 20^(-1/p) of its weight
    torch.testing.assert_close(backbones.GeM(1e4)(maps), maps.amax((2, 3)), rtol=4e-4, atol=0)
    values = torch.stack([backbones.GeM(p)(maps) for p in (1, 2, 3, 6)])
    assert (values.diff(dim=0) > 0).all()
    with pytest.raises(ValueError, match="p is 0 and eps is"):
        backbones.GeM(0)


def test_gem_learns_its_exponent_on_any_map():
    gem = backbones.GeM().double()
    maps = (images(2, 3, 2, 2).double() * 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda m, p: torch.func.functional_call(gem, {"p": p}, (m,)), (maps, gem.p))
    for p, scale in ((3, 1e30), (9, 0.0), (9, 1e-30)):
        hard = (images(1, 2, 3, 3) * scale).requires_grad_()
        gem = backbones.GeM(p)
        gem(hard).sum().backward()
        assert all(torch.isfinite(t).all() for t in (gem(hard), hard.grad, gem.p.grad))


def test_gem_widens_halves():
    maps = images(2, 3, 4, 4) * 100  # the cubes overflow float16
    with torch.autocast("cpu", torch.bfloat16):
        pooled = backbones.GeM()(maps.half())
    torch.testing.assert_close(pooled, backbones.GeM()(maps.half().float()))


@pytest.mark.parametrize("name", ["small_cnn", "iresnet18", "densenet121"])
def test_frozen_batch_norm_does_not_move(name):
    shape = (1, 28, 84) if name == "small_cnn" else (3, 112, 112)
    backbone = create(name, frozen_bn=True)
    free = create(name)
    norms = [m for m in backbone.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    before = [{k: v.clone() for k, v in m.state_dict().items()} for m in norms]
    model = nn.Sequential(backbone, nn.Linear(backbone.features, 2)).train().requires_grad_(True)
    assert norms and not any(m.training for m in norms) and backbone.training
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, weight_decay=0.1)
    model(images(2, *shape)).square().sum().backward()
    optimizer.step()
    for norm, state in zip(norms, before, strict=True):
        assert all(torch.equal(value, state[key]) for key, value in norm.state_dict().items())
    assert backbone.state_dict().keys() == free.state_dict().keys()
    copied = copy.deepcopy(backbone).train()
    assert not any(m.training for m in copied.modules() if isinstance(m, nn.BatchNorm2d))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("bn_inception", (3, 64, 64)),
        ("iresnet18", (3, 112, 112)),
        ("resnet18", (3, 64, 64)),
        ("densenet121", (3, 64, 64)),
    ],
)
@torch.no_grad()
def test_dropout_only_in_training_or_when_activated(name, shape):
    backbone, x = create(name, dropout=0.2).eval(), images(2, *shape)
    assert torch.equal(backbone(x), backbone(x)) and torch.equal(backbone(x), create(name).eval()(x))
    statistics = {k: v.clone() for k, v in backbone.named_buffers()}
    backbones.activate_dropout(backbone)
    assert not torch.equal(backbone(x), backbone(x))
    assert all(torch.equal(v, statistics[k]) for k, v in backbone.named_buffers())
    frozen = create(name, dropout=0.2, frozen_bn=True).train()
    assert not torch.equal(frozen(x), frozen(x))


@torch.no_grad()
def test_dense_layers_drop_what_they_add():
    backbone = create("densenet121", dropout=0.2, pooling="none")
    backbones.activate_dropout(backbone)
    first, second = (backbone.maps(images(1, 3, 64, 64)) for _ in range(2))
    # dropout of the output alone would leave most entries as they were, or set them to 0
    assert (first != second).float().mean() > 0.5 and (first == 0).float().mean() < 0.9


def test_map_shape_leaves_modes_as_they_are():
    backbone = create("small_cnn").train()
    backbone.network.layers[1].eval()
    assert backbone.map_shape() == (64, 3, 10)
    assert backbone.training and not backbone.network.layers[1].training


@pytest.mark.parametrize(("name", "size"), [("small_cnn", 40), ("bn_inception", 64), ("test_resnet", 64)])
def test_images_of_another_size_are_taken(name, size):
    made = backbones.create(name, image_size=size, **({"colours": 3} if name == "small_cnn" else {}))
    assert made.input.size == (size, size) and made(torch.zeros(2, 3, size, size)).shape == (2, made.features)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [("iresnet18", 64, "takes images of 112 pixels alone"), ("bn_inception", 16, "multiples of 32")],
)
def test_a_size_that_a_network_does_not_take_is_named(name, size, message):
    with pytest.raises(ValueError, match=f"create: image_size is {size}, .*{message}"):
        backbones.create(name, image_size=size)


def test_a_transformer_is_built_for_the_size_of_its_images():
    made = backbones.create("vit_tiny_patch16_224", image_size=32)
    assert made(torch.zeros(1, 3, 32, 32)).shape == (1, made.features)
