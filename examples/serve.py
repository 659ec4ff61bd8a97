"""Search over HTTP: `python examples/serve.py part0.npz part1.npz`, with a shard for each file.

POST as JSON {"mu": [[...], ...], "var": [...]}, or as the bytes of an .npy file (means) or an .npz file (mu and var,
kappa or scale). Answers are JSON: ids and scores, null where there is no item or no score, the largest number for an
infinite score. With 400 it is said what is wrong with the queries, with 413 that they are too many or too long, with
503 that requests are too many or that shards are late or gone; reasons of the service itself stand in its log alone.
"""

import asyncio
import contextlib
import io
import json
import logging
import queue
import sys
import zipfile

import numpy as np
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

import peaccel as pe
from peaccel.retrieval.ray import ShardedGallery

BYTES, QUERIES = 8 << 20, 1024  # that a request may have, the bytes of arrays in an .npz file included
LARGEST = float(np.finfo(np.float64).max)  # JSON has no infinity


class TooLarge(ValueError):
    """A request beyond the limits."""


async def read(request: Request) -> bytes:
    """The body, of which no more is read than is allowed."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BYTES:
            raise TooLarge(f"the body has more than {BYTES} bytes")
    return body


def parsed(kind: str, body: bytes) -> pe.Distribution:
    """The queries in a body of a media type."""
    if kind.partition(";")[0].strip().lower() == "application/json":
        state = json.loads(body)
    elif zipfile.is_zipfile(io.BytesIO(body)):
        if sum(member.file_size for member in zipfile.ZipFile(io.BytesIO(body)).infolist()) > BYTES:
            raise TooLarge(f"the arrays have more than {BYTES} bytes")
        state = dict(np.load(io.BytesIO(body), allow_pickle=False))
    else:
        state = {"mu": np.load(io.BytesIO(body), allow_pickle=False)}
    if not isinstance(state, dict):
        raise ValueError(f"the body holds a {type(state).__name__}, expected an object with mu")
    queries = pe.io.from_state(state)
    if len(queries) > QUERIES:
        raise TooLarge(f"{len(queries)} queries, expected at most {QUERIES}")
    return queries.to("float32").validate()


# What waits beyond both numbers gets a 503; a batch is never full where fewer requests are ongoing than it holds.
@serve.deployment(max_ongoing_requests=16, max_queued_requests=16, ray_actor_options={"num_cpus": 0})
class Search:
    def __init__(self, sources: list[str], k: int = 10, score: str = "mls") -> None:
        self.gallery, self.k = ShardedGallery(sources, score), k

    async def __call__(self, request: Request) -> JSONResponse:
        try:
            queries = parsed(request.headers.get("content-type", ""), await read(request))
            self.gallery.check(queries)
        except TooLarge as error:
            return JSONResponse({"error": str(error)}, 413)
        except Exception as error:  # readers raise nearly anything for what is no file
            return JSONResponse({"error": str(error) or type(error).__name__}, 400)
        try:
            scores, ids = await self.found(queries)
        except Exception as error:  # names shards by their paths
            logging.getLogger("ray.serve").warning("%s", error)
            return JSONResponse({"error": "too many requests, or shards are late or gone: try again"}, 503)
        scores = np.clip(np.asarray(scores, np.float64), -LARGEST, LARGEST)
        return JSONResponse(
            {"ids": ids.tolist(), "scores": np.where((ids < 0) | np.isnan(scores), None, scores).tolist()}
        )

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
