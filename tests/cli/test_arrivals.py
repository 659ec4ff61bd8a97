"""Files and options of a command become what the package's own functions make of them, each in its place.

No two sides have as many items, and no option has its default. A test of each command tells which options it has seen.
"""

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command import run
from PIL import Image

import peaccel as pe
from peaccel import cli, evaluation, io, metrics
from peaccel._utils import report
from peaccel.cli import _embed_data, demo
from peaccel.cli._embed_options import Embed
from peaccel.cli.choose_score import ChooseScore
from peaccel.cli.choose_threshold import ChooseThreshold
from peaccel.cli.evaluate import Evaluate
from peaccel.data import digits
from peaccel.data.images import crop_sizes
from peaccel.evaluation import pages
from peaccel.fits.records import Calibration
from peaccel.metrics import Relevance
from peaccel.train import backbones
from peaccel.train.backbones import ImageInput
from peaccel.train.runs import Run
from peaccel.train.sources import Items

Q, G, M, DIM = 30, 41, 12, 4
RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(12, DIM))
Y, Z = RNG.integers(0, 6, Q), RNG.integers(0, 6, G)


pytestmark = pytest.mark.filterwarnings("ignore:.*look reversed")  # scores of random items


def normals(labels):
    return pe.Normal(CENTRES[labels] + 0.5 * RNG.normal(size=(len(labels), DIM)), RNG.uniform(0.5, 2, len(labels)))


QUERIES, GALLERY, NOVEL = normals(Y), normals(Z), normals(RNG.integers(0, 6, M))
TEMPLATES = 2 * Y + RNG.integers(0, 2, Q)
APART = [(i, j) for i in range(Q) for j in range(i, Q) if TEMPLATES[i] != TEMPLATES[j]]
SAME, OTHER = (next((i, j) for i, j in APART if (Y[i] == Y[j]) == alike) for alike in (True, False))
ARRAYS = {
    "y": Y,
    "z": Z,
    "at_q": RNG.uniform(0, 80, (Q, 2)),
    "at_g": RNG.uniform(0, 80, (G, 2)),
    "right": np.unique(np.c_[RNG.integers(0, Q, 60), RNG.integers(0, G, 60)], axis=0),
    "pairs": np.c_[RNG.permutation(Q), RNG.permutation(G)[:Q]],
    "templates": TEMPLATES,
    "of_templates": TEMPLATES[[SAME, OTHER]],
    "quality": RNG.normal(size=Q),
    "of_novel": np.arange(M) // 2,
    "images": RNG.integers(0, 255, (Q, 3, 4), np.uint8),
    "gallery_images": RNG.integers(0, 255, (G, 5, 6), np.uint8),
    "degrees": np.random.default_rng(1).uniform(-80, 80, (Q, 2)),
}
PRIOR, FIT = pe.fit_prior(GALLERY, Z), Calibration(2.0, 0.5, "Normal")
LLR = pe.scores.llr(prior_mean=PRIOR.mean, prior_var=PRIOR.var)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder, the current one, of all files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("peaccel.metrics._draws.RESAMPLES", 50)
    monkeypatch.setattr(report, "write", lambda *_: None)  # it takes a second to draw
    for name, d in (("q", QUERIES), ("g", GALLERY), ("novel", NOVEL)):
        io.write_distribution(f"{name}.npz", d)
    for name, x in ARRAYS.items():
        np.save(f"{name}.npy", x)
    io.write_fit("prior.json", PRIOR)
    io.write_fit("fit.json", FIT)
    return tmp_path


def spied(monkeypatch, owner, name):
    """The arguments of each call of a function, which goes on as it did."""
    real, found = getattr(owner, name), []

    def spy(*given, **named):
        found.append((given, named))
        return real(*given, **named)

    monkeypatch.setattr(owner, name, spy)
    return found


def options(*lines):
    """The options that lines hold, as fields are called."""
    words = [word for line in lines for word in line.split()]
    return {word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}


# -- evaluate ----------------------------------------------------------------------------------------------------------

