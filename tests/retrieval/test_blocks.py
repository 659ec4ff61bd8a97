"""A gallery in blocks is searched and rescored as one: same ids, same bits, and a block more in memory."""

import contextlib
import contextvars
import itertools
import os
import pathlib
import re
import signal
import threading
import weakref

import numpy as np
import pytest
import torch
from conftest import KINDS, assert_ranking, make, scored, to_numpy
from items import hostile

import peaccel as pe

CASES = sorted({(name, q, g) for name, score in pe.scores.SCORES.items() for q, g in score.pairs})
FORMS = (("numpy", "float32"), ("numpy", "float16"), ("torch", "bfloat16"), ("torch", "float64"))
CUTS = (0, 0, 1, 40, 40, 119, 120)  # unequal, two without items, two of a single row
N = CUTS[-1]


def in_blocks(d, cuts=CUTS):
    """The items in blocks, one at a time, that share no memory with each other."""
    yield from (d[np.arange(a, b)] for a, b in itertools.pairwise(cuts))


def candidates(rng, shape, library):
    """Rows, some twice, and -1 for none; those of the second query are of one block, and the third has none."""
    rows = rng.integers(-1, N, shape)
    rows[1], rows[2] = rng.integers(41, 89, shape[1]), -1
    return torch.tensor(rows) if library == "torch" else rows


@pytest.mark.parametrize(("name", "query", "gallery"), CASES)
def test_blocks_are_one_gallery(name, query, gallery):
    rng, score = np.random.default_rng(0), scored(name, query, gallery)
    for library, dtype in FORMS[CASES.index((name, query, gallery)) % 2 :: 2]:
        q = make(query, 7, 6, dtype=dtype, library=library)
        g = hostile(gallery, N, 6, dtype=dtype, library=library)
        k = 5 if library == "numpy" else 200
        found, whole = pe.search(q, in_blocks(g), k, score), pe.search(q, g, k, score)
        assert type(found.scores) is type(whole.scores) and found.scores.dtype == whole.scores.dtype
        assert_ranking(found, tuple(map(to_numpy, whole)), f"{score} {library} {dtype} k={k}")
        rows = candidates(rng, (7, 11), library)
        found, whole = pe.rescore(q, in_blocks(g), rows, score), pe.rescore(q, g, rows, score)
        assert type(found) is type(whole) and found.dtype == whole.dtype
        np.testing.assert_array_equal(to_numpy(found), to_numpy(whole), err_msg=f"{score} {library} {dtype}")


def test_every_kind_is_tried():
    assert {gallery for _, _, gallery in CASES} == set(KINDS)


GALLERY = make("normal_diagonal", N, 6)
QUERIES = make("normal_diagonal", 7, 6, seed=1)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("score", ["mls", "llr:prior_var=0.7"])
@pytest.mark.parametrize("query", ["common", "own"])
@pytest.mark.parametrize("shape", [(), (1, 6)])
def test_a_variance_that_all_items_have_is_that_of_all_blocks(library, score, query, shape):
    var, as_given = np.full(shape, 0.3), torch.tensor if library == "torch" else np.asarray
    g = pe.Normal(as_given(GALLERY.mu), as_given(var))
    q = pe.Normal(as_given(QUERIES.mu), as_given(var if query == "common" else QUERIES.var))
    cut = [g[a:b] for a, b in itertools.pairwise(CUTS)]
    assert_ranking(pe.search(q, cut, 9, score), tuple(map(to_numpy, pe.search(q, g, 9, score))))


def test_blocks_that_each_have_a_variance_are_scored_as_items_that_each_have_one():
    one, first, second = np.full((1, 6), 0.3), GALLERY.mu[:50], GALLERY.mu[50:]
    own = [
        pe.Normal(first, np.tile(one, (50, 1))),
        pe.Normal(second[:1], one.repeat(2, 0)[:1]),
        pe.Normal(second[1:], one),
    ]
    whole, q = pe.Normal(GALLERY.mu, np.tile(one, (N, 1))), pe.Normal(QUERIES.mu, 2 * one)
    assert_ranking(pe.search(q, own, 9), tuple(pe.search(q, whole, 9)))
    for later in (pe.Normal(second, 2 * one), pe.Normal(second, np.tile(one, (70, 1)))):
        blocks = [pe.Normal(first, one), later]
        message = "^mls: the block of gallery from row 50 on has not the one variance that all items of block 0 have"
        with pytest.raises(ValueError, match=message):
            pe.search(q, blocks, 9)
        plain = pe.Normal(QUERIES.mu, np.tile(one, (7, 1)))  # whose scores are no other sum
        assert_ranking(pe.search(plain, blocks, 9), tuple(pe.search(plain, pe.concat(blocks), 9)))


