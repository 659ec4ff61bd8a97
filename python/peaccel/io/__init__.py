"""Distributions, candidates, ids, rankings and fits in files; distributions in tables (`from_arrow`: Parquet, Lance,
Polars, DuckDB, pandas, `datasets`); distributions and fits as plain dicts; distributions from what other projects hand
out (`from_pfe`, ...) and from several embeddings of an item (`from_ensemble`).

Everything is checked on reading, values too. An error is one line that names the file and the key. Nothing is ever
unpickled. A file is written aside and renamed, so that what stood there stays until the new one is whole.
"""

from peaccel._utils.atomic_files import check_output
from peaccel.io.arrow_tables import arrow_blocks, from_arrow, to_arrow
from peaccel.io.block_files import read_blocks
from peaccel.io.distribution_files import read_distribution, write_distribution
from peaccel.io.ensembles import from_ensemble
from peaccel.io.fits import read_fit, write_fit
from peaccel.io.plda_files import read_plda
from peaccel.io.projects import from_norms, from_pcmepp, from_pfe, from_prolip, from_url
from peaccel.io.rankings import LINES, RANKINGS, read_candidates, read_ranking, write_ranking
from peaccel.io.read_enrolment import read_enrolment
from peaccel.io.read_ids import read_ids
from peaccel.io.read_labels import read_labels
from peaccel.io.read_trials import Trials, read_trials
from peaccel.io.scored_pairs import ScoredPairs, read_scored_pairs
from peaccel.io.states import from_state, to_state

__all__ = [
    "LINES",
    "RANKINGS",
    "ScoredPairs",
    "Trials",
    "arrow_blocks",
    "check_output",
    "from_arrow",
    "from_ensemble",
    "from_norms",
    "from_pcmepp",
    "from_pfe",
    "from_prolip",
    "from_state",
    "from_url",
    "read_blocks",
    "read_candidates",
    "read_distribution",
    "read_enrolment",
    "read_fit",
    "read_ids",
    "read_labels",
    "read_plda",
    "read_ranking",
    "read_scored_pairs",
    "read_trials",
    "to_arrow",
    "to_state",
    "write_distribution",
    "write_fit",
    "write_ranking",
]
