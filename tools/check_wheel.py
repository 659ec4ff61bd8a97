"""Try an installed wheel where there is nothing but numpy: that it holds kernels for GPUs, and searches without one."""

from importlib.util import find_spec

import numpy as np

import peaccel as pe
from peaccel import _core

assert find_spec("torch") is None, "torch is installed here, expected numpy alone"
assert "site-packages" in pe.__file__, f"peaccel comes from {pe.__file__}, expected the wheel"
rng = np.random.default_rng(0)
gallery = pe.Normal(rng.standard_normal((100, 8)), rng.uniform(0.5, 1, 100))
found = pe.search(gallery, gallery, 3, "cosine")
assert (found.ids[:, 0] == np.arange(100)).all(), "an item is not its own best answer by cosine"
np.testing.assert_allclose(found.scores, pe.rerank(gallery, gallery, found.ids, 3, "cosine").scores)
targets = _core.cuda_info()[0]
assert targets, f"the wheel holds no CUDA kernels: {_core.cuda_info()[2]}"
print(f"peaccel {pe.__version__} of {pe.__file__}: CUDA kernels for {targets}")