SIDES = "evaluate --queries q.npz --gallery g.npz --out o"
ALONE = "evaluate --embeddings q.npz --out o"
BETWEEN = (
    f"{SIDES} --query-labels y.npy --gallery-labels z.npy --scores cosine,llr,neg_sq_l2 --prior prior.json "
    "--calibration fit.json --pairs pairs.npy --p-target 0.2 --quality quality.npy --novel novel.npz "
    "--novel-labels of_novel.npy --images images.npy "
    "--gallery-images gallery_images.npy --seed 3"
)
AMONG = f"{ALONE} --labels y.npy --templates templates.npy --pairs of_templates.npy --scores mls --seed 3"
PLACES = f"{SIDES} --query-coords at_q.npy --gallery-coords at_g.npy --radius 20"
LINES = {
    PLACES: (QUERIES, GALLERY, Relevance.within(ARRAYS["at_q"], ARRAYS["at_g"], 20)),
    f"{ALONE} --coords at_q.npy --radius 20": (QUERIES, None, Relevance.within(ARRAYS["at_q"], None, 20)),
    f"{ALONE} --coords degrees.npy --radius 4000000 --coords-metric haversine": (
        QUERIES,
        None,
        Relevance.within(ARRAYS["degrees"], None, 4_000_000, metric="haversine"),
    ),
    f"{SIDES} --relevance right.npy": (QUERIES, GALLERY, Relevance.from_pairs(ARRAYS["right"], Q, G)),
}


def written(path):
    """The numbers in a file, without the names of files beside it."""
    return {name: x for name, x in json.loads(Path(path).read_text()).items() if name != "files"}


def saved(result):
    """A result as a file has it."""
    result.save("expected.json")
    return written("expected.json")


SIDED = [Calibration(2.0, 0.5, "Normal", (0.5, 1.0, 0.0, -1.0)), Calibration(0.7, 0.0, "Normal", (0.0, 1.0, 2.0, 3.0))]
OF_SIDES = "--calibration of_q.json --gallery-calibration of_g.json"
BY_MODEL = "evaluate --embeddings p.npz --labels held.npy --out o --plda plda.json"
OF_TRIALS = {"trial_list", "ids", "enrolment", "rule"}
"""Options of `tests/evaluation/test_score_trials.py`."""
SKIPPED = {"skip_bad", "exclude_same"}
"""Options of `tests/cli/test_tables.py`."""


def test_lines_have_every_option_of_evaluate():
    known = options(BETWEEN, AMONG, *LINES, OF_SIDES, BY_MODEL) | {"centre"} | SKIPPED
    assert known | OF_TRIALS | {"normalise", "cohort"} == {f.name for f in fields(Evaluate)}


@pytest.mark.parametrize("line", LINES)
def test_what_is_right_is_read_from_its_files(here, capsys, line):
    assert run(capsys, line)[0] == 0
    assert written("o/results.json") == saved(pe.evaluate(*LINES[line]))


def test_an_evaluation_of_two_sides_is_that_of_its_files(here, capsys, monkeypatch):
    shown, found = spied(monkeypatch, pages, "sections"), spied(monkeypatch, pages, "retrievals")
    assert run(capsys, BETWEEN)[0] == 0
    q, g, novel = map(FIT, (QUERIES, GALLERY, NOVEL))
    scores = pe.scores.cosine, LLR, pe.scores.neg_sq_l2
    named = {"pairs": "pairs", "quality": "quality", "novel_labels": "of_novel"}
    named = {name: ARRAYS[key] for name, key in named.items()}
    expected = pe.evaluate(q, g, (Y, Z), scores, **named, novel=novel, p_target=0.2, seed=3)
    assert written("o/results.json") == saved(expected)
    (result, confidence, quality, images, of_novel), _ = shown[0]
    assert saved(result) == saved(expected) and np.array_equal(quality, ARRAYS["quality"])
    assert np.array_equal(confidence, pe.confidence(q)) and np.array_equal(of_novel, pe.confidence(novel))
    assert np.array_equal(images, ARRAYS["images"] / 255)
    (queries, gallery, truth, both, pictures, seed), _ = found[0]
    better = max(scores[1:], key=lambda score: pe.evaluate(q, g, (Y, Z), score).scores[0].recall_at_1.value)
    assert both == (scores[0], better) and better == scores[2] and seed == 3
    assert np.array_equal(queries.var, q.var) and np.array_equal(gallery.var, g.var)
    assert np.array_equal(truth.query_labels, Y) and np.array_equal(truth.gallery_labels, Z)
    assert np.array_equal(pictures[0], ARRAYS["images"] / 255)
    assert np.array_equal(pictures[1], ARRAYS["gallery_images"] / 255)


def test_each_side_has_its_calibration(here, capsys):
    for name, fit in zip(("of_q", "of_g"), SIDED, strict=True):
        io.write_fit(f"{name}.json", fit)
    sides, labels = [fit(d) for fit, d in zip(SIDED, (QUERIES, GALLERY), strict=True)], (Y, Z)
    words = f"{SIDES} --query-labels y.npy --gallery-labels z.npy {OF_SIDES}"
    assert run(capsys, words)[0] == 0
    assert written("o/results.json") == saved(pe.evaluate(*sides, labels))
    assert run(capsys, f"{words.replace('evaluate', 'choose-threshold')} --wrong 60%")[0] == 0
    assert written("o/threshold.json") == saved(pe.choose_threshold(*sides, labels, wrong=0.6, delta=0.1))
    _, _, err = run(capsys, f"{ALONE} --labels y.npy {OF_SIDES}")
    assert err == "peaccel evaluate: of_g.json: is of two sides, expected one --calibration of --embeddings\n"


