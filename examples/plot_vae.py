"""
A hyperspherical autoencoder
============================

Digits as points on a sphere: the encoder gives a von Mises-Fisher distribution, whose draws have exact gradients in
direction and concentration, and the prior is uniform. `peaccel.distributions.torch_distributions` has both as
``torch.distributions.Distribution``, so the loop is the usual one.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributions import kl_divergence
from torch.nn.functional import binary_cross_entropy_with_logits, normalize, softplus

from peaccel.distributions.torch_distributions import HypersphericalUniform, VonMisesFisher

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), digits.target

encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
decoder = nn.Sequential(nn.Linear(3, 256), nn.ReLU(), nn.Linear(256, 64))
prior = HypersphericalUniform(3)


def encode(x):
    """Give a direction and a concentration, above 1, to each image."""
    out = encoder(x)
    return VonMisesFisher(normalize(out[:, :3], dim=1), 1 + softplus(out[:, 3]))


optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 2e-3)
for _ in range(60):
    for batch in torch.randperm(len(images)).split(128):
        posterior = encode(images[batch])
        decoded = decoder(posterior.rsample())
        error = binary_cross_entropy_with_logits(decoded, images[batch], reduction="none").sum(1)
        loss = (error + kl_divergence(posterior, prior)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"bound of the log-likelihood: {-loss.item():.1f} nats an image")

# %%
# Longitude and latitude of the directions, a colour for each digit; the size says how sure the encoder is.

with torch.no_grad():
    posterior = encode(images)
x, y, z = posterior.loc.T
figure, axes = plt.subplots(figsize=(7, 3.6), subplot_kw={"projection": "mollweide"}, layout="constrained")
axes.grid(alpha=0.3)
size = posterior.concentration / posterior.concentration.mean()
points = axes.scatter(torch.atan2(y, x), torch.asin(z), s=5 * size, c=labels, cmap="tab10", vmin=-0.5, vmax=9.5)
axes.set_xticklabels([])
figure.colorbar(points, ticks=np.arange(10), label="digit", shrink=0.8)
plt.show()
