"""The commands that train: what they print, the files that they leave, and what they refuse in one line."""

import json
import re
import shutil
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
from command import run, sentences
from PIL import Image

import peaccel as pe
from peaccel import cli, data, io, methods, train
from peaccel._utils import config
from peaccel.cli import fit_head
from peaccel.data import TRAINED
from peaccel.data.images import crop_sizes
from peaccel.train import backbones, evaluation, recipes, runs, sources

N, WIDTH = 96, 10
SMALL = "--device cpu --threads 1"
DIGITS = f"{SMALL} --data digits8 --quick --dim 8 --schedule.epochs 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Features f.npy and f.npz, labels of them, and a run `c` on few digits."""
    folder = tmp_path_factory.mktemp("train")
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(16), N // 16)
    values = (rng.normal(size=(16, WIDTH))[labels] + 0.7 * rng.normal(size=(N, WIDTH))).astype(np.float32)
    np.save(folder / "f.npy", values)
    np.save(folder / "labels.npy", labels)
    np.save(folder / "words.npy", np.array([f"class {i}" for i in labels]))
    np.save(folder / "short.npy", labels[:-1])
    np.save(folder / "two.npy", labels % 2)
    np.save(folder / "floats.npy", labels.astype(float))
    np.save(folder / "halves.npy", labels / 2)
    np.save(folder / "unknown.npy", np.where(np.arange(N) == 7, np.nan, labels))
    (folder / "one" / "c0").mkdir(parents=True)
    Image.new("RGB", (40, 40)).save(folder / "one" / "c0" / "0.png")
    np.savez(folder / "f.npz", features=values, labels=labels)
    values[3, 2] = np.nan
    np.save(folder / "nan.npy", values)
    (folder / "file").write_text("")
    cli.main(f"train cosface {DIGITS} --out {folder / 'c'}".split())
    cli.main(f"fit-head {folder / 'f.npz'} {SMALL[13:]} --match.epochs 1 --out {folder / 'h'}".split())
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(folder)


def record(out):
    return json.loads((out / "run.json").read_text())


def test_a_run_keeps_the_command_that_made_it(folder):
    assert record(folder / "c")["command"] == f"peaccel train cosface {DIGITS} --out {folder / 'c'}"


# -- what is told ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 160])
def test_methods_prints_every_method_row_and_paper(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = run(capsys, "methods")
    assert code == 0 and max(map(len, out.splitlines())) <= columns
    assert all(re.search(rf"\b{row}\b", out) for row in (*methods.NAMES, *train.RECIPES))
    told = " ".join(out.split())
    for method in methods.table():
        assert method.paper in told and re.search(rf"\b{method.score}\b", out)


@pytest.mark.parametrize("command", ["train", "tune"])
def test_help_without_a_method_lists_them(capsys, command):
    code, out, _ = run(capsys, f"{command} --help")
    assert code == 0 and out.startswith(f"usage: peaccel {command} METHOD [OPTIONS]")
    assert set(train.RECIPES) <= set(re.findall(r"\w+", out))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train pfe", ["--data STR", "--quick ", "--classify.lr FLOAT", "--match.epochs INT", "Shi & Jain", *TRAINED]),
        ("fit-head", ["--labels", "--method {pfe,llr_nce,", "--match.lr FLOAT", "--out PATH"]),
        ("embed", ["--run", "--backbone", "--features", "--part STR", "--labels-out"]),
        ("tune pfe", ["--trials INT", "--seconds", "--match.lr FLOAT"]),
        ("methods", ["Print the methods"]),
    ],
)
def test_help_names_options_without_clutter(capsys, command, words):
    code, out, _ = run(capsys, f"{command} --help")
    assert code == 0 and all(word in out for word in words)
    assert not re.search(r"--(no-|run\.|own\.|settings\.)", out)
    for name in ("data", "root", "quick", "pooling"):  # of images, which a head does not see
        assert command != "fit-head" or f"--{name}" not in out


@pytest.mark.parametrize("row", train.RECIPES)
def test_every_row_has_options(capsys, row):
    """No setting of a method has the name of an option of all runs."""
    code, out, _ = run(capsys, f"train {row} --help")
    assert code == 0 and ("--schedule.epochs" in out or ".epochs" in out)


