"""Speakers by a public encoder: `python -m reproduction.speakers` writes a table of docs/real-embeddings.md.

espeak-ng reads random words in each of its 101 voices, twenty times, at another pitch and pace; 0.5 to 4 s of each are
kept, under white noise at 0 to 30 dB. Resemblyzer's encoder embeds what its voice activity detection leaves. 60 voices
are fitted to and 41 tested on, in five splits; cells are means over splits and the half widths of 95 % intervals, by
Student's t: splits share voices, so these say what other splits would give, not other voices. The embeddings are made
once, in a quarter of an hour, and kept in runs/speakers.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t

import peaccel as pe
from reproduction.files import progress, written

CACHE = Path(__file__).parents[1] / "runs" / "speakers" / "embeddings.npz"
TABLES = Path(__file__).parents[1] / "docs" / "data"
UTTERANCES, SECONDS, NOISE = 20, (0.5, 4.0), (0.0, 30.0)
RATE = 16_000  # of the encoder, in Hz
SPLITS, FITTED, DIRECTIONS = 5, 60, 40
COHORT = 100  # the best of the cohort, by which scores are normalised
PROMISES, DELTA = (0.01, 0.02, 0.05), 0.1  # of the answers that are accepted, the share that may be wrong
HALVES = 20  # draws of the tested voices by whose answers thresholds are found, for those of the others

WORDS = """time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room mother area
money story fact month lot right study book eye job word business issue side kind head house service friend father power
hour game line end member law car city community name president team minute idea body information back parent face level
office door health person art war history party result change morning reason research girl moment air teacher"""

NEEDS = """reproduction.speakers needs espeak-ng and Resemblyzer: apt-get install espeak-ng; pip install librosa
soundfile webrtcvad-wheels; pip install --no-deps resemblyzer"""  # whose own webrtcvad needs an older setuptools


class Speech(NamedTuple):
    """Utterances of known voices."""

    embeddings: np.ndarray
    """[N, D], of length 1."""
    voices: np.ndarray
    """[N], the voice of each as a number."""
    seconds: np.ndarray
    """[N], how long it is."""
    snr: np.ndarray
    """[N], the ratio of speech to noise, in dB."""


# ---- utterances ------------------------------------------------------------------------------------------------------


def speech() -> Speech:
    """The utterances, made unless they are kept."""
    if not CACHE.exists():
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        made = synthesised()
        with written(CACHE) as fresh:
            np.savez(fresh, **made._asdict())
    with np.load(CACHE) as kept:
        return Speech(**kept)


def synthesised() -> Speech:
    """Every voice's utterances, embedded."""
    rng, encoder = np.random.default_rng(0), import_module("resemblyzer").VoiceEncoder("cpu", verbose=False)
    listed = subprocess.run(["espeak-ng", "--voices=variant"], capture_output=True, text=True, check=True).stdout
    names = re.findall(r"!v/(.*?)\s*$", listed, re.MULTILINE)
    rows: list[tuple[Any, ...]] = []
    with progress(f"{UTTERANCES} utterances of each of {len(names)} voices", len(names)) as advance:
        for voice, name in enumerate(names):
            drawn = [utterance(name, rng) for _ in range(UTTERANCES)]
            vectors = embedded(encoder, [wave for wave, *_ in drawn])
            rows += [(x, voice, seconds, snr) for x, (_, seconds, snr) in zip(vectors, drawn, strict=True)]
            advance(1)
    return Speech(*map(np.array, zip(*rows, strict=True)))


