"""Trial lists, as commands read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peaccel import io
from peaccel.evaluation.score_trials import rows_of_names

__all__ = ["NamedTrials", "TrialFiles"]

OTHERS = (
    "embeddings", "labels", "coords", "queries", "gallery", "query_labels", "gallery_labels", "query_coords",
    "gallery_coords", "radius", "relevance", "pairs",
)  # fmt: skip
"""Options that say what is searched for or verified, and what is right."""


class NamedTrials(NamedTuple):
    """A trial list, with the names of the utterances and of those who are enrolled."""

    ids: NDArray[Any]
    trials: io.Trials
    enrolment: Mapping[str, tuple[str, ...]] | None

    def rows(self) -> NDArray[np.int64]:
        """The rows [P, 2] of the tested and of the enrolled utterance of each trial."""
        if self.enrolment is not None:
            raise ValueError("--enrolment fuses utterances, which --labels classify one by one; expected none")
        known = self.ids.astype(str)
        sides = ("test", self.trials.test), ("enrol", self.trials.enrol)
        return np.stack([rows_of_names("--trial-list", name, x, known, "--ids") for name, x in sides], 1)


@dataclass(frozen=True, kw_only=True)
class TrialFiles:
    """A list of pairs by name."""

    trial_list: Path | None = None
    """A list of pairs by name, in VoxCeleb's form (1 enrol test) or Kaldi's (enrol test target), with --embeddings and
    their --ids. The pairs are scored, and results are for pairs.
    """
    ids: Path | None = None
    """With --trial-list: the name of each of --embeddings, strings or int [N], .npy, or .npz with key ids."""
    enrolment: Path | None = None
    """With --trial-list: a line for each who is enrolled, with the names of the utterances that are fused (spk2utt)."""
    rule: str | None = None
    """With --enrolment: a rule of pe.fuse; by default that of the kind of embeddings."""

    def read_trials(self, *needed: str) -> NamedTrials | None:
        """The list, if there is one, which goes with just these options of the other data; None without a list."""
        if self.trial_list is None:
            beside = [x.name for x in fields(TrialFiles) if getattr(self, x.name) is not None]
            if beside:
                raise ValueError(f"--{beside[0]} is of --trial-list, which is not there")
            return None
        found = [name for name in OTHERS if getattr(self, name, None) is not None]
        if set(found) != set(needed) or self.ids is None:
            options = " ".join(f"--{name.replace('_', '-')}" for name in sorted(found)) or "none"
            expected = " and ".join(f"--{name}" for name in (*needed, "ids"))
            labels = "" if "labels" in needed else ", and no labels"
            raise ValueError(f"--trial-list needs {expected}{labels}; found {options}")
        for name in ("novel", "novel_labels"):
            if getattr(self, name, None) is not None:
                raise ValueError("--novel is of searches, not of --trial-list")
        if self.rule is not None and self.enrolment is None:
            raise ValueError("--rule is of --enrolment, which is not given")
        enrolment = None if self.enrolment is None else io.read_enrolment(self.enrolment)
        return NamedTrials(io.read_ids(self.ids), io.read_trials(self.trial_list), enrolment)
