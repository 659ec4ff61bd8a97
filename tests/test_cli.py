"""The command line reranks files, says what it is, and tells the user in one line what is wrong."""

import platform
import re
import subprocess
import sys

import faiss
import numpy as np
import pytest

import peaccel as pe
from peaccel import cli, io

Q, G, D, K = 3, 20, 8, 6


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder, the current one, with a gallery g, queries q, candidates c and an index of the gallery."""
    rng = np.random.default_rng(0)
    gallery = pe.Normal(rng.standard_normal((G, D), np.float32), rng.uniform(0.1, 1, (G, D)).astype(np.float32))
    monkeypatch.chdir(tmp_path)
    io.write_distribution("g.npz", gallery)
    io.write_distribution("q.npz", gallery[:Q])
    np.save("c.npy", rng.permuted(np.tile(np.arange(G), (Q, 1)), axis=1)[:, :K])
    index = faiss.IndexFlatL2(D)
    index.add(gallery.mu)
    faiss.write_index(index, "g.faiss")
    return tmp_path


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


def run(capsys, line):
    """The exit code, stdout and stderr of a command."""
    code = 0
    try:
        cli.main(line.split())
    except SystemExit as stop:
        code = stop.code or 0
    return code, *capsys.readouterr()


RERANK = "rerank --gallery g.npz --queries q.npz --out r.npz"


# ---- what is right --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_rerank_of_candidates_writes_what_the_verb_gives(files, capsys, suffix):
    io.write_distribution(f"g2{suffix}", io.read_distribution("g.npz"))
    line = f"rerank --gallery g2{suffix} --queries q.npz --out r{suffix} --candidates c.npy --k 4"
    code, out, err = run(capsys, line)
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"mls: 3 queries, gallery 20 x 8, top 4 in \d+\.\d+ s -> r{suffix}\n", out)
    q, g, c = io.read_distribution("q.npz"), io.read_distribution("g.npz"), io.read_candidates("c.npy")
    expected = pe.rerank(q, g, c, 4, score="mls")
    for written, right in zip(io.read_ranking(f"r{suffix}"), expected, strict=True):
        assert np.array_equal(written, right)


def test_rerank_through_an_index_writes_what_the_reranker_gives(files, capsys):
    code, _, err = run(capsys, f"{RERANK} --index g.faiss --k 2 --shortlist 5 --score cosine")
    assert (code, err) == (0, "")
    reranker = pe.FaissReranker(faiss.read_index("g.faiss"), io.read_distribution("g.npz"), score="cosine")
    expected = reranker.search(io.read_distribution("q.npz"), 2, shortlist=5)
    for written, right in zip(io.read_ranking("r.npz"), expected, strict=True):
        assert np.array_equal(written, right)


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


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", ["demo", "rerank", "info", "scores"]),
        ("demo", ["--seed", "--data", "mnist", "digits8"]),
        (
            "rerank",
            ["mu: float [G, D]", "VARIANCE", "kappa", "scale: float [G]", "int [Q, K]", "ids: int64 [Q, k]", ".npz"],
        ),
        ("info", ["SIMD", "CUDA"]),
        ("scores", ["parameters"]),
    ],
)
def test_help_says_what_each_command_takes(capsys, command, words):
    code, out, _ = run(capsys, f"{command} --help")
    assert code == 0
    assert all(word in out for word in words)


def test_info_does_not_import_torch():
    code = "import sys; from peaccel import cli; cli.main(['info']); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# ---- what is wrong --------------------------------------------------------------------------------------------------

WRONG = {  # what is added to the command: how the error starts; where it comes from a verb, that is the verb's to test
    "": "expected exactly one of --candidates and --index",
    "--candidates c.npy --index g.faiss": "expected exactly one of --candidates and --index",
    "--candidates none.npy": "none.npy: no such file",
    "--candidates g.npz": "g.npz: key candidates is missing, found mu, var; expected candidates",
    "--candidates beyond.npy": "",
    "--candidates two.npy": "",
    "--candidates c.npy --k 0": "",
    "--candidates c.npy --score msl": "",
    "--candidates c.npy --queries narrow.npz": "",
    "--candidates c.npy --queries bad.npz": "bad.npz: Normal: var is negative in row 1",
    "--candidates c.npy --gallery none.npz": "none.npz: no such file",
    "--candidates c.npy --gallery g.txt": "g.txt: unsupported suffix '.txt', expected .npz or .npy or .safetensors",
    "--candidates c.npy --gallery cut.npz": "cut.npz: cannot be read, truncated or damaged? (",
    "--candidates c.npy --out r.npy": "r.npy: unsupported suffix '.npy', expected .npz or .safetensors",
    "--candidates c.npy --out no/r.npz": "no/r.npz: there is no folder no",
    "--index none.faiss": "none.faiss: no such file",
    "--index c.npy": "c.npy: is not a FAISS index, or is truncated",
    "--index cut.faiss": "cut.faiss: is not a FAISS index, or is truncated",
    "--index g.faiss --queries narrow.npz": "",
}


@pytest.mark.parametrize(("options", "message"), WRONG.items())
def test_user_errors_are_one_line_and_exit_code_2(files, capsys, options, message):
    g = io.read_distribution("g.npz")
    io.write_distribution("bad.npz", pe.Normal(g.mu[:Q], -np.arange(Q, dtype=np.float32)))
    io.write_distribution("narrow.npz", pe.Normal(g.mu[:Q, :-1], np.ones(Q, np.float32)))
    np.save("beyond.npy", np.full((Q, K), G))
    np.save("two.npy", np.zeros((Q - 1, K), int))
    for name in ("g.npz", "g.faiss"):
        (files / f"cut{name[1:]}").write_bytes((files / name).read_bytes()[:100])
    code, out, err = run(capsys, f"{RERANK} {options}")
    assert (code, out) == (2, "")
    assert err.startswith(f"peaccel rerank: {message}") and err.count("\n") == 1
    assert not (files / "r.npz").exists()


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
    monkeypatch.delitem(sys.modules, "peaccel.demo", raising=False)
    monkeypatch.delattr(pe, "demo", raising=False)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, error = run(capsys, "demo")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("peaccel demo: the demo needs matplotlib")
    assert error.endswith(": pip install peaccel[all]\n")


def test_ctrl_c_exits_130_without_a_word(files, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(pe, "rerank", interrupt)
    assert run(capsys, f"{RERANK} --candidates c.npy") == (130, "", "")
