"""Trial lists: as VoxCeleb and Kaldi write them, scored by names, with several utterances of enrolment and S-norm."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command import run

import peaccel as pe
from peaccel import io, metrics

PEOPLE, EACH, DIM = 12, 6, 8
WHO = np.arange(PEOPLE).repeat(EACH)
RNG = np.random.default_rng(0)
MU = (RNG.normal(size=(PEOPLE, DIM))[WHO] + 0.5 * RNG.normal(size=(PEOPLE * EACH, DIM))).astype("f4")
VAR = RNG.uniform(0.1, 0.6, len(MU)).astype("f4")
IDS = np.array([f"id{who:02}/{row:05}.wav" for row, who in enumerate(WHO)])
ENROLMENT = {f"spk{who}": tuple(IDS[who == WHO][: 1 + who % 3]) for who in range(PEOPLE)}
COHORT = pe.Normal(RNG.normal(size=(40, DIM)).astype("f4"), RNG.uniform(0.1, 0.6, 40).astype("f4"))
ENROL = np.array([f"spk{who}" for who in range(PEOPLE) for _ in range(PEOPLE)])
TEST = np.tile(IDS[WHO.searchsorted(np.arange(PEOPLE), "right") - 1], PEOPLE)
MATCH = np.eye(PEOPLE, dtype=bool).ravel()


def items(kind):
    return pe.Point(MU) if kind == "point" else pe.Normal(MU, VAR)


def one_by_one(d, score, rule=None):
    """Each trial by itself: its utterances fused, and one pair scored."""
    row = {name: i for i, name in enumerate(IDS.tolist())}
    for enrol, test in zip(ENROL, TEST, strict=True):
        rows = [row[name] for name in ENROLMENT[enrol]]
        model = pe.fuse(d[rows], np.zeros(len(rows), int), rule)
        yield pe.paired(d[[row[test]]], model, score)[0]


@pytest.mark.parametrize(
    "kind, score, rule", [("point", "cosine", None), ("normal", "mls", None), ("normal", "llr:prior_var=1", "mean")]
)
def test_trials_are_scored_as_each_by_itself(kind, score, rule):
    d = items(kind)
    found = pe.score_trials(d, IDS, ENROL, TEST, score, enrolment=ENROLMENT, rule=rule)
    np.testing.assert_allclose(found, list(one_by_one(d, score, rule)), rtol=1e-6)
    assert metrics.equal_error_rate(found, MATCH).rate < 0.1
    on_torch = type(d)(*map(torch.tensor, d.arrays))
    assert (pe.score_trials(on_torch, IDS, ENROL, TEST, score, enrolment=ENROLMENT, rule=rule) == found).mean() > 0.9


def test_who_is_enrolled_is_an_utterance_where_nothing_else_is_said():
    one, other = np.triu_indices(len(MU), 1)
    d = items("normal")
    found = pe.score_trials(d, IDS, IDS[one], IDS[other])
    assert (found == pe.paired(d[other], d[one], "mls")).all()
    by_number = pe.score_trials(d, np.arange(len(MU)) + 7, one + 7, other + 7)
    assert (by_number == found).all()


@pytest.mark.parametrize("k", [10, 40, 300])
def test_trials_are_normalised_by_those_of_each_side_with_the_cohort(k):
    d = items("normal")
    plain = list(one_by_one(d, "mls"))
    found = pe.score_trials(d, IDS, ENROL, TEST, "mls", enrolment=ENROLMENT, cohort=COHORT, k=k)
    row = {name: i for i, name in enumerate(IDS.tolist())}
    for i, (enrol, test) in enumerate(zip(ENROL, TEST, strict=True)):
        rows = [row[name] for name in ENROLMENT[enrol]]
        terms = []
        for side in (d[[row[test]]], pe.fuse(d[rows], np.zeros(len(rows), int))):
            with_cohort = np.sort(pe.pairwise(side, COHORT, "mls")[0].astype("f8"))[::-1][:k]
            terms.append((plain[i] - with_cohort.mean()) / with_cohort.std())
        assert found[i] == pytest.approx(np.mean(terms), rel=1e-4)


def test_pairs_are_normalised_as_their_places_in_a_matrix():
    scores, q, g = RNG.normal(size=(5, 7)), RNG.normal(size=(5, 20)), RNG.normal(size=(7, 20))
    rows = np.argwhere(np.ones((5, 7)))
    for sides in ({"queries": q}, {"gallery": g}, {"queries": q, "gallery": g}):
        expected = pe.normalise_scores(scores, **sides)
        found = pe.normalise_scores(scores.ravel(), **sides, pairs=rows)
        assert (found == expected.ravel()).all()
        as_tensors = {name: torch.tensor(x) for name, x in sides.items()}
        of_torch = pe.normalise_scores(torch.tensor(scores.ravel()), **as_tensors, pairs=torch.tensor(rows))
        np.testing.assert_allclose(of_torch.numpy(), expected.ravel(), rtol=1e-12)
    for bad, message in (
        ((scores, rows), "scores have shape (5, 7), expected (P,) beside pairs"),
        ((scores.ravel(), None), "scores have shape (35,), expected (Q, G), or (P,) with pairs"),
        ((scores.ravel(), rows[:3]), "pairs have shape (3, 2) and dtype int64, expected integers of shape (35, 2)"),
        ((scores.ravel(), rows / 2), "pairs have shape (35, 2) and dtype float64, expected integers"),
        ((scores.ravel(), rows + 1), "pairs name rows 1..5 of queries, which has 5"),
        ((scores.ravel(), rows - 1), "pairs name rows -1..3 of queries, which has 5"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"normalise_scores: {message}")):
            pe.normalise_scores(bad[0], queries=q, gallery=g, pairs=bad[1])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"ids": IDS[:5]}, "ids are 5 different names, expected 72 like d"),
        ({"ids": np.array(["a"] * 72)}, "ids are 1 different names, expected 72 like d"),
        ({"ids": MU}, "ids has shape (72, 8) and dtype float32, expected (N,) names"),
        ({"ids": [None, *IDS[1:]]}, "1 of the 72 ids are missing"),
        ({"test": ["nobody", *TEST[1:]]}, "ids lacks 1 of the names of test, the first 'nobody'"),
        ({"enrol": ["nobody", *ENROL[1:]]}, "enrolment lacks 1 of the names of enrol, the first 'nobody'"),
        ({"test": TEST[1:]}, "test has shape (143,), expected (144,) like enrol"),
        ({"enrolment": None}, "ids lacks 12 of the names of enrol, the first 'spk0'"),
        ({"enrolment": ENROLMENT | {"spk3": ()}}, "enrolment of 'spk3' has no utterance"),
        ({"enrolment": ENROLMENT | {"spk3": ("x",)}}, "ids lacks 1 of the names of enrolment, the first 'x'"),
        ({"cohort": COHORT, "k": 1}, "k is 1, expected at least 2 of the cohort"),
    ],
)
def test_what_cannot_be_scored_is_refused(change, message):
    given = {"ids": IDS, "enrol": ENROL, "test": TEST, "enrolment": ENROLMENT} | change
    with pytest.raises(ValueError, match=re.escape(f"score_trials: {message}")):
        pe.score_trials(items("point"), **given)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["1 {enrol} {test}", "{enrol} {test} {word}", "{enrol}\t{test}\t1"])
def test_both_forms_of_a_trial_list_are_read(tmp_path, form):
    lines = []
    for enrol, test, match in zip(ENROL, TEST, MATCH, strict=True):
        line = form.replace("1", str(int(match))).format(
            enrol=enrol, test=test, word="target" if match else "nontarget"
        )
        lines.append(line)
    (tmp_path / "trials").write_text("\ufeff" + "\r\n".join(lines) + "\n\n")
    found = io.read_trials(tmp_path / "trials")
    assert (found.enrol == ENROL).all() and (found.test == TEST).all() and (found.match == MATCH).all()


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is empty (0 bytes)"),
        ("\n\n", "holds no trials"),
        ("1 a b\n1 a\n", "line 2 has 2 columns, expected 3, '1 enrol test' or 'enrol test target'"),
        ("1 a b c\n", "line 1 has 4 columns"),
        ("1 a b\n\nyes a b\n2 a b\n", "line 4: the first column is '2', expected whether the pair matches"),
        ("a b target\na b impostor\n", "line 2: the last column is 'impostor', expected whether the pair matches"),
        ("1 a 0\n0 a 1\n", "both the first and the last column could be the match, expected names in one of them"),
    ],
)
def test_what_is_no_trial_list_is_refused(tmp_path, text, message):
    (tmp_path / "trials").write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"trials: {message}")):
        io.read_trials(tmp_path / "trials")


@pytest.mark.parametrize(
    "text, message",
    [
        ("\n", "holds no speaker"),
        ("ann u1\nbob\n", "line 2: bob has no utterance, expected 'speaker utterance ...'"),
        ("ann u1\nann u2\n", "line 2: ann is there twice, expected one line of all of its utterances (spk2utt, not"),
    ],
)
def test_what_is_no_enrolment_is_refused(tmp_path, text, message):
    (tmp_path / "spk2utt").write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"spk2utt: {message}")):
        io.read_enrolment(tmp_path / "spk2utt")
    (tmp_path / "spk2utt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="spk2utt: cannot be read, truncated or damaged"):
        io.read_enrolment(tmp_path / "spk2utt")
    with pytest.raises(FileNotFoundError, match="none: no such file"):
        io.read_trials(tmp_path / "none")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    io.write_distribution("e.npz", items("normal"))
    io.write_distribution("cohort.npz", COHORT)
    np.save("ids.npy", IDS)
    np.save("y.npy", WHO)
    Path("scored.csv").write_text("score,match\n1,1\n0,0\n")
    Path("spk2utt").write_text("".join(f"{who} {' '.join(names)}\n" for who, names in ENROLMENT.items()))
    rows = zip(MATCH.astype(int), ENROL, TEST, strict=True)
    Path("trials.txt").write_text("".join(f"{match} {enrol} {test}\n" for match, enrol, test in rows))


OF_TRIALS = "choose-threshold --embeddings e.npz --ids ids.npy --trial-list trials.txt --enrolment spk2utt --out o"


def test_a_command_chooses_the_threshold_of_a_trial_list(folder, capsys):
    line = f"{OF_TRIALS} --score mls --rule mean --normalise adaptive --cohort cohort.npz --p-target 0.05"
    code, out, err = run(capsys, line)
    assert code == 0, err
    given = {"enrolment": io.read_enrolment("spk2utt"), "rule": "mean", "cohort": COHORT}
    scores = pe.score_trials(items("normal"), IDS, ENROL, TEST, "mls", **given)
    speakers = pe.metrics.trial_clusters(ENROL, TEST, MATCH)
    found = pe.choose_pair_threshold(scores, MATCH, p_target=0.05, clusters=speakers)
    kept = io.read_fit("o/accept.json")
    known = {name: getattr(kept, name) for name in ("score", "normalisation", "dim", "applied")}
    assert kept == replace(found.accept, **known) and str(found) in out
    assert (
        known["score"] == "mls" and known["normalisation"].startswith("adaptive S-norm") and known["applied"] == "none"
    )
    assert "peaccel score-trials --normalise adaptive --cohort cohort.npz --score mls --rule mean" in out
    assert run(capsys, f"{OF_TRIALS} --score llr:prior_var=1 --far 20%")[0] == 0


def test_a_threshold_and_a_probability_are_applied_to_a_list_of_trials(folder, capsys):
    line = OF_TRIALS.replace("choose-threshold", "score-trials").replace("--out o", "--out new.csv")
    assert run(capsys, f"{OF_TRIALS} --score mls --far 20%")[0] == 0
    scores = pe.score_trials(items("normal"), IDS, ENROL, TEST, "mls", enrolment=io.read_enrolment("spk2utt"))
    np.savez("scored.npz", score=scores, match=MATCH)
    code, out, err = run(capsys, "calibrate-scores --pairs scored.npz --out p.json")
    assert code == 0 and f"{len(MATCH)} pairs, {MATCH.sum()} of them matches -> p.json" in out, err
    code, out, err = run(capsys, f"{line} --score mls --accept o/accept.json --match-probability p.json")
    accepted, probability = io.read_fit("o/accept.json")(scores), pe.fit_match_probability(scores, MATCH)(scores)
    assert code == 0 and f"{len(scores)} pairs by mls, {accepted.sum()} accepted -> new.csv" in out, err
    rows = list(csv.DictReader(Path("new.csv").read_text().splitlines()))
    assert [row["enrol"] for row in rows] == ENROL.tolist() and [row["test"] for row in rows] == TEST.tolist()
    np.testing.assert_allclose([float(row["score"]) for row in rows], scores, rtol=1e-12)  # as text has them
    np.testing.assert_allclose([float(row["probability"]) for row in rows], probability, rtol=1e-12)
    assert [row["accepted"] in ("1", "True", "true") for row in rows] == accepted.tolist()
    other = run(capsys, f"{line} --score llr:prior_var=1 --accept o/accept.json")[2]
    assert "o/accept.json: the threshold is of mls, and scores are of llr" in other
    of_search = pe.learn_then_test(np.arange(400.0), np.ones(400, bool), np.arange(400), alpha=0.1, delta=0.1)
    io.write_fit("search.json", of_search)
    assert "search.json: is a threshold of searches" in run(capsys, f"{line} --accept search.json")[2]
    assert "o/accept.json: is a " in run(capsys, f"{line} --match-probability o/accept.json")[2]
    assert "--trial-list is missing" in run(capsys, "score-trials --embeddings e.npz --out new.csv")[2]


def test_evaluate_and_choose_score_take_a_trial_list(folder, capsys):
    line = OF_TRIALS.replace("choose-threshold", "evaluate")
    code, _, err = run(capsys, f"{line} --scores mls,llr:prior_var=0.001 --normalise adaptive --cohort cohort.npz")
    assert code == 0, err
    given = {"enrolment": io.read_enrolment("spk2utt"), "cohort": COHORT}
    scores = pe.score_trials(items("normal"), IDS, ENROL, TEST, "mls", **given)
    found = json.loads(Path("o/results.json").read_text())
    assert found["results"][0]["roc_auc"]["value"] == pytest.approx(pe.metrics.roc_auc(scores, MATCH))
    assert found["matches"] == MATCH.sum() and found["results"][1]["cllr"] is None  # a normalised score is no ratio
    assert run(capsys, f"{line} --scores llr:prior_var=1000")[0] == 0
    llr = json.loads(Path("o/results.json").read_text())["results"][0]
    assert llr["cllr"]["value"] >= llr["min_cllr"] >= 0


@pytest.mark.parametrize("by", ["eer", "dcf"])
def test_choose_score_compares_by_the_pairs_of_a_trial_list(tmp_path, monkeypatch, capsys, by):
    monkeypatch.chdir(tmp_path)
    rng, labels = np.random.default_rng(0), np.arange(60).repeat(3)
    d = pe.Point(rng.normal(size=(60, 8))[labels] + rng.normal(size=(180, 8)))
    io.write_distribution("e.npz", d)
    np.save("y.npy", labels)
    np.save("ids.npy", np.array([f"u{i}" for i in range(180)]))
    pairs = np.array([(i, j) for i in range(180) for j in range(i) if labels[i] == labels[j] or (i + j) % 7 == 0])
    match = (labels[pairs[:, 0]] == labels[pairs[:, 1]]).astype(int)
    Path("t.txt").write_text("".join(f"{m} u{j} u{i}\n" for m, (i, j) in zip(match, pairs, strict=True)))
    line = "choose-score --embeddings e.npz --labels y.npy --ids ids.npy --trial-list t.txt --out o"
    code, out, err = run(capsys, f"{line} --by {by} --p-target 0.1")
    assert code == 0, err
    expected = pe.choose_score(d, labels, by=by, pairs=pairs, p_target=0.1)
    assert str(expected) in out
    code, _, err = run(capsys, line)
    assert code != 0 and "--trial-list is for --by eer or dcf, got recall" in err
    Path("s").write_text("a u1 u2\n")
    code, _, err = run(capsys, f"{line} --by eer --enrolment s")
    assert code != 0 and "--enrolment fuses utterances" in err


@pytest.mark.parametrize(
    "line, message",
    [
        (f"{OF_TRIALS.replace('choose-threshold', 'evaluate')} --quality y.npy", "--quality is of searches, not of"),
        (f"{OF_TRIALS.replace('choose-threshold', 'evaluate')} --pairs y.npy", "found --embeddings --pairs"),
        ("evaluate --embeddings e.npz --labels y.npy --ids ids.npy --out o", "--ids is of --trial-list, which is not"),
        ("evaluate --embeddings e.npz --labels y.npy --normalise adaptive --out o", "--normalise and --cohort are of"),
        (
            f"{OF_TRIALS} --labels y.npy",
            "--trial-list needs --embeddings and --ids, and no labels; found --embeddings --labels",
        ),
        (OF_TRIALS.replace("--ids ids.npy", ""), "--trial-list needs --embeddings and --ids"),
        (f"{OF_TRIALS} --fpir 1%", "--fpir is of searches"),
        (f"{OF_TRIALS} --novel e.npz", "--novel is of searches, not of --trial-list"),
        (OF_TRIALS.replace("--enrolment spk2utt", "--rule mean"), "--rule is of --enrolment, which is not given"),
        (OF_TRIALS.replace("--enrolment spk2utt", ""), "ids lacks 12 of the names of enrol, the first 'spk0'"),
        (
            f"{OF_TRIALS} --pairs scored.csv",
            "--pairs are scored already and stand alone, found --embeddings --enrolment",
        ),
        (
            OF_TRIALS.replace("--trial-list trials.txt", "--labels y.npy"),
            "--ids is of --trial-list, which is not there",
        ),
        (f"{OF_TRIALS} --rule pfee", "unknown rule 'pfee'; did you mean 'pfe'?"),
    ],
)
def test_each_message_of_a_command_of_trials(folder, capsys, line, message):
    code, _, err = run(capsys, line)
    assert code != 0 and message in err and err.count("\n") <= 2, err


def test_a_score_that_is_not_symmetric_is_not_normalised():
    with pytest.raises(ValueError, match=r"^score_trials: score neg_kl.* is not symmetric, as S-norm needs"):
        pe.score_trials(pe.Normal(MU, VAR), IDS, ENROL, TEST, "neg_kl", enrolment=ENROLMENT, cohort=COHORT)


def test_a_trial_does_not_depend_on_who_else_is_enrolled():
    """One utterance is fused too: by its rule, and where that brings means to one length."""
    alone = {"one": (IDS[0],)}
    for kind, score, rule in (("point", "neg_sq_l2", None), ("normal", "mls", "pfe")):
        d, beside = items(kind), {**alone, "two": (IDS[7], IDS[8])}
        want = pe.score_trials(d, IDS, ["one"], [IDS[1]], score, enrolment=alone, rule=rule)
        found = pe.score_trials(d, IDS, ["one", "two"], [IDS[1]] * 2, score, enrolment=beside, rule=rule)
        assert found[0] == want[0] == pe.paired(d[[1]], pe.fuse(d[[0]], [0], rule), score)[0]
    with pytest.raises(ValueError, match=r"^fuse: unknown rule 'pfee'"):
        pe.score_trials(items("normal"), IDS, ["one"], [IDS[1]], enrolment=alone, rule="pfee")
    with pytest.raises(ValueError, match=r"^score_trials: rule is 'pfe' without an enrolment to fuse, expected both"):
        pe.score_trials(items("normal"), IDS, [IDS[0]], [IDS[1]], rule="pfe")
