"""Templates fused by every rule, and pairs that somebody listed."""

import json

import numpy as np
import pytest
from command import run as command

import peaccel as pe
from peaccel import metrics
from peaccel.evaluation.templates import ALONE, evaluate_templates


@pytest.fixture(scope="module")
def items():
    """Six items of each of 60 templates of 20 identities; variances say how far each is from its identity."""
    rng = np.random.default_rng(0)
    identity = np.repeat(np.arange(20), 18)
    var = rng.choice([0.05, 2.0], len(identity)).astype(np.float32)
    mu = rng.normal(size=(20, 16))[identity] + np.sqrt(var)[:, None] * rng.normal(size=(len(identity), 16))
    templates = np.repeat(rng.permutation(1000)[:60], 6)
    shuffled = rng.permutation(len(identity))
    d = pe.Normal(mu.astype(np.float32)[shuffled], var[shuffled])
    return d, templates[shuffled], np.array([f"person {i}" for i in identity])[shuffled]


def test_each_rule_is_verified_as_by_hand(items):
    d, templates, labels = items
    found = evaluate_templates(*items, scores=("cosine", "mls"))
    assert [(r.rule, r.score) for r in found.results] == [
        (rule, score) for score in ("cosine", "mls") for rule in (ALONE, "product", "pfe", "mean")
    ]
    names, first = np.unique(templates, return_index=True)
    pairs = np.stack(np.triu_indices(len(names), 1), 1)
    for rule in ("product", "pfe", "mean"):
        fused = pe.fuse(d, templates, rule)
        same = labels[first][pairs[:, 0]] == labels[first][pairs[:, 1]]
        every = evaluate_templates(*items, scores="mls", pairs=names[pairs])
        auc = metrics.roc_auc(pe.paired(fused[pairs[:, 0]], fused[pairs[:, 1]], "mls"), same)
        assert next(r for r in every.results if r.rule == rule).roc_auc.value == pytest.approx(auc, abs=1e-12)
        assert (every.pairs, every.same) == (len(same), same.sum())
    different = 2 * (~same).sum()  # (i, j) and (j, i)
    assert (found.pairs, found.same) == (different + 2 * same.sum(), 2 * same.sum())
    by_rule = {r.rule: r.roc_auc.value for r in found.results if r.score == "mls"}
    assert by_rule["product"] > by_rule["mean"] > by_rule[ALONE]


def test_numbers_and_intervals_are_those_of_the_fused_items_by_identity(items):
    """Of templates by themselves, of which an identity has three, intervals would be too narrow."""
    d, templates, labels = items
    found = evaluate_templates(*items, scores="mls", seed=3)
    first = np.unique(templates, return_index=True)[1]
    of_items = pe.evaluate(pe.fuse(d, templates, "mean"), None, labels[first], "mls", seed=3).scores[0]
    (mean,) = (r for r in found.results if r.rule == "mean")
    for name in ("roc_auc", "equal_error_rate"):  # of so few pairs there is no TAR
        assert getattr(mean, name) == getattr(of_items, name), name


@pytest.mark.parametrize("kind", ["vmf", "scaled", "point"])
def test_rules_are_those_of_the_kind(items, kind):
    d, templates, labels = items
    unit = d.mu / np.linalg.norm(d.mu, axis=1, keepdims=True)
    made = {"vmf": pe.VonMisesFisher(unit, 1 / d.var), "scaled": pe.Scaled(unit, 1 / d.var), "point": pe.Point(unit)}
    rules = {"vmf": ["natural", "mean"], "scaled": ["mean", "max", "harmonic"], "point": ["direction", "mean"]}
    found = evaluate_templates(made[kind], templates, labels, ("cosine",))
    assert [r.rule for r in found.results] == [ALONE, *rules[kind]]


def test_one_rule_is_one_call_and_the_best_of_items_is_the_best_pair(items, monkeypatch):
    monkeypatch.setattr("peaccel.evaluation.templates.BLOCK", 500)
    d, templates, labels = items
    names, first = np.unique(templates, return_index=True)
    pairs = np.stack(np.triu_indices(len(names), 1), 1)
    found = evaluate_templates(*items, "mls", rule="best", pairs=names[pairs]).results
    assert [r.rule for r in found] == [ALONE, "best"]
    every, members = pe.pairwise(d, d, "mls"), [np.flatnonzero(templates == name) for name in names]
    best = np.array([every[np.ix_(members[i], members[j])].max() for i, j in pairs])
    same = labels[first][pairs[:, 0]] == labels[first][pairs[:, 1]]
    assert found[1].roc_auc.value == pytest.approx(metrics.roc_auc(best, same), abs=1e-4)
    both = evaluate_templates(*items, "mls", rule=("product", "mean"), pairs=names[pairs]).results
    assert [r.rule for r in both] == [ALONE, "product", "mean"]
    with pytest.raises(ValueError, match=r"^evaluate_templates: unknown rule 'bst'; did you mean 'best'"):
        evaluate_templates(*items, "mls", rule="bst")


