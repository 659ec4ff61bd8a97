"""Search over HTTP: `python examples/serve.py part0.npz part1.npz`, with a shard for each file.

POST as JSON {"mu": [[...], ...], "var": [...]}, or as the bytes of an .npy file (means) or an .npz file (mu and var,
kappa or scale). Answers are JSON: ids and scores, null where there is no item; with 400 what is wrong with the queries,
with 503 that there are too many.
"""

import asyncio
import contextlib
import io
import json
import queue
import sys

import numpy as np
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

import peaccel as pe
from peaccel.retrieval.ray import ShardedGallery


# What waits beyond both numbers gets a 503; a batch is never full where fewer requests are ongoing than it holds.
@serve.deployment(max_ongoing_requests=16, max_queued_requests=16, ray_actor_options={"num_cpus": 0})
class Search:
    def __init__(self, sources: list[str], k: int = 10, score: str = "mls") -> None:
        self.gallery, self.k = ShardedGallery(sources, score), k

    async def __call__(self, request: Request) -> JSONResponse:
        as_json, body = request.headers["content-type"].startswith("application/json"), await request.body()
        try:
            content = json.loads(body) if as_json else np.load(io.BytesIO(body), allow_pickle=False)
            state = {"mu": content} if isinstance(content, np.ndarray) else dict(content)
            queries = pe.io.from_state(state).validate().to("float32")
            self.gallery.check(queries)
        except Exception as error:  # readers raise nearly anything for what is no file
            return JSONResponse({"error": str(error)}, 400)
        try:
            scores, ids = await self.found(queries)
        except (TimeoutError, queue.Full) as error:
            return JSONResponse({"error": str(error)}, 503)
        return JSONResponse({"ids": ids.tolist(), "scores": np.where(ids < 0, None, scores).tolist()})

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.005)
    async def found(self, requests: list[pe.Distribution]) -> list[pe.Ranking]:
        found = {}
        for kind in {queries.kind for queries in requests}:  # one search for all requests of a kind
            alike = {i: queries for i, queries in enumerate(requests) if queries.kind == kind}
            whole = pe.concat(list(alike.values()))
            ranking = await asyncio.to_thread(self.gallery.search, whole, self.k, timeout=10.0)
            ends = np.cumsum([len(queries) for queries in alike.values()])[:-1]
            found |= zip(alike, zip(*(np.split(x, ends) for x in ranking), strict=True), strict=True)
        return [pe.Ranking(*found[i]) for i in range(len(requests))]

    async def check_health(self) -> None:
        """Raise, so that Serve starts this anew, where a shard is gone for good; not where it is late."""
        with contextlib.suppress(TimeoutError, queue.Full):
            await asyncio.to_thread(self.gallery.ping, timeout=5.0)


if __name__ == "__main__":
    serve.run(Search.bind(sys.argv[1:]), blocking=True)