def test_an_evaluation_by_a_model_is_that_of_its_normals(here, capsys):
    io.write_distribution("p.npz", FITTED_TO)
    io.write_fit("plda.json", PLDA)
    np.save("held.npy", HELD)
    assert run(capsys, BY_MODEL)[0] == 0
    assert written("o/results.json") == saved(pe.evaluate(PLDA.transform(FITTED_TO), None, HELD, PLDA.score))
    assert run(capsys, f"{BY_MODEL} --scores mls")[0] == 0
    assert written("o/results.json") == saved(pe.evaluate(PLDA.transform(FITTED_TO), None, HELD, "mls"))


def test_an_evaluation_of_templates_is_that_of_its_files(here, capsys):
    assert run(capsys, AMONG)[0] == 0
    assert written("o/results.json") == saved(pe.evaluate(QUERIES, None, Y, "mls", seed=3))
    fused = evaluation.evaluate_templates(QUERIES, TEMPLATES, Y, "mls", pairs=ARRAYS["of_templates"], seed=3)
    assert written("o/templates.json") == saved(fused)


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_pictures_of_a_page_are_of_what_their_headings_say(monkeypatch):
    drawn = {name: spied(monkeypatch, report, name) for name in ("scatter", "image_grid")}
    confidence, quality = RNG.permutation(60) / 60.0, RNG.random(60)
    images = confidence[:, None, None] + np.zeros((60, 2, 2))  # each shows how sure it is
    labels = np.repeat(np.arange(20), 3)
    found = pe.evaluate(pe.Normal(CENTRES[labels % 12] + RNG.normal(size=(60, DIM)), np.ones(60)), None, labels)
    sections = pages.sections(found, confidence, quality, images, confidence[:9] / 2)
    ((points, *axes), _), names = drawn["scatter"][0], [section.heading for section in sections]
    assert np.array_equal(points["queries"], (quality, confidence)) and axes == ["quality", "confidence"]
    (bins, most, least), falling = ([given for given, _ in drawn["image_grid"]], np.sort(confidence)[::-1])
    assert bins[0][:, 0, 0] == pytest.approx(falling[::-1].reshape(6, 10).mean(1))
    assert np.array_equal(most[0][:, 0, 0], falling[:24]) and most[1] == [f"{x:.3g}" for x in falling[:24]]
    assert np.array_equal(least[0][:, 0, 0], falling[::-1][:24])
    assert names[-3:] == ["Mean image by confidence", "Most confident queries", "Least confident queries"]

    figure = sections[names.index("Calibration")].content
    panels = np.array(figure.axes).reshape(2, -1)
    for c, above, below in zip(found.confidences, *panels, strict=True):
        predicted, observed, count = np.array(c.calibration).T
        assert above.get_title() == c.confidence
        assert np.array_equal(above.lines[1].get_xydata(), np.c_[predicted, observed])
        lines = [[[x, 0], [x, n]] for x, n in zip(predicted, count, strict=True)]
        assert np.array_equal(below.collections[0].get_segments(), lines)
    histogram = sections[names.index("Confidence of the queries and of the novel queries")].content
    labels = histogram.axes[0].get_legend_handles_labels()[1]
    sizes = [sum(bar.get_height() for bar in bars) for bars in histogram.axes[0].containers]
    assert dict(zip(labels, sizes, strict=True)) == {"queries": 60, "novel queries": 9}


def test_pictures_of_a_choice_are_of_what_their_headings_say(monkeypatch):
    drawn, labels = spied(monkeypatch, report, "intervals"), np.arange(48).repeat(4)
    d = pe.Normal(RNG.normal(size=(48, DIM))[labels] + RNG.normal(size=(192, DIM)), RNG.uniform(0.1, 2, 192))
    found = pe.choose_score(d, labels)
    pages.choice(found)
    (names, gains, _), (names_again, recalls, _) = (given for given, _ in drawn)
    assert names == names_again == [s.name for s in found.scores]

    def ends(x):
        return pytest.approx((100 * x.value, 100 * x.low, 100 * x.high))

    for i, s in enumerate(found.scores):
        assert recalls["Recall@1"][i] == ends(s.recall_at_1)
        assert gains["over cosine"][i] == (None if s.score == "cosine" else ends(s.gain))
        assert gains["over equal uncertainties"][i] == (None if s.worth is None else ends(s.worth))


