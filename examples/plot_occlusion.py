"""
Which digits to refuse
======================

Handwritten digits, some of which lose a part. A small network gives each a mean and a variance, learned so that the
likelihood ratio of two digits tells whether they are of one class; the score of the best match then says which
answers are better not given.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import peaccel as pe
from peaccel.heads import MeanHead, NormalHead, UncertaintyHead
from peaccel.losses import ScoreNCE

torch.manual_seed(0)
rng = np.random.default_rng(0)
digits = load_digits()
images, labels = digits.images.astype(np.float32) / 16, digits.target
test = rng.random(len(labels)) < 0.4


def hidden(images, share):
    """Hide a block of four by five pixels in a share of the images."""
    images = images.copy()
    for i in np.flatnonzero(rng.random(len(images)) < share):
        row, column = rng.integers(0, 5), rng.integers(0, 4)
        images[i, row : row + 4, column : column + 5] = 0
    return images


# %%
# The network learns from digits of which half are hidden in part.

features = nn.Sequential(
    nn.Flatten(), nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()
)
model = nn.Sequential(features, NormalHead(MeanHead(128, 16), UncertaintyHead(128, out=16, start=0.1)))
loss = ScoreNCE("llr", prior_var=torch.ones(16))
optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], 2e-3)
for _ in range(40):
    shuffled = rng.permutation(np.flatnonzero(~test))
    for rows in np.array_split(shuffled, len(shuffled) // 128):
        value = loss(model(torch.from_numpy(hidden(images[rows], 0.5))), torch.from_numpy(labels[rows]))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

# %%
# Queries are other digits, half of them hidden in part; each is answered by its best match among clean ones.

model.eval()
shown = hidden(images[test], 0.5)
with torch.no_grad():
    gallery, queries = model(torch.from_numpy(images[~test])), model(torch.from_numpy(shown))
    ranking = pe.search(queries, gallery, k=1, score=pe.scores.llr(prior_var=loss.log_prior_var.exp()))
confidence, answer = ranking.scores[:, 0].numpy(), labels[~test][ranking.ids[:, 0].numpy()]
right = answer == labels[test]
print(f"right: {right.mean():.1%} of all answers, AUROC of the best score {pe.metrics.roc_auc(confidence, right):.2f}")

# %%
# Above, the surest answers; below, those to refuse first, with what they would have been.

order = np.argsort(-confidence)
figure, axes = plt.subplots(2, 10, figsize=(9, 2.4), layout="constrained")
for row, chosen in zip(axes, (order[:10], order[-10:]), strict=True):
    for axis, i in zip(row, chosen, strict=True):
        axis.imshow(shown[i], cmap="gray_r")
        axis.set_title(f"{answer[i]}", color="tab:green" if right[i] else "tab:red")
        axis.axis("off")
plt.show()
