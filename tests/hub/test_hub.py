"""Heads and fits in folders and on the Hub, whose two calls are replaced by ones of their signatures."""

import json
import math
import re
import shutil
import sys
from unittest.mock import create_autospec

import huggingface_hub
import numpy as np
import pytest
import torch
from command import run

import peaccel as pe
from peaccel import cli, train
from peaccel.hub import Pretrained, _without_folders

FITS = {
    "calibration": pe.Calibration(a=4.0, b=0.01, of="Normal", mean=(0.5, -1.0)),
    "prior": pe.Prior(np.array([0.5, 1 / 3]), 0.25),
    "accept": pe.Selection(threshold=0.4, alpha=0.05, delta=0.1, number=100, accepted=60, wrong=1),
    "nothing": pe.FalseMatchLimit(threshold=math.inf, alpha=0.01, delta=0.05, number=10, allowed=0),
    "plda": pe.Plda((np.zeros(2),), (np.eye(2),), np.ones(2)),
    "shift": 0.25,
}
SAID = {
    "fitted_on": "600 scans of 200 numbers",
    "score": "llr:prior_var=0.25,prior_mean=[0.5 0.3333333333333333]",
    "figures": {"Recall@1 of 300 queries": 0.912345678, "by whom": "a | b"},
    "command": "peaccel choose-threshold --wrong 5%",
    "license": "mit",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A head as `peaccel fit-head` leaves it."""
    folder = tmp_path_factory.mktemp("hub")
    rng, labels = np.random.default_rng(0), np.arange(16).repeat(6)
    mu = rng.normal(size=(16, 8))[labels] + 0.5 * rng.normal(size=(96, 8))
    np.savez(folder / "f.npz", features=mu.astype(np.float32), labels=labels)
    words = f"fit-head {folder / 'f.npz'} --threads 1 --seed 3 --match.epochs 1 --out {folder / 'head'}"
    cli.main(words.split())
    return folder


@pytest.fixture
def here(folder, tmp_path, monkeypatch):
    shutil.copytree(folder / "head", tmp_path / "head")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The Hub: repositories are folders of one folder, and calls must fit the signatures of huggingface_hub."""
    there = tmp_path / "the hub"
    api = create_autospec(huggingface_hub.HfApi)

    def create_repo(repo_id, *, private=None, exist_ok=False):
        (there / repo_id).mkdir(parents=True, exist_ok=exist_ok)
        return f"https://huggingface.co/{repo_id}"

    def upload_folder(*, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, there / repo_id, dirs_exist_ok=True)

    def snapshot_download(repo_id, *, revision, token, allow_patterns):
        if not (there / repo_id).is_dir():
            raise type("RepositoryNotFoundError", (OSError,), {})("404 Client Error.\n\nNot found")
        out = tmp_path / f"cache of {revision}"
        for path in (there / repo_id).iterdir():
            if any(path.match(pattern) for pattern in allow_patterns):
                out.mkdir(exist_ok=True)
                (out / path.name).unlink(missing_ok=True)
                (out / path.name).symlink_to(path)  # as the Hub's cache does
        return str(out)

    api.return_value.create_repo.side_effect = create_repo
    api.return_value.upload_folder.side_effect = upload_folder
    download = create_autospec(huggingface_hub.snapshot_download, side_effect=snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return there


def same(x, y):
    """Whether two fits are equal, arrays included."""
    return type(x) is type(y) and repr(x) == repr(y)


def assert_same(found, shared):
    assert found.fits.keys() == shared.fits.keys()
    assert all(same(found.fits[name], shared.fits[name]) for name in shared.fits)
    for name in (*SAID, "fitted_with"):
        assert getattr(found, name) == getattr(shared, name), name


# -- what is saved comes back ------------------------------------------------------------------------------------------


def test_a_folder_gives_back_fits_and_what_was_said_of_them(here):
    shared = Pretrained(fits=FITS, **SAID)
    for _ in range(2):  # the second time over the first
        shared.save_pretrained("shared")
    found = Pretrained.from_pretrained(here / "shared")
    assert_same(found, shared)
    assert found.run is None and pe.scores.get(found.score).params["prior_var"] == 0.25
    assert {path.suffix for path in (here / "shared").iterdir()} == {".json", ".md"}
    assert same(pe.io.read_fit("shared/accept.json"), FITS["accept"])  # a file as commands take it


def test_a_head_comes_back_with_the_bits_of_its_answers(here, capsys):
    Pretrained(fitted_on="96 items", run="head").save_pretrained("shared")
    Pretrained.from_pretrained("shared").save_pretrained("again")
    shutil.rmtree("head")
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    first, second = (train.load(Pretrained.from_pretrained(name).run).model(x) for name in ("shared", "again"))
    assert first.var.shape == (5, 8) and torch.equal(first.var, second.var) and torch.equal(first.mu, second.mu)
    np.save("x.npy", x.numpy())
    code, _, err = run(capsys, "embed --run shared --features x.npy --out x.npz")
    assert code == 0, err
    np.testing.assert_array_equal(pe.io.read_distribution("x.npz").var, first.var.numpy())


def test_of_the_machine_of_its_training_nothing_is_shared(folder, here):
    assert f"{folder}" in (here / "head" / "run.json").read_text()
    Pretrained(fitted_on="96 items", run="head").save_pretrained("shared")
    for path in (here / "shared").glob("*.*"):
        assert f"{folder}".encode() not in path.read_bytes(), path.name


def test_the_hub_gives_back_what_was_pushed(here, hub):
    shared = Pretrained(fits=FITS, run="head", **SAID)
    assert shared.push_to_hub("me/sure", private=True, token="t") == "https://huggingface.co/me/sure"
    assert huggingface_hub.HfApi.call_args.kwargs["token"] == "t"
    made = huggingface_hub.HfApi.return_value.create_repo.call_args
    assert made.args == ("me/sure",) and made.kwargs["private"] is True
    found = Pretrained.from_pretrained("me/sure", revision="v1", token="t")
    asked = huggingface_hub.snapshot_download.call_args.kwargs
    assert asked["revision"] == "v1" and asked["token"] == "t"
    assert_same(found, shared)
    assert train.load(found.run).method.name == "pfe"
    assert {path.name for path in (hub / "me/sure").iterdir()} == {
        "README.md", "config.json", "run.json", "result.json", "model.safetensors", *(f"{name}.json" for name in FITS)
    }  # fmt: skip


# -- the card ----------------------------------------------------------------------------------------------------------


def test_the_card_says_on_what_all_of_it_was_fitted(here):
    said = {name: value for name, value in SAID.items() if name != "command"}
    Pretrained(fits=FITS, run="head", **said).save_pretrained("shared")
    card = huggingface_hub.ModelCard.load(here / "shared" / "README.md")
    assert card.data.library_name == "peaccel" and card.data.license == "mit" and "uncertainty" in card.data.tags
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", card.text, re.MULTILINE))
    assert rows["fitted on"] == SAID["fitted_on"] and rows["score"] == SAID["score"]
    assert rows["peaccel"] == pe.__version__ and rows["head"] == "pfe, seed 3"
    assert rows["trained on"] == "72 items of 12 classes"  # a quarter is held out
    result = json.loads((here / "head" / "result.json").read_text())
    reached = rows[f"Recall@1 of {result['queries']} queries, part {result['part']}"]
    assert reached.startswith(f"{100 * result['recall_at_1']:.2f} %")
    assert rows["Recall@1 of 300 queries"] == "0.912346" and rows["by whom"] == r"a \| b"
    assert "    peaccel fit-head f.npz --threads 1 --seed 3 --match.epochs 1 --out head\n" in card.text
    assert "60 of 100 labelled answers, 1 of them wrong" in card.text
    assert max(map(len, card.text.splitlines())) < 400


def test_what_the_card_shows_runs(here, hub):
    Pretrained(fits=FITS, run="head", **SAID).push_to_hub("owner/name")
    block = re.search(r"```python\n(.*?)```", (hub / "owner/name/README.md").read_text(), re.DOTALL)[1]
    names = {}
    exec(block, names)
    assert_same(names["shared"], Pretrained(fits=FITS, run="head", **SAID))


# -- what is refused ---------------------------------------------------------------------------------------------------

WRONG = {
    "fitted_on is ' ', expected what it was fitted on": {"fitted_on": " "},
    "neither fits nor run is given": {"fits": {}},
    "fits has the name '../x', expected a file's name": {"fits": {"../x": 0.5}},
    "fits has the name 'config', expected a file's name": {"fits": {"config": 0.5}},
    "a of fits must be a fit or a float, got list": {"fits": {"a": [1.0]}},
    "a of figures must be a number or words, got list": {"figures": {"a": [1.0]}},
    "unknown score 'msl'": {"score": "msl"},
    "none/run.json: there is no such file": {"run": "none"},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_shared_is_refused(message, here):
    with pytest.raises((TypeError, ValueError, OSError)) as error:
        Pretrained(**{"fits": {"shift": 0.5}, **SAID, **WRONG[message]})
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["method", "data"])
def test_a_run_of_somebodys_code_is_neither_shared_nor_taken(key, here):
    Pretrained(fitted_on="96 items", run="head").save_pretrained("shared")
    for path in (here / "head" / "run.json", here / "shared" / "run.json"):
        record = json.loads(path.read_text())
        (record if key == "method" else record["run"])[key] = "shared/evil.py"
        path.write_text(json.dumps(record))
    (here / "shared" / "evil.py").write_text("raise SystemExit(9)")
    for call in (
        lambda: Pretrained(fitted_on="96 items", run="head"),
        lambda: Pretrained.from_pretrained("shared"),
    ):
        with pytest.raises(ValueError, match=rf"{key} is shared/evil.py, expected a name .* no code is shared"):
            call()


DAMAGED = {
    "config.json: there is no such file": ("config.json", None),
    "config.json: cannot be read as JSON": ("config.json", '{"peaccel"'),
    "config.json: holds a list, expected an object": ("config.json", "[]"),
    "config.json: was not written by save_pretrained": ("config.json", "{}"),
    "config.json: has format version 2, expected 1": ("config.json", '{"peaccel": "pretrained", "version": 2}'),
    "config.json: fits is ['../shift'], expected": ("config.json", ('["shift"]', '["../shift"]')),
    "config.json: does not describe what was saved: ": ("config.json", ('"license"', '"licence"')),
    "config.json: does not describe what was saved: Pretrained: fitted_on": ("config.json", ("600 scans", "")),
    "shift.json: no such file": ("shift.json", None),
    "shift.json: cannot be read as JSON": ("shift.json", '{"peacc'),
}


@pytest.mark.parametrize("message", DAMAGED)
def test_damage_is_named(message, here):
    Pretrained(fits={"shift": 0.5}, fitted_on="600 scans").save_pretrained("shared")
    name, text = DAMAGED[message]
    path = here / "shared" / name
    if isinstance(text, tuple):
        before = json.dumps(json.loads(path.read_text()))
        text = before.replace(*text)
        assert text != before
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises((ValueError, OSError)) as error:
        Pretrained.from_pretrained("shared")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_command_names_no_folder():
    words = "peaccel fit-head /home/ann/a.npz --out=/home/ann/run --labels runs/l.npy --method=pfe"
    assert _without_folders(words) == "peaccel fit-head a.npz --out=run --labels runs/l.npy --method=pfe"


def test_a_folder_with_files_of_others_is_left_alone(here):
    shared = Pretrained(fits={"shift": 0.5}, fitted_on="600 scans")
    shared.save_pretrained("shared")
    (here / "shared" / "notes.txt").write_text("mine")
    for name, message in {
        "shared": "shared: holds notes.txt, expected what save_pretrained wrote",
        "head": "head: holds best.safetensors, expected what save_pretrained wrote",
        "none/shared": "none/shared: there is no folder none",
        "head/run.json": "head/run.json: is a file, expected a folder",
    }.items():
        with pytest.raises((ValueError, OSError), match=re.escape(message)):
            shared.save_pretrained(name)
    assert (here / "shared" / "notes.txt").read_text() == "mine"


def test_what_the_hub_refuses_is_one_line(here, hub, monkeypatch):
    shared = Pretrained(fits={"shift": 0.5}, fitted_on="600 scans")
    with pytest.raises(FileNotFoundError, match=r"^from_pretrained: me/none is no folder here, and of the Hub: 404"):
        Pretrained.from_pretrained("me/none")
    with pytest.raises(FileNotFoundError, match=r"^a/b/c: there is no such folder, and it is no repository's name"):
        Pretrained.from_pretrained("a/b/c")
    with pytest.raises(ValueError, match="revision is 'main', expected none of a folder"):
        shared.save_pretrained("shared")
        Pretrained.from_pretrained("shared", revision="main")
    with pytest.raises(ValueError, match="repo is 'sure', expected a repository's name, 'owner/name'"):
        shared.push_to_hub("sure")
    huggingface_hub.HfApi.return_value.create_repo.side_effect = RuntimeError("no\nroute")
    with pytest.raises(OSError, match=r"^push_to_hub: me/sure: no route$"):
        shared.push_to_hub("me/sure")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (lambda: shared.push_to_hub("me/sure"), lambda: Pretrained.from_pretrained("me/sure")):
        with pytest.raises(ImportError, match=r"the Hub needs huggingface_hub: pip install peaccel\[hub\]"):
            call()
    assert Pretrained.from_pretrained("shared").fits == {"shift": 0.5}  # folders need no library
