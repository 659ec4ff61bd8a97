"""Pixels that are read when asked for, their corruption and transforms."""

import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from peaccel.data._listings import SUFFIXES
from peaccel.data.images import FORMATS, ImageRows, centre_crop, crop_sizes, unreadable
from peaccel.data.transforms import (
    BN_INCEPTION,
    FACES,
    IMAGENET,
    Normalisation,
    eval_transform,
    face_transform,
    train_transform,
)


@pytest.fixture
def paths(tmp_path):
    """A colour image, a grey one and one with a palette, none of them square."""
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (31, 20, 3), np.uint8)).save(tmp_path / "colour.png")
    Image.fromarray(rng.integers(0, 256, (31, 20), np.uint8)).save(tmp_path / "grey.png")
    Image.fromarray(rng.integers(0, 256, (31, 20, 3), np.uint8)).convert("P").save(tmp_path / "palette.png")
    return [str(tmp_path / f"{name}.png") for name in ("colour", "grey", "palette")]


def test_images_are_rgb_whatever_they_were(paths):
    rows = ImageRows(paths)
    assert len(rows) == 3
    assert all(rows[i].shape == (31, 20, 3) and rows[i].dtype == np.uint8 for i in range(3))
    assert np.array_equal(rows[0], np.asarray(Image.open(paths[0])))
    assert np.array_equal(rows[1][..., 2], np.asarray(Image.open(paths[1])))


def test_images_go_through_torchs_loader(paths):
    rows = ImageRows(paths, transform=lambda image: np.asarray(image, np.float32) / 255, sizes=np.full(3, 0.5))
    (batch,) = DataLoader(rows, batch_size=3)
    assert batch.shape == (3, 10, 10, 3) and 0 <= batch.min() < batch.max() <= 1


def test_a_missing_or_damaged_image_is_named(paths, tmp_path):
    cut, text = tmp_path / "cut.png", tmp_path / "text.jpg"
    cut.write_bytes((tmp_path / "colour.png").read_bytes()[:300])
    text.write_text("no image")
    for path in (cut, text):
        with pytest.raises(ValueError, match=re.escape(f"{path}: cannot be read as an image")):
            ImageRows([*paths, str(path)])[3]
    with pytest.raises(FileNotFoundError, match=r"gone\.png: no such image"):
        ImageRows([str(tmp_path / "gone.png")])[0]


def test_images_are_read_as_the_formats_of_their_suffixes_alone(tmp_path):
    """Such as one named by another suffix of these, but no drawing that Pillow hands to another program."""
    assert {Image.registered_extensions()[suffix] for suffix in SUFFIXES} == {*FORMATS}
    Image.fromarray(np.zeros((5, 4, 3), np.uint8)).save(tmp_path / "photo.jpg", "PNG")
    assert ImageRows([str(tmp_path / "photo.jpg")])[0].shape == (5, 4, 3)
    for other in ("EPS", "GIF"):
        path = str(tmp_path / f"{other}.jpg")
        Image.fromarray(np.zeros((5, 4, 3), np.uint8)).save(path, other)
        with pytest.raises(ValueError, match=re.escape(f"{path}: cannot be read as an image")):
            ImageRows([path])[0]
        assert unreadable([path], whole=True) == {path: "is no image"}


def test_pipes_are_not_waited_for(tmp_path):
    path = str(tmp_path / "x.png")
    os.mkfifo(path)
    with pytest.raises(ValueError, match=re.escape(f"{path}: cannot be read as an image (is no regular file)")):
        ImageRows([path])[0]
    assert unreadable([path]) == {path: "is no image"}


def test_sizes_are_of_the_same_images(paths):
    with pytest.raises(ValueError, match="sizes has 2 items, expected 3 like paths"):
        ImageRows(paths, sizes=crop_sizes(2))


def test_pillow_is_asked_for_by_the_name_it_is_installed_by(paths, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"images need Pillow: pip install peaccel\[train\]"):
        ImageRows(paths)[0]


@pytest.mark.parametrize(
    ("shape", "size", "box"),
    [
        ((31, 20), 1.0, (5, 0, 20)),  # top, left, side
        ((20, 31), 0.5, (5, 10, 10)),
        ((31, 20), 0.26, (13, 7, 5)),
        ((31, 20), 0.001, (15, 9, 1)),
    ],
)
def test_centre_crop(shape, size, box):
    x = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    top, left, side = box
    expected = x[top : top + side, left : left + side]
    assert np.array_equal(np.asarray(centre_crop(Image.fromarray(x), size)), expected)