# -- choose-score ------------------------------------------------------------------------------------------------------


def test_a_choice_is_that_of_its_files_and_fits_are_of_all_items(here, capsys, monkeypatch):
    labels = RNG.permutation(np.arange(60).repeat(4))
    d = pe.Normal(RNG.normal(size=(60, DIM))[labels] + RNG.normal(size=(240, DIM)), RNG.uniform(0.1, 2, 240))
    io.write_distribution("d.npz", d)
    np.save("l.npy", labels)
    line = "choose-score --embeddings d.npz --labels l.npy --out o --draws --items 200 --seed 3"
    elsewhere = {"queries", "gallery", "query_labels", "gallery_labels"}  # tests/evaluation/test_choose_score.py
    elsewhere |= {"by", "wrong", "p_target", "trial_list", "ids", "enrolment", "rule"}  # and test_score_trials.py
    assert options(line) | elsewhere == {f.name for f in fields(ChooseScore)}
    code, _, err = run(capsys, line)
    assert code == 0, err
    found = pe.choose_score(d, labels, draws=True, items=200, seed=3)
    assert written("o/choice.json") == saved(found)
    pairs, same = evaluation.verification_pairs(labels, None, 3)
    prior = pe.fit_prior(d, labels)
    assert io.read_fit("o/calibration.json") == pe.calibrate_variance(d, pairs, same)
    assert np.array_equal(io.read_fit("o/prior.json").mean, prior.mean) and io.read_fit("o/prior.json").var == prior.var


# -- choose-threshold --------------------------------------------------------------------------------------------------

OF_SEARCHES = (
    "choose-threshold --queries q.npz --gallery g.npz --query-labels y.npy --gallery-labels z.npy --score llr "
    "--prior prior.json --calibration fit.json --novel novel.npz --novel-labels of_novel.npy --out o --seed 3 "
    "--certainty 55%"
)
OF_PAIRS = "choose-threshold --pairs scored.csv --certainty 0.7 --seed 3 --out o"
WHAT_IS_RIGHT = {
    line.replace("evaluate", "choose-threshold"): given for line, given in LINES.items()
} | {"choose-threshold --embeddings q.npz --out o --labels y.npy": (QUERIES, None, Y)}  # fmt: skip


def test_lines_have_every_option_of_choose_threshold():
    targets = {"wrong", "fpir", "far", "p_target", "c_miss", "c_fa", "per", "groups", "within"}
    known = options(OF_SEARCHES, OF_PAIRS, OF_SIDES, *WHAT_IS_RIGHT, *OF_CONFIDENCES)
    known |= targets | OF_TRIALS | {"strict"} | SKIPPED
    assert known == {f.name for f in fields(ChooseThreshold)}


@pytest.mark.parametrize("line", WHAT_IS_RIGHT)
def test_what_is_right_for_a_threshold_is_read_from_its_files(here, capsys, line):
    code, _, err = run(capsys, line)
    assert code == 0, err
    assert written("o/threshold.json") == saved(pe.choose_threshold(*WHAT_IS_RIGHT[line]))


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("--wrong 40%", {"wrong": 0.4}),
        ("--fpir 0.45", {"fpir": 0.45}),
        ("--wrong 40% --per query", {"wrong": 0.4, "per": "query"}),
        ("--wrong 40% --groups y.npy", {"wrong": 0.4, "groups": Y}),
        ("", {}),
    ],
)
def test_a_threshold_of_two_sides_is_that_of_its_files(here, capsys, words, target):
    assert run(capsys, f"{OF_SEARCHES} {words}")[0] == 0
    named = {"delta": 0.45, "novel": FIT(NOVEL), "novel_labels": ARRAYS["of_novel"], "seed": 3}
    found = pe.choose_threshold(FIT(QUERIES), FIT(GALLERY), (Y, Z), LLR, **target, **named)
    assert written("o/threshold.json") == saved(found)
    assert Path("o/accept.json").exists() == bool(target)
    if target:
        assert io.read_fit("o/accept.json") == replace(found.accept, applied=io.fits.fingerprint(FIT))


