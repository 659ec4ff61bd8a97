"""Arguments of evaluations and choices, which are refused before any work."""

import re
import sys

import numpy as np
import pytest
import torch

import peaccel as pe
from peaccel.evaluation import evaluate_templates
from peaccel.evaluation.compared_confidences import third

ITEMS = pe.Normal(np.random.default_rng(0).normal(size=(120, 6)), np.ones(120))
LABELS = np.arange(40).repeat(3)
TENSORS = pe.Normal(torch.ones(4, 6), torch.ones(4))
CALLS = {
    "choose_threshold": lambda **x: pe.choose_threshold(**{"queries": ITEMS, "gallery": None, "labels": LABELS, **x}),
    "choose_score": lambda **x: pe.choose_score(**{"d": ITEMS, "labels": LABELS, **x}),
    "evaluate_templates": lambda **x: evaluate_templates(
        **{"d": ITEMS, "templates": np.arange(120) // 2, "labels": LABELS, **x}
    ),
}
REFUSED = [
    ("choose_threshold", {"score": "llr"}, "score: llr: prior_var must be given; pe.fit_prior"),
    ("choose_threshold", {"score": "nivmf"}, "score: nivmf: cannot score normal_isotropic x normal_isotropic"),
    ("choose_threshold", {"novel": TENSORS}, "novel is a torch tensor on cpu, expected a numpy array like queries"),
    ("choose_threshold", {"novel": ITEMS.mu}, "novel must be a distribution, got ndarray; plain vectors go in"),
    ("choose_threshold", {"gallery": ITEMS.mu}, "gallery must be a distribution, got ndarray; plain vectors go in"),
    ("choose_threshold", {"cohort": TENSORS}, "cohort is a torch tensor on cpu, expected a numpy array like gallery"),
    ("choose_threshold", {"cohort": ITEMS.mu}, "cohort must be a distribution, got ndarray; plain vectors go in"),
    ("choose_threshold", {"seed": -1}, "seed is -1, expected 0 .. 9223372036854775807"),
    ("choose_score", {"d": ITEMS.mu}, "d must be a distribution, got ndarray; plain vectors go in"),
    ("choose_score", {"d": pe.Normal(ITEMS.mu, np.full(120, np.nan))}, "d has an uncertainty that is NaN: see its"),
    ("choose_score", {"seed": -1}, "seed is -1, expected 0 .. 9223372036854775807"),
    ("choose_score", {"items": 1}, "items is 1, expected 2 .. "),
    ("evaluate_templates", {"scores": ["cosine", "llr"]}, "scores: llr: prior_var must be given; pe.fit_prior"),
    ("evaluate_templates", {"seed": -1}, "seed is -1, expected 0 .. 9223372036854775807"),
]


@pytest.mark.parametrize(("owner", "changes", "message"), REFUSED)
def test_arguments_are_refused_before_any_work(owner, changes, message, monkeypatch):
    def work(*_, **__):
        pytest.fail("work was done")

    for module, names in {
        "evaluation.answers": ("search", "paired"),
        "evaluation.choose_score": ("fit", "verification_pairs", "_sampled"),
        "evaluation.templates": ("fuse", "verification_pairs", "Resamples"),
        "retrieval.adaptive_norm": ("search",),
    }.items():
        for name in names:
            monkeypatch.setattr(sys.modules[f"peaccel.{module}"], name, work)
    with pytest.raises((ValueError, TypeError), match=f"^{owner}: {re.escape(message)}"):
        CALLS[owner](**changes)


def test_searches_without_a_mate_that_are_all_compared_on_are_refused_before_the_search(monkeypatch):
    monkeypatch.setattr(sys.modules["peaccel.evaluation.answers"], "search", lambda *_: pytest.fail("work was done"))
    labels = np.append(LABELS[:-1], 99)  # the last one is alone
    labels[-3:-1] = 0
    seed = next(seed for seed in range(99) if third("", labels, seed)[-1])
    how = {"fpir": 0.1, "confidence": "auto", "seed": seed}
    with pytest.raises(ValueError, match=r"^choose_threshold: fpir needs more searches without a mate: all 1 are com"):
        CALLS["choose_threshold"](labels=labels, **how)


SEEDED = {
    "learn_then_test": lambda: pe.learn_then_test([0.1, 0.2], [1, 0], [0, 1], 0.1, seed=-1),
    "limit_false_matches": lambda: pe.limit_false_matches([0.1, 0.2], 0.1, groups=[0, 1], seed=-1),
    "choose_pair_threshold": lambda: pe.choose_pair_threshold([0.1, 0.2], [1, 0], seed=-1),
    "tar_at_far": lambda: pe.metrics.tar_at_far([0.1, 0.2], [0, 1], 0.1, seed=-1),
    "equal_error_rate": lambda: pe.metrics.equal_error_rate([0.1, 0.2], [0, 1], seed=-1),
    "detection_cost": lambda: pe.metrics.detection_cost([0.1, 0.2], [0, 1], 0.1, seed=-1),
    "reject_verification": lambda: pe.metrics.reject_verification([0.1, 0.2], [0, 1], [1, 2], 0.1, seed=-1),
    "error_versus_discard": lambda: pe.metrics.error_versus_discard([0.1], [[0, 1]], [1, 2], 0.1, seed=-1),
    "random_confidence": lambda: pe.metrics.random_confidence(3, seed=-1),
    "truncated_rows": lambda: pe.metrics.truncated_rows([0, 1], 1, seed=-1),
}


@pytest.mark.parametrize("owner", SEEDED)
def test_a_seed_that_is_none_is_named(owner):
    with pytest.raises(ValueError, match=f"^{owner}: seed is -1, expected 0 .. 9223372036854775807$"):
        SEEDED[owner]()