def test_crop_sizes():
    right, published = crop_sizes(100_000, seed=3), crop_sizes(100_000, seed=3, least=0.25)
    for sizes, low in ((right, 0.5), (published, 0.25)):
        assert low <= sizes.min() < low + 1e-3 and 1 - 1e-3 < sizes.max() <= 1
        assert abs(sizes.mean() - (1 + low) / 2) < 0.003  # four standard deviations of the mean
    assert np.array_equal(right[:10], crop_sizes(10, seed=3))  # an image's size does not depend on how many follow
    assert not np.array_equal(right, crop_sizes(100_000, seed=4))
    with pytest.raises(ValueError, match=r"^crop_sizes: least is 0, expected a share above 0, at most 1$"):
        crop_sizes(3, least=0)


PLAIN = Normalisation((0, 0, 0), (1, 1, 1))


@pytest.mark.parametrize("shape", [(300, 400), (400, 300), (100, 150)])
def test_testing_resizes_the_shorter_side_and_crops_the_middle(shape):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8))
    height, width = (int(256 * side / min(shape)) for side in shape)
    resized = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    top, left = round((height - 224) / 2), round((width - 224) / 2)
    cropped = resized[top : top + 224, left : left + 224].transpose(2, 0, 1) / 255
    expected = (cropped - np.reshape(IMAGENET.mean, (3, 1, 1))) / np.reshape(IMAGENET.std, (3, 1, 1))
    found = eval_transform(IMAGENET)(image)
    assert type(found) is torch.Tensor and found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)  # float32 of values below 3


def test_normalisations():
    white = Image.new("RGB", (300, 300), "white")
    colour = eval_transform(BN_INCEPTION)(white).mean((1, 2))
    np.testing.assert_allclose(colour, [255 - 128, 255 - 117, 255 - 104], rtol=1e-6)
    face = np.random.default_rng(0).integers(0, 256, (112, 112, 3), np.uint8)
    expected = (face.transpose(2, 0, 1) - 127.5) / 128
    np.testing.assert_allclose(face_transform()(Image.fromarray(face)), expected, atol=1e-6)
    np.testing.assert_allclose(eval_transform(FACES, 112, 112)(Image.fromarray(face)), expected, atol=1e-6)
    assert face_transform()(white).shape == (3, 112, 112)


def test_aligned_faces_are_mirrored_in_training_alone():
    face = Image.fromarray(np.random.default_rng(0).integers(0, 256, (112, 112, 3), np.uint8))
    straight = face_transform()(face)
    seen = [face_transform(flip=True)(face) for _ in range(30)]
    mirrored = [torch.equal(each, straight.flip(2)) for each in seen]
    assert any(mirrored) and not all(mirrored)
    assert all(torch.equal(each, straight) for each, other in zip(seen, mirrored, strict=True) if not other)


def test_training_crops_within_scale_and_ratio():
    torch.manual_seed(0)
    x, y = np.meshgrid(np.arange(256), np.arange(256))
    ramps = Image.fromarray(np.stack([x, y, 0 * x], 2).astype(np.uint8))  # a pixel's colour is its place
    crop = train_transform(PLAIN, side=64, jitter=0)
    red, green, _ = torch.stack([crop(ramps) for _ in range(300)]).unbind(1)
    # The outermost pixels of the result are at half a pixel's distance from the edges of the crop.
    width = (red[:, 0, -1] - red[:, 0, 0]) * 255 / 256 * 64 / 63
    height = (green[:, -1, 0] - green[:, 0, 0]) * 255 / 256 * 64 / 63
    area, ratio = width.abs() * height, width.abs() / height
    assert 0.15 < area.min() < 0.22 and 0.9 < area.max() < 1.02  # rounded to pixels and to levels
    assert 0.72 < ratio.min() < 0.82 and 1.22 < ratio.max() < 1.38
    assert 0.35 < (width < 0).float().mean() < 0.65  # about half of the images are mirrored


def test_training_changes_colours_within_bounds():
    torch.manual_seed(0)
    grey = Image.new("RGB", (64, 64), (100, 100, 100))  # contrast and saturation leave it as it is
    levels = torch.stack([train_transform(PLAIN, side=8)(grey).mean() for _ in range(200)]) * 255 / 100
    assert 0.74 <= levels.min() < 0.8 and 1.2 < levels.max() <= 1.25


def test_training_rotates_if_told():
    torch.manual_seed(0)
    white = Image.new("RGB", (64, 64), "white")
    corner = [
        train_transform(PLAIN, 64, scale=(1, 1), ratio=(1, 1), jitter=0, degrees=d)(white)[0, 0, 0] for d in (0, 10)
    ]
    assert corner == [1, 0]


def test_images_with_transforms_go_to_workers(paths):
    rows = ImageRows(paths, eval_transform(IMAGENET))
    assert torch.equal(pickle.loads(pickle.dumps(rows))[0], rows[0])


def test_reading_lists_needs_neither_torch_nor_pillow():
    code = "import sys, peaccel.data; print([m for m in ('torch', 'PIL', 'scipy', 'sklearn') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
