"""Random calls of every public function: each returns, or raises TypeError or ValueError in one readable line.

`make test` makes a few thousand, always the same; `make fuzz` makes a hundred thousand fresh ones.
"""

import os
import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import peaccel as pe

CALLS = int(os.environ.get("PEACCEL_FUZZ", "0"))
GROUPS = 7  # tests below
fuzz = settings(
    max_examples=max(1, CALLS // GROUPS) if CALLS else 150,
    derandomize=not CALLS,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
# Words of an implementation's own errors, which no user should have to read.
INTERNAL = re.compile(r"panick|unwrap|\.rs\b|RuntimeError|_core|do not fit together|fit the rows")

NUMBERS = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, -0.0, 1.0, 1e-300, 5e-324, 1e300, -1.0, float("nan"), float("inf")])
)
SIZES = st.sampled_from([0, 1, 2, 3, 5, 17])
DTYPES = st.sampled_from(["float32"] * 4 + ["float64"] * 4 + ["float16", "int64", "int8", "bool", "object", ">f4"])
ODD = st.sampled_from([None, "a", "mls", 3, -1, 2.5, 2**70, True, [], [[]], [1.0, [2.0]], object(), {}, np.float64(2)])


@st.composite
def arrays(draw, shape=None, usual=False):
    """An array of any dtype and memory layout, of numpy or torch; ``usual``: finite, positive floats."""
    shape = tuple(draw(st.lists(SIZES, max_size=3))) if shape is None else shape
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    x = rng.uniform(0.1, 2, shape)
    dtype = draw(st.sampled_from(["float32", "float64"])) if usual else draw(DTYPES)
    if not usual and x.size and draw(st.booleans()):
        x.flat[int(rng.integers(x.size))] = draw(NUMBERS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = np.asarray(x).astype(dtype)
    layout = draw(st.sampled_from(["plain", "reversed", "transposed", "strided", "broadcast", "frozen"]))
    if layout == "reversed" and x.ndim:
        x = x[::-1]
    elif layout == "transposed" and x.ndim == 2:
        x = np.asfortranarray(x)
    elif layout == "strided" and x.ndim:
        x = np.repeat(x, 2, axis=-1)[..., ::2]
    elif layout == "broadcast" and x.ndim and len(x):
        x = np.broadcast_to(x[:1], x.shape)
    elif layout == "frozen":
        x.flags.writeable = False
    if draw(st.integers(0, 3)) == 0 and x.dtype != object and x.dtype.isnative:
        t = torch.tensor(np.array(x, order="C"))
        return t.bfloat16() if draw(st.integers(0, 5)) == 0 and t.is_floating_point() else t
    return x


KINDS = {
    pe.Normal: [("n", "d"), ("n",)],
    pe.VonMisesFisher: [("n",)],
    pe.NonIsotropicVonMisesFisher: [("n", "d")],
    pe.Scaled: [("n",)],
    pe.Point: [],
}


@st.composite
def distributions(draw, count=None, dim=None):
    """Mostly a valid distribution; else arrays that may not fit together."""
    kind = draw(st.sampled_from(list(KINDS)))
    count, dim = draw(SIZES) if count is None else count, draw(st.sampled_from([2, 3, 5, 17])) if dim is None else dim
    usual = draw(st.integers(0, 4)) > 0
    sizes = {"n": count, "d": dim}
    fields = [draw(arrays((count, dim), usual))]
    if KINDS[kind]:
        fields.append(draw(arrays(tuple(sizes[s] for s in draw(st.sampled_from(KINDS[kind]))), usual)))
    if usual and len({isinstance(x, torch.Tensor) for x in fields} | {str(x.dtype).split(".")[-1] for x in fields}) > 2:
        fields = [np.asarray(x.float() if isinstance(x, torch.Tensor) else x, np.float32) for x in fields]
    try:
        return kind(*fields)
    except (TypeError, ValueError):
        return pe.Point(np.ones((count, dim), np.float32))


DRAWN = ("hib:n=2,seed=4", "hib:n=2.5", "sampled_cosine:n=0", "nivmf:n=2", "el_nivmf:n=3,seed=1")
SCORES = st.one_of(
    st.sampled_from(
        [
            *pe.scores.SCORES,
            "llr:prior_var=0.5",
            "llr:prior_var=0.5,prior_mean=1",
            "mls:rho=1",
            "mlz",
            "",
            "hib:n=2,seed=4",
            "hib:n=2.5",
            "sampled_cosine:n=0",
            "nivmf:n=2",
        ]
    ),
    st.builds(lambda v, m: pe.scores.llr(prior_var=v, prior_mean=m), st.floats(0.1, 2), arrays((5,), True)),
    st.text(max_size=8),
    ODD,
)
IDS = st.one_of(
    st.builds(
        lambda rows, cols, seed, dtype: np.random.default_rng(seed).integers(-1, 4, (rows, cols)).astype(dtype),
        *(SIZES, SIZES, st.integers(0, 99), st.sampled_from(["int64", "int32", "uint8", "float32"])),
    ),
    arrays(),
    ODD,
)
COUNTS = st.one_of(st.integers(-2, 20), st.sampled_from([2**31, 2**40, 2**70]), ODD)
SMALL = st.one_of(st.integers(-2, 20), st.sampled_from([2**33, 2**70]), ODD)


def call(function, *args, **kwargs):
    """Makes the call, and fails the test if it does what it may not."""
    before = [x.tobytes() if isinstance(x, np.ndarray) and x.dtype != object else None for x in args]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(*args, **kwargs)
        except (TypeError, ValueError) as error:
            message = str(error)
            assert message and "\n" not in message.strip(), message
            assert not INTERNAL.search(message), message
            result = None
    for x, copy in zip(args, before, strict=True):
        assert copy is None or x.tobytes() == copy, "an argument was changed"
    return result


@fuzz
@given(data=st.data())
def test_special(data):
    name = data.draw(st.sampled_from(["log_iv", "log_ive", "iv_ratio", "vmf_log_norm"]))
    order = data.draw(st.one_of(NUMBERS, st.floats(0, 2000), arrays(), ODD))
    call(getattr(pe.special, name), order, data.draw(st.one_of(NUMBERS, arrays(), ODD)))


@fuzz
@given(data=st.data())
def test_constructors_and_methods(data):
    kind = data.draw(st.sampled_from(list(KINDS)))
    args = [data.draw(st.one_of(arrays(), ODD)) for _ in range(1 + bool(KINDS[kind]))]
    call(kind, *args)
    d = data.draw(distributions())
    call(d.validate)
    call(d.to, data.draw(st.one_of(st.sampled_from(["float32", "float64", "float16", "cpu"]), ODD)))
    call(d.detach)
    call(pe.concat, [d, data.draw(distributions())])
    try:
        call(d.__getitem__, data.draw(st.one_of(st.integers(-3, 3), st.slices(5), arrays(), ODD)))
    except IndexError as error:
        assert "\n" not in str(error)


@fuzz
@given(data=st.data())
def test_scores_of_pairs(data):
    dim = data.draw(st.sampled_from([2, 3, 5, 17]))
    a, b = (data.draw(st.one_of(distributions(dim=dim), distributions(), ODD)) for _ in range(2))
    score = data.draw(SCORES)
    if data.draw(st.booleans()):
        b = call(pe.prepare, b, score) or b
    shape = (len(a), len(b)) if isinstance(a, pe.distributions.Distribution) and hasattr(b, "dim") else None
    found = call(pe.pairwise, a, b, score)
    assert found is None or tuple(found.shape) == shape
    found = call(pe.paired, a, b, score)
    assert found is None or tuple(found.shape) == shape[:1]


@fuzz
@given(data=st.data())
def test_rankings(data):
    dim = data.draw(st.sampled_from([2, 3, 5, 17]))
    queries, gallery = data.draw(distributions(dim=dim)), data.draw(distributions(dim=dim))
    score, ids, k = data.draw(SCORES), data.draw(IDS), data.draw(SMALL)
    if isinstance(k, int) and k > 1000:
        k = 2**70  # any smaller k is legal, and pads
    call(pe.rescore, queries, gallery, ids, score)
    for ranking in (call(pe.rerank, queries, gallery, ids, k, score), call(pe.search, queries, gallery, k, score)):
        if ranking is not None:
            assert tuple(ranking.ids.shape) == tuple(ranking.scores.shape) == (len(queries), k)
            assert bool((ranking.ids >= -1).all()) and bool((ranking.ids < max(1, len(gallery))).all())


@fuzz
@given(data=st.data())
def test_measures(data):
    dim = data.draw(st.sampled_from([2, 3, 5, 17]))
    d, other = data.draw(st.one_of(distributions(dim=dim), ODD)), data.draw(distributions(dim=dim))
    labels, z = data.draw(st.one_of(arrays(), IDS)), data.draw(st.one_of(arrays(), ODD))
    for function, *args in (
        (pe.log_prob, d, z),
        (pe.entropy, d),
        (pe.confidence, d),
        (pe.confidence, d, data.draw(st.one_of(st.sampled_from(["neg_entropy", "kappa", "norm", "nrm"]), ODD))),
        (pe.kl, d, other),
        (pe.match_variance, d, other),
        (pe.fit_vmf, z),
        (pe.fit_vmf, z, labels, labels),
        (pe.fit_prior, d, labels),
        (pe.fuse, d, labels),
        (pe.calibrate_variance, d, data.draw(IDS), labels),
        (pe.calibrate_variance, d, other, data.draw(IDS), labels),
        (pe.fit_prior, d, other, labels, labels),
    ):
        call(function, *args)


@fuzz
@given(data=st.data())
def test_samples(data):
    d, n = data.draw(st.one_of(distributions(), ODD)), data.draw(SMALL)
    if isinstance(n, int) and 100 < n < 2**32:
        n = 3
    gradient = data.draw(st.one_of(st.sampled_from(["implicit", "none"]), ODD))
    found = call(pe.sample, d, n, data.draw(st.one_of(COUNTS, arrays())), gradient, data.draw(COUNTS))
    assert found is None or tuple(found.shape) == (n, len(d), d.dim)


@fuzz
@given(data=st.data())
def test_files(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / f"x.{data.draw(st.sampled_from(['npy', 'npz', 'safetensors', 'txt']))}"
    content = data.draw(st.one_of(st.binary(max_size=200), st.none(), st.just("arrays")))
    if content == "arrays" and path.suffix == ".npz":
        names = data.draw(st.lists(st.sampled_from(["mu", "var", "kappa", "scale", "kind", "x"]), unique=True))
        fields = {name: data.draw(arrays()) for name in names}
        np.savez(path, **{n: x for n, x in fields.items() if not isinstance(x, torch.Tensor)})
    elif isinstance(content, bytes):
        path.write_bytes(content)
    for name in [n for n in dir(pe.io) if n.startswith("read")]:
        try:
            call(getattr(pe.io, name), str(path))
        except OSError as error:
            assert "\n" not in str(error)


def test_threads_in_their_range_only():
    for n in (1, 4, 0, -1, 5000, 2.0, "2", None, True):
        if n in (1, 4) and n is not True:
            pe.set_num_threads(n)
        else:
            with pytest.raises((TypeError, ValueError)):
                pe.set_num_threads(n)
    pe.set_num_threads(2)