def test_blocks_without_candidates_count_for_the_variance_too():
    one = np.full((1, 6), 0.3)
    q, rows = pe.Normal(QUERIES.mu, one), np.arange(100, 107).reshape(7, 1)
    blocks = [GALLERY[:0], pe.Normal(GALLERY.mu[:60], np.tile(one, (60, 1))), pe.Normal(GALLERY.mu[60:], one)]
    found, whole = pe.rescore(q, blocks, rows), pe.rescore(q, pe.concat(blocks[1:]), rows)
    np.testing.assert_array_equal(found, whole)
    with pytest.raises(ValueError, match="has not the one variance"):
        pe.rescore(q, [blocks[2], blocks[1]], np.full((7, 1), 3))


def test_draws_that_have_no_seed_have_one_for_all_blocks():
    for given in (np.random.default_rng(3), torch.Generator().manual_seed(3)):
        as_given = torch.tensor if isinstance(given, torch.Generator) else np.asarray
        q, g = (pe.Normal(*map(as_given, d.arrays)) for d in (QUERIES, GALLERY))
        again = torch.Generator().manual_seed(3) if as_given is torch.tensor else np.random.default_rng(3)
        found = pe.search(q, in_blocks(g), 9, pe.scores.sampled_cosine(seed=given))
        assert_ranking(found, tuple(map(to_numpy, pe.search(q, g, 9, pe.scores.sampled_cosine(seed=again)))))
    twice = pe.concat([GALLERY[:3], GALLERY[:3]])
    found = pe.rescore(QUERIES, in_blocks(twice, (0, 3, 6)), np.tile(np.arange(6), (7, 1)), "sampled_cosine")
    assert not np.array_equal(found[:, :3], found[:, 3:])  # a row has its own draws, in whichever block it comes


def test_nothing_is_differentiated():
    q, g = (pe.Normal(*(torch.tensor(x, requires_grad=True) for x in d.arrays)) for d in (QUERIES, GALLERY))
    prior = torch.tensor(0.7, requires_grad=True)
    score = pe.scores.llr(prior_var=prior)
    found = pe.rescore(q, [g[:50], g[50:]], torch.zeros((7, 1), dtype=torch.int64), score)
    assert not found.requires_grad and not pe.search(q, [g], 1, score).scores.requires_grad
    assert not torch.is_grad_enabled() or prior.grad is None


def test_of_blocks_without_items_nothing_is_found():
    found = pe.search(QUERIES, [GALLERY[:0], GALLERY[:0]], 2)
    assert found.ids.tolist() == [[-1, -1]] * 7 and found.scored == 0
    assert (pe.rescore(QUERIES, [GALLERY[:0]], np.full((7, 2), -1)) == -np.inf).all()
    assert pe.rescore(QUERIES, [GALLERY], np.zeros((7, 0), int)).shape == (7, 0)


def test_it_says_how_much_was_scored():
    found = pe.search(QUERIES[:1], [GALLERY[:90], GALLERY[90:]], 2, prune="never")
    assert found.scored == 1


def test_the_page_says_what_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (pathlib.Path(__file__).parents[2] / "docs" / "galleries.md").read_text()
    page = page.partition("\n## Larger than memory\n")[2].partition("\n## ")[0]
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        exec(block, names)
    assert names["found"].ids.shape == (5, 10)


# -- reading -----------------------------------------------------------------------------------------------------------


def readers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("peaccel-blocks")]


