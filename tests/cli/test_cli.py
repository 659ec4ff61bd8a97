"""The command line searches and reranks files, and tells the user in one line what is wrong."""

import csv
import inspect
import json
import os
import platform
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest
from command import run

import peaccel as pe
from peaccel import _utils, cli, io, retrieval
from peaccel.cli import _fitted_files
from peaccel.fits.records import Calibration, FalseMatchLimit

Q, G, D, K = 3, 20, 8, 6
IDS = 1000 - 7 * np.arange(G)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder, the current one: a gallery g, ids and indexes of it, queries q, candidates c, fits."""
    rng = np.random.default_rng(0)
    gallery = pe.Normal(rng.standard_normal((G, D), np.float32), rng.uniform(0.1, 1, (G, D)).astype(np.float32))
    monkeypatch.chdir(tmp_path)
    io.write_distribution("g.npz", gallery)
    io.write_distribution("q.npz", gallery[:Q])
    np.save("c.npy", rng.permuted(np.tile(np.arange(G), (Q, 1)), axis=1)[:, :K])
    index = faiss.IndexFlatL2(D)
    index.add(gallery.mu)
    faiss.write_index(index, "g.faiss")
    np.save("ids.npy", IDS)
    by_ids = faiss.IndexIDMap(faiss.IndexFlatIP(D))
    by_ids.add_with_ids(gallery.mu / np.linalg.norm(gallery.mu, axis=1, keepdims=True), IDS)
    faiss.write_index(by_ids, "ids.faiss")
    io.write_fit("prior.json", pe.fit_prior(gallery, np.arange(G) % 4))
    io.write_fit("calibration.json", Calibration(2.0, 0.5, "Normal"))
    return tmp_path


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


RERANK = "rerank --gallery g.npz --queries q.npz --out r.npz"
SEARCH = "search --gallery g.npz --queries q.npz --out r.npz"


def written(path, expected):
    """Assert that the file holds this ranking, to the last bit."""
    return all(np.array_equal(x, y) for x, y in zip(io.read_ranking(path), expected, strict=True))


# ---- what is right --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_rerank_of_candidates_writes_what_the_verb_gives(files, capsys, suffix):
    io.write_distribution(f"g2{suffix}", io.read_distribution("g.npz"))
    line = f"rerank --gallery g2{suffix} --queries q.npz --out r{suffix} --candidates c.npy --k 4"
    code, out, err = run(capsys, line)
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"mls: 3 queries, gallery 20 x 8, top 4 in \d+\.\d+ s -> r{suffix}\n", out)
    q, g, c = io.read_distribution("q.npz"), io.read_distribution("g.npz"), io.read_candidates("c.npy")
    assert written(f"r{suffix}", pe.rerank(q, g, c, 4, score="mls"))


def test_rerank_through_an_index_writes_what_the_reranker_gives(files, capsys):
    code, _, err = run(capsys, f"{RERANK} --index g.faiss --k 2 --shortlist 5 --score cosine")
    assert (code, err) == (0, "")
    reranker = pe.FaissReranker(faiss.read_index("g.faiss"), io.read_distribution("g.npz"), score="cosine")
    assert written("r.npz", reranker.search(io.read_distribution("q.npz"), 2, shortlist=5))


def test_search_writes_what_the_verb_gives(files, capsys):
    code, out, err = run(capsys, f"{SEARCH} --k 7 --score ppk:rho=1")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"ppk:rho=1\.0: 3 queries, gallery 20 x 8, top 7 in \d+\.\d+ s -> r.npz\n", out)
    assert written("r.npz", pe.search(io.read_distribution("q.npz"), io.read_distribution("g.npz"), 7, "ppk:rho=1"))


@pytest.mark.parametrize("score", ["mls", "neg_kl", "neg_mahalanobis", "ppk"])
def test_search_finds_exact_copies_of_items_without_variance(files, capsys, score):
    gallery = io.read_distribution("g.npz")
    gallery.var[::2] = 0
    io.write_distribution("g.npz", gallery)
    io.write_distribution("q.npz", gallery[::2])
    assert run(capsys, f"{SEARCH} --k 1 --score {score}")[0] == 0
    assert (io.read_ranking("r.npz")[1][:, 0] == np.arange(0, G, 2)).all()


def test_with_ids_the_gallery_goes_by_them(files, capsys):
    """In candidates, in the index and in what is found; padding stays -1."""
    q, g, c = io.read_distribution("q.npz"), io.read_distribution("g.npz"), io.read_candidates("c.npy")
    scores, rows = pe.search(q, g, G + 1)
    assert run(capsys, f"{SEARCH} --ids ids.npy --k {G + 1}")[0] == 0
    assert written("r.npz", (scores, np.where(rows < 0, -1, IDS[rows])))

    c[1, 2] = -1
    np.save("named.npy", np.where(c < 0, -1, IDS[c]))
    scores, rows = pe.rerank(q, g, c, K)
    assert run(capsys, f"{RERANK} --ids ids.npy --candidates named.npy --k {K}")[0] == 0
    assert written("r.npz", (scores, np.where(rows < 0, -1, IDS[rows])))

    assert run(capsys, f"{RERANK} --ids ids.npy --index ids.faiss --index-features unit --k 2 --shortlist 4")[0] == 0
    reranker = pe.FaissReranker(faiss.read_index("ids.faiss"), g, ids=IDS, features="unit")
    assert written("r.npz", reranker.search(q, 2, shortlist=4))


def test_features_are_what_the_index_is_asked_with(files, capsys):
    q, g = io.read_distribution("q.npz"), io.read_distribution("g.npz")
    vectors = pe.first_stage_features(g, "mls")
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    faiss.write_index(index, "s.faiss")
    assert run(capsys, f"{RERANK} --index s.faiss --index-features surrogate --k 2 --shortlist 3")[0] == 0
    assert written("r.npz", pe.FaissReranker(index, g, features="surrogate").search(q, 2, shortlist=3))


LIMIT = FalseMatchLimit(-1.6, 0.01, 0.05, 1000, 4)


@pytest.mark.parametrize("command", [SEARCH, f"{RERANK} --candidates c.npy", f"{RERANK} --index g.faiss"])
def test_answers_below_a_threshold_are_left_out(files, capsys, command):
    assert run(capsys, f"{command} --k 3")[0] == 0
    scores, ids = io.read_ranking("r.npz")
    middle = float(np.median(scores[np.isfinite(scores)]))
    io.write_fit("accept.json", replace(LIMIT, threshold=middle))
    code, out, _ = run(capsys, f"{command} --k 3 --accept accept.json")
    left = scores >= middle
    assert (
        code == 0
        and 0 < left.sum() < left.size
        and f", {left[:, 0].sum()} queries answered (by accept.json, which does" in out
    )
    assert written("r.npz", (np.where(left, scores, -np.inf), np.where(left, ids, -1)))
    assert run(capsys, f"{command} --accept prior.json")[2].endswith("prior.json: is a prior, expected a threshold\n")
    io.write_fit("accept.json", pe.Selection(middle, 0.05, 0.1, 100, 60, 0))  # which promises of best answers alone
    said = "accept.json: the threshold is of the best answer of each query, expected k = 1, got 3\n"
    assert run(capsys, f"{command} --k 3 --accept accept.json")[2].endswith(said)
    assert run(capsys, f"{command} --k 1 --accept accept.json")[0] == 0


@pytest.mark.parametrize("command", [SEARCH, f"{RERANK} --candidates c.npy", f"{RERANK} --index g.faiss"])
def test_a_threshold_of_something_else_is_refused_before_the_search(files, capsys, command):
    for known, message in (
        ({"score": "mls"}, None),
        ({"score": "cosine"}, "the threshold is of cosine, and scores are of mls; choose one of these"),
        (
            {"score": "mls", "normalisation": "S-norm"},
            "the threshold is of mls with S-norm, and scores are of mls; choo",
        ),
        ({"of": "pairs"}, "the threshold is of scored pairs, and a search takes the best of many pairs, of which"),
    ):
        io.write_fit("accept.json", replace(LIMIT, **known))
        code, out, err = run(capsys, f"{command} --k 1 --accept accept.json")
        assert (code, "does not say" in out) == (2 if message else 0, False)
        assert message is None or (f"accept.json: {message}" in err and err.count("\n") == 1), err


def test_each_side_has_its_calibration(files, capsys):
    q, g = io.read_distribution("q.npz"), io.read_distribution("g.npz")
    fits = [Calibration(a, 0.1, "Normal", tuple(d.mu.mean(0).tolist())) for a, d in ((0.5, q), (3.0, g))]
    for name, fit in zip(("cq.json", "cg.json"), fits, strict=True):
        io.write_fit(name, fit)
    assert run(capsys, f"{SEARCH} --calibration cq.json --gallery-calibration cg.json --k 3")[0] == 0
    assert written("r.npz", pe.search(fits[0](q), fits[1](g), 3))


@pytest.mark.parametrize("command", [SEARCH, f"{RERANK} --candidates c.npy", f"{RERANK} --index g.faiss"])
def test_fits_are_applied_to_both_sides_and_to_the_score(files, capsys, command):
    assert run(capsys, f"{command} --score llr --prior prior.json --calibration calibration.json --k 3")[0] == 0
    prior, calibration = io.read_fit("prior.json"), io.read_fit("calibration.json")
    q, g = (calibration(io.read_distribution(name)) for name in ("q.npz", "g.npz"))
    score = pe.scores.llr(prior_mean=prior.mean, prior_var=prior.var)
    if "index" in command:
        expected = pe.FaissReranker(faiss.read_index("g.faiss"), g, score=score).search(q, 3)
    elif "candidates" in command:
        expected = pe.rerank(q, g, io.read_candidates("c.npy"), 3, score)
    else:
        expected = pe.search(q, g, 3, score)
    assert written("r.npz", expected)


def test_rankings_for_other_programs(files, capsys):
    assert run(capsys, f"{SEARCH} --k 2")[0] == 0
    scores, ids = io.read_ranking("r.npz")
    for name in ("r.json", "r.csv"):
        assert run(capsys, f"{SEARCH} --k 2 --out {name}")[0] == 0
    assert json.loads((files / "r.json").read_text()) == {"scores": scores.tolist(), "ids": ids.tolist()}
    with (files / "r.csv").open() as file:
        lines = [{key: float(value) for key, value in line.items()} for line in csv.DictReader(file)]
    for line, score, name in zip(lines, scores.ravel(), ids.ravel(), strict=True):
        assert (line["score"], line["id"]) == (score, name)
    assert [(line["query"], line["rank"]) for line in lines] == [(q, r) for q in range(Q) for r in (1, 2)]


def test_info_prints_the_build_and_versions(capsys):
    code, out, _ = run(capsys, "info")
    assert code == 0
    for word in (platform.python_version(), np.__version__, "torch", "faiss-cpu", *map(str, pe.build_info().values())):
        assert word.split()[0] in out


def test_scores_prints_every_score(capsys):
    code, out, _ = run(capsys, "scores")
    assert code == 0
    assert all(name in out for name in pe.scores.SCORES)
    assert "normal_diagonal" in out and "vmf" in out


def test_scores_prints_one_score_whole(capsys):
    code, out, _ = run(capsys, "scores hib")
    assert code == 0
    assert inspect.cleandoc(pe.scores.hib.doc) in out
    assert "\n  a=1.0\n  b=0.0\n  n=8\n  seed=(any)\n" in out
    assert "normal_isotropic, normal_diagonal, point: normal_isotropic, normal_diagonal, point\n" in out


def test_only_what_must_be_given_is_called_needed(capsys):
    out = run(capsys, "scores")[1]
    assert re.findall(r"(\w+)=\(needed\)", out) == ["prior_var"]
    assert "direction=query_to_gallery | gallery_to_query | symmetric" in out


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"peaccel {pe.__version__}\n", "")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", ["demo", "search", "rerank", "info", "scores", "--version"]),
        ("demo", ["--seed", "--data", "mnist", "digits8"]),
        (
            "rerank",
            ["mu: float [G, D]", "VARIANCE", "kappa", "scale: float [G]", "int [Q, K]", "ids: int64 [Q, k]", ".npz"],
        ),
        ("search", ["mu: float [G, D]", "VARIANCE", "--ids", "--prior", "pe.io.write_fit", ".json", ".csv"]),
        ("info", ["SIMD", "CUDA"]),
        ("scores", ["parameters"]),
    ],
)
def test_help_says_what_each_command_takes(capsys, command, words):
    code, out, _ = run(capsys, f"{command} --help")
    assert code == 0
    assert all(word in out for word in words)


@pytest.mark.parametrize("line", ["info", "scores", SEARCH, f"{RERANK} --index g.faiss"])
def test_no_command_but_the_demo_imports_torch(files, line):
    code = f"import sys; from peaccel import cli; cli.main({line.split()}); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# ---- what is wrong --------------------------------------------------------------------------------------------------

WRONG = {  # what is added to the command: how the error starts; where it comes from a verb, that is the verb's to test
    "": "expected exactly one of --candidates and --index",
    "--candidates c.npy --index g.faiss": "expected exactly one of --candidates and --index",
    "--candidates none.npy": "none.npy: no such file",
    "--candidates g.npz": "g.npz: key candidates is missing, found mu, var; or name it: g.npz:NAME",
    "--candidates beyond.npy": "",
    "--candidates two.npy": "",
    "--candidates c.npy --k 0": "",
    "--candidates c.npy --score msl": "unknown score 'msl'; did you mean 'mls'?",
    "--candidates c.npy --score ppk:roh=1": "ppk: unknown parameter 'roh'; did you mean 'rho'?",
    "--candidates c.npy --queries narrow.npz": "",
    "--candidates c.npy --queries bad.npz": "bad.npz: Normal: var is negative in row 1",
    "--candidates c.npy --gallery none.npz": "none.npz: no such file",
    "--candidates c.npy --gallery g.txt": "g.txt: unsupported suffix '.txt', expected .npz or .safetensors or .npy or ",
    "--candidates c.npy --gallery cut.npz": "cut.npz: cannot be read, truncated or damaged? (",
    "--candidates c.npy --out r.npy": "r.npy: unsupported suffix '.npy', expected .npz or .safetensors or .json or .cs",
    "--candidates c.npy --out g.npz/r.npz": "g.npz/r.npz: g.npz is a file or in one, expected a folder",
    "--candidates c.npy --out folder.npz": "folder.npz: is a folder, expected a file",
    "--candidates c.npy --out g.npz": "g.npz: is also an input (g.npz), and would be overwritten",
    "--candidates c.npy --out ./q.npz": "q.npz: is also an input (q.npz), and would be overwritten",
    "--candidates c.npy --out link.npz": "link.npz: is also an input (g.npz), and would be overwritten",
    "--candidates c.npy --out hard.npz": "hard.npz: is also an input (g.npz), and would be overwritten",
    "--candidates c2.npz --out c2.npz": "c2.npz: is also an input (c2.npz), and would be overwritten",
    "--candidates c.npy --ids none.npy": "none.npy: no such file",
    "--candidates c.npy --ids short.npy": "short.npy: ids holds 19 ids, expected 20, one for each row of gallery",
    "--candidates c.npy --ids twice.npy": "twice.npy: ids hold 0 twice",
    "--candidates c.npy --ids c.npy": "c.npy: ids have shape (3, 6) and dtype int64, expected integers or strings (N,)",
    "--candidates c.npy --ids ids.npy": "c.npy: candidates holds ",
    "--index g.faiss --ids ids.npy": "FaissReranker: index returned id ",
    "--index g.faiss --index-features surrogate": "FaissReranker: features of the items have shape (20, ",
    "--index g.faiss --shortlist 0": "mls: shortlist is 0, expected 1 .. ",
    "--candidates c.npy --score llr": "llr: prior_var must be given",
    "--candidates c.npy --score llr --prior none.json": "none.json: no such file",
    "--candidates c.npy --score llr --prior g.npz": "g.npz: unsupported suffix '.npz', expected .json",
    "--candidates c.npy --score llr --prior narrow.json": "llr: prior_mean has shape (7,), expected () or (8,)",
    "--candidates c.npy --score llr --prior calibration.json": "calibration.json: is a calibration, expected a prior",
    "--candidates c.npy --score llr --prior shift.json": "shift.json: is a shift, expected a prior",
    "--candidates c.npy --prior prior.json": "--prior is for score llr without a prior of its own, got score mls",
    "--candidates c.npy --prior prior.json --score llr:prior_var=1": "--prior is for score llr without a prior of its",
    "--candidates c.npy --calibration prior.json": "prior.json: is a prior, expected a calibration",
    "--candidates c.npy --shortlist 5": "--shortlist is for --index, found --candidates",
    "--candidates c.npy --index-features unit": "--index-features is for --index, found --candidates",
    "--candidates c.npy --calibration vmf.json": "q.npz: calibrate_variance: fitted on VonMisesFisher, cannot be app",
    "--candidates c.npy --calibration sided.json": "sided.json: is of one side of two, expected --gallery-calib",
    "--candidates c.npy --calibration sided.json --gallery-calibration sided.json": "q.npz: calibrate_variance: fitted",
    "--candidates c.npy --gallery-calibration calibration.json": "--gallery-calibration is given without --calib",
    "--index none.faiss": "none.faiss: no such file",
    "--index c.npy": "c.npy: is not a FAISS index, is truncated, or asks for more memory than its",
    "--index cut.faiss": "cut.faiss: is not a FAISS index, is truncated, or asks for more memory than its 100 bytes",
    "--index g.faiss --queries narrow.npz": "",
}


@pytest.mark.parametrize(("options", "message"), WRONG.items())
def test_user_errors_are_one_line_and_exit_code_2(files, capsys, options, message):
    g = io.read_distribution("g.npz")
    io.write_distribution("bad.npz", pe.Normal(g.mu[:Q], -np.arange(Q, dtype=np.float32)))
    io.write_distribution("narrow.npz", pe.Normal(g.mu[:Q, :-1], np.ones(Q, np.float32)))
    np.save("beyond.npy", np.full((Q, K), G))
    np.save("two.npy", np.zeros((Q - 1, K), int))
    np.save("short.npy", IDS[1:])
    np.save("twice.npy", np.zeros(G, int))
    np.savez("c2.npz", candidates=np.load("c.npy"))
    io.write_fit("narrow.json", pe.fit_prior(pe.Point(g.mu[:, :-1]), np.arange(G) % 4))
    io.write_fit("shift.json", 0.5)
    io.write_fit("vmf.json", Calibration(2.0, 0.0, "VonMisesFisher"))
    io.write_fit("sided.json", Calibration(2.0, 0.0, "Normal", (0.5, 1.0)))
    (files / "folder.npz").mkdir()
    (files / "link.npz").symlink_to("g.npz")
    os.link("g.npz", "hard.npz")
    (files / "g.txt").touch()
    for name in ("g.npz", "g.faiss"):
        (files / f"cut{name[1:]}").write_bytes((files / name).read_bytes()[:100])
    before = {path: path.read_bytes() for path in files.iterdir() if path.is_file()}
    code, out, err = run(capsys, f"{RERANK} {options}")
    assert (code, out) == (2, "")
    assert err.startswith(f"peaccel rerank: {message}") and err.count("\n") == 1
    assert before == {path: path.read_bytes() for path in files.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    "error",
    [
        RecursionError("deep"),
        OverflowError("large"),
        csv.Error("NUL"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    ],
)
def test_errors_of_files_that_do_not_name_them_name_the_files_of_the_command(files, capsys, monkeypatch, error):
    def fails(*_):
        raise error

    monkeypatch.setattr(_fitted_files, "items_in_file", fails)
    code, _, err = run(capsys, "search --gallery g.npz --queries q.npz --out r.npz")
    assert code == 2 and err == f"peaccel search: g.npz or q.npz: cannot be read ({error})\n"


def test_texts_of_files_do_not_reach_the_terminal_as_escape_codes(files, capsys):
    Path("prior.json").write_text(json.dumps({"peaccel": "\x1b[2J\x1b]0;title\x07"}))
    code, _, err = run(capsys, "search --gallery g.npz --queries q.npz --out r.npz --score llr --prior prior.json")
    assert code == 2 and err.rstrip("\n").isprintable() and "\x1b" not in err
    code, _, err = run(capsys, "search", "--gallery", "g.npz", "--queries", "q\x1b[2J.npz", "--out", "r.npz")
    assert code == 2 and "q\\x1b[2J.npz" in err


def test_no_input_of_a_search_is_its_output(files, capsys):
    """Nor a fit or ids, which .json and .npz hold as well as rankings."""
    np.savez("ids.npz", ids=IDS)
    io.write_fit("accept.json", LIMIT)
    for name in ("prior.json", "calibration.json", "ids.npz", "accept.json"):
        option = f"--{name.split('.')[0]}"
        content = (files / name).read_bytes()
        message = f"peaccel search: {name}: is also an input ({name}), and would be overwritten\n"
        assert run(capsys, f"{SEARCH} --score llr --out {name} {option} {name}") == (2, "", message)
        assert (files / name).read_bytes() == content


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied", "g.npz"), "g.npz: Permission denied"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (MemoryError("Unable to allocate 24.0 GiB"), "not enough memory (Unable to allocate 24.0 GiB)"),
        (ValueError("two\nlines"), "two lines"),
    ],
)
def test_what_the_machine_refuses_is_one_line(files, capsys, monkeypatch, error, message):
    def fail(*_, **options):
        raise error

    monkeypatch.setattr(retrieval, "search", fail)
    assert run(capsys, SEARCH) == (2, "", f"peaccel search: {message}\n")


def test_an_unknown_score_is_one_line(capsys):
    assert run(capsys, "scores msl") == (2, "", "peaccel scores: unknown score 'msl'; did you mean 'mls'?\n")


@pytest.mark.parametrize("line", ["", "reank", "rerank", "rerank --k many", "info --all", "demo --data imagenet"])
def test_unknown_words_exit_2_without_a_traceback(capsys, line):
    code, out, err = run(capsys, line)
    assert code == 2 and "Traceback" not in out + err


@pytest.mark.parametrize("missing", ["tyro", "rich"])
def test_without_the_extra_one_line_names_it(capsys, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    message = "peaccel info: the command line needs tyro and rich: pip install peaccel[cli]\n"
    assert run(capsys, "info") == (2, "", message)


def test_without_what_the_demo_needs_one_line_names_it(capsys, monkeypatch):
    for name in ("cli.demo", "_utils.report", "evaluation.pages"):
        monkeypatch.delitem(sys.modules, f"peaccel.{name}", raising=False)
    monkeypatch.delattr(_utils, "report", raising=False)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, error = run(capsys, "demo")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("peaccel demo: demo needs matplotlib")
    assert error.endswith(": pip install peaccel[all]\n")


def test_ctrl_c_exits_130_without_a_word(files, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(retrieval, "rerank", interrupt)
    assert run(capsys, f"{RERANK} --candidates c.npy") == (130, "", "")
    monkeypatch.setattr(np, "savez", interrupt)
    assert run(capsys, SEARCH) == (130, "", "")
    assert not [path for path in files.iterdir() if "r.npz" in path.name or path.name.startswith(".")]


def test_a_warning_is_one_line_of_the_command_without_a_line_of_source(capsys, monkeypatch):
    def warns(name, arguments):
        warnings.warn("a sentence\nof two lines", UserWarning, stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    monkeypatch.setattr(cli, "_run", warns)
    before = warnings.formatwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda *of, **line: sys.stderr.write(warnings.formatwarning(*of[:4]))
        cli.main(["info"])
    found = capsys.readouterr().err
    assert found.startswith("peaccel info: a sentence of two lines\n") and "DeprecationWarning: old" in found
    assert warnings.formatwarning is before
