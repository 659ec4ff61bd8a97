"""Options of all commands: one meaning each, outputs by their name, none of them an input; and what is told early."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args, get_type_hints

import numpy as np
import pytest
from command import run, sentences
from layouts import LAYOUTS

import peaccel as pe
from peaccel import cli, io
from peaccel._utils import options
from peaccel.cli._embed_options import Embed
from peaccel.cli._option_groups import NormFiles
from peaccel.cli.audit import Audit
from peaccel.cli.calibrate_scores import CalibrateScores
from peaccel.cli.check_answers import CheckAnswers
from peaccel.cli.check_threshold import CheckThreshold
from peaccel.cli.choose_score import ChooseScore
from peaccel.cli.choose_threshold import ChooseThreshold
from peaccel.cli.cluster import Cluster
from peaccel.cli.compare import Compare
from peaccel.cli.demo import DemoSettings
from peaccel.cli.duplicates import Duplicates
from peaccel.cli.evaluate import Evaluate
from peaccel.cli.fit_head import HEADS, HeadFiles
from peaccel.cli.gallery import ACTIONS
from peaccel.cli.quality import RateQuality
from peaccel.cli.rerank import Rerank
from peaccel.cli.score_trials import ScoreTrials
from peaccel.cli.search import Search
from peaccel.data import COMPOSED, EVALUATED, READERS, TRAINED, read
from peaccel.train import sources
from peaccel.train.runs import BACKBONE, DATA, Job, Run
from peaccel.train.tuning import SearchLimits

KINDS = {
    "search": [Search],
    "duplicates": [Duplicates],
    "cluster": [Cluster],
    "rerank": [Rerank],
    "demo": [DemoSettings],
    "train": [Run],
    "tune": [Run, SearchLimits],
    "fit-head": [HeadFiles, Job],
    "embed": [Embed],
    "evaluate": [Evaluate],
    "compare": [Compare],
    "choose-score": [ChooseScore],
    "choose-threshold": [ChooseThreshold],
    "calibrate-scores": [CalibrateScores],
    "score-trials": [ScoreTrials],
    "check-answers": [CheckAnswers],
    "check-threshold": [CheckThreshold],
    "audit": [Audit],
    "quality": [RateQuality],
    "gallery": [kind for kind, _, _ in ACTIONS.values()],
}
"""Where the options of each command stand, but for the settings of methods."""

# Of each option that several commands have, a word that the help of each must have.
MEANINGS = {
    "above": "score is this at least",
    "accept": "pe.learn_then_test|of pairs that 'peaccel choose-threshold",
    "accumulate": "gradients",
    "backbone": "timm|peaccel train",
    "begin": "start from",
    "calibration": "pe.calibrate_variance",
    "certainty": "How surely",
    "coords": "where they were taken",
    "coords_metric": "degrees",
    "covariates": "[Mm]easurements of the items",
    "data": "mnist|data set",
    "device": "GPU",
    "embeddings": "[Ii]tems",
    "exclude_same": "own row",
    "features": "means",
    "gallery": "gallery",
    "gallery_coords": "gallery was taken",
    "gallery_labels": "gallery's labels",
    "images": "page shows some",
    "labels": "labels",
    "most": "[Hh]ow many",
    "novel": "without a right item",
    "novel_labels": "novel queries",
    "out": "[Ff]older|file|write",
    "pairs": "[Vv]erification pairs|possible duplicates",
    "p_target": "minDCF",
    "patience": "Epochs",
    "precision": "Mixed",
    "prior": "pe.fit_prior",
    "queries": "queries",
    "query_ids": "queries' ids",
    "query_coords": "where they were taken",
    "query_labels": "queries' labels",
    "quick": "[Ff]ew|seconds",
    "radius": "metres",
    "ranking": "that 'peaccel search' wrote",
    "relevance": "pairs that are right",
    "resume": "Go on",
    "root": "data set",
    "seed": "[Ss]eed",
    "shortlist": "candidates",
    "strict": "exit code 1",
    "skip_bad": "[Ll]eave out",
    "tensorboard": "TensorBoard",
    "enrolment": "spk2utt",
    "reference": "reference set|At the first call",
    "rule": "pe.fuse",
    "threads": "Threads",
    "trial_list": "VoxCeleb",
    "weights": "backbone",
    "wrong": "[Tt]he target",
    "workers": "Processes that prepare",
    "image_size": "in pixels",
    "ids": "ids",
    "k": "How many",
    "centre": "pe.fit_centre",
    "plda": "pe.fit_plda",
    "normalise": "adaptive",
    "cohort": "nobody who is searched for",
    "score": "peaccel scores",
    "gallery_calibration": "pe.calibrate_variance",
    "dropout": "dropout",
    "method": "method",
    "frozen_bn": "batch normalisation",
    "pooling": "Pooling",
}


BY_NAME = {"data": {str, "mnist", "digits8"}, "method": {Path, *HEADS}}
"""Options that take one of a few names in some commands, and a path in others."""


ONE_TEXT = {f.name for f in fields(NormFiles)} - {"skip_bad"}
"""Options about fits, whose help is the same in all commands."""


def options_of(command):
    """By name the type of each option, without None, and its help."""
    found = {}
    for kind in KINDS[command]:
        told, hints = (
            {**sentences(kind), **({"data": DATA, "backbone": BACKBONE} if kind is Run else {})},
            get_type_hints(kind),
        )
        for f in fields(kind):
            choices = tuple(t for t in get_args(hints[f.name]) if t is not type(None)) or (hints[f.name],)
            found[f.name] = choices, " ".join(told[f.name].split())
    return found


def is_output(name):
    return name == "out" or name.endswith("_out")


def test_every_command_is_looked_at(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    listed = re.search(r"\{([\w,-]+)\}", run(capsys, "--help")[1])[1].split(",")
    assert {*listed} == KINDS.keys() | {"methods", "info", "scores"}


def test_an_option_has_one_meaning_in_all_commands():
    users = {}
    for command in KINDS:
        for name, about in options_of(command).items():
            users.setdefault(name, []).append(about)
    shared = {name: abouts for name, abouts in users.items() if len(abouts) > 1}
    assert shared.keys() == MEANINGS.keys() & users.keys() == MEANINGS.keys()
    for name, abouts in shared.items():
        kinds = {kinds for kinds, _ in abouts}
        words = {kind for kinds in kinds for kind in kinds} - BY_NAME[name] if name in BY_NAME else kinds
        assert len(words) <= 1, f"{name}: {kinds}"
        assert all(re.search(MEANINGS[name], told) for _, told in abouts), name
        assert name not in ONE_TEXT or len({told for _, told in abouts}) == 1, name


# -- outputs and inputs ------------------------------------------------------------------------------------------------

N = 192
SMALL = "--device cpu --threads 1"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A file for each input, and runs to go on from: h of a head, c of few digits."""
    folder = tmp_path_factory.mktemp("options")
    rng, labels = np.random.default_rng(0), np.arange(48).repeat(4)
    mu = (rng.normal(size=(48, 8))[labels] + 0.5 * rng.normal(size=(N, 8))).astype(np.float32)
    d = pe.Normal(mu, rng.uniform(0.1, 1, (N, 8)).astype(np.float32))
    for name in ("embeddings", "queries", "gallery", "novel"):
        io.write_distribution(folder / f"{name}.npz", d)
    arrays = {
        "features": mu,
        "labels": labels,
        "query_labels": labels,
        "gallery_labels": labels,
        "quality": rng.random(N),
        "templates": np.arange(N) // 2,
        "images": rng.random((N, 4, 4)),
        "gallery_images": rng.random((N, 4, 4)),
        "short": np.ones(3),
        "nan": np.full(N, np.nan),
        "candidates": np.tile(np.arange(20), (N, 1)),
        "ids": np.arange(N),
    }
    for name, x in arrays.items():
        np.save(folder / f"{name}.npy", x)
    np.savez(folder / "root.npz", features=mu, labels=labels)
    io.write_fit(folder / "prior.json", pe.fit_prior(d, labels))
    io.write_fit(folder / "calibration.json", pe.Calibration(2.0, 0.5, "Normal"))
    io.write_fit(folder / "accept.json", pe.FalseMatchLimit(0.0, 0.01, 0.05, 1000, 4))
    head = f"fit-head {folder}/features.npy --labels {folder}/labels.npy --match.epochs 1 --out {folder}/h"
    cli.main(head.split())
    cli.main(f"train cosface {SMALL} --data digits8 --quick --dim 8 --schedule.epochs 1 --out {folder}/c".split())
    return folder