def test_the_next_block_is_read_while_one_is_scored():
    asked, scoring = threading.Event(), []

    def blocks():
        yield GALLERY[:60]
        asked.set()
        yield GALLERY[60:]

    with pe.retrieval.blocks.each_block("mls", blocks()) as read:
        for first_row, _ in read:
            scoring.append((first_row, asked.wait(10), len(readers())))
    assert scoring == [(0, True, 1), (60, True, 1)] and not readers()


def test_no_more_than_two_blocks_are_in_memory():
    made, most = [], []

    def blocks():
        for i in range(6):
            block = pe.Point(GALLERY.mu[20 * i : 20 * i + 20].copy())
            made.append(weakref.ref(block.mu))
            most.append(sum(mu() is not None for mu in made))
            yield block
            del block

    pe.search(QUERIES, blocks(), 3, "neg_sq_l2")
    assert len(most) == 6 and max(most) <= 2, most


def failing(error):
    yield GALLERY[:50]
    yield GALLERY[50:60]
    raise error


MODES = {
    "none": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "without a cache": lambda: torch.autocast("cpu", torch.float16, cache_enabled=False),
}
CALLER = contextvars.ContextVar("CALLER", default="another thread")


@pytest.mark.parametrize("mode", MODES)
def test_blocks_are_made_in_the_modes_of_the_caller(mode):
    q, seen = pe.Point(torch.ones(2, 3)), []

    def state():
        autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, CALLER.get()

    def source():
        for _ in range(3):
            seen.append(state())
            yield pe.Point(torch.ones(4, 3))
        with torch.no_grad():  # which stays entered between two blocks
            for _ in range(2):
                yield pe.Point(torch.ones(4, 3))
                seen.append(torch.is_grad_enabled())

    token = CALLER.set("the caller")
    try:
        with MODES[mode]():
            pe.search(q, source(), 2, "cosine")
            assert seen == [state()] * 3 + [False] * 2
    finally:
        CALLER.reset(token)


def test_blocks_are_made_on_the_devices_and_streams_of_the_caller(monkeypatch):
    entered, here = [], threading.current_thread()

    @contextlib.contextmanager
    def enters(what):
        entered.append((what, threading.current_thread() is here))
        yield
        entered.append((f"left {what}", threading.current_thread() is here))

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda i: f"a stream of {i}")
    monkeypatch.setattr(torch.cuda, "stream", enters)
    monkeypatch.setattr(torch.cuda, "device", enters)

    def source():
        entered.append("asked")
        yield pe.Point(torch.ones(4, 3))

    pe.search(pe.Point(torch.ones(2, 3)), source(), 2, "cosine")
    of_caller = ["a stream of 0", "a stream of 1", 1]
    want = [(what, False) for what in of_caller], [(f"left {what}", False) for what in reversed(of_caller)]
    assert entered == [*want[0], "asked", *want[1]]


