"""The Python of docs/galleries.md on several machines runs as it stands there; sizes follow from their constants."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from benches import sizing

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray Data's own
def test_the_page_runs_and_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "galleries.md").read_text().partition("\n## Several machines\n")[2]
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    for block in blocks:
        exec(block, names)
    out = capsys.readouterr().out
    assert "ShardedGallery(N=3000, D=64, normal_isotropic, 2 shards x 1, 'mls') ()" in out
    assert "['id', 'ids', 'scores']" in out and len(blocks) == 3
    expected = names["pe"].search(names["items"][:64], names["items"], 10)
    np.testing.assert_array_equal(names["ranking"].ids, expected.ids)
    np.testing.assert_array_equal(names["scores"], expected.scores)


def test_sizes_follow_from_constants():
    one = sizing.Constants("point", 512, 256, 1036, (20.0, 150.0), 0.004, 500, 120)
    index = sizing.Index(28, 0.002, 0.004)
    few, many = (sizing.sized(n, one, index, sizing.Machine(memory=1e9, cores=2, rate=100)) for n in (1e6, 1e8))
    assert (few.shards, many.shards) == (1, 29) and (few.items, few.index) == (256e6, 28e6)
    assert math.isclose(few.exact, 1e6 * 2 / (1e6 * 0.004)) and math.isclose(many.exact, few.exact * 29 / 100)
    # 4000 lists, of which 64 are scanned: 16 microseconds for centres and 32 for codes.
    assert math.isclose(few.alone, 2e6 / (16 + 32)) and math.isclose(few.staged, 2e6 / (16 + 32 + 20))
    assert few.replicas == 1 and few.network == 620 and many.network == 29 * 620 and many.replicas == 1
    # An index without items has three shards of 33 million.
    lists = 4 * math.sqrt(1e8 / 3)
    assert many.shards_alone == 3
    assert math.isclose(many.alone, 2e6 / (lists * 0.004 + 64 / lists * 1e8 / 3 * 0.002))


@pytest.mark.slow
def test_constants_are_those_of_the_arrays():
    found, index = sizing.measured(3_000, 16)
    sizes = {name: (one.bytes, one.half) for name, one in found.items()}
    assert sizes == {"point": (64, 32), "isotropic": (68, 34), "diagonal": (128, 64), "vmf": (68, 34)}
    assert all(one.prepared > one.bytes and min(one.rerank) > 0 and one.pair > 0 for one in found.values())
    assert 10 < index.bytes < 20 and found["diagonal"].query > found["point"].query > 64


def test_the_tables_of_sizes_are_those_of_the_bench():
    for name, head in {"sizes": sizing.MEASURED, "machines": sizing.SIZED}.items():
        assert (ROOT / "docs" / "performance" / f"{name}.csv").read_text().startswith(f"{head}\n")
