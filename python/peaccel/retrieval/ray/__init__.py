"""Galleries and tables past one process and one machine, by Ray: the only package that names it.

`ShardedGallery` answers queries from shards in actors; `map_parts` takes tables larger than memory through `EmbedStep`,
`SearchStep` or `RescoreStep`, which Ray Data takes by themselves too. ``ray.init()`` on a laptop, an address on a
cluster: the calls are the same. Whoever called it also ends it; here nothing is started but actors, and these end with
what they were started for.
"""

from peaccel.retrieval.ray.map_parts import EmbedStep, RescoreStep, SearchStep, map_parts
from peaccel.retrieval.ray.sharded_gallery import ShardedGallery, ShardedRanking

__all__ = ["EmbedStep", "RescoreStep", "SearchStep", "ShardedGallery", "ShardedRanking", "map_parts"]
