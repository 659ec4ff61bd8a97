"""The service of examples/serve.py, as it stands there, under four times the requests that it takes."""

import asyncio
import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp
import numpy as np
import psutil
import pytest
import ray
from clusters import start_ray
from conftest import make

import peaccel as pe

# Ray Serve calls pydantic as it was.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EXAMPLE = Path(__file__).parents[3] / "examples" / "serve.py"
GALLERY, QUERIES = (
    make("normal_diagonal", 4000, 64, dtype="float32"),
    make("normal_diagonal", 300, 64, 7, dtype="float32"),
)
SHARDS = {"a.npz": GALLERY[:1500], "b.npz": GALLERY[1500:]}
TAKEN = 16 + 16  # requests that the deployment takes at once: as many are ongoing, and as many queued
PATIENCE = 180.0  # others use these processors too


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Where the service listens, on a cluster of its own."""
    from ray import serve

    folder = tmp_path_factory.mktemp("shards")
    for name, part in SHARDS.items():
        pe.io.write_distribution(folder / name, part)
    start_ray()
    port = 8417
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    cluster = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    with (folder / "log").open("w") as log:
        command = [sys.executable, str(EXAMPLE), *(str(folder / name) for name in SHARDS)]
        service = subprocess.Popen(command, env=cluster, stdout=log, stderr=log)
    try:
        asyncio.run(until_routed(f"http://127.0.0.1:{port}", service, folder / "log"))
        yield f"http://127.0.0.1:{port}"
    finally:
        service.terminate()
        service.wait(60)
        serve.shutdown()
        ray.shutdown()


async def until_routed(address, service, log):
    end = time.monotonic() + PATIENCE
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < end:
            async with session.get(f"{address}/-/routes") as answer:
                if answer.status == 200 and await answer.json():
                    return
            assert service.poll() is None, log.read_text()
            await asyncio.sleep(0.5)
    raise AssertionError(log.read_text())


def as_json(queries):
    return {"json": {name: x.tolist() for name, x in pe.io.to_state(queries).items()}}


def as_bytes(**arrays):
    np.savez(body := io.BytesIO(), **arrays)
    return {"data": body.getvalue(), "headers": {"content-type": "application/octet-stream"}}


async def asked(session, address, given):
    async with session.post(address, **given) as answer:
        return answer.status, await (answer.json() if answer.content_type == "application/json" else answer.text())


def post(address, **given):
    async def call():
        async with aiohttp.ClientSession() as session:
            return await asked(session, address, given)

    return asyncio.run(call())


def test_bodies_of_every_kind_get_the_bits_of_one_machine(address):
    queries = QUERIES[:3]
    expected = pe.search(queries, GALLERY, 10)
    for body in (as_json(queries), as_bytes(**pe.io.to_state(queries))):
        status, found = post(address, **body)
        assert (status, found["ids"]) == (200, expected.ids.tolist())
        np.testing.assert_array_equal(np.array(found["scores"], np.float32), expected.scores)
    np.save(body := io.BytesIO(), queries.mu)
    _, found = post(address, data=body.getvalue(), headers={"content-type": "application/octet-stream"})
    assert found["ids"] == pe.search(pe.Point(queries.mu), GALLERY, 10).ids.tolist()


def compressed(**arrays):
    np.savez_compressed(body := io.BytesIO(), **arrays)
    return {"data": body.getvalue()}


def test_what_is_too_large_is_refused_before_work(address):
    zeros = np.zeros((1 << 20, 64), np.float32)  # 268 MB in a body of 260 kB
    for given, expected in (
        (compressed(mu=zeros), "the arrays have more than 8388608 bytes"),
        ({"data": io.BytesIO(bytes(9 << 20))}, "the body has more than 8388608 bytes"),
        (as_bytes(mu=zeros[:2000]), "2000 queries, expected at most 1024"),
    ):
        begun = time.monotonic()
        assert post(address, **given) == (413, {"error": expected})
        assert time.monotonic() - begun < 30


@pytest.mark.parametrize("kind", ["APPLICATION/JSON", "application/json; charset=utf-8", "Application/Json"])
def test_json_is_told_by_its_type_in_any_case(address, kind):
    body = json.dumps(as_json(QUERIES[:1])["json"])
    assert post(address, data=body, headers={"content-type": kind})[0] == 200


def test_scores_that_are_infinite_are_numbers(address):
    """As of an exact copy without uncertainty."""
    item = pe.Normal(GALLERY.mu[:1], np.zeros_like(GALLERY.var[:1]))
    status, found = post(address, **as_bytes(**pe.io.to_state(item)))
    assert status == 200 and all(isinstance(x, float) for x in found["scores"][0])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"data": b"no array"}, ""),
        ({"json": [[1.0]]}, "the body holds a list, expected an object with mu"),
        ({"json": {"mu": 3.0}}, ""),
        ({"json": {"mu": [[[1.0]]]}}, ""),
        ({"json": {"mu": [["a"]]}}, ""),
        ({"data": "[" * 100000, "headers": {"content-type": "application/json"}}, ""),
        (as_bytes(mu=np.full((1, 64), 1e300)), "Point: mu is not finite in row 0"),
        ({"json": {"mu": [[float(i == 2) for i in range(64)]], "var": [-1.0]}}, "Normal: var is negative in row 0"),
        ({"json": {"mu": [[1.0, 2.0]]}}, "mls: dim of queries is 2, expected 64 like gallery"),
        ({"json": {"sigma": [[1.0]]}}, "from_state: keys are sigma; expected mu"),
        (as_bytes(mu=np.full((1, 64), np.nan)), "Point: mu is not finite in row 0"),
        ({"data": b"no array", "headers": {"content-type": "application/octet-stream"}}, ""),
    ],
)
def test_what_is_wrong_with_queries_is_said(given, expected, address):
    status, found = post(address, **given)
    assert status == 400 and found["error"].startswith(expected)


async def load(address, clients, each):
    """Statuses, and the seconds that answers took, where so many clients ask one request after the other."""
    statuses, seconds = Counter(), []

    async def client(session, first):
        for i in range(first, first + each):
            begun = time.monotonic()
            status, found = await asked(session, address, BODIES[i % len(BODIES)])
            statuses[status] += 1
            if status == 200:
                seconds.append(time.monotonic() - begun)
                assert found["ids"] == EXPECTED[i % len(BODIES)]
            else:
                await asyncio.sleep(0.05)  # as a client does that is told to come again

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session, 7 * i) for i in range(clients)))
    return statuses, np.array(seconds)


BODIES = [as_json(QUERIES[i : i + 1]) for i in range(len(QUERIES))]
EXPECTED = [ids.tolist() for ids in pe.search(QUERIES, GALLERY, 10).ids[:, None]]


def actors():
    """The processes of the shards and of the deployment."""
    names = ("_Shard", "ServeReplica")
    return {child.pid for child in psutil.Process().children(recursive=True) if any(x in child.name() for x in names)}


def test_a_load_beyond_what_it_takes_is_refused_and_nothing_dies(address):
    before = actors()
    print()
    for clients, each in ((1, 100), (TAKEN, 20), (4 * TAKEN, 20)):
        begun = time.monotonic()
        statuses, seconds = asyncio.run(load(address, clients, each))
        rate = statuses[200] / (time.monotonic() - begun)
        p50, p99 = 1e3 * np.percentile(seconds, [50, 99])
        what = f"{statuses[200]} answers, {statuses[503]} refusals, {rate:.0f} answers a second"
        print(f"{clients} clients: {what}, p50 {p50:.0f} ms, p99 {p99:.0f} ms")
        assert statuses.keys() <= {200, 503} and statuses[200] >= clients
    assert statuses[503] > 0
    status, found = post(address, **BODIES[0])
    assert (status, found["ids"]) == (200, EXPECTED[0])
    from ray import serve

    for application in serve.status().applications.values():
        assert application.status == "RUNNING"
        for deployment in application.deployments.values():
            assert (deployment.status, deployment.replica_states) == ("HEALTHY", {"RUNNING": 1})
    assert actors() == before
