"""
A training method of your own
=============================

A method is a Python file: what it learns, its settings, and one loss. This one draws each item's neighbour by the
mutual likelihood score and asks that it is of the same class. From that alone a network learns a mean and a variance
for each image.

.. literalinclude:: ../../examples/neighbours.py
   :language: python
   :start-at: @dataclass

`peaccel train neighbours.py --quick` trains it from the shell. Here the same in Python, on numbers of three handwritten
digits, half of which are cropped, hidden in part or blurred.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from peaccel.train import Run, embed, load, recipe, train
from peaccel.train.sources import open_items

method, settings = recipe("neighbours.py", "mnist")
folder = Path(tempfile.mkdtemp()) / "neighbours"
result = train("neighbours.py", method, settings, Run(quick=True, out=folder, device="cpu", threads=1))
print(f"Recall@1 {result.recall_at_1:.0%} among {round(1 / result.chance)} numbers that training never saw")
print(f"confidence and quality have a rank correlation of {result.uncertainty_and_severity:.2f}")

# %%
# A run is read back from its folder, and its model embeds anything: here other images of numbers that it never saw.

images = open_items("mnist", None, seed=0, quick=True, only=("gallery",))["gallery"]
items = embed(load(folder, method="neighbours.py").model, images.data)
print(items)

# %%
# The three upper rows have the smallest variances, the three lower ones the largest. Beside them, the variances of all
# images by how much each was corrupted: nobody told the network which ones were.

order = np.argsort(items.var)
figure = plt.figure(figsize=(9, 3.4), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(2, 1))
for axis, i in zip(left.subplots(6, 4).ravel(), [*order[:12], *order[-12:]], strict=True):
    axis.imshow(images.data[i, 0], cmap="gray_r")
    axis.set_title(f"{items.var[i]:.3f}", fontsize=7, pad=2)
    axis.axis("off")
axis = right.subplots()
axis.scatter(1 - images.quality, items.var, s=6)
axis.set(xlabel="corruption", ylabel="variance", yscale="log")
plt.show()
