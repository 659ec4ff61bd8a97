"""
A loss with a memory of past batches
====================================

A small batch holds few hard pairs. The losses of pairs and triplets take a second set, here the items of past batches:
each is compared with a thousand others at the cost of one batch through the network (Wang et al., Cross-Batch Memory,
2020). The score is the mutual likelihood score, so that variances are learned with the means.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import peaccel as pe
from peaccel.losses import Triplet

centres = np.random.default_rng(0).normal(size=(200, 16))


def batch(classes, each, seed):
    """Views of classes, of which half are blurred, through features that say how much."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, len(classes) if each else 32, replace=each == 0).repeat(max(each, 1))
    blur = rng.choice([0.3, 2.0], (len(labels), 1))
    x = np.concatenate([centres[labels] + blur * rng.normal(size=(len(labels), 16)), blur], 1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(labels), blur[:, 0]


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.log_var = torch.nn.Linear(17, 8), torch.nn.Linear(17, 1)

    def forward(self, x):
        return pe.Normal(self.mean(x), self.log_var(x)[:, 0].exp())


# %%
# Of the memory the oldest items leave. It is detached: gradients go through the batch alone.


def trained(size, steps=150):
    torch.manual_seed(0)
    network, loss = Network(), Triplet(margin=5.0, score="mls", only_violating=True)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    kept, of_kept = [], []
    for step in range(steps):
        x, labels, _ = batch(np.arange(150), 0, step)
        d = network(x)
        if kept:
            optimizer.zero_grad()
            loss(d, labels, reference=(pe.concat(kept), torch.cat(of_kept))).backward()
            optimizer.step()
        kept, of_kept = [*kept, d.detach()][-size:], [*of_kept, labels][-size:]
    return network


# %%
# Judged on 50 classes that training never saw, four views each.

x, labels, blur = batch(np.arange(150, 200), 4, 1)
for size in (1, 16):
    items = trained(size)(x).detach()
    found = pe.evaluate(items, None, labels, "mls").scores[0]
    print(f"a memory of {size:2} batches: Recall@1 {found.recall_at_1} %, equal error rate {found.equal_error_rate} %")

# %%
# What is blurred has the larger variance, which nobody told the network.

figure, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
axis.hist([items.var[blur == b].numpy() for b in (0.3, 2.0)], bins=30, label=["sharp", "blurred"])
axis.set(xlabel="variance", ylabel="views")
axis.legend()
plt.show()