ASKED, HELD = RNG.permutation(np.arange(60).repeat(3)), np.arange(90).repeat(2)
WIDE = 16
OF_BOTH = RNG.normal(size=(90, WIDE)) * 2
MEANS = pe.Centre(tuple(np.linspace(-1, 1, WIDE).tolist()), tuple(np.linspace(1, 0, WIDE).tolist()))
FITTED_TO = pe.Point(OF_BOTH[HELD] + RNG.normal(size=(180, WIDE)))
PLDA = pe.fit_plda(FITTED_TO, HELD)
COHORT = pe.Point(3 * RNG.normal(size=(50, WIDE)))
OF_POINTS = (
    "choose-threshold --queries p.npz --gallery of.npz --query-labels asked.npy --gallery-labels held.npy --out o"
)
OF_CONFIDENCES = {
    f"{OF_POINTS} --wrong 30% --confidence auto --try-centre": {"confidence": "auto", "try_centre": True},
    f"{OF_POINTS} --wrong 30% --confidence class_margin --centre centre.json": {"confidence": "class_margin"},
    f"{OF_POINTS} --wrong 30% --confidence probability --plda plda.json": {"confidence": "probability"},
    f"{OF_POINTS} --wrong 30% --normalise adaptive --cohort cohort.npz --centre centre.json": {},
}


@pytest.mark.parametrize("line", OF_CONFIDENCES)
def test_what_thresholds_are_of_goes_from_the_choice_to_the_search(here, capsys, line):
    rng = np.random.default_rng(5)
    asked = pe.Point(OF_BOTH[ASKED] + rng.gamma(1, 0.9, (180, 1)) * rng.normal(size=(180, WIDE)))
    for name, d in (("p", asked), ("of", FITTED_TO), ("cohort", COHORT)):
        io.write_distribution(f"{name}.npz", d)
    for name, labels in (("asked", ASKED), ("held", HELD)):
        np.save(f"{name}.npy", labels)
    io.write_fit("centre.json", MEANS)
    io.write_fit("plda.json", PLDA)
    code, out, err = run(capsys, line)
    assert code == 0, err
    centre = (
        io.read_fit("o/centre.json") if Path("o/centre.json").exists() else MEANS if "centre.json" in line else None
    )
    plda = PLDA if "plda" in line else None

    def applied(d, side):
        d = d if centre is None or "--try" in line else getattr(centre, f"of_{side}")(d)
        return d if plda is None else plda.transform(d)

    score = "cosine" if plda is None else plda.score
    named = {**OF_CONFIDENCES[line], "wrong": 0.3}
    if "cohort" in line:
        named["cohort"] = applied(COHORT, "gallery")
    queries, gallery = applied(asked, "queries"), applied(FITTED_TO, "gallery")
    found = pe.choose_threshold(queries, gallery, (ASKED, HELD), score, **named)
    assert written("o/threshold.json") == saved(found) and math.isfinite(found.accept.threshold)
    accept, fits = io.read_fit("o/accept.json"), [x for x in (centre, plda) if x is not None]
    assert replace(accept, applied="") == replace(found.accept, applied="")
    assert accept.applied == (", ".join(map(io.fits.fingerprint, fits)) or "none")

    # The line that is printed answers as the threshold does.
    search = (
        out.splitlines()[-1].removeprefix("peaccel ").replace("--queries ... --out ...", "--queries p.npz --out r.npz")
    )
    code, _, err = run(capsys, search)
    assert code == 0, err
    if "--try" in line and centre is not None:
        queries, gallery = centre.of_queries(asked), centre.of_gallery(FITTED_TO)
    if "cohort" in line:
        norms = [pe.search(d, named["cohort"], 50, score) for d in (queries, gallery)]
        best = pe.normalise_scores(pe.search(queries, gallery, 100, score), queries=norms[0], gallery=norms[1])
        expected = np.where(accept(best.scores[:, 0]), best.ids[:, 0], -1)
    else:
        ranking = pe.search(queries, gallery, found.deepest, score)
        expected = accept(ranking, HELD).ids[:, 0]
    assert io.read_ranking("r.npz")[1].ravel().tolist() == expected.tolist() and 0 < (expected >= 0).sum() < 180

    # Whatever else is searched for, by whatever else, is refused in one line.
    io.write_fit("none.json", pe.Centre((0.5,) * WIDE, (0.0,) * WIDE))
    io.write_distribution("other.npz", pe.Point(COHORT.mu[1:]))
    wrong = {
        "--centre none.json": "o/accept.json: fits applied to the threshold's items: ",
        "--normalise adaptive --cohort other.npz": "o/accept.json: the threshold is of ",
        "--k 1" if found.deepest > 1 else "--k 2": "o/accept.json: the threshold is of ",
        "--gallery-labels asked.npy" if not accept.of_classes else "--gallery-labels y.npy": (
            "o/accept.json: is of the score, found --gallery-labels, which it does not need"
            if not accept.of_classes
            else "y.npy: holds 30 labels, expected 180, one for each item"
        ),
    }
    wrong |= {"--score neg_sq_l2": "o/accept.json: the threshold is of cosine"} if plda is None else {}
    for words, message in wrong.items():
        code, _, err = run(capsys, f"{search} {words}")
        assert (code, err.count("\n")) == (2, 1) and message in err, (words, err)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("choose-threshold --queries q.npz --gallery g.npz --query-labels y.npy --gallery-labels z.npy --out o "
         "--cohort g.npz", "--normalise and --cohort belong together, found one of them"),
        ("search --queries q.npz --gallery g.npz --out r.npz --normalise adaptive",
         "--normalise and --cohort belong together, found one of them"),
        ("search --queries q.npz --gallery g.npz --out r.npz --plda plda.json --score mls",
         "--plda has a score of its own, found --score mls"),
        ("search --queries q.npz --gallery g.npz --out r.npz --plda fit.json", "fit.json: is a calibration"),
        ("search --queries q.npz --gallery g.npz --out r.npz --centre fit.json",
         "fit.json: is a calibration, expected a centre"),
        ("search --queries q.npz --gallery g.npz --out r.npz --centre centre.json",
         "q.npz: Centre: fitted on 16 dimensions, cannot be applied to queries of 4"),
        ("search --queries q.npz --gallery g.npz --out r.npz --strict", "--strict is for --accept, which is not there"),
        ("evaluate --embeddings q.npz --labels y.npy --out o --centre centre.json",
         "centre.json: is of two sides, expected one of --embeddings"),
        ("choose-threshold --pairs scored.csv --out o --confidence margin",
         "--confidence is of searches, not of --pairs, --trial-list"),
    ],
)  # fmt: skip
def test_fits_that_do_not_fit_are_refused_in_one_line(here, capsys, line, message):
    io.write_fit("centre.json", MEANS)
    io.write_fit("plda.json", PLDA)
    Path("scored.csv").write_text("score,match\n1,1\n0,0\n")
    code, out, err = run(capsys, line)
    assert (code, out, err.count("\n")) == (2, "", 1) and message in err, err


