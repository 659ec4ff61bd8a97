"""
Scores for classes that the encoder never saw
=============================================

An encoder that was trained for other classes gives embeddings in which some directions tell classes apart and
others hold what changes within one. `peaccel.fit_plda` finds both from labelled items, and its score is a likelihood
ratio: one threshold, 0, then means the same everywhere.
"""

import matplotlib.pyplot as plt
import numpy as np

import peaccel as pe

rng = np.random.default_rng(0)
between, within = rng.normal(size=(8, 100)), rng.normal(size=(60, 100))


def embed(labels, classes):
    """Stand for an encoder: what tells classes apart in 8 directions, what does not in 60 others."""
    return (
        classes[labels] @ between
        + rng.normal(size=(len(labels), 60)) @ within
        + 3 * rng.normal(size=(len(labels), 100))
    )


labels = np.arange(300).repeat(6)
plda = pe.fit_plda(embed(labels, rng.normal(size=(300, 8))), labels)

# %%
# New classes, two items of each: pairs of one class and of two.

classes = rng.normal(size=(500, 8))
a, b = (embed(np.arange(500), classes) for _ in range(2))
same = np.eye(500, dtype=bool)
scores = {
    "cosine": pe.pairwise(pe.Point(a), pe.Point(b), "cosine"),
    "PLDA": pe.pairwise(plda.transform(a), plda.transform(b), plda.score),
}
figure, both = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for axes, (name, found) in zip(both, scores.items(), strict=True):
    error = pe.metrics.equal_error_rate(found.ravel(), same.ravel()).rate
    for of, label in ((~same, "of two classes"), (same, "of one class")):
        axes.hist(found[of], bins=60, range=np.quantile(found, (0.001, 1)), density=True, alpha=0.6, label=label)
    axes.set(title=f"{name}: equal error rate {error:.1%}", xlabel="score", yticks=[])
both[0].legend(frameon=False)
plt.show()
