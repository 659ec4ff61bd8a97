"""Retrievals on the page of `peaccel evaluate`: which queries are shown, what they find, and the marks of errors."""

import command
import numpy as np
import pytest

import peaccel as pe
from peaccel import io
from peaccel._utils import report
from peaccel.cli._labelled_files import read_images
from peaccel.evaluation.pages import retrievals
from peaccel.metrics import Relevance
from peaccel.metrics._relation import as_relation

SCORES = pe.scores.cosine, pe.scores.neg_sq_l2


def plane(*directions):
    return np.array([[length * np.cos(np.radians(at)), length * np.sin(np.radians(at))] for length, at in directions])


def shown(monkeypatch, *arguments, **options):
    """The section, and what the picture is drawn from."""
    drawn = {}

    def keep(queries, found, right, names):
        drawn.update(queries=queries, found=found, right=right, names=names)
        return "picture"

    monkeypatch.setattr(report, "retrievals", keep)
    return retrievals(*arguments, **options), drawn


def test_queries_that_one_of_two_scores_answers_rightly(monkeypatch):
    queries, gallery = pe.Point(plane((1, 0), (1, 90), (1, 180))), pe.Point(plane((9, 1), (1, 20), (1, 91), (1, 181)))
    images = (
        np.arange(3.0)[:, None, None] + np.zeros((3, 2, 2)),
        10 + np.arange(4.0)[:, None, None] + np.zeros((4, 3, 5)),
    )
    section, drawn = shown(monkeypatch, queries, gallery, as_relation("", [0, 1, 2], [0, 5, 1, 2]), SCORES, images)
    assert section.heading == "Retrievals by cosine and neg_sq_l2" and section.content == "picture"
    assert section.text.startswith("1 of 1 queries that only one of the two answers rightly,")
    assert drawn["names"] == ("cosine", "neg_sq_l2") and drawn["queries"][:, 0, 0].tolist() == [0]
    assert drawn["found"].shape == (1, 2, 4, 3, 5)
    assert drawn["found"][0, :, 0, 0, 0].tolist() == [10, 11] and drawn["right"][0, :, 0].tolist() == [True, False]
    for side in (0, 1):
        assert (drawn["right"][0, side] == (drawn["found"][0, side, :, 0, 0] == 10)).all()


def test_items_among_themselves_never_find_themselves(monkeypatch):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 3)
    mu = rng.normal(size=(20, 5))[labels] + 0.2 * rng.normal(size=(60, 5))
    d = pe.Point(mu * rng.uniform(0.2, 2, (60, 1)))  # lengths that mean nothing
    images = np.arange(60.0)[:, None, None] + np.zeros((60, 2, 2))
    section, drawn = shown(monkeypatch, d, None, as_relation("", labels, None), SCORES, (images, images), seed=1)
    queries, found = drawn["queries"][:, 0, 0].astype(int), drawn["found"][..., 0, 0].astype(int)
    assert len(queries) == 12 and found.shape == (12, 2, 5) and (np.diff(queries) > 0).all()
    assert (found != queries[:, None, None]).all()
    assert (drawn["right"] == (labels[found] == labels[queries][:, None, None])).all()
    assert (drawn["right"][:, 0, 0] != drawn["right"][:, 1, 0]).all() and section.text.startswith("12 of ")
    again = shown(monkeypatch, d, None, as_relation("", labels, None), SCORES, (images, images), seed=1)[1]
    assert (again["queries"] == drawn["queries"]).all()


def test_where_the_scores_agree_errors_are_shown_and_else_anything(monkeypatch):
    d, images = pe.Point(plane((1, 0), (1, 1), (1, 90), (1, 91), (1, 180))), np.zeros((5, 2, 2))
    for labels, sentence in (
        ([0, 0, 1, 1, 2], "4 of 4 queries, all of which both answer rightly"),  # the last one has no answer
        ([0, 0, 1, 2, 1], "2 of 2 queries that both answer wrongly"),
    ):
        truth = as_relation("", labels, None)
        assert shown(monkeypatch, d, None, truth, SCORES, (images, images))[0].text.startswith(sentence)
    pairs = Relevance.from_pairs([[0, 2]], 5)
    assert shown(monkeypatch, d, None, pairs, SCORES, (images, images))[0].text.startswith("1 of 1 queries that both")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    for name, count, size in (("q", 30, (4, 4)), ("g", 40, (6, 5))):
        io.write_distribution(f"{name}.npz", pe.Normal(rng.normal(size=(count, 4)), rng.uniform(1, 2, count)))
        np.save(f"y{name}.npy", np.arange(count) % 10)
        np.save(f"{name}.npy", rng.integers(0, 255, (count, *size), np.uint8))
    return tmp_path


def run(capsys, line):
    return command.run(capsys, "evaluate", line)


SIDES = "--queries q.npz --gallery g.npz --query-labels yq.npy --gallery-labels yg.npy --out o"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("line", "there"),
    [
        (f"{SIDES} --images q.npy --gallery-images g.npy --scores cosine,neg_w2,mls", True),
        (f"{SIDES} --images q.npy", False),
        ("--embeddings q.npz --labels yq.npy --images q.npy --out o", True),
        ("--embeddings q.npz --labels yq.npy --images q.npy --scores cosine --out o", False),
    ],
)
def test_the_page_has_retrievals_where_both_sides_have_images(folder, capsys, line, there):
    code, _, err = run(capsys, line)
    assert code == 0, err
    page = (folder / "o" / "report.html").read_text()
    assert ("<h2>Retrievals by cosine and " in page) == there == ("Green: right, red: wrong." in page)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{SIDES} --gallery-images g.npy", "--gallery-images needs --images and --gallery; what is in --embeddings"),
        ("--embeddings q.npz --labels yq.npy --images q.npy --gallery-images g.npy --out o", "--gallery-images needs"),
        (f"{SIDES} --images q.npy --gallery-images q.npy", "q.npy: has shape (30, 4, 4), expected (40, H, W)"),
    ],
)
def test_the_command_refuses_in_one_line(folder, capsys, line, message):
    code, _, err = run(capsys, line)
    assert code == 2 and err.count("\n") == 1 and message in err


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_images_of_bytes_or_of_shares_are_shown_alike(tmp_path, dtype):
    shares = np.linspace(0, 1, 24).reshape(2, 3, 4)
    np.save(tmp_path / "bytes.npy", (255 * shares).round().astype(dtype))
    np.save(tmp_path / "shares.npy", (1.01 * shares).astype("float32"))
    np.testing.assert_allclose(read_images(tmp_path / "bytes.npy", 2), shares, atol=0.002)
    np.testing.assert_allclose(read_images(tmp_path / "shares.npy", 2), 1.01 * shares, rtol=1e-6)
