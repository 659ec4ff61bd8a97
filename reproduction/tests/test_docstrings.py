"""The parts of `reproduction.docstrings` that need no model, on made-up embeddings."""

import numpy as np
import pytest

import peaccel as pe
from reproduction import docstrings
from reproduction.docstrings import Texts

N, WIDTH = 60, 8

SOURCE = '''
def found(x):
    """Say what was found. And then go on for as long as twenty words, which
    this sentence has, so that there is a document that belongs to its query here.

    More."""

def _hidden():
    """Say what is hidden. {0}"""

def brief():
    """Say it. {0}"""

class Short:
    """Say what is short. A few words."""
'''.format("word " * 25)


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def test_docstrings_are_parted_after_their_first_sentence():
    ((query, document),) = docstrings.parted(SOURCE)
    assert query == "Say what was found." and document.startswith("And then go on") and document.endswith(" More.")


def test_queries_are_judged_by_the_document_in_their_row():
    mu = np.eye(4, 5, dtype=np.float32)
    queries = pe.Normal(mu, np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    documents = pe.Normal(mu[[0, 1, 3, 2]], np.full(4, 0.1, np.float32))
    given = np.array([9, 7, 5, 3]), np.asarray(pe.confidence(queries))
    recall, best, sure, spearman = docstrings.judged(queries, documents, "mls", *given)
    assert (recall, sure, spearman) == (50, 1, pytest.approx(1)) and best == 1
    found = docstrings.judged(pe.Point(mu), pe.Point(mu[[0, 1, 3, 2]]), "cosine", np.array([9, 7, 5, 3]))
    assert found[0] == 50 and np.isnan(found[2:]).all()


def test_a_head_of_pairs_is_fitted_calibrated_and_judged_on_others():
    rng = np.random.default_rng(0)
    base, words = rng.normal(size=(N, WIDTH)), rng.integers(3, 30, N)
    noise = rng.normal(size=(2, N, WIDTH)) * np.array([3 / words, np.full(N, 0.2)])[:, :, None]
    x = Texts(unit(base + noise[0]), unit(base + noise[1]), words, np.full(N, 50))
    fit = np.arange(N) % 2 == 0
    queries, documents, llr, sure = docstrings.fitted(x, fit, True, "--match.epochs", "1")
    np.testing.assert_allclose(queries.mu, x.queries, atol=1e-5)
    np.testing.assert_allclose(documents.mu, x.documents, atol=1e-5)
    assert np.isfinite(queries.var).all() and (queries.var > 0).all()
    assert np.isfinite(docstrings.judged(queries[~fit], documents[~fit], llr, words[~fit], sure[~fit])).all()
    x = x._replace(query_words=words[::-1])
    assert not np.array_equal(sure, docstrings.fitted(x, fit, True, "--match.epochs", "1")[3])