@pytest.fixture
def here(prepared, monkeypatch):
    monkeypatch.chdir(prepared)
    return prepared


FITS = "--prior prior.json --calibration calibration.json"
LINES = [
    f"search --queries queries.npz --gallery gallery.npz --ids ids.npy --score llr {FITS} --k 1 "
    "--accept accept.json --out new.npz",
    "rerank --queries queries.npz --gallery gallery.npz --candidates candidates.npy --out new.npz",
    f"train cosface {SMALL} --data features --root root.npz --dim 4 --schedule.epochs 1 --out new",
    f"train cosface {SMALL} --data digits8 --quick --dim 8 --schedule.epochs 0 --begin c/model.safetensors --out new",
    "fit-head features.npy --labels labels.npy --match.epochs 1 --out new",
    "embed --run h --features features.npy --out new.npz",
    "embed --run c --part query --labels-out new.npy --quality-out new2.npy --out new.npz",
    f"evaluate --embeddings embeddings.npz --labels labels.npy --quality quality.npy --novel novel.npz {FITS} "
    "--templates templates.npy --images images.npy --scores cosine,llr --out new",
    "choose-score --embeddings embeddings.npz --labels labels.npy --out new",
    f"choose-threshold --embeddings embeddings.npz --labels labels.npy --score llr {FITS} --wrong 50% --out new",
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split()[0])
def test_a_command_writes_where_its_outputs_say_and_nowhere_else(here, capsys, line):
    words = line.split()
    outputs = {words[i + 1] for i, word in enumerate(words) if word.startswith("--") and word.endswith("out")}
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    code, _, err = run(capsys, line)
    assert code == 0, err
    after = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    written = {path for path, held in after.items() if before.get(path) != held}
    assert {path.relative_to(here).parts[0] for path in written} == outputs
    for path in written:
        path.unlink()
    for path in sorted((path for path in here.rglob("*") if path.is_dir() and not any(path.iterdir())), reverse=True):
        path.rmdir()
    shown = {name for name in options_of(words[0]) if f"--{name.replace('_', '-')}" in words}
    paths = {name for name in shown if options_of(words[0])[name][0] == (Path,)}
    assert {name for name in paths if is_output(name)} and all(
        is_output(name) == (words[words.index(f"--{name.replace('_', '-')}") + 1] in outputs) for name in paths
    )