def utterance(name: str, rng: np.random.Generator) -> tuple[np.ndarray, float, float]:
    """A stretch of noisy speech in a voice as the encoder takes it, how long it is, and its noise in dB."""
    pitch, pace, text = rng.integers(35, 66), rng.integers(130, 221), " ".join(rng.choice(WORDS.split(), 30))
    spoken = ["espeak-ng", "-v", f"en-us+{name}", "-p", str(pitch), "-s", str(pace), "--stdout", text]
    sound = subprocess.run(spoken, capture_output=True, check=True).stdout
    wav, rate = import_module("soundfile").read(io.BytesIO(sound))
    seconds, snr = rng.uniform(*SECONDS), rng.uniform(*NOISE)
    length = int(seconds * rate)
    first = rng.integers(len(wav) - length)
    wav = wav[first : first + length]
    noise = np.sqrt(np.mean(wav**2) / 10 ** (snr / 10)) * rng.standard_normal(length)
    mixed = import_module("librosa").resample((wav + noise).astype(np.float32), orig_sr=rate, target_sr=RATE)
    kept = import_module("resemblyzer").preprocess_wav(mixed)
    return (kept if len(kept) >= RATE // 10 else mixed), seconds, snr


def embedded(encoder: Any, waves: list[np.ndarray]) -> np.ndarray:
    """Embeddings as of `encoder.embed_utterance`, in one pass of the network."""
    windows: list[np.ndarray] = []
    of = []
    for i, wave in enumerate(waves):
        slices, frames = encoder.compute_partial_slices(len(wave), 1.3, 0.75)
        padded = np.pad(wave, (0, max(0, slices[-1].stop - len(wave))))
        mel = import_module("resemblyzer").wav_to_mel_spectrogram(padded)
        windows += [mel[part] for part in frames]
        of += [i] * len(frames)
    torch = import_module("torch")
    with torch.no_grad():
        found = encoder(torch.from_numpy(np.array(windows))).numpy()
    means = np.stack([found[np.array(of) == i].mean(0) for i in range(len(waves))])
    unit: np.ndarray = means / np.linalg.norm(means, axis=1, keepdims=True)
    return unit


# ---- scores ----------------------------------------------------------------------------------------------------------


def splits(voices: np.ndarray, count: int = SPLITS) -> Iterator[np.ndarray]:
    """Which utterances are fitted to, [N] booleans: those of other voices in each split."""
    for seed in range(count):
        order = np.random.default_rng(seed).permutation(np.unique(voices))
        yield np.isin(voices, order[:FITTED])


METRICS = (
    "Recall@1",
    "EER",
    "TAR at FAR 0.1 %",
    "FNIR at FPIR 1 %",
    "AUROC of the best score",
    *(f"Answered, {promise:.0%} wrong" for promise in PROMISES),
)


def judged(scores: np.ndarray, voices: np.ndarray) -> np.ndarray:
    """The `METRICS` of the scores of all pairs of utterances, [N, N]."""
    pairs = np.triu_indices(len(voices), k=1)
    same = voices[:, None] == voices
    tested = scores[pairs], same[pairs]
    others = np.where(np.eye(len(voices), dtype=bool), -np.inf, scores)
    best = others.argmax(1)
    right = voices[best] == voices
    top = others.max(1)
    auroc = pe.metrics.roc_auc(top, right)
    tar = pe.metrics.tar_at_far(*tested, 0.001, resamples=1).tar
    eer = pe.metrics.equal_error_rate(*tested, resamples=1).rate
    answered = [[above(half, right, promise, top, ~half)[1] for promise in PROMISES] for half in halves(voices)]
    of_all = [right.mean(), eer, tar, fnir(others, voices)]
    return np.array([*(100 * np.array(of_all)), auroc, *(100 * np.mean(answered, 0))])


def halves(voices: np.ndarray) -> Iterator[np.ndarray]:
    """Which utterances are of one half of the voices, [N] booleans, by several draws."""
    known = np.unique(voices)
    for seed in range(HALVES):
        yield np.isin(voices, np.random.default_rng(seed).permutation(known)[: len(known) // 2])


def above(
    labelled: np.ndarray, right: np.ndarray, promise: float, top: np.ndarray, asked: Any = slice(None)
) -> tuple[float, float]:
    """The share of answers that are wrong, and of queries answered, from the threshold that labels promise on.

    Each labelled answer counts as independent of the others; the queries that are asked are all by default.
    """
    found = pe.learn_then_test(top[labelled], right[labelled], np.arange(len(top[labelled])), promise, DELTA)
    return outcome(found(top[asked]), right[asked])


def outcome(accepted: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    """The share of accepted answers that is wrong, 0 of none, and the share accepted."""
    return float((~right[accepted]).mean()) if accepted.any() else 0.0, float(accepted.mean())


def fnir(scores: np.ndarray, voices: np.ndarray) -> float:
    """FNIR at an FPIR of 1 %, where a quarter of the voices is not among those that are searched."""
    known = np.unique(voices)
    absent = np.isin(voices, known[: len(known) // 4])
    searched = scores[:, ~absent]
    top, right = searched.max(1), voices[~absent][searched.argmax(1)] == voices
    mates = np.where(right, top, -np.inf)[~absent]
    return float(pe.metrics.open_set(mates, top[absent]).at_fpir(0.01).fnir)


def among(d: Any, score: Any) -> np.ndarray:
    """The scores of all pairs of a set."""
    return np.asarray(pe.pairwise(d, d, score), np.float64)


def of_points(x: Speech, fit: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The name of each way to score utterances by their embeddings, and the scores of those that are not fitted to."""
    yield "cosine", among(pe.Point(x.embeddings[~fit]), "cosine")
    mean = x.embeddings[fit].mean(0)
    tested, fitted = (pe.Point(x.embeddings[rows] - mean) for rows in (~fit, fit))
    centred = among(tested, "cosine")
    yield "centred cosine", centred
    beside = pe.search(tested, fitted, COHORT, "cosine")
    yield "centred cosine, S-norm", pe.normalise_scores(centred, queries=beside, gallery=beside)
    plain = pe.fit_plda(x.embeddings[fit], x.voices[fit], dim=DIRECTIONS)
    yield f"PLDA of {DIRECTIONS} directions", among(plain.transform(x.embeddings[~fit]), plain.score)
    yield f"cosine of {DIRECTIONS} directions", among(plain.transform(x.embeddings[~fit]), "cosine")
    plda = pe.fit_plda(x.embeddings[fit], x.voices[fit], dim=DIRECTIONS, length_norm=True)
    d, cohort = (plda.transform(x.embeddings[rows]) for rows in (~fit, fit))
    scores = among(d, plda.score)
    yield "length-normalised PLDA", scores
    beside = pe.search(d, cohort, COHORT, plda.score)
    yield "length-normalised PLDA, S-norm", pe.normalise_scores(scores, queries=beside, gallery=beside)
    yield "length-normalised PLDA, duration and SNR", by_quality(x, fit, scores)


def by_quality(x: Speech, fit: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The log odds of a match by score, durations and noise, fitted to voices that their PLDA does not know."""
    known = np.unique(x.voices[fit])
    columns: list[list[np.ndarray]] = []
    for third in (known[i::3] for i in range(3)):
        rows = fit & np.isin(x.voices, third)
        dim = min(DIRECTIONS, len(known) - len(third) - 1)
        other = pe.fit_plda(x.embeddings[fit & ~rows], x.voices[fit & ~rows], dim=dim, length_norm=True)
        pairs = np.triu_indices(rows.sum(), k=1)
        same = (x.voices[rows][:, None] == x.voices[rows])[pairs]
        columns.append([among(other.transform(x.embeddings[rows]), other.score)[pairs], same, *quality(x, rows, pairs)])
    held, same, *qualities = map(np.concatenate, zip(*columns, strict=True))
    fitted: Any = pe.fit_match_probability(held, same, *qualities)
    every = np.indices(scores.shape).reshape(2, -1)
    found: np.ndarray = np.stack([scores.ravel(), *quality(x, ~fit, every)], 1) @ fitted.weights
    return found.reshape(scores.shape)


def quality(x: Speech, rows: np.ndarray, pairs: Any) -> list[np.ndarray]:
    """Quality measures of pairs: the sums of their logarithms of seconds and of their decibels."""
    return [q[rows][pairs[0]] + q[rows][pairs[1]] for q in (np.log(x.seconds), x.snr)]


def learned(
    method: str, features: np.ndarray, labels: np.ndarray, fit: np.ndarray, measured: np.ndarray | None, *more: str
) -> Any:
    """The items with the uncertainty that `peaccel fit-head` learns of those that are fitted to."""
    from peaccel import cli

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path, run = Path(folder), f"{folder}/head"
        for part, rows in {"fit": fit, "all": np.ones(len(fit), dtype=bool)}.items():
            np.save(path / f"{part}.npy", features[rows].astype(np.float32))
            if measured is not None:
                np.save(path / f"{part}-covariates.npy", measured[rows])
        np.save(path / "labels.npy", labels[fit])
        beside = {
            part: [] if measured is None else ["--covariates", f"{path}/{part}-covariates.npy"]
            for part in ("fit", "all")
        }
        words = [f"{path}/fit.npy", "--labels", f"{path}/labels.npy", "--method", method, *beside["fit"], "--out", run]
        cli.main(["fit-head", *words, "--threads", "1", *more])
        words = ["--run", run, "--features", f"{path}/all.npy", *beside["all"], "--out", f"{path}/d.npz"]
        cli.main(["embed", *words])
        return pe.io.read_distribution(path / "d.npz")


class Head(NamedTuple):
    """Scores and confidences of a head on utterances that it was not fitted to."""

    scores: np.ndarray
    """[N, N], the scores of all pairs."""
    confidence: np.ndarray
    """[N], how sure it is of each."""


def head(x: Speech, fit: np.ndarray, features: np.ndarray, measured: bool, *more: str) -> Head:
    """An uncertainty learned by `peaccel fit-head`, with duration and SNR beside the features or without; by `llr`.

    A quarter of the voices that are fitted to is held out by the command; on these its variances are calibrated.
    """
    beside = np.stack([np.log(x.seconds), x.snr], 1) if measured else None
    d = learned("pfe", features, x.voices, fit, beside, *more)
    known = np.unique(x.voices[fit])
    held = np.flatnonzero(np.isin(x.voices, known[: -(-len(known) // 4)]))
    pairs = held[np.stack(np.triu_indices(len(held), k=1), 1)]
    calibrated = pe.calibrate_variance(d, pairs, x.voices[pairs[:, 0]] == x.voices[pairs[:, 1]])(d)
    prior = pe.fit_prior(calibrated[fit], x.voices[fit])
    llr = pe.scores.llr(prior_mean=prior.mean, prior_var=prior.var)
    return Head(among(calibrated[~fit], llr), np.asarray(pe.confidence(d[~fit])))


def of_heads(x: Speech, fit: np.ndarray, *more: str) -> Iterator[tuple[str, Head]]:
    """The name of each head, on the embeddings and on the directions of a PLDA, and what it makes of the others."""
    plda = pe.fit_plda(x.embeddings[fit], x.voices[fit], dim=DIRECTIONS, length_norm=True)
    for name, features in (
        ("embeddings", x.embeddings),
        (f"{DIRECTIONS} directions", np.asarray(plda.transform(x.embeddings).mu)),
    ):
        yield f"head on the {name}", head(x, fit, features, False, *more)
        yield f"head on the {name}, duration and SNR", head(x, fit, features, True, *more)


# ---- tables ----------------------------------------------------------------------------------------------------------


def half_width(values: np.ndarray) -> np.ndarray:
    """Of 95 % intervals of means over runs [S, ...], by Student's t."""
    found: np.ndarray = t.ppf(0.975, len(values) - 1) * values.std(0, ddof=1) / np.sqrt(len(values))
    return found


def cell(column: str, mean: float, half: float) -> str:
    """A mean and the half width of its interval: of AUROCs and correlations as they are, of all else in per cent."""
    if np.isnan(mean):
        return ""  # a dash alone would begin a list
    return f"{mean:.3f} ± {half:.3f}" if column.startswith(("AUROC", "Spearman")) else f"{mean:.1f} ± {half:.1f}"


def table(measured: Iterable[dict[str, np.ndarray]], header: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Rows from what each split measured, [metrics] by name: means and half widths of 95 % intervals."""
    runs = list(measured)
    for name in runs[0]:
        values = np.array([run[name] for run in runs])
        yield name, *(cell(*found) for found in zip(header, values.mean(0), half_width(values), strict=True))


def write(name: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Write a table of the documentation."""
    with written(TABLES / f"{name}.csv") as fresh:
        fresh.write_text(as_text(header, rows), encoding="utf-8")


def as_text(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Comma-separated values."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([header, *rows])
    return stream.getvalue()


def main() -> int:
    """Write the table."""
    if not CACHE.exists() and (shutil.which("espeak-ng") is None or find_spec("resemblyzer") is None):
        print(" ".join(NEEDS.split()))
        return 1
    warnings.simplefilter("ignore")  # of the encoder's libraries
    x = speech()
    measured = []
    for fit in splits(x.voices):
        ways = dict(of_points(x, fit)) | {name: found.scores for name, found in of_heads(x, fit, *sys.argv[1:])}
        measured.append({name: judged(scores, x.voices[~fit]) for name, scores in ways.items()})
    write("real_speakers", ("Score", *METRICS), table(measured, METRICS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
