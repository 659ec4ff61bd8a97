"""
A mixture of von Mises-Fisher distributions
===========================================

Directions on a sphere come from three sources. Expectation-maximisation needs densities and weighted fits, which are
`peaccel.log_prob` and `peaccel.fit_vmf`; both work in 3 dimensions as in 2048.
"""

import matplotlib.pyplot as plt
import numpy as np

import peaccel as pe

rng = np.random.default_rng(2)
centres = rng.normal(size=(3, 3))
centres /= np.linalg.norm(centres, axis=1, keepdims=True)
truth = pe.VonMisesFisher(centres, kappa=np.array([8.0, 30.0, 100.0]))
source = rng.choice(3, size=1500, p=[0.5, 0.3, 0.2])
z = pe.sample(truth[source], n=1, seed=0)[0]

# %%
# Start from three of the directions, and alternate between whose each direction is and what each source is.

mixture, share = pe.VonMisesFisher(z[[0, 7, 31]], kappa=np.full(3, 1.0)), np.full(3, 1 / 3)
for _ in range(100):
    log_joint = pe.log_prob(mixture, np.stack([z, z, z], 1)) + np.log(share)  # [items, sources]
    likelihood = np.logaddexp.reduce(log_joint, 1)
    belongs = np.exp(log_joint - likelihood[:, None])
    mixture = pe.concat([pe.fit_vmf(z, weights=belongs[:, c]) for c in range(3)])
    share = belongs.mean(0)

order = np.argsort(mixture.kappa)
print("kappa:", mixture.kappa[order].round(1), "of", truth.kappa)
print("share:", share[order].round(2), "log-likelihood:", likelihood.mean().round(3))

# %%
# Longitude and latitude, coloured by the source that is most probable.

longitude, latitude = np.arctan2(z[:, 1], z[:, 0]), np.arcsin(z[:, 2])
figure, axes = plt.subplots(figsize=(6, 3.4), subplot_kw={"projection": "mollweide"}, layout="constrained")
axes.scatter(longitude, latitude, c=belongs[:, order], s=4)  # red, green and blue, mixed where two may be meant
axes.grid(alpha=0.3)
axes.set_xticklabels([])
plt.show()