@pytest.mark.parametrize("ids", [None, RNG.permutation(G) + 100])
def test_candidates_of_rows_or_of_an_index_are_normalised_and_have_margins(here, capsys, ids):
    """Whatever ids the index returns, it is rows of the gallery that norms and labels are of."""
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatL2(DIM) if ids is None else faiss.IndexIDMap(faiss.IndexFlatL2(DIM))
    rows = np.ascontiguousarray(GALLERY.mu, np.float32)
    index.add(rows) if ids is None else index.add_with_ids(rows, ids)
    faiss.write_index(index, "g.index")
    np.save("candidates.npy", np.tile(np.arange(G) if ids is None else ids, (Q, 1)))
    cohort = NOVEL
    io.write_distribution("c.npz", cohort)
    io.write_fit("accept.json", pe.Selection(0.3, 0.1, 0.1, 60, 30, 0, confidence="class_margin"))
    line = f"--queries q.npz --gallery g.npz --score cosine --out r.npz --k {G} --normalise adaptive --cohort c.npz"
    line += " --accept accept.json --gallery-labels z.npy"
    known = ""
    if ids is not None:
        np.save("ids.npy", ids)
        known = " --ids ids.npy"
    found = []
    for command in ("search", "rerank --candidates candidates.npy", f"rerank --index g.index --shortlist {G}"):
        code, _, err = run(capsys, f"{command} {line}{known}")
        assert code == 0, err
        found.append(io.read_ranking("r.npz")[1].tolist())
    assert found[0] == found[1] == found[2] and 0 < (np.array(found[0]) >= 0).sum() < Q
    norms = {name: pe.search(d, cohort, M, "cosine") for name, d in (("queries", QUERIES), ("gallery", GALLERY))}
    best = pe.normalise_scores(pe.search(QUERIES, GALLERY, G, "cosine"), **norms)
    kept = io.read_fit("accept.json")(best, Z).ids
    assert found[0] == np.where(kept >= 0, kept if ids is None else ids[kept], -1).tolist()
    if ids is not None:
        code, _, err = run(capsys, f"rerank --index g.index {line}")
        assert code == 2 and err.endswith("g.index: returns ids, not rows of the gallery; expected --ids\n")


def test_a_search_that_accepts_nothing_ends_with_1_where_it_is_strict(here, capsys):
    line = "search --queries q.npz --gallery g.npz --score cosine --k 1 --accept accept.json --out r.npz"
    for threshold, code in ((2.0, 1), (-2.0, 0)):
        io.write_fit("accept.json", pe.Selection(threshold, 0.1, 0.1, 60, 30, 0, score="cosine"))
        assert run(capsys, f"{line} --strict")[0] == code and run(capsys, line)[0] == 0