@pytest.mark.parametrize(
    ("line", "message"),
    {
        "search --queries queries.npz --gallery gallery.npz --out queries.npz": "queries.npz: is also an input",
        "rerank --queries queries.npz --gallery gallery.npz --candidates features.npy --out gallery.npz": (
            "gallery.npz: is also an input"
        ),
        "train cosface --resume --begin c/model.safetensors --out c": "c/model.safetensors: is also an input",
        "embed --run h --features root.npz --out root.npz": "root.npz: is also an input",
        "embed --run c --part query --out c/model.safetensors": "c/model.safetensors: is also an input",
        "embed --backbone small_cnn --data features --root root.npz --out root.npz": "root.npz: is also an input",
        "embed --run c --part query --out e.npz --labels-out e.npy --quality-out e.npy": "e.npy: is the file of two",
        "embed --run h --features features.npy --labels-out labels.npy --out e.npz": "--features has no labels",
        "embed --run h --features features.npy --side captions --out e.npz": "--features are what is embedded, expect",
        "embed --run h --features features.npy --skip-bad --out e.npz": "--features are what is embedded, expect",
        "evaluate --embeddings embeddings.npz --labels labels.npy --prior prior.json --out p": (
            "--prior is for score llr without a prior of its own, got score none"
        ),
        "choose-threshold --embeddings embeddings.npz --labels labels.npy --prior p/accept.json --score llr --out p": (
            "p/accept.json: is also an input"
        ),
        "evaluate --embeddings embeddings.npz --labels labels.npy --prior p/results.json --out p": (
            "p/results.json: is also an input"
        ),
    }.items(),
)
def test_an_output_is_never_an_input_nor_another_output(here, capsys, line, message):
    (here / "p").mkdir(exist_ok=True)
    for name in ("results.json", "accept.json"):
        (here / "p" / name).write_bytes((here / "prior.json").read_bytes())
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*") if path.is_file()}
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "") and err.startswith(f"peaccel {line.split()[0]}: {message}"), err
    assert before == {path: path.stat().st_mtime_ns for path in here.rglob("*") if path.is_file()}


