"""Losses and wrong answers of a gallery where processes are killed, disks full, files damaged and writers many.

`python tests/retrieval/lance/faults.py [--kills 300] [--flips 60]` prints the tables of docs/galleries.md. Linux only.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import peaccel as pe

DIM, START = 16, 60
QUERIES = pe.Normal(np.random.default_rng(0).standard_normal((3, DIM), np.float32), np.float32(0.2))
OPERATIONS = ("add", "add", "upsert", "upsert", "remove", "build_index", "compact")
OPEN = ("gallery.lance", "reranker")

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["lance", "pyarrow.compute", "faiss", "peaccel.retrieval.lance"])

State = dict[int, int]  # the tag of each id, which says what its item is


def items(ids: Any, tags: Any) -> pe.Normal[Any]:
    """The items of ids, as the tags make them."""
    ids, tags = np.asarray(ids, np.float64), np.asarray(tags, np.float64)
    mu = np.sin(np.outer(1 + ids, np.arange(1, DIM + 1)) + tags[:, None])
    return pe.Normal(mu.astype(np.float32), (0.1 + tags % 7).astype(np.float32))


def held(state: State) -> pe.Normal[Any]:
    """All items, in the order of their ids."""
    return items(sorted(state), [state[id] for id in sorted(state)])


class Step:
    """The operation of a number on a state: the same for whoever asks."""

    def __init__(self, number: int, state: State) -> None:
        rng = random.Random(number)
        self.name, self.number, known = rng.choice(OPERATIONS), number, sorted(state)
        if len(known) < START // 2:
            self.name = "add"
        new = list(range(max(known) + 1, max(known) + 21))
        self.ids = {
            "add": new,
            "upsert": rng.sample(known, min(15, len(known))) + new[:5],
            "remove": rng.sample(known, min(12, len(known))),
        }.get(self.name, [])
        if self.name == "remove":
            self.after = {id: tag for id, tag in state.items() if id not in self.ids}
        else:
            self.after = state | dict.fromkeys(self.ids, number)

    def do(self, gallery: pe.Gallery) -> None:
        if self.name in ("add", "upsert"):
            getattr(gallery, self.name)(items(self.ids, [self.number] * len(self.ids)), self.ids)
        elif self.name == "remove":
            gallery.remove(self.ids, skip_missing=True)
        elif self.name == "build_index":
            gallery.build_index("Flat")
        else:
            gallery.compact(keep_days=0)


def answers(gallery: pe.Gallery, state: State) -> bool:
    """Whether the gallery holds a state, and every way to ask it gives what memory gives, to the last bit."""
    ids = np.array(sorted(state))
    if not np.array_equal(gallery.ids, ids):
        return False
    scores, rows = pe.search(QUERIES, held(state), len(ids))
    found = gallery.search(QUERIES, len(ids)), gallery.search(QUERIES, len(ids), shortlist=len(ids))
    return all(np.array_equal(x.ids, ids[rows]) and np.array_equal(x.scores, scores) for x in found)


# -- processes ---------------------------------------------------------------------------------------------------------


def said(log: Path, word: str) -> None:
    """Write a word where it stays when the process is killed."""
    with log.open("ab", buffering=0) as file:
        file.write(f"{word}\n".encode())


def changing(path: Path, state: State, number: int, log: Path) -> None:
    """Change a gallery and search it, again and again."""
    gallery = pe.Gallery.open(path)
    said(log, "ready")
    while True:
        step = Step(number, state)
        said(log, f"begin {number}")
        step.do(gallery)
        said(log, f"end {number}")
        gallery.search(QUERIES, 3)
        state, number = step.after, number + 1


def saving(path: Path, state: State, number: int, log: Path) -> None:
    """Save a FaissReranker over itself, again and again."""
    said(log, "ready")
    while True:
        reranker = pe.FaissReranker.build(held(state | {0: number}), "Flat", ids=np.array(sorted(state)))
        said(log, f"begin {number}")
        reranker.save(path)
        said(log, f"end {number}")
        number += 1


def killed(target: Callable[..., None], path: Path, state: State, number: int, log: Path, wait: float) -> list[str]:
    """Lines that a process wrote until it was killed, after it was ready."""
    log.unlink(missing_ok=True)
    process = CONTEXT.Process(target=target, args=(path, state, number, log))
    process.start()
    while process.is_alive() and not (log.exists() and log.stat().st_size):
        time.sleep(0.002)
    time.sleep(wait)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    if process.exitcode != -signal.SIGKILL:
        raise RuntimeError(f"the process ended with {process.exitcode} before it was killed")
    return log.read_text().splitlines()


def kills_of_changes(folder: Path, count: int) -> Iterator[tuple[str, Counter[str]]]:
    """Kill a process that changes a gallery; what is there after is what was acknowledged, or the next step too."""
    path, log, rng = folder / OPEN[0], folder / "log", random.Random(1)
    state, number = dict.fromkeys(range(START), 0), 1
    pe.Gallery.create(path, held(state), sorted(state))
    found: dict[str, Counter[str]] = {}
    for _ in range(count):
        words = killed(changing, path, state, number, log, rng.uniform(0, 0.6))
        acknowledged = sum(word.startswith("end") for word in words)
        for _ in range(acknowledged):
            state, number = Step(number, state).after, number + 1
        in_flight = words[-1].startswith("begin")
        step = Step(number, state)
        tally = found.setdefault(step.name if in_flight else "a search", Counter())
        tally["kills"] += 1
        tally["acknowledged"] += acknowledged
        gallery = pe.Gallery.open(path)
        if answers(gallery, state):
            pass
        elif in_flight and answers(gallery, step.after):
            tally["landed"] += 1
            state = step.after
        else:
            tally["lost or wrong"] += 1
            shutil.rmtree(path)
            gallery = pe.Gallery.create(path, held(state), sorted(state))
        tally["verify"] += len(gallery.verify())
        number += 1
    yield from sorted(found.items())


def kills_of_saves(folder: Path, count: int) -> Counter[str]:
    """Kill a process that saves a FaissReranker; what is there after is the last that was acknowledged, or the next."""
    path, log, rng, tally = folder / OPEN[1], folder / "log", random.Random(2), Counter[str]()
    state, number = dict.fromkeys(range(START), 0), 1
    pe.FaissReranker.build(held(state), "Flat", ids=np.array(sorted(state))).save(path)
    for _ in range(count):
        words = killed(saving, path, state, number, log, rng.uniform(0, 0.2))
        ends = sum(word.startswith("end") for word in words)
        tags = [number + ends - 1 if ends else state[0], number + ends]
        tally.update(kills=1, acknowledged=ends)
        try:
            first = pe.FaissReranker.open(path).gallery[:1]
        except (OSError, ValueError):
            tally["lost or wrong"] += 1
            pe.FaissReranker.build(held(state), "Flat", ids=np.array(sorted(state))).save(path)
            continue
        matching = [tag for tag in tags if np.array_equal(first.mu, items([0], [tag]).mu)]
        tally["landed" if matching == tags[1:] else "right" if matching else "lost or wrong"] += 1
        state = state | {0: matching[0] if matching else tags[0]}
        number += ends + 1
    return tally


# -- writers and readers -----------------------------------------------------------------------------------------------


def writing(path: Path, writer: int, rounds: int) -> None:
    """Upsert and append ids of which another process upserts and appends the same at the same time."""
    gallery = pe.Gallery.open(path)
    for i in range(rounds):
        ids = [i, 1000 + i // 2, 2000 + 100 * writer + i]
        gallery.upsert(items(ids, [1 + writer + 2 * i] * 3), ids)
        with suppress(ValueError):  # the other one was first
            gallery.add(items([3000 + i], [1 + writer + 2 * i]), [3000 + i])


def rewriting(path: Path, rounds: int) -> None:
    """Upsert all items at once, again and again."""
    gallery = pe.Gallery.open(path)
    for tag in range(1, rounds + 1):
        gallery.upsert(items(range(START), [tag] * START), range(START))


def both(*processes: Any) -> None:
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a process ended with {process.exitcode}")


def two_writers(folder: Path, rounds: int) -> Counter[str]:
    """Two processes upsert and append the same new ids: each is there once, as one of the two wrote it last."""
    path = folder / "writers.lance"
    pe.Gallery.create(path, items([5000], [0]), [5000])
    both(*(CONTEXT.Process(target=writing, args=(path, writer, rounds)) for writer in (0, 1)))
    gallery, tally = pe.Gallery.open(path), Counter(acknowledged=3 * rounds)
    expected = {id: {1 + w + 2 * i for w in (0, 1)} for i in range(rounds) for id in (i, 1000 + i // 2, 3000 + i)}
    expected |= {2000 + 100 * w + i: {1 + w + 2 * i} for w in (0, 1) for i in range(rounds)} | {5000: {0}}
    tally["lost or wrong"] += gallery.ids.tolist() != sorted(expected)
    for id, tags in expected.items():
        scores = {float(pe.pairwise(QUERIES[:1], items([id], [tag]))[0, 0]) for tag in tags}
        right = {float(pe.rescore(QUERIES[:1], items([id], [tag]), [[0]])[0, 0]) for tag in tags} | scores
        tally["lost or wrong"] += float(gallery.rescore(QUERIES[:1], [[id]])[0, 0]) not in right
    return tally


def searches_during_upserts(folder: Path, rounds: int) -> Counter[str]:
    """Every search sees all items as one commit left them."""
    path, tally = folder / "rewritten.lance", Counter(acknowledged=rounds)
    gallery = pe.Gallery.create(path, items(range(START), [0] * START), range(START))
    expected = [pe.search(QUERIES, items(range(START), [tag] * START), START) for tag in range(rounds + 1)]
    process = CONTEXT.Process(target=rewriting, args=(path, rounds))
    process.start()
    while process.is_alive() or not tally["searches"]:
        found = gallery.refresh().search(QUERIES, START)
        tally["searches"] += 1
        tally["lost or wrong"] += not any(np.array_equal(found.scores, x.scores) for x in expected)
    process.join()
    return tally


# -- full disks and damaged files --------------------------------------------------------------------------------------


def refused(call: Callable[[], Any]) -> str:
    """The error of a call; "" where there is none, "died" for one that is no single line."""
    try:
        call()
    except (OSError, ValueError) as error:
        text = str(error)
        return text if "\n" not in text and ".rs:" not in text else f"died: {text}"
    return ""


def limited(path: Path, size: int, log: Path) -> None:
    """Change a gallery where no file may be larger than a size, as on a disk that is full."""
    gallery = pe.Gallery.open(path)
    big = items(range(10_000, 14_000), [1] * 4000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: gallery.add(big, range(10_000, 14_000)),
        "upsert": lambda: gallery.upsert(big, range(10_000, 14_000)),
        "build_index": lambda: gallery.build_index("Flat"),
        "search": lambda: gallery.search(QUERIES, 3),
    }
    for name, call in calls.items():
        said(log, f"{name}: {refused(call)}")


def full_disk(folder: Path) -> tuple[Counter[str], list[str]]:
    """Changes without room are refused in one line, and leave the gallery as it was."""
    path, log, tally = folder / "full.lance", folder / "full.log", Counter[str]()
    state = dict.fromkeys(range(2000), 0)
    pe.Gallery.create(path, held(state), sorted(state))
    both(CONTEXT.Process(target=limited, args=(path, 20_000, log)))
    told = log.read_text().splitlines()
    tally["refused"] = sum(not line.endswith(": ") and "died" not in line for line in told)
    tally["lost or wrong"] = len(told) - tally["refused"] + (not answers(pe.Gallery.open(path), state))
    return tally, told


def outcome(path: Path, state: State, log: Path) -> None:
    """Say how a gallery with a damaged file answers."""
    error = refused(lambda: said(log, str(answers(pe.Gallery.open(path), state))))
    lines = [] if error else pe.Gallery.open(path).verify()
    said(log, f"error {error}" if error else f"verify {len(lines)}")


def damaged(
    folder: Path, pattern: str, state: State, damage: Callable[[Path, random.Random], None], count: int
) -> Counter[str]:
    """Damage one file of a copy of a gallery at a time, and count what comes of it."""
    tally, rng = Counter[str](), random.Random(3)
    for _ in range(count):
        copy, log = folder / "damaged.lance", folder / "damaged.log"
        shutil.rmtree(copy, ignore_errors=True)
        log.unlink(missing_ok=True)
        shutil.copytree(folder / "whole.lance", copy)
        damage(rng.choice(sorted(copy.glob(pattern))), rng)
        process = CONTEXT.Process(target=outcome, args=(copy, state, log))
        process.start()
        process.join()
        words = log.read_text().splitlines() if log.exists() else []
        if process.exitcode or words[-1].startswith("error died"):
            tally["died"] += 1
        elif words[-1].startswith("error"):
            tally["refused"] += 1
        elif words[0] == "True":
            tally["right, told by verify" if words[1] != "verify 0" else "right"] += 1
        else:
            tally["wrong, told by verify" if words[1] != "verify 0" else "wrong"] += 1
        tally["files"] += 1
    return tally


def halve(path: Path, _: random.Random) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


FILES = {
    "rows of the dataset": "data/*.lance",
    "which rows are deleted": "_deletions/*",
    "the newest manifest": f"_versions/{2**64 - 1 - 3}.manifest",
    "derived rows": "_peaccel/*.safetensors",
    "the index": "_peaccel/index-*/index.faiss",
    "the index' rows": "_peaccel/index-*/rows.npz",
    "the index' checksums": "_peaccel/index-*/checksums.json",
}


def whole(folder: Path) -> State:
    """A gallery with every kind of file."""
    state: State = dict.fromkeys(range(400), 0)
    gallery = pe.Gallery.create(folder / "whole.lance", held(state), sorted(state))
    gallery.build_index("Flat")
    gallery.upsert(items(range(50), [1] * 50), range(50))
    state |= dict.fromkeys(range(50), 1)
    assert answers(gallery, state)
    return state


# -- the tables --------------------------------------------------------------------------------------------------------


def line(*cells: Any) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


@contextmanager
def temporary() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def faults(kills: int, flips: int, show: Callable[[str], object] = print) -> int:
    """Print the tables; how much was lost, or answered wrongly without verify telling it."""
    bad = 0
    with temporary() as folder:
        show(
            line("SIGKILL during", "kills", "acknowledged", "lost or wrong", "landed unacknowledged", "told by verify")
        )
        show(line(*["---"] + ["--:"] * 5))
        rows = [
            *kills_of_changes(folder, kills - kills // 5),
            ("FaissReranker.save", kills_of_saves(folder, kills // 5)),
        ]
        for name, tally in rows:
            show(line(name, *(tally[key] for key in ("kills", "acknowledged", "lost or wrong", "landed", "verify"))))
            bad += tally["lost or wrong"] + tally["verify"]
        for name, tally in (
            ("two writers of the same new ids", two_writers(folder, max(kills // 5, 10))),
            ("searches while all is upserted", searches_during_upserts(folder, max(kills // 5, 10))),
        ):
            told = ", ".join(f"{value} {key}" for key, value in tally.items() if key != "lost or wrong")
            show(f"\n{name}: {told}, {tally['lost or wrong']} lost or wrong")
            bad += tally["lost or wrong"]
        tally, told = full_disk(folder)
        show(f"\nno room: {tally['refused']} refused, {tally['lost or wrong']} lost or wrong")
        for text in told:
            show(f"    {text.replace(str(folder), '')}")
        bad += tally["lost or wrong"]
        bad += show_damage(folder, flips, show)
    return bad


def show_damage(folder: Path, flips: int, show: Callable[[str], object]) -> int:
    """Print what comes of files that are cut in half, and of single bits; how many answered wrongly without a word."""
    state, bad = whole(folder), 0
    kinds = ("refused", "right", "right, told by verify", "wrong, told by verify", "wrong", "died")
    show("\n" + line("damaged", "how", "files", *kinds))
    show(line(*["---"] * 2 + ["--:"] * 7))
    for name, pattern in FILES.items():
        for how, damage, count in (("cut in half", halve, 1), ("a bit", flip, flips)):
            tally = damaged(folder, pattern, state, damage, count)
            show(line(name, how, tally["files"], *(tally[kind] for kind in kinds)))
            bad += (tally["wrong"] + tally["died"]) * (how != "a bit")
    return bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--flips", type=int, default=60)
    given = parser.parse_args()
    sys.exit(min(faults(given.kills, given.flips), 1))


if __name__ == "__main__":
    main()
