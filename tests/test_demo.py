"""The demo end to end on tiny sizes, and the parts it is made of."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import peaccel as pe
from peaccel import config, demo, heads, methods, report, train
from peaccel.data import digits
from peaccel.losses.likelihood import negative_mls


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return demo.run(demo.DemoSettings(seed=1, seeds=2, quick=True, out=tmp_path_factory.mktemp("demo")))


def numbers(results):
    return [(row.queries, row.gallery, row.score, row.recall_at_1, row.map_at_r) for row in results.rows]


def test_table_covers_every_condition_and_score(results):
    conditions = [(row.queries, row.gallery) for row in results.rows if row.score == "cosine"]
    assert conditions == [("clean", "clean"), ("clean", "mixed"), ("mixed", "clean"), ("mixed", "mixed")]
    assert {row.score for row in results.rows} >= {"cosine", "mls", "llr"}
    for row in results.rows:
        assert len(row.recall_at_1) == len(row.map_at_r) == len(row.microseconds) == 2
        assert all(0 <= value <= 1 for value in row.recall_at_1 + row.map_at_r)
        assert min(row.microseconds) > 0
    assert results.rows[0].recall_at_1[0] > 3 / 40  # well above the chance of 40 numbers, even with tiny training


def test_report_holds_table_and_pictures(results):
    page = results.report.read_text(encoding="utf-8")
    for line in results.table():
        assert all(cell in page for cell in line)
    assert page.count("data:image/png;base64,") >= 5
    assert 'src="http' not in page and "<link" not in page and "<script" not in page


def test_record_is_json(results):
    record = json.loads((results.report.parent / "results.json").read_text(encoding="utf-8"))
    assert [row["score"] for row in record["results"]["rows"]] == [row.score for row in results.rows]
    assert record["settings"]["seed"] == 1 and record["recipe"]["digits"]["corruption"]["blur"] > 0


def test_same_seed_same_table(results, tmp_path):
    again = demo.run(demo.DemoSettings(seed=2, seeds=1, quick=True, out=tmp_path))
    assert [(*key, recall[1:], map_at_r[1:]) for *key, recall, map_at_r in numbers(results)] == numbers(again)
    first = [recall[0] for *_, recall, _ in numbers(results)]
    assert first != [recall[0] for *_, recall, _ in numbers(again)]


def test_demo_data_share_no_scan():
    parts = digits.make("mnist", demo.load_recipe().digits, seed=0)
    used = [set(strips.scans.ravel().tolist()) for strips in parts.values()]
    assert sum(map(len, used)) == len(set.union(*used))


def test_seeds_below_one():
    with pytest.raises(ValueError, match="seeds is 0, expected at least 1"):
        demo.run(demo.DemoSettings(seeds=0))


def test_an_out_that_cannot_be_is_found_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "run_seed", pytest.fail)
    (tmp_path / "file").write_text("good")
    with pytest.raises(ValueError, match=r"^demo: out is .*file, a file, expected a folder$"):
        demo.run(demo.DemoSettings(quick=True, out=tmp_path / "file"))
    (tmp_path / "report.html").mkdir()
    with pytest.raises(ValueError, match=r"report.html: is a folder, expected a file$"):
        demo.run(demo.DemoSettings(quick=True, out=tmp_path))
    assert (tmp_path / "file").read_text() == "good"


def test_a_report_is_whole_or_the_one_before(tmp_path, monkeypatch):
    def half(path, text, **_):
        path.write_bytes(text.encode()[: len(text) // 2])
        raise OSError(28, "No space left on device")

    (tmp_path / "report.html").write_text("good")
    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space left on device"):
        report.write(tmp_path / "report.html", "title", [])
    assert [path.read_text() for path in tmp_path.iterdir()] == ["good"]


def test_variance_factor_finds_the_scale():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(500), 4)
    var = rng.uniform(0.5, 2, (2000, 8))
    mu = rng.normal(size=(500, 8))[labels] * 5 + rng.normal(size=(2000, 8)) * np.sqrt(var)
    assert demo.variance_factor(pe.Normal(mu, var / 3), labels) == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("name", methods.TABLE)
def test_every_method_of_the_table_loads(name):
    file = methods.load(name)
    assert callable(file.build) and file.Settings


def test_unknown_method():
    with pytest.raises(ValueError, match="method is 'hip', expected one of pfe"):
        methods.load("hip")


def test_only_what_a_stage_trains_changes():
    recipe = demo.load_recipe(quick=True)
    parts = digits.make("mnist", recipe.digits, seed=0)["train"]
    torch.manual_seed(0)
    backbone = demo.small_cnn.small_cnn()
    method = methods.load("pfe")
    settings = config.from_mapping(recipe.settings, method.Settings)
    model, (first, second) = method.build(backbone, demo.small_cnn.FEATURES, 60, settings)
    images, labels = (
        torch.from_numpy(parts.images)[:, None],
        torch.from_numpy(np.unique(parts.labels, return_inverse=True)[1]),
    )
    train.fit([first], images, labels, seed=0)
    mu, gamma = train.embed(model, images).mu, model[1].variance.gamma.item()
    train.fit([second], images, labels, seed=0)
    after = train.embed(model, images)
    assert np.array_equal(mu, after.mu)
    assert model[1].variance.gamma.item() != gamma
    assert np.allclose(np.linalg.norm(after.mu, axis=1), 1, atol=1e-6) and after.var.min() >= heads.VarianceHead.floor


def test_batches_deal_every_image_once_in_groups_of_one_class():
    labels = np.repeat(np.arange(32), 8)
    schedule = methods.Schedule(epochs=1, lr=0.1, classes_per_batch=16, images_per_class=4)
    batches = [rows.numpy() for rows in train.class_batches(labels, schedule, np.random.default_rng(0))]
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(labels)))
    for rows in batches:
        assert len(rows) == 64
        assert (np.ptp(labels[rows].reshape(-1, 4), axis=1) == 0).all()


def test_negative_mls_against_loops():
    torch.manual_seed(0)
    mu, var = torch.randn(6, 3, requires_grad=True), (torch.rand(6, 3) + 0.1).requires_grad_()
    labels = [0, 1, 0, 2, 1, 0]
    total, pairs = torch.zeros(()), 0
    for i in range(6):
        for j in range(6):
            if i != j and labels[i] == labels[j]:
                s = var[i] + var[j]
                total = total + 0.5 * ((mu[i] - mu[j]) ** 2 / s + s.log() + math.log(2 * math.pi)).sum()
                pairs += 1
    loss = negative_mls(pe.Normal(mu, var), torch.tensor(labels))
    assert loss.item() == pytest.approx(total.item() / pairs, rel=1e-5)
    for got, expected in zip(
        torch.autograd.grad(loss, (mu, var)), torch.autograd.grad(total / pairs, (mu, var)), strict=True
    ):
        assert torch.allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_negative_mls_needs_a_pair():
    with pytest.raises(ValueError, match="expected at least one pair of one class"):
        negative_mls(pe.Normal(torch.zeros(3, 2), torch.ones(3, 2)), torch.arange(3))


def test_variance_head_starts_from_one_variance():
    torch.manual_seed(0)
    var = heads.VarianceHead(5, 4, 8)(torch.randn(64, 5))
    assert var.shape == (64, 4)
    assert torch.allclose(var, torch.full_like(var, math.exp(-7) + 1e-6), rtol=1e-3)


@pytest.mark.parametrize(
    "text, error, message",
    [
        ("metod = 'pfe'", ValueError, "unknown key 'metod', nearest known key is 'method'"),
        ("method = 'pfe'", ValueError, "key 'shortlist' is missing, expected int"),
        ("method = 1\nshortlist = 1\ndigits = {}\nsettings = {}", TypeError, "method is 1, expected str"),
        ("method = 'pfe'\nshortlist = true\ndigits = {}\nsettings = {}", TypeError, "shortlist is True, expected int"),
        ("method = 'pfe'\nshortlist = 1\ndigits = 2\nsettings = {}", TypeError, "digits is 2, expected DigitsSettings"),
        ("[digits]\nclases = [1]\n", ValueError, "key 'method' is missing"),
        ("method =", ValueError, "not TOML"),
    ],
)
def test_bad_recipe_is_named(tmp_path, text, error, message):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(error, match=message):
        config.read(path, demo.Recipe)


def test_bad_tuple_is_named():
    values = {"probability": 1, "severity": [0.1], "crop": 0.5, "occlusion": 0.5, "blur": 1}
    with pytest.raises(ValueError, match="settings: severity has 1 values, expected 2"):
        config.from_mapping(values, digits.Corruption)
    values["severity"] = [0, "high"]
    with pytest.raises(TypeError, match="settings: severity is 'high', expected float"):
        config.from_mapping(values, digits.Corruption)
    assert config.from_mapping({**values, "severity": [0, 1]}, digits.Corruption).severity == (0.0, 1.0)