@pytest.mark.parametrize("verb", [lambda g: pe.search(QUERIES, g, 3), lambda g: pe.rescore(QUERIES, g, [[0]] * 7)])
def test_what_the_source_raises_is_passed_on_and_its_thread_ends(verb):
    for error in (OSError("the disk is gone"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            verb(failing(error))
        assert caught.value is error and not readers()


def test_an_interrupt_ends_the_thread():
    def blocks():
        for i in range(10_000):
            if i == 3:
                os.kill(os.getpid(), signal.SIGINT)
            yield GALLERY

    # What was started in the background of a shell ignores interrupts, and so do its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            pe.search(QUERIES, blocks(), 3)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not readers()


def test_a_block_that_cannot_be_scored_ends_the_thread():
    with pytest.raises(ValueError, match="block 1 of gallery"):
        pe.search(QUERIES, itertools.chain([GALLERY, GALLERY.to("float32")], itertools.repeat(GALLERY)), 3)
    assert not readers()


DIAGONAL = "normal_diagonal of D=6, float64, numpy arrays"
OTHERS = {
    "is normal_isotropic of D=6, float64, numpy arrays": make("normal_isotropic", 3, 6),
    "is normal_diagonal of D=5, float64, numpy arrays": make("normal_diagonal", 3, 5),
    "is normal_diagonal of D=6, float32, numpy arrays": GALLERY.to("float32"),
    "is normal_diagonal of D=6, float64, torch tensors": pe.Normal(*map(torch.tensor, GALLERY.arrays)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_block_of_another_kind_is_refused(what):
    message = f"mls: block 2 of gallery, from row 120 on, {what}, expected {DIAGONAL} like block 0"
    for verb in (lambda g: pe.search(QUERIES, g, 3), lambda g: pe.rescore(QUERIES, g, [[0]] * 7)):
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            verb([GALLERY[:100], GALLERY[100:], OTHERS[what]])


NEGATIVE = pe.Normal(GALLERY.mu, GALLERY.var * np.where(np.arange(N) == 0, -1, 1)[:, None])
SEARCHES = {
    "gallery has no blocks; was it an iterator that has been used up?": (ValueError, []),
    "block 1 of gallery, from row 120 on must be a distribution, got ndarray": (TypeError, [GALLERY, GALLERY.mu]),
    "block 0 of gallery, from row 0 on must be a distribution, got str": (TypeError, "mu.npy"),
    "block 1 of gallery, from row 120 on: Normal: var is negative in row 0": (ValueError, [GALLERY, NEGATIVE]),
    "queries must be a distribution": (TypeError, {"queries": QUERIES.mu}),
    "dim of queries is 5, expected 6": (ValueError, {"queries": make("normal_diagonal", 3, 5)}),
    "cannot score vmf x normal_diagonal": (TypeError, {"queries": make("vmf", 3, 6)}),
    "k is 0": (ValueError, {"k": 0}),
    "prune is 'maybe'": (ValueError, {"prune": "maybe"}),
}


@pytest.mark.parametrize("message", SEARCHES)
def test_what_cannot_be_searched_is_refused(message):
    error, given = SEARCHES[message]
    given = given if isinstance(given, dict) else {"gallery": given}
    with pytest.raises(error, match="^mls: " + re.escape(message)) as caught:
        pe.search(**{"queries": QUERIES, "gallery": [GALLERY], "k": 3, **given})
    assert "\n" not in str(caught.value) and not readers()


def test_a_generator_that_was_used_up_is_told():
    once = in_blocks(GALLERY)
    pe.search(QUERIES, once, 3)
    with pytest.raises(ValueError, match="used up"):
        pe.search(QUERIES, once, 3)


CANDIDATES = {
    "candidates of query 3 hold id 120, expected -1 (none) or a row of the gallery, which has 120": (3, 120),
    "candidates of query 0 hold id -2, expected -1 (none) or a row of the gallery": (0, -2),
}


@pytest.mark.parametrize("message", CANDIDATES)
def test_candidates_beyond_the_gallery_are_refused(message):
    rows = np.zeros((7, 2), int)
    rows[CANDIDATES[message][0], 1] = CANDIDATES[message][1]
    for library in (np.asarray, torch.tensor):
        q, *g = (pe.Normal(*map(library, d.arrays)) for d in (QUERIES, GALLERY))
        with pytest.raises(ValueError, match="^mls: " + re.escape(message)):
            pe.rescore(q, g, library(rows))
    with pytest.raises(ValueError, match="a row per query"):
        pe.rescore(QUERIES, failing(OSError()), rows[1:])  # before anything is read
    with pytest.raises(TypeError, match="candidates is None"):
        pe.rescore(QUERIES, [GALLERY], None)


@pytest.mark.parametrize(
    "verb", [pe.paired, pe.pairwise, lambda q, g: pe.rerank(q, g, [[0]] * 7, 1), lambda q, g: pe.prepare(g)]
)
def test_other_verbs_take_no_blocks(verb):
    with pytest.raises(TypeError, match="must be a distribution, got list"):
        verb(QUERIES, [GALLERY])


def test_prepared_blocks_are_searched_as_those_that_are_not():
    whole, blocks = pe.search(QUERIES, GALLERY, 3), [GALLERY[:100], GALLERY[100:]]
    found = pe.search(QUERIES, map(pe.prepare, blocks), 3)
    np.testing.assert_array_equal(found.ids, whole.ids)
    np.testing.assert_array_equal(found.scores, whole.scores)
    with pytest.raises(ValueError, match=r"^cosine: gallery is prepared for score .*mls.*, got .*cosine"):
        pe.search(QUERIES, map(pe.prepare, blocks), 3, "cosine")