def test_options_of_runs_have_a_sentence_each(capsys):
    out = run(capsys, "train cosface --help")[1]
    for f in fields(runs.Run):
        sentence = re.search(rf"--{f.name.replace('_', '-')} (.*?)\(default: ", out, re.DOTALL)
        assert sentence and len(re.findall(r"[a-z]{2,}", sentence[1])) > 3, f.name
    assert set(TRAINED) <= set(re.findall(r"[\w-]+", out))


@pytest.mark.parametrize("name", methods.NAMES)
def test_settings_have_a_sentence_each(name):
    kinds = [methods.load(name).settings]
    for kind in kinds:
        nested = {f.name: type(f.default) for f in fields(kind) if is_dataclass(f.default)}
        kinds += nested.values()
        assert {f.name for f in fields(kind)} - nested.keys() <= sentences(kind).keys()


# -- what is done ------------------------------------------------------------------------------------------------------


def test_a_row_is_trained_as_its_recipe_and_its_options_say(folder, capsys, tmp_path):
    schedules = "--classify.epochs 1 --classify.lr 1e-2 --match.epochs 1"
    line = f"train pfe {SMALL} --data digits8 --quick {schedules} --dim 16 --out {tmp_path / 'new' / 'p'}"
    code, out, _ = run(capsys, line)
    assert code == 0
    assert re.fullmatch(
        r"pfe on digits8, seed 0: Recall@1 [\d.]+ %, MAP@R [\d.]+ % \(query\), Spearman of uncertainty and severity "
        r"-?[\d.]+, \d+ s -> \S+\n", out)  # fmt: skip
    settings = record(tmp_path / "new" / "p")["settings"]
    assert (settings["dim"], settings["classify"]["lr"], settings["match"]["epochs"]) == (16, 0.01, 1)
    assert settings["hidden"] == train.recipe("pfe", "mnist")[1].hidden
    stages = [json.loads(line)["stage"] for line in (tmp_path / "new" / "p" / "log.jsonl").read_text().splitlines()]
    assert stages == ["CosFace", "PFE"]


def test_what_is_resumed_keeps_its_settings(folder, capsys):
    before = (folder / "c" / "model.safetensors").read_bytes()
    assert run(capsys, "train cosface --out c")[0] == 2
    assert run(capsys, "train cosface --data digits8 --quick --resume --out c --workers 1")[0] == 0
    assert (folder / "c" / "model.safetensors").read_bytes() == before
    assert record(folder / "c")["settings"]["dim"] == 8 and record(folder / "c")["run"]["workers"] == 1
    assert run(capsys, "train pfe --resume --out c")[2] == "peaccel train: c: holds a run of cosface, expected pfe\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train cosface --out c --seed 1", "seed is 1, expected 0"),
        ("train cosface --out c --dim 9", "dim is 9, expected 8"),
        ("train cosface --out c --data mnist", "data is mnist, expected digits8"),
        ("fit-head f.npz --out h --match.lr 10", "match.lr is 10.0, expected 0.001"),
        ("fit-head f.npy --labels labels.npy --out h", None),
        ("fit-head other.npy --labels labels.npy --out h", "sha256.train is "),
    ],
)
def test_what_would_be_another_run_is_not_resumed(folder, capsys, words, message):
    np.save("other.npy", np.load("f.npy")[::-1])
    out = Path(words.partition("--out ")[2][0])
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    code, _, err = run(capsys, f"{words} --resume")
    if message is None:  # the same items in other files
        assert code == 0, err
        return
    command = words.partition(" ")[0]
    assert code == 2 and err.startswith(f"peaccel {command}: {out}/run.json: a run goes on as it began: {message}"), err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_run_finds_its_files_from_any_folder(folder, capsys, monkeypatch, tmp_path):
    """Relative paths would lead to other files, or to none."""
    here, elsewhere = tmp_path / "a" / "b", tmp_path / "c" / "d"
    for place, name in ((here, "f.npz"), (elsewhere, "other.npz")):
        place.mkdir(parents=True)
        with np.load(folder / "f.npz") as file:
            np.savez(place.parent / "f.npz", features=file["features"] + (name != "f.npz"), labels=file["labels"])
    monkeypatch.chdir(here)
    first = f"train cosface {SMALL} --data features --root ../f.npz --dim 4 --schedule.epochs 1 --out"
    assert run(capsys, f"{first} first")[0] == 0
    assert run(capsys, f"{first} run --begin first/model.safetensors")[0] == 0
    kept = record(Path("run"))["run"]
    paths = here / "run", here.parent / "f.npz", here / "first" / "model.safetensors"
    assert tuple(kept[name] for name in ("out", "root", "begin")) == tuple(map(str, paths))
    embed = "--part validation --out v.npz"
    assert run(capsys, f"embed --run run {embed}")[0] == 0
    before, model = np.load("v.npz"), (here / "run" / "model.safetensors").read_bytes()
    monkeypatch.chdir(elsewhere)
    assert run(capsys, f"embed --run {here / 'run'} {embed}")[0] == 0
    assert np.array_equal(np.load("v.npz")["mu"], before["mu"])
    assert run(capsys, f"train cosface --out {here / 'run'} --resume")[0] == 0
    assert (here / "run" / "model.safetensors").read_bytes() == model
    assert not (elsewhere / "run").exists() and record(here / "run")["run"]["root"] == kept["root"]

    record_of_before = record(here / "run")  # whose paths were relative, and are read as they were
    record_of_before["run"] |= {"root": "../f.npz", "out": "run"}
    (here / "run" / "run.json").write_text(json.dumps(record_of_before))
    monkeypatch.chdir(here)
    assert run(capsys, "train cosface --out run --resume")[0] == 0 and record(here / "run")["run"] == kept