def test_an_evaluation_of_centred_sides_is_that_of_what_is_left(here, capsys):
    centre = pe.Centre((1.0, 2.0, 3.0, 4.0), (-1.0, 0.0, 2.0, 5.0))
    io.write_fit("centre.json", centre)
    assert run(capsys, f"{SIDES} --query-labels y.npy --gallery-labels z.npy --centre centre.json")[0] == 0
    expected = pe.evaluate(centre.of_queries(QUERIES), centre.of_gallery(GALLERY), (Y, Z))
    assert written("o/results.json") == saved(expected)


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("--wrong 0.4", {"wrong": 0.4}),
        ("--far 45%", {"far": 0.45}),
        ("--p-target 0.45 --c-miss 2 --c-fa 3", {"p_target": 0.45, "c_miss": 2.0, "c_fa": 3.0}),
    ],
)
def test_a_threshold_of_pairs_is_that_of_their_file(here, capsys, words, target):
    match, groups = RNG.random(300) < 0.5, RNG.integers(0, 60, 300)
    scores = match + RNG.normal(size=300)
    rows = zip(groups.tolist(), scores.tolist(), match.astype(int).tolist(), strict=True)
    lines = ["group,score,match", *(f"{g},{s!r},{m}" for g, s, m in rows)]
    Path("scored.csv").write_text("\n".join(lines) + "\n")
    assert run(capsys, f"{OF_PAIRS} {words}")[0] == 0
    found = pe.choose_pair_threshold(scores, match, groups.astype(str), **target, delta=0.3, seed=3)
    assert written("o/threshold.json") == saved(found) and io.read_fit("o/accept.json") == found.accept


