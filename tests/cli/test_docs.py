"""Every command that README and docs show is run, on small inputs and for an epoch, in a folder of its own."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from command import run
from pyarrow import parquet

import peaccel as pe
from peaccel import io
from peaccel._utils import options
from peaccel.cli import _training
from peaccel.cli._embed_options import Embed
from peaccel.cli.choose_score import ChooseScore
from peaccel.cli.evaluate import Evaluate
from peaccel.train import runs
from reproduction import __main__ as reproduction
from reproduction.files import read_toml

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TOOLS = ("peaccel", "torchrun", "make", "python")

SMALL = "--quick --device cpu --threads 1"
SHORT = f"{SMALL} --schedule.epochs 1 --dim 8"

# What is added to each command so that it takes seconds, or in parentheses how the error starts where weights are
# missing: its arguments were taken until then.
SHOWN = {
    "peaccel methods": "",
    "peaccel train pfe --quick": f"{SMALL} --classify.epochs 1 --match.epochs 1 --dim 8",
    "peaccel train pfe --quick --out runs/try": f"{SMALL} --classify.epochs 1 --match.epochs 1 --dim 8",
    "peaccel train pfe --data mnist": f"{SMALL} --classify.epochs 1 --match.epochs 1",
    "peaccel train llr_nce --data folder --root photos/ --backbone resnet50 --weights resnet50.safetensors": (
        "resnet50.safetensors: "
    ),
    "peaccel train pfe --data folder --root photos/ --backbone my_file.py:make --out runs/mine": "my_file.py: ",
    "peaccel train el_nivmf --data cub200 --root CUB_200_2011/ --backbone resnet50 --weights resnet50.pth "
    "--frozen-bn": ("resnet50.pth: "),
    "peaccel calibrate-scores --pairs scored.csv --out match.json": "",
    "peaccel score-trials --embeddings e.npz --ids ids.npy --trial-list trials.txt --accept verify/accept.json "
    "--match-probability match.json --out decided.csv": "trials.txt: ",
    "peaccel compare --runs pfe=runs/try llr_nce=runs/head --metric recall_at_1 --out models/": (
        "runs/try/queries.npz: "
    ),
    "peaccel fit-head features.npy --labels labels.npy": "--match.epochs 1",
    "peaccel fit-head features.npy --labels labels.npy --covariates seconds.npy snr.npy --out runs/sure": (
        "--match.epochs 1"
    ),
    "peaccel fit-head features.npy --relevance pairs.npy --out runs/pairs": "--match.epochs 1",
    "peaccel embed --run runs/sure --features features.npy --covariates seconds.npy snr.npy --out sure.npz": "",
    "peaccel embed --run runs/try --part query --out query.npz": "",
    "peaccel tune cosface --trials 50 --out runs/tune": f"{SHORT} --trials 1",
    **{
        f"peaccel embed --backbone clip_image:ViT-B-32 --weights clip.pth --data coco --root COCO/ --part {part} "
        f"--out features/{part}.npz": ("clip.pth: ")
        for part in ("train", "validation", "test")
    },
    "peaccel train text_to_image --data caption-features --root features/": (
        "--schedule.epochs 1 --hidden 8 --device cpu --threads 1"
    ),
    "peaccel train arcface --data mnist --out runs/images": f"{SHORT}",
    "peaccel embed --run runs/images --hidden-digits 0.3 --out features/": "",
    "peaccel train text_to_image --data caption-features --root features/ --out runs/both": (
        "--schedule.epochs 1 --hidden 8 --device cpu --threads 1"
    ),
    "peaccel embed --run runs/both --side captions --out captions.npz": "",
    "peaccel embed --run runs/both --out images.npz": "",
    "peaccel evaluate --queries captions.npz --gallery images.npz --relevance features/test-relevance.npy "
    "--scores cosine,scale_cosine --out page/": "",
    "torchrun --nproc_per_node 2 -m peaccel train cosface --data mnist --out runs/two": f"{SHORT}",
    "peaccel evaluate --queries q.npz --gallery g.npz --query-labels ql.npy --gallery-labels gl.npy "
    "--scores cosine,mls --out page/": "",
    "peaccel choose-score --embeddings validation.npz --labels labels.npy --out choice/": "",
    "peaccel choose-threshold --queries q.npy --gallery g.npy --query-labels ql.npy --gallery-labels gl.npy --wrong 5% "
    "--out choice/": "",
    "peaccel search --score cosine --k 1 --accept choice/accept.json --gallery g.npy --queries new.npy "
    "--out answers.csv": "",
    "peaccel choose-threshold --queries q.npy --gallery g.npy --query-labels ql.npy --gallery-labels gl.npy "
    "--novel strangers.npy --novel-labels persons.npy --fpir 5% --out known/": "",
    "peaccel search --queries queries.parquet --gallery gallery.parquet --query-ids queries.parquet:id "
    "--ids gallery.parquet:id --out found.parquet": "",
    "peaccel search --gallery g.npy --queries traffic.npy --k 1 --out answers.csv": "",
    "peaccel check-answers --ranking answers.csv --wrong 2% --budget 300 --out checks/": "",
    "peaccel duplicates --embeddings g.npy --score cosine --above 0.5 --out pairs.csv": "",
    "peaccel check-answers --pairs pairs.csv --item-texts items.csv:text --wrong 5% --score cosine --out pairs/": "",
    "peaccel search --gallery g.npy --queries labelled.npy --k 2 --out reference.csv": "",
    "peaccel search --gallery g.npy --queries traffic.npy --k 2 --out monday.csv": "",
    "peaccel check-threshold --accept accept.json --reference reference.csv --ranking monday.csv --audits 50 "
    "--out watch/": "",
    "peaccel check-threshold --accept accept.json --audited audited.csv --out watch/ --strict": "",
    "peaccel check-threshold --accept accept.json --reference reference.csv --ranking tuesday.csv --out other/": "",
    "peaccel check-threshold --accept accept.json --merge other/monitor.json --out watch/ --strict": "",
    "peaccel audit --embeddings validation.npz --labels labels.npy --out audit/": "",
    "peaccel quality --embeddings q.npz --reference validation.npz --out rated/": "",
    "peaccel quality --embeddings g.npz --reference rated/quality.json --out more/": "",
    "peaccel cluster --embeddings g.npy --above 0.6 --score cosine --out clusters.csv": "",
    "peaccel choose-threshold --pairs scored.csv --far 1% --certainty 95% --out verify/": "",
    "peaccel gallery create --embeddings faces.parquet --out faces.lance": "",
    "peaccel gallery add --gallery faces.lance --embeddings more.parquet --resume": "",
    "peaccel gallery index --gallery faces.lance --factory HNSW32": "",
    "peaccel gallery search --gallery faces.lance --queries faces.npz --filter year>=2010 --out answers.csv": "",
    "peaccel gallery remove --gallery faces.lance --id face-0007 face-0008": "--skip-missing",
    "peaccel gallery versions --gallery faces.lance": "",
    "peaccel gallery restore --gallery faces.lance --version 1": "",
    "peaccel gallery compact --gallery faces.lance": "",
    "peaccel gallery info --gallery faces.lance": "",
    "peaccel gallery verify --gallery faces.lance": "",
}


def blocks(page):
    """The shell of a page: its indented blocks and its fences without a language or with that of shells."""
    fence, block = None, []
    for line in [*page.read_text().splitlines(), ""]:
        if line.startswith("```"):
            fence = line[3:] if fence is None else None
        within = fence in ("", "sh", "bash", "console") if fence is not None else line.startswith("    ")
        if within and not line.startswith("```"):
            block.append(line.strip() if fence is None else line)
        elif block:
            if block[0].split()[0] in (*TOOLS, "for"):
                yield "\n".join(block)
            block = []


def called(script):
    """The commands that a script calls, as bash expands them; none of them is run."""
    stubs = "".join(f"{tool}() {{ (IFS=$'\\x1f'; echo \"{tool}\x1f$*\"); }}; " for tool in TOOLS)
    found = subprocess.run(["bash", "-euc", stubs + script], capture_output=True, text=True, check=True)
    return [line.split("\x1f") for line in found.stdout.splitlines()]


CALLED = {page: [words for block in blocks(page) for words in called(block)] for page in PAGES}


def test_every_command_of_the_pages_is_known_and_none_is_known_in_vain():
    found = {" ".join(words) for of_page in CALLED.values() for words in of_page if words[0] in ("peaccel", "torchrun")}
    assert found == SHOWN.keys()


def test_every_make_of_the_pages_is_a_target():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = {words[1] for of_page in CALLED.values() for words in of_page if words[0] == "make"}
    assert {"test", "demo", "reproduce"} <= made <= set(targets)


def test_every_file_that_the_pages_name_is_there():
    """But for those that a reader is to write, and those of a method to be filled in."""
    named = re.compile(r"(?<![\w/])((?:python|rust|cuda|tests|benches|tools|docs|reproduction)/[\w./*-]+\.[a-z]+)\b")
    for page in [*PAGES, *sorted((ROOT / "docs" / "extend").glob("*.md"))]:
        for path in set(named.findall(page.read_text())):
            there = any(ROOT.glob(path)) or (page.parent / path).is_file()  # figures and tables lie beside their page
            assert there or re.search("my_|METHOD", path), f"{page.name}: {path}"


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """The current folder, with what the pages take for granted."""
    monkeypatch.chdir(tmp_path)
    rng, labels = np.random.default_rng(0), np.arange(48).repeat(4)
    mu = (rng.normal(size=(48, 8))[labels] + 0.5 * rng.normal(size=(192, 8))).astype(np.float32)
    d = pe.Normal(mu, rng.uniform(0.1, 1, 192).astype(np.float32))
    np.save("features.npy", mu)
    np.save("pairs.npy", np.arange(192).reshape(96, 2))
    for name in ("seconds", "snr"):
        np.save(f"{name}.npy", rng.random(192))
    for name, x in {"labels": labels, "ql": labels[::2], "gl": labels[1::2]}.items():
        np.save(f"{name}.npy", x)
    for name, x in {"validation": d, "q": d[::2], "g": d[1::2]}.items():
        io.write_distribution(f"{name}.npz", x)
    for name, x in {"queries": d[::2], "gallery": d[1::2]}.items():
        parquet.write_table(io.to_arrow(x, ids=np.arange(len(x))), f"{name}.parquet")
    arrays = {
        "q": mu[::2],
        "g": mu[1::2],
        "new": mu[:40] + 0.1,
        "traffic": mu.repeat(2, 0),
        "labelled": mu.repeat(2, 0),
        "strangers": -mu[:60],
        "persons": labels[:60],
    }
    for name, x in arrays.items():
        np.save(f"{name}.npy", x)
    accept = pe.Selection(threshold=0.5, alpha=0.02, delta=0.05, number=400, accepted=300, wrong=1)
    io.write_fit("accept.json", accept)
    io.write_ranking("tuesday.csv", pe.search(pe.Point(mu), pe.Point(mu[1::2]), 2, "cosine"))
    Path("audited.csv").write_text("query,right\n3,y\n8,y\n")
    Path("items.csv").write_text("\n".join(["text", *(f"text {i}" for i in range(96))]) + "\n")
    match = labels % 2 == 0
    lines = [f"{score},{int(m)},{group}" for score, m, group in zip(mu[:, 0] + match, match, labels, strict=True)]
    Path("scored.csv").write_text("\n".join(["score,match,group", *lines]) + "\n")
    for name, part in {"faces": slice(0, 150), "more": slice(100, 192)}.items():
        ids = [f"face-{i}" for i in range(192)][part]
        pq.write_table(io.to_arrow(d[part], ids, year=np.arange(192)[part] + 2000), f"{name}.parquet")
    io.write_distribution("faces.npz", d[:3])
    for name in ("photos", "CUB_200_2011", "COCO", "features"):
        Path(name).mkdir()
    for part in ("train", "validation", "test"):
        np.savez(f"features/{part}.npz", images=mu[:40], captions=mu[40:80], image=np.arange(40))
    for name in ("resnet50.safetensors", "resnet50.pth", "clip.pth"):
        Path(name).touch()


@pytest.mark.parametrize("page", [page for page in PAGES if CALLED[page]], ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_one_after_the_other(page, inputs, capsys, monkeypatch):
    for words in CALLED[page]:
        if words[0] in ("make", "python"):
            continue
        more = SHOWN[" ".join(words)]
        refused = more.endswith(": ")
        arguments = words[1:] + ([] if refused else more.split())
        if words[0] == "torchrun":
            module = arguments.index("-m") + 1
            monkeypatch.setattr(sys, "argv", arguments[module:])
            runpy.run_module(arguments[module], run_name="__main__")
            assert Path("runs/two/result.json").exists()
            continue
        code, _, err = run(capsys, *arguments)
        assert code == (2 if refused else 0), f"{words}: {err}"
        assert not refused or err.startswith(f"peaccel {arguments[0]}: {more}"), err


def test_the_command_line_is_a_module_too(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["peaccel", "--version"])
    monkeypatch.delitem(sys.modules, "peaccel.__main__", raising=False)
    runpy.run_module("peaccel", run_name="__main__")
    assert capsys.readouterr().out == f"peaccel {pe.__version__}\n"


def test_commands_of_the_papers_have_options_that_there_are(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "check_inputs", lambda kind, words: None)  # files that commands before it make
    parsed = {
        "embed": lambda words: options.parse(Embed, "", "", words),
        "evaluate": lambda words: options.parse(Evaluate, "", "", words),
        "choose-score": lambda words: options.parse(ChooseScore, "", "", words),
        "-m": lambda words: options.parse(reproduction.Reproduce, "", "", words[1:]),
        "train": lambda words: _training.parse(None, "", "", words[0], words[1:], runs.Run()),
    }
    items = read_toml("papers.toml")["item"]
    lines = {tuple(words[1:]) for item in items if "command" in item for words in called(item["command"])}
    known = {words for words in lines if words[0] in parsed}
    assert {words[0] for words in known} >= {"embed", "train", "-m"}
    for words in known:
        parsed[words[0]](list(words[1:]))
