"""
Who is not in the gallery
=========================

A search for somebody whom the gallery lacks finds the nearest all the same. `peaccel.limit_false_matches` chooses the
score from which on a search returns anything, so that few such searches do; `peaccel.metrics.open_set` says what this
costs those who are there.
"""

import matplotlib.pyplot as plt
import numpy as np

import peaccel as pe

rng = np.random.default_rng(0)
people = rng.normal(size=(3000, 64)) / 8


def photograph(who):
    """Stand for a network: means with a variance each, large where the photograph is bad."""
    var = 0.01 * rng.lognormal(0, 1, (len(who), 1))
    return pe.Normal(people[who] + var**0.5 * rng.normal(size=(len(who), 64)), var)


enrolled = np.arange(1000)
gallery = photograph(enrolled)

# %%
# Searches for the enrolled and for strangers, by the cosine of means and by the likelihood ratio, which knows of bad
# photographs.

prior_mean, prior_var = pe.fit_prior(photograph(np.repeat(np.arange(2000, 3000), 2)), np.repeat(np.arange(1000), 2))
scores = {"cosine": "cosine", "likelihood ratio": pe.scores.llr(prior_mean=prior_mean, prior_var=prior_var)}
mates, strangers = photograph(enrolled), photograph(np.arange(1000, 2000))

figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
for name, score in scores.items():
    of_mates, of_strangers = (pe.search(queries, gallery, k=1, score=score) for queries in (mates, strangers))
    best_mate = np.where(of_mates.ids[:, 0] == enrolled, of_mates.scores[:, 0], -np.inf)
    thresholds = np.sort(of_strangers.scores[:, 0])[::-1]
    fpir = np.arange(1, len(thresholds) + 1) / len(thresholds)
    fnir = (best_mate[:, None] < thresholds).mean(0)
    axes.plot(100 * fpir, 100 * fnir, label=name)

    limit = pe.limit_false_matches(of_strangers.scores[:500, 0], alpha=0.1, delta=0.05)
    returned = np.mean(limit(of_strangers).ids[500:, 0] >= 0)
    print(f"{name}: {returned:.1%} of other strangers' searches return somebody, at most 10 % were promised")

axes.set(
    xscale="log",
    xlabel="strangers' searches that return somebody, %",
    ylabel="mates that are missed, %",
    ylim=(0, None),
)
axes.legend(frameon=False)
plt.show()