def test_a_folder_that_has_moved_is_resumed_where_it_is(folder, capsys, tmp_path):
    line = f"train cosface {DIGITS} --out"
    assert run(capsys, f"{line} {tmp_path / 'a'}")[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    _, resumed = runs.resumed(tmp_path / "b", "cosface")
    assert resumed.out == tmp_path / "b"
    assert run(capsys, f"train cosface --out {tmp_path / 'b'} --resume")[0] == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


@pytest.mark.parametrize("method", fit_head.HEADS)
def test_a_head_is_fitted_to_features_and_gives_them_their_uncertainty(folder, capsys, tmp_path, method):
    stage = next(
        f.name for f in fields(methods.load(method).settings) if f.name in ("match", "scale", "regress", "tell", "fit")
    )
    held = data.read("features", folder / "f.npy", labels="words.npy")["validation"]
    recall, precision, *_ = evaluation.map_at_r(pe.Point(held.features), held.labels, pe.scores.cosine)
    line = f"fit-head f.npy --labels words.npy --threads 1 --method {method} --out {tmp_path / 'h'}"
    code, out, err = run(capsys, f"{line} --{stage}.epochs 1")
    assert code == 0 and out.startswith(f"{method} on features, seed 0: Recall@1 "), err
    assert f"by cosine {100 * recall:.2f} % and {100 * precision:.2f} %, " in out
    told = out.splitlines()[-1]
    assert told == f"peaccel embed --run {tmp_path / 'h'} --features f.npy --out sure.npz"
    assert err.splitlines()[-1] == fit_head.FIRST
    code, out, err = run(capsys, told.removeprefix("peaccel "))
    assert code == 0 and out.startswith(f"mu ({N}, {WIDTH}), "), err
    d = io.read_distribution("sure.npz")
    Path("sure.npz").unlink()
    assert not isinstance(d, pe.Point) and np.allclose(d.mu / np.linalg.norm(d.mu, axis=1)[:, None], d.mu, atol=1e-5)
    given = np.load("f.npy")
    assert np.allclose(d.mu, given / np.linalg.norm(given, axis=1)[:, None], atol=1e-5)


def test_labels_may_be_whole_floats_and_booleans(folder):
    expected = data.read("features", folder / "f.npy", labels="labels.npy")
    found = data.read("features", folder / "f.npy", labels="floats.npy")
    for part, x in expected.items():
        assert x.classes == found[part].classes and np.array_equal(x.labels, found[part].labels)
    np.save("booleans.npy", np.load("labels.npy") % 2 == 0)
    assert data.read("features", folder / "f.npy", labels="booleans.npy")["train"].classes == ("True",)


@pytest.mark.parametrize("line", ["train cosface --config x --out c", "fit-head f.npz --config x --out h"])
def test_names_of_options_are_checked_before_the_folder(folder, capsys, line):
    code, out, err = run(capsys, line)
    assert code == 2 and "--config" in out + err and "holds a run" not in out + err


def test_heads_are_the_rows_with_settings_for_features():
    known = {row for row in train.RECIPES if "features" in config.read_mapping(recipes.FOLDER / f"{row}.toml")}
    assert set(fit_head.HEADS) == known


def test_what_a_run_embeds_is_searched(folder, capsys):
    for part in ("query", "gallery"):
        code, out, _ = run(capsys, f"embed --run c --part {part} --out {part}.npz --labels-out {part}.npy")
        assert code == 0 and re.fullmatch(rf"mu \(\d+, 8\) -> {part}\.npz\n", out)
    assert run(capsys, "search --gallery gallery.npz --queries query.npz --out r.npz --score cosine --k 1")[0] == 0
    query, gallery = np.load("query.npy"), np.load("gallery.npy")
    _, ids = io.read_ranking("r.npz")
    hits = gallery[ids[:, 0]] == query
    assert hits.mean() == json.loads((folder / "c" / "result.json").read_text())["recall_at_1"]


@pytest.fixture(scope="module")
def images(folder):
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        for c in range(3):
            (folder / "images" / part / f"c{c}").mkdir(parents=True)
            for i in range(3):
                pixels = rng.integers(0, 255, (40, 50, 3), np.uint8)
                Image.fromarray(pixels).save(folder / "images" / part / f"c{c}" / f"{i}.png")
    return "--data folder --root images"


@pytest.fixture
def spoilt(tmp_path):
    """Three classes of training images, 13 of them bad: all of class 1 and a missing link of class 0."""
    pixels = np.random.default_rng(0).integers(0, 255, (6, 12, 40, 50, 3), np.uint8)
    for c in range(6):
        place = tmp_path / "photos" / ("train" if c < 3 else "test") / f"c{c}"
        place.mkdir(parents=True)
        for i in range(12):
            Image.fromarray(pixels[c, i]).save(place / f"{i:02}.png")
            if c == 1:
                (place / f"{i:02}.png").write_text("no image")
    bad = tmp_path / "photos" / "train" / "c0" / "03.png"
    bad.unlink()
    bad.symlink_to("none")
    return tmp_path / "photos"


def test_images_that_cannot_be_read_are_named_before_work_and_left_out_if_told(spoilt, capsys, tmp_path):
    line = f"--data folder --root {spoilt} --backbone test_resnet"
    training = (
        f"train cosface {line} {SMALL} --schedule.epochs 1 --schedule.classes-per-batch 2 --dim 4 --out {tmp_path}/r"
    )
    code, _, err = run(capsys, training)
    told = f"data folder: 13 of 72 images cannot be read: {spoilt}/train/c0/03.png is missing; "
    assert code == 2 and err.startswith(f"peaccel train: {told}{spoilt}/train/c1/00.png is no image; ")
    assert err.endswith("c1/08.png is no image; and 3 more; --skip-bad leaves them out\n") and err.count("\n") == 1
    assert not (tmp_path / "r").exists()
    code, _, err = run(capsys, f"{training} --skip-bad")
    assert code == 0 and err.startswith(told) and "and 3 more; they are left out\n" in err
    assert record(tmp_path / "r")["classes"] == 2

    code, _, err = run(capsys, f"embed {line} --part train --out {tmp_path}/f.npz")
    assert code == 2 and "13 of 36 images cannot be read" in err and not (tmp_path / "f.npz").exists()
    assert run(capsys, f"embed {line} --part test --out {tmp_path}/f.npz")[0] == 0
    assert run(capsys, f"embed {line} --part train --skip-bad --out {tmp_path}/f.npz")[0] == 0
    with np.load(tmp_path / "f.npz") as held:
        assert np.bincount(held["labels"]).tolist() == [11, 12] and len(held["features"]) == 23


def test_images_that_are_cut_off_are_left_out_if_told(spoilt, capsys, tmp_path):
    """Their headers are whole, which alone are read of images that are not to be left out."""
    for path in (spoilt / "train" / "c1").iterdir():
        path.write_bytes((spoilt / "train" / "c2" / path.name).read_bytes())
    cut = [spoilt / "train" / "c1" / "00.png", spoilt / "train" / "c2" / "11.png"]
    for path in cut:
        path.write_bytes(path.read_bytes()[:100])
    line = f"train cosface --data folder --root {spoilt} --backbone test_resnet {SMALL} --skip-bad"
    code, _, err = run(capsys, f"{line} --schedule.epochs 2 --schedule.classes-per-batch 3 --dim 4 --out {tmp_path}/r")
    left_out = f"{spoilt}/train/c0/03.png is missing; {cut[0]} is damaged; {cut[1]} is damaged; they are left out\n"
    assert code == 0 and err.startswith(f"data folder: 3 of 72 images cannot be read: {left_out}"), err
    assert record(tmp_path / "r")["items"] == 33 and record(tmp_path / "r")["classes"] == 3


def test_captions_of_images_that_cannot_be_read_are_left_out_with_them(spoilt, tmp_path):
    good, bad = sorted((spoilt / "train" / "c2").iterdir())[:2], spoilt / "train" / "c1" / "00.png"
    lines = [f"first\t{good[0]}", f"of a bad one\t{bad}", f"second\t{good[1]}", f"again\t{good[0]}"]
    for name in ("Train_GCC-training.tsv", "Validation_GCC-1.1.0-Validation.tsv"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    taken = backbones.ImageInput((32, 32), (0.5,) * 3, (0.5,) * 3)
    with pytest.raises(ValueError, match=r"1 of 3 images cannot be read: .*00\.png is no image; --skip-bad"):
        sources.open_captions("conceptual-captions", tmp_path, "train", taken)
    rows, captions, image = sources.open_captions("conceptual-captions", tmp_path, "train", taken, skip_bad=True)
    assert list(rows.paths) == list(map(str, good))
    assert captions == ("first", "second", "again") and image.tolist() == [0, 1, 0]


def test_both_towers_of_a_clip_model_embed_captions(folder, images, capsys, monkeypatch, tmp_path):
    paths = sorted((folder / "images").rglob("*.png"))[:3]
    root = tmp_path / "captions"
    root.mkdir()
    lines = [f"a photograph of number {i}\t{path}\n" for i, path in enumerate(paths)]
    (root / "Train_GCC-training.tsv").write_text("".join([*lines, f"another of 0\t{paths[0]}\n"]))
    (root / "Validation_GCC-1.1.0-Validation.tsv").write_text(lines[0])
    small = {
        "embed_dim": 12,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
        "text_cfg": {"context_length": 9, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
    }
    create = backbones.create
    monkeypatch.setattr(backbones, "create", lambda name, **options: create(name, **options, **small))
    line = f"embed --backbone clip_image:ViT-B-32 --data conceptual-captions --root {root}"
    for part in ("train", "validation"):
        code, out, error = run(capsys, f"{line} --part {part} --out {tmp_path / part}.npz")
        assert code == 0, error
    assert out == f"images (1, 12), captions (1, 12), image (1,) -> {tmp_path / 'validation.npz'}\n"
    found = sources.open_items("caption-features", tmp_path, 0)["train"]
    assert [tuple(x.shape) for x in found.data] == [(4, 12), (4, 12)] and found.labels.tolist() == [0, 1, 2, 0]
    assert run(capsys, f"{line} --part test --out t.npz")[2].endswith(
        "conceptual-captions has no part 'test', expected one of train, validation\n")  # fmt: skip
    refused = run(capsys, f"{line.replace('clip_image:ViT-B-32', 'small_cnn')} --out t.npz")[2]
    assert "--backbone is small_cnn, expected clip_image:MODEL: conceptual-captions has captions" in refused


def test_a_folder_of_images_trains_and_embeds(images, capsys, tmp_path):
    line = f"train cosface {images} {SMALL} --backbone resnet18 --schedule.epochs 1 --dim 8 --out {tmp_path / 'i'}"
    code, out, err = run(capsys, line)
    assert code == 0 and "(test)" in out, err
    assert run(capsys, f"embed --run {tmp_path / 'i'} --out {tmp_path / 'e.npz'}")[1].startswith("mu (9, 8) -> ")


ENCODER = """
import torch

class Colours(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 5)
    def forward(self, images):
        return self.layer(images.mean((2, 3)))

make, number = Colours, lambda: 3
"""


def test_an_encoder_of_a_file_is_trained_and_runs_where_the_caller_names_it(images, capsys, tmp_path):
    (tmp_path / "mine.py").write_text(ENCODER)
    named, out = f"--backbone {tmp_path / 'mine.py'}:make", tmp_path / "run"
    line = f"train cosface {images} {SMALL} --schedule.epochs 1 --dim 4 --out {out}"
    code, _, err = run(capsys, f"{line} {named}")
    assert code == 0 and f"backbone {tmp_path / 'mine.py'}:make, random weights" in err and "64 x 64 pixels" in err
    refused = "which is not run because a run names it; name it yourself: --backbone mine.py:make"
    assert refused in run(capsys, f"{line} --resume")[2]
    assert refused in run(capsys, f"embed --run {out} --out {tmp_path / 'e.npz'}")[2]
    assert run(capsys, f"{line} --resume {named}")[0] == 0
    assert run(capsys, f"embed --run {out} {named} --out {tmp_path / 'e.npz'}")[1].startswith("mu (9, 4) -> ")
    line = f"train cosface {images} {SMALL} --out {tmp_path / 'new'} --backbone {tmp_path / 'mine.py'}"
    assert "expected the function in it that makes a module: " in run(capsys, line)[2]
    assert "mine.py: has no function 'nothing'" in run(capsys, f"{line}:nothing")[2]
    assert "mine.py:number: makes a int, expected a torch module" in run(capsys, f"{line}:number")[2]
    (tmp_path / "mine.py").unlink()
    assert "mine.py: there is no such file" in run(capsys, f"{line}:make")[2]


def test_a_run_says_what_it_is_about_to_do(images, capsys, tmp_path):
    line = f"train cosface {images} {SMALL} --schedule.epochs 2 --image-size 32 --dim 4 --out {tmp_path / 'run'}"
    err = run(capsys, line)[2].splitlines()
    assert err[0] == "cosface: data folder: train 9 items of 3 classes, test 9 items of 3 classes"
    assert err[1] == "cosface: backbone small_cnn, random weights (--weights FILE), images of 32 x 32 pixels"
    assert re.match(r"cosface: CosFace 2 epochs: about 1 s on cpu: a step takes [\d.e-]+ s", err[2]), err[2]
    assert record(tmp_path / "run")["backbone"] == "small_cnn" and record(tmp_path / "run")["image_size"] == 32


def test_help_shows_what_holds_for_the_data(images, capsys):
    shown = " ".join(run(capsys, f"train pfe {images} --help")[1].replace("│", " ").split())
    assert "(default: folder)" in shown and "(default: images)" in shown and "my_file.py:make" in shown


def test_features_of_a_backbone_are_what_a_head_takes(images, capsys, tmp_path):
    code, out, err = run(capsys, f"embed --backbone test_resnet {images} --part train --out {tmp_path / 'f.npz'}")
    assert code == 0 and re.match(r"features \(9, \d+\), labels \(9,\) -> ", out), err
    with np.load(tmp_path / "f.npz") as held:
        assert held["labels"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2] and len(held["features"]) == 9


@pytest.mark.parametrize(("crops", "least"), [("0.5", 0.5), ("0.25", 0.25)])
def test_cropped_images_are_embedded_with_their_quality(images, capsys, tmp_path, crops, least):
    plain, cropped, quality = (tmp_path / name for name in ("plain.npz", "cropped.npz", "quality.npy"))
    line = f"embed --backbone test_resnet {images} --part train"
    assert run(capsys, f"{line} --out {plain}")[0] == 0
    code, _, err = run(capsys, f"{line} --crops {crops} --seed 3 --quality-out {quality} --out {cropped}")
    assert code == 0, err
    sizes = np.load(quality)
    assert np.array_equal(sizes, crop_sizes(9, 3, least))
    assert least <= sizes.min() and sizes.max() <= 1
    with np.load(plain) as before, np.load(cropped) as after:
        moved = np.abs(before["features"] - after["features"]).max(1)
        assert (moved > 0).all() and np.array_equal(before["labels"], after["labels"])


def test_quality_of_digits_is_what_corruption_left(folder, capsys, tmp_path):
    words = f"embed --run c --part query --out {tmp_path / 'q.npz'} --quality-out {tmp_path / 'quality.npy'}"
    assert run(capsys, words)[0] == 0
    severity = sources.open_items("digits8", None, 0, quick=True)["query"].quality
    quality = np.load(tmp_path / "quality.npy")
    assert np.array_equal(quality, severity) and quality.max() == 1 and 0 <= quality.min() < 0.8


def test_a_search_is_told_as_the_command_that_trains_so(folder, capsys, tmp_path):
    """With the data, the root, the seed and the settings that were not searched: its result is that of the trial."""
    line = (
        f"tune cosface --data features --root f.npz {SMALL} --seed 3 --patience 2 --schedule.clip 0.5 --schedule.lr 1"
    )
    for trials in (2, 3):
        code, out, err = run(capsys, f"{line} --dim 6 --schedule.epochs 2 --trials {trials} --out {tmp_path / 't'}")
        assert code == 0 and f"of {trials} trials -> " in out, err
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [
        "best.toml", *(f"cosface-features-{i}" for i in range(3)), "study.db",
    ]  # fmt: skip
    tried = [record(tmp_path / "t" / f"cosface-features-{i}") for i in range(3)]
    assert len({x["settings"]["schedule"]["lr"] for x in tried}) == 3
    told = out.splitlines()[-1].removeprefix("peaccel ")
    assert told.startswith("train cosface --") and run(capsys, told)[0] == 0
    again = record(tmp_path / "t" / "best")
    (best,) = (x for x in tried if x["settings"] == again["settings"])
    assert {**best["run"], "out": ""} == {**again["run"], "out": ""} and again["run"]["seed"] == 3
    results = [json.loads((Path(x["run"]["out"]) / "result.json").read_text()) for x in (best, again)]
    assert (
        results[0]["validation"]
        == results[1]["validation"]
        == max(json.loads((Path(x["run"]["out"]) / "result.json").read_text())["validation"] for x in tried)
    )


# -- what is wrong -----------------------------------------------------------------------------------------------------

WRONG = {
    "train": "the method is missing: 'peaccel train METHOD'; see 'peaccel methods'",
    "tune --trials 3": "the method is missing: 'peaccel tune METHOD'; see 'peaccel methods'",
    "train cosfase": "unknown method 'cosfase'; did you mean 'cosface'? See 'peaccel methods'",
    "tune digits": "unknown method 'digits'; expected one of ",
    "train cosface --dim 0": "cosface: dim: expected `int` >= 1",
    "train cosface --schedule.lr 0": "cosface: schedule.lr: expected `float` > 0.0",
    "train cosface --classifier.margin 2": "cosface: classifier.margin: expected `float` < 2.0",
    "train cosface --threads -1": "cosface: threads: expected `int` >= 0",
    "tune cosface --trials 0": "cosface: trials: expected `int` >= 1",
    "train cosface --data cub20": "unknown data 'cub20'; did you mean 'cub200'?",
    "train cosface --data cub200": "data cub200: root is missing, expected the folder where it lies",
    "train cosface --data cub200 --root no": "data cub200: root is no, which is not there",
    "train cosface --root .": "data mnist: root is ., but its scans come inside a package",
    "train cosface --backbone resnet51": "create: unknown backbone 'resnet51'; did you mean 'resnet51q'?",
    "train cosface --begin none.safetensors --data digits8 --quick": "none.safetensors: there is no such file",
    "train cosface --begin f.npz --data digits8 --quick": "f.npz: is no .safetensors file",
    "train cosface --out file": "out is file, a file, expected a folder",
    "train cosface --out file/x --data digits8 --quick": "file/x: Not a directory",
    "train cosface --out c": "out is c, which holds a run: resume it (--resume) or choose another folder",
    "train text_to_image --data digits8 --quick": "text_to_image cannot take the items of data digits8: ",
    "train cosface --data digits8 --quick --backbone test_resnet": "cosface cannot take the items of data digits8: ",
    "train cosface --weights f.npy --data digits8 --quick": "data digits8: weights is f.npy, which auto does ",
    "train cosface --backbone resnet18 --dropout 2 --data folder --root .": "create: dropout is 2.0, expected a ",
    "train pfe --data features --root f.npy": "f.npy: has no labels, expected them in a file of their own",
    "fit-head none.npz": "none.npz: there is no such file",
    "fit-head f.npy": "f.npy: has no labels, expected them in a file of their own (labels) or an .npz file",
    "fit-head f.npy --labels short.npy": f"short.npy: labels is int64 ({N - 1},), expected numbers or strings ({N},)",
    "fit-head f.npy --labels halves.npy": "halves.npy: labels holds 0.5 in row 6, expected whole numbers or strings",
    "fit-head f.npy --labels unknown.npy": f"unknown.npy: 1 of the {N} labels are missing (None, NaN or masked)",
    "train cosface --seed -1 --data digits8 --quick": "cosface: seed: expected `int` >= 0",
    "fit-head f.npz --seed -1": "pfe: seed: expected `int` >= 0",
    "evaluate --embeddings f.npy --labels labels.npy --seed -3 --out page": "--seed is -3, expected at least 0",
    "train cosface --data folder --root one": "one: classes of images are c0, expected at least 4, of which half are",
    "train cosface --dim 4 --out c": "out is c, which holds a run: resume it (--resume) or choose another folder",
    "tune cosface --dim 4 --out c": "out is c, which holds a run: resume it (--resume) or choose another folder",
    "fit-head nan.npy --labels labels.npy": "nan.npy: features has NaN or infinity in row 3",
    "fit-head f.npy --labels two.npy": "data features: part train has 1 class, expected at least 2",
    "fit-head f.npz --method arcface": "method is 'arcface', expected one of pfe, llr_nce, ",
    "embed --out e.npz": "expected exactly one of --run and --backbone",
    "embed --out e.npz --run c --backbone resnet18": "expected exactly one of --run and --backbone",
    "embed --out e.npz --run c --weights f.npy": "--weights is f.npy, of a --backbone, expected none with --run",
    "embed --out e.npz --run none": "none/run.json: there is no such file: is none the folder of a run?",
    "embed --out e.txt --run c": "e.txt: unsupported suffix '.txt', expected .npz or .safetensors",
    "embed --out folder/ --run c": "folder: has no suffix, expected a file, .npz or .safetensors",
    "embed --out e.npz --run c --labels-out e.npz": "e.npz: unsupported suffix '.npz', expected .npy",
    "embed --out e.npz --run c": "digits8 has no part 'test', expected one of train, validation, gallery, query",
    "embed --out e.npz --run c --data cub200": "data cub200: root is missing",
    "embed --out e.npz --run c --features f.npy": "c: was trained on digits8, expected a head on ",
    "embed --out e.npz --run h --features nan.npy": "nan.npy: features has NaN or infinity in row 3",
    "embed --out e.npz --run h --features wide.npy": f"wide.npy: has {WIDTH + 1} dimensions, expected {WIDTH}",
    "embed --out e.npz --backbone resnet18": "--backbone embeds images: expected --data, and no --features",
    "embed --out file/e.npz --run c": "file/e.npz: file is a file or in one, expected a folder",
    "embed --out file/no/e.npz --run c": "file/no/e.npz: file/no is a file or in one, expected a folder",
    "embed --out e.npz --run c --part query --crops 0.5": "--crops is of images in files, which digits8 has not",
    "embed --out e.npz --run h --features f.npy --quality-out q.npy": "--features has no labels and no quality",
}


@pytest.mark.parametrize(("line", "message"), WRONG.items())
def test_errors_are_one_line_and_leave_nothing(folder, capsys, line, message):
    np.save("wide.npy", np.ones((2, WIDTH + 1)))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "")
    assert err.startswith(f"peaccel {line.split()[0]}: {message}") and err.count("\n") == 1
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("option", ["--dimm 16", "--schedule.lrr 1", "--dim x", "--precision fp8"])
def test_options_that_do_not_parse_are_named(folder, capsys, option):
    code, out, err = run(capsys, f"train cosface {option}")
    assert (code, out) == (2, "") and option.split()[0] in err and "--help" in err