def test_bad_templates_are_refused(items):
    d, templates, labels = items
    other = labels.copy()
    other[0] = "somebody else"
    with pytest.raises(ValueError, match=f"template {templates[0]} has items of two labels"):
        evaluate_templates(d, templates, other)
    with pytest.raises(ValueError, match=r"templates has shape \(3,\), expected \(360,\)"):
        evaluate_templates(d, templates[:3], labels)
    with pytest.raises(ValueError, match="templates has dtype float64, expected integers"):
        evaluate_templates(d, templates * 1.0, labels)
    with pytest.raises(ValueError, match=r"pair 1 is of templates \[-5, 7777\], not both there"):
        evaluate_templates(d, templates, labels, pairs=[[templates[0], templates[0]], [-5, 7777]])
    with pytest.raises(ValueError, match="1 of 1 pairs are of one identity, expected some of either kind"):
        evaluate_templates(d, templates, labels, pairs=[np.unique(templates[labels == labels[0]])[:2]])
    with pytest.raises(ValueError, match=f"pairs hold template {templates[0]} with itself, expected different ones"):
        evaluate_templates(d, templates, labels, pairs=[[templates[0], templates[0]]])
    with pytest.raises(ValueError, match=r"pairs has shape \(2,\), expected \(P, 2\)"):
        evaluate_templates(d, templates, labels, pairs=[1, 2])


def test_given_pairs_are_verified(items):
    d, _, labels = items
    pairs = np.stack(np.triu_indices(len(d), 1), 1)[::7]
    found = pe.evaluate(d, None, labels, ("mls",), pairs=pairs)
    scores = pe.paired(d[pairs[:, 0]], d[pairs[:, 1]], "mls")
    auc = metrics.roc_auc(scores, labels[pairs[:, 0]] == labels[pairs[:, 1]])
    assert found.scores[0].roc_auc.value == pytest.approx(auc, abs=1e-12)


@pytest.mark.parametrize(
    ("pairs", "error"),
    [
        ([[0, 360]], r"pair 0 is \[0, 360\], expected rows below 360 and 360"),
        ([[0.5, 1.0]], "dtype float64, expected"),
        ([0, 1], r"shape \(2,\)"),
        ([[0, 1]], "expected some of either kind"),
        ([[0, 1], [3, 3]], "pairs hold row 3 with itself, expected different rows"),
    ],
)
def test_bad_pairs_are_refused(items, pairs, error):
    d, _, labels = items
    with pytest.raises(ValueError, match=f"evaluate: .*{error}"):
        pe.evaluate(d, None, labels, pairs=pairs)


def test_the_command_verifies_templates(items, capsys, tmp_path):
    d, templates, labels = items
    pe.io.write_distribution(tmp_path / "d.npz", d)
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "templates.npy", templates)
    names = np.unique(templates)
    np.save(tmp_path / "pairs.npy", names[np.stack(np.triu_indices(len(names), 1), 1)])
    words = [f"--{name} {tmp_path / file}" for name, file in (
        ("embeddings", "d.npz"), ("labels", "labels.npy"), ("templates", "templates.npy"), ("pairs", "pairs.npy"),
    )]  # fmt: skip
    code, out, _ = command(capsys, "evaluate", *words, "--out", str(tmp_path / "page"))
    assert code == 0 and "1770 pairs, 60 of one identity" in out and "Verification of templates" in out
    record = json.loads((tmp_path / "page" / "templates.json").read_text())
    assert [r["rule"] for r in record["results"][:4]] == [ALONE, "product", "pfe", "mean"]
    page = (tmp_path / "page" / "report.html").read_text()
    assert "<dt>EER %</dt>" in page[page.index("<h2>Verification of templates</h2>") :]
    plain = ["evaluate", *words[:2], "--out", str(tmp_path / "page")]
    assert command(capsys, *plain)[0] == 0 and not (tmp_path / "page" / "templates.json").exists()
    (tmp_path / "page" / "templates.json").write_text("theirs")
    code, _, err = command(capsys, *plain)
    assert code == 2 and "templates.json is there, which results.json does not name as that of an earlier run" in err
    assert (tmp_path / "page" / "templates.json").read_text() == "theirs"
    code, _, err = command(capsys, "evaluate", *words[:1], f"--relevance {tmp_path / 'pairs.npy'}", words[2], "--out x")
    assert code == 2 and "--templates needs --embeddings and --labels" in err