# -- help and errors ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inner:
    on: bool = True
    clip: float | None = 3.0


@dataclass(frozen=True)
class Outer:
    out: Path | None = None
    kind: Literal["one", "two"] | None = None
    some: tuple[int, ...] = (1,)
    inner: Inner = field(default_factory=Inner)
    quick_look: bool = False


@pytest.mark.parametrize(
    "values",
    [
        Outer(),
        Outer(Path("a b"), "two", (3, 4), Inner(on=False, clip=None), True),
        Outer(inner=Inner(clip=0.1 + 0.2)),
    ],
)
def test_words_are_read_as_the_values_they_were_made_of(values):
    assert options.parse(Outer, "", "", options.words(values, Outer())) == values


@pytest.mark.parametrize("command", [*sorted(set(KINDS) - {"train", "tune"}), "train pfe", "tune pfe"])
def test_help_says_path_of_a_path_that_may_be_missing(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = run(capsys, f"{command} --help")
    assert code == 0 and "None}" not in out and "{None" not in out


def test_none_is_still_a_value():
    assert options.parse(Outer, "", "", ["--inner.clip", "None", "--out", "None"]) == Outer(inner=Inner(clip=None))


def test_help_of_fit_head_shows_no_width_but_that_of_the_features(capsys, here):
    out = run(capsys, "fit-head --help")[1]
    assert "--match.lr" in out and "--dim" not in out and "--mean" not in out
    assert json.loads((here / "h" / "run.json").read_text())["settings"]["dim"] == 8


EARLY = {  # in one process, which imports torch for none of them
    "train --help": "usage: peaccel train METHOD",
    "train": "the method is missing",
    "train hip": "unknown method 'hip'; did you mean 'hib'?",
    "train pfe --data sob": "unknown data 'sob'; did you mean 'sop'?",
    "train pfe --data sop": "data sop: root is missing",
    "train pfe --data=sop --root none": "data sop: root is none, which is not there",
    "train pfe --data coco --root .": "data coco: has no labelled items to train on, expected one of mnist, ",
    "train pfe --weights none.pth": "none.pth: there is no such file",
    "train pfe --begin none.safetensors": "none.safetensors: there is no such file",
    "train pfe --out c": "out is c, which holds a run",
    "tune pfe --data sob": "unknown data 'sob'",
    "fit-head none.npy": "none.npy: there is no such file",
    "fit-head features.npy --labels none.npy": "none.npy: there is no such file",
    "fit-head features.npy --labels labels.npy --out h": "out is h, which holds a run",
    "fit-head features.npy --method hib": "method is 'hib', expected one of pfe",
    "embed --out e.npz": "expected exactly one of --run and --backbone",
    "fit-head features.npy --relevance candidates.npy": "candidates.npy: relevance is int64 (192, 20)",
    "fit-head features.npy --labels labels.npy --covariates short.npy": "short.npy: covariates is float64 (3,)",
    "fit-head features.npy --labels labels.npy --covariates nan.npy": "nan.npy: covariates has NaN or infinity",
    "embed --run h --features features.npy --covariates quality.npy --out e.npz": "h: was fitted to 0 covariates, ",
    "embed --run none --out e.npz": "none/run.json: there is no such file",
    "embed --run c --out e.txt": "e.txt: unsupported suffix",
    "embed --backbone small_cnn --data sob --out e.npz": "unknown data 'sob'",
    "embed --run c --otu e.npz": "",
}


def test_errors_in_arguments_come_before_torch(here):
    code = (
        "import sys, json\nfrom peaccel import cli\nfor line in json.loads(sys.argv[1]):\n"
        "    try:\n        cli.main(line.split())\n    except SystemExit:\n        pass\n"
        "    print('torch' in sys.modules, file=sys.stderr)\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", code, json.dumps([*EARLY])], capture_output=True, text=True, check=True
    )
    told = made.stdout + made.stderr
    assert made.stderr.count("False\n") == len(EARLY), told
    for line, message in EARLY.items():
        assert message in told, line