# -- embed -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """A folder of parts of different sizes, whose images are not square."""
    monkeypatch.chdir(tmp_path)
    for part, classes, each in (("train", "ab", 4), ("test", "cd", 3), ("query", "ef", 1), ("gallery", "ef", 2)):
        for c in classes:
            (tmp_path / "images" / part / c).mkdir(parents=True)
            for i in range(each):
                pixels = RNG.integers(0, 255, (40, 50, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / part / c / f"{i}.png")
    return tmp_path


def opened(monkeypatch):
    """The arguments with which items are opened, by name; then the command ends."""
    found = []

    def ask(*given):
        found.append(dict(zip(("data", "root", "seed", "expected", "quick", "parts", "skip_bad"), given, strict=True)))
        raise SystemExit

    monkeypatch.setattr(_embed_data, "open_items", ask)
    return found


OF_BACKBONE = (
    "embed --backbone test_resnet --data folder --root images --part train --seed 5 --crops 0.25 "
    "--out f.npz --labels-out l.npy --quality-out q.npy"
)
OF_RUN = (
    "embed --run r --data folder --root images --part query --seed 5 --quick --skip-bad --side captions --out f.npz"
)
# Of tests/train/test_train_cli.py and test_train_covariates.py, test_extend.py, test_seeds.py, and below.
ELSEWHERE = {"covariates", "features", "hidden_digits", "method", "weights"}


def test_lines_have_every_option_of_embed():
    assert options(OF_BACKBONE, OF_RUN) | ELSEWHERE == {f.name for f in fields(Embed)}


def test_features_are_those_of_the_part_that_was_asked_for(pictures, capsys):
    assert run(capsys, OF_BACKBONE)[0] == 0
    with np.load("f.npz") as held:
        assert held["labels"].tolist() == np.load("l.npy").tolist() == [0] * 4 + [1] * 4
    assert np.array_equal(np.load("q.npy"), crop_sizes(8, 5, 0.25))


class Towers(torch.nn.Module):
    """A model of two sides, which differ."""

    def forward(self, x):
        return pe.Point(x), pe.Point(2 * x)


RUN = Run(data="sop", root=Path("elsewhere"), seed=3, quick=True)


@pytest.fixture
def trained(pictures, monkeypatch):
    """A folder r of a run, which is not read."""
    (pictures / "r").mkdir()
    (pictures / "r" / "run.json").write_text("{}")
    model = SimpleNamespace(run=RUN, model=Towers(), features=4)
    monkeypatch.setattr(_embed_data, "load", lambda *given: model if given == (Path("r"), None, None) else None)


@pytest.mark.parametrize(
    ("words", "expected"),
    {
        "": {"data": "sop", "root": Path("elsewhere"), "seed": 3, "quick": True, "parts": ["test"], "skip_bad": False},
        "--root images": {"data": "sop", "root": Path("images")},
        "--data folder": {"data": "folder", "root": None},  # what lies elsewhere is the run's own data
        "--data folder --root images": {"data": "folder", "root": Path("images")},
        "--part query --skip-bad": {"parts": ["query"], "skip_bad": True},
        "--seed 0": {"seed": 0},
    }.items(),
)
def test_a_run_embeds_its_own_data_unless_told(trained, monkeypatch, words, expected):
    found = opened(monkeypatch)
    with pytest.raises(SystemExit):
        cli.main(f"embed --run r {words} --out f.npz".split())
    assert found[0] | expected == found[0]


def test_images_are_opened_as_the_backbone_takes_them(pictures, monkeypatch):
    found, made = opened(monkeypatch), spied(monkeypatch, backbones, "create")
    with pytest.raises(SystemExit):
        cli.main(f"{OF_BACKBONE} --skip-bad --quick".split())
    (asked,) = found
    assert isinstance(asked.pop("expected"), ImageInput) and made[0][0] == ("test_resnet",)
    assert made[0][1]["weights"] is None and made[0][1]["image_size"] is None
    assert asked == {
        "data": "folder", "root": Path("images"), "seed": 5, "quick": True, "parts": ["train"], "skip_bad": True
    }  # fmt: skip
    (pictures / "w.pth").write_bytes(b"")
    with pytest.raises(SystemExit):  # as nothing can be read from it
        cli.main(f"{OF_BACKBONE} --weights w.pth".split())
    assert made[1][1]["weights"] == Path("w.pth")


@pytest.mark.parametrize(("side", "factor"), [("images", 1), ("captions", 2)])
def test_the_side_that_is_asked_for_is_embedded(trained, capsys, monkeypatch, side, factor):
    items = Items(torch.rand(5, DIM), np.arange(5))
    monkeypatch.setattr(_embed_data, "open_items", lambda *given: {"test": items})
    assert run(capsys, f"embed --run r --side {side} --out f.npz")[0] == 0
    assert np.array_equal(io.read_distribution("f.npz").mu, factor * items.data)


# -- demo --------------------------------------------------------------------------------------------------------------


def seed_run(seed):
    """A run of the demo in which every set of items is another one."""
    strips = [
        digits.Strips(RNG.random((len(of), 2, 2)), of, np.zeros(len(of), int), RNG.random(len(of)), None)
        for of in (Y + 10 * seed, Z + 10 * seed)
    ]
    sides = tuple({kind: normals(of) for kind in ("clean", "mixed")} for of in (Y, Z))
    calibrated = tuple({kind: pe.Normal(d.mu, 2 * d.var) for kind, d in side.items()} for side in sides)
    scores = {"cosine": (pe.scores.cosine, sides), "mls": (pe.scores.mls, sides), "llr": (LLR, sides)}
    return demo.SeedRun(1.0 + seed, 2.0 + seed, scores | {"llr calibrated": (LLR, calibrated)}, *strips)


def test_the_rows_of_the_demo_are_of_the_conditions_that_they_name(tmp_path):
    """Reranking what cosine finds under the same condition; gains are over cosine, and classes those of each seed."""
    seeds = [seed_run(0), seed_run(1)]
    results = demo._gather(seeds, [demo.rank(seed, 9) for seed in seeds], demo._evaluated(seeds[0]), tmp_path)
    assert len(results.rows) == 4 * 4 and results.train_seconds == (1, 2) and results.variance_factors == (2, 3)
    for row in results.rows:
        right, classes, aurocs = [], [], []
        for seed in seeds:
            _, (queries, gallery) = seed.scores["cosine"]
            found = pe.search(queries[row.queries], gallery[row.gallery], 9, "cosine").ids
            score, (a, b) = seed.scores[row.score]
            labels = seed.queries.labels, seed.gallery.labels
            ranking = pe.rerank(a[row.queries], b[row.gallery], found, 9, score)
            right.append((metrics.hit_at_k(ranking.ids, *labels), metrics.hit_at_k(found, *labels)))
            classes.append(seed.queries.labels)
            (answered, _), best = right[-1], ranking.scores[:, 0]
            beats = np.sign(best[answered == 1][:, None] - best[answered == 0])
            aurocs.append((1 + beats.mean()) / 2)
        assert row.recall_at_1 == pytest.approx([own.mean() for own, _ in right])
        assert row.auroc == pytest.approx(aurocs)
        gained = np.concatenate([own - cosine for own, cosine in right])
        assert row.gain == evaluation.mean_interval(gained, np.concatenate(classes))
    first, (queries, gallery) = seeds[0], seeds[0].scores["cosine"][1]
    labels, quality = (first.queries.labels, first.gallery.labels), 1 - first.queries.severity
    assert results.evaluation == pe.evaluate(
        queries["mixed"], gallery["mixed"], labels, ("cosine", "mls", LLR), quality=quality
    )
