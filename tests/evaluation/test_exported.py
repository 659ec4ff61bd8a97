"""Results as dicts, as tables of pandas, as LaTeX and as JSON."""

import json
import re

import numpy as np
import pytest

import peaccel as pe

LABELS = np.arange(40).repeat(2)
D = pe.Normal(np.eye(40)[LABELS] + 0.2 * np.random.default_rng(0).normal(size=(80, 40)), var=0.1)
RESULTS = {
    "evaluation": pe.evaluate(D, None, LABELS),
    "score": pe.choose_score(D, LABELS),
    "comparison": pe.compare({"one": np.arange(80) % 2, "other": np.arange(80) % 3 > 0}, LABELS),
    "threshold": pe.choose_threshold(D, None, LABELS, wrong=0.2),
}


@pytest.mark.parametrize("name", RESULTS)
def test_dicts_are_what_files_hold(name, tmp_path):
    found = RESULTS[name]
    found.save(tmp_path / "found.json")
    assert found.to_dict() == json.loads((tmp_path / "found.json").read_text())


@pytest.mark.parametrize("name", RESULTS)
def test_latex_has_the_cells_of_the_text(name):
    found = RESULTS[name]
    for title, (header, rows) in found.tables().items():
        first = found.to_latex(title).splitlines()
        lines = [line.removesuffix(r" \\").split(" & ") for line in first if line.endswith(r"\\")]
        plain = [[re.sub(r"\\([%&_#])", r"\1", cell) for cell in line] for line in lines]
        assert plain == [list(header), *map(list, rows)]
        assert first[0] == rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}" and first[-1] == r"\end{tabular}"
    assert found.to_latex() == found.to_latex(next(iter(found.tables())))
    with pytest.raises(ValueError, match="to_latex: unknown title 'none'"):
        found.to_latex("none")


def test_a_table_of_pandas_has_numbers_and_the_ends_of_intervals():
    found = RESULTS["evaluation"]
    frame = found.to_pandas()
    assert frame["score"].tolist() == ["cosine", "mls"] and frame.columns[0] == "score"
    recall = found.scores[1].recall_at_1
    assert frame.loc[1, ["recall_at_1", "recall_at_1_low", "recall_at_1_high"]].tolist() == [
        recall.value,
        recall.low,
        recall.high,
    ]
    assert frame["recall_at_k_5"].tolist() == [s.recall_at_k["5"] for s in found.scores]
    assert found.to_pandas("confidences")["confidence"].tolist() == [c.confidence for c in found.confidences]
    thresholds = RESULTS["threshold"].to_pandas()
    assert thresholds["threshold"].tolist() == [x.threshold for x in RESULTS["threshold"].results]
    with pytest.raises(ValueError, match="to_pandas: unknown field 'score'; did you mean 'scores'"):
        found.to_pandas("score")