BEFORE_OPTIONS = {  # in one process, which imports nothing that reads options or prints in colours
    "nosuch": "peaccel: unknown command 'nosuch'; did you mean 'search'?",
    "train hip": EARLY["train hip"],
    "train pfe --data sob": EARLY["train pfe --data sob"],
    "tune hip": EARLY["train hip"],
    "embed --backbone small_cnn --data sob --out e.npz": "unknown data 'sob'",
    "embed --features none.npy --run c --out e.npz": "none.npy: no such file",
    "fit-head none.npy": EARLY["fit-head none.npy"],
    "evaluate --embeddings none.npz --labels labels.npy --out e": "peaccel evaluate: none.npz: no such file",
    "choose-score --embeddings none.npz --labels labels.npy --out e": "peaccel choose-score: none.npz: no such file",
    "search --queries=none.npz --gallery g.npz --out r.npz": "peaccel search: none.npz: no such file",
    "rerank --queries none.npz --gallery g.npz --out r.npz": "peaccel rerank: none.npz: no such file",
}


def test_unknown_names_and_missing_files_are_told_before_options_are_read(here):
    code = (
        "import sys, json\nfrom peaccel import cli\nfor line in json.loads(sys.argv[1]):\n"
        "    try:\n        cli.main(line.split())\n    except SystemExit as stop:\n        assert stop.code == 2\n"
        "    print(*{'torch', 'tyro', 'rich'} & sys.modules.keys(), file=sys.stderr)\n"
    )
    words = [sys.executable, "-c", code, json.dumps([*BEFORE_OPTIONS])]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stderr.splitlines()
    assert told[1::2] == [""] * len(BEFORE_OPTIONS)
    for line, message in zip(told[::2], BEFORE_OPTIONS.values(), strict=True):
        assert message in line


def test_data_sets_are_offered_to_train_on_where_they_have_labels():
    assert {*EVALUATED} | {*TRAINED} - {*COMPOSED} == READERS.keys() and not {*EVALUATED} & {*TRAINED}
    assert all(re.search(rf"\b{name}\b", DATA) for name in TRAINED)
    assert not any(re.search(rf"\b{name}\b", DATA) for name in EVALUATED)


def test_what_is_offered_to_train_on_is_what_has_a_part_for_it(tmp_path):
    """Labels of the part "train", by the readers themselves."""
    for name, layout in LAYOUTS.items():
        (tmp_path / name).mkdir()
        more = {"test_identities": 1} if name == "cplfw" else {}
        parts = read(name, layout(tmp_path / name), **more)
        assert ("train" in parts and sources._labelled(parts["train"])) == (name in TRAINED), name
