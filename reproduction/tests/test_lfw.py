"""Photographs of faces, in versions, with an encoder of their mean colours in place of dlib's."""

import numpy as np
import pytest
from PIL import Image

from reproduction import lfw

PEOPLE, EACH = 4, 3


class Encoder:
    """Embeds a version of a photograph as its mean colour."""

    def embed(self, files, version, drawn):
        chips = [np.asarray(Image.open(file).resize((lfw.CHIP, lfw.CHIP))) for file in files]
        shown = [lfw.mar(chip, version, {k: x[i] for k, x in drawn.items()}) for i, chip in enumerate(chips)]
        embeddings = np.array([chip.mean((0, 1)) for chip in shown], np.float32)
        return {"embeddings": embeddings, "detection": np.ones(len(files), np.float32)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder as torchvision's, of made-up people."""
    rng = np.random.default_rng(0)
    for person in ("Aaron_Eckhart", "B", "C", "D"):
        photographs = tmp_path / "lfw-py" / "lfw-deepfunneled" / person
        photographs.mkdir(parents=True)
        for number in range(1, EACH + 1):
            noise = rng.integers(0, 256, (50, 50, 3), np.uint8)
            Image.fromarray(noise).save(photographs / f"{person}_{number:04d}.jpg")
    (tmp_path / "lfw-py" / "pairs.txt").write_text("1\t2\nB\t1\t3\nC\t2\tD\t1\n")
    monkeypatch.setenv("LFW", str(tmp_path))
    monkeypatch.setattr(lfw, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(lfw, "Encoder", Encoder)
    monkeypatch.setattr(lfw, "BLOCK", 5)
    return tmp_path


def test_photographs_are_embedded_once_and_in_order(folder, monkeypatch):
    x = lfw.faces()
    assert x.names[[0, 3]].tolist() == ["Aaron_Eckhart_0001", "B_0001"]
    np.testing.assert_array_equal(x.people, np.arange(PEOPLE).repeat(EACH))
    assert x.pairs.tolist() == [[3, 5], [7, 9]]
    monkeypatch.delenv("LFW")
    again = lfw.faces()
    assert again.checksum() == x.checksum()
    np.testing.assert_array_equal(again.clean, x.clean)


def test_a_stopped_command_goes_on(folder, monkeypatch):
    embedded = []

    class Stops(Encoder):
        def embed(self, files, version, drawn):
            if len(embedded) == 4:
                raise KeyboardInterrupt
            embedded.append((version, files[0].stem))
            return super().embed(files, version, drawn)

    monkeypatch.setattr(lfw, "Encoder", Stops)
    with pytest.raises(KeyboardInterrupt):
        lfw.faces()
    before = embedded.copy()
    embedded.clear()
    monkeypatch.setattr(lfw, "Encoder", Encoder)
    whole = lfw.faces()
    assert len(before) == 4 and before[-1] == ("small", "Aaron_Eckhart_0001")
    assert whole.clean.shape == whole.small.shape == whole.marred.shape == (PEOPLE * EACH, 3)


def test_without_photographs_the_error_says_where_they_are_looked_for(folder, monkeypatch):
    for words in ({"LFW": str(folder / "cache")}, {}):
        monkeypatch.delenv("LFW", raising=False)
        for name, value in words.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(FileNotFoundError, match=r"Set LFW to a folder with pairs\.txt and lfw-deepfunneled"):
            lfw.faces()


def test_versions_spoil_as_much_as_was_drawn():
    chip = np.random.default_rng(0).integers(0, 256, (lfw.CHIP, lfw.CHIP, 3), np.uint8)
    drawn = {"side": 12, "blur": 0.0, "cover": 0.3, "place": np.array([1.0, 0.0])}
    np.testing.assert_array_equal(lfw.mar(chip, "clean", drawn), chip)
    covered = (lfw.mar(chip, "marred", drawn) == 128).all(2)
    side = round(lfw.CHIP * 0.3**0.5)
    assert covered[:side, -side:].all() and covered.sum() - side**2 < 3  # of noise a few pixels are grey by chance
    for spoilt in (lfw.mar(chip, "small", drawn), lfw.mar(chip, "marred", drawn | {"blur": 4.0})):
        assert spoilt.shape == chip.shape and spoilt.std() < chip.std() / 3


def test_kinds_of_marks_are_drawn_evenly():
    drawn = lfw.marks(20_000)
    assert np.all((drawn["blur"] > 0) != (drawn["cover"] > 0))
    for name, values, count in (("side", lfw.SIDES, 4000), ("blur", lfw.BLURS, 3333), ("cover", lfw.COVERS, 3333)):
        found = [(drawn[name] == value).sum() for value in values]
        assert np.abs(np.array(found) - count).max() < 5 * count**0.5  # five standard deviations


def test_photographs_of_a_person_are_in_a_drawn_order():
    people = np.array([0, 0, 0, 1, 2, 2])
    orders = {tuple(lfw.drawn_order(people, seed)) for seed in range(200)}
    assert len(orders) == 12 and all(sorted(order[:3]) == [0, 1, 2] and order[3] == 0 for order in orders)


def test_a_third_of_the_people_is_fitted_to():
    people = np.arange(30).repeat(np.arange(1, 31))
    fit = lfw.fitted(people, 0)
    assert len(np.unique(people[fit])) == 10 and not set(people[fit]) & set(people[~fit])
