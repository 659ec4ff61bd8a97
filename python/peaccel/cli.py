"""The command ``peaccel``: demo, rerank, info, scores.

An error of the user's is one line on stderr and exit code 2; Ctrl-C exits 130 without a word.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import peaccel as pe
from peaccel import io

__all__ = ["main"]

DESCRIPTION = "Score and rerank probabilistic embeddings. 'peaccel COMMAND --help' says more, files included."

USER_ERRORS = (ValueError, TypeError, OSError, ImportError)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; ``arguments`` are those of the process unless given."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = " ".join(["peaccel", *arguments[:1]])
    try:
        import rich  # noqa: F401  (found missing here, not after the work is done)
        import tyro
    except ImportError:
        _fail(command, "the command line needs tyro and rich: pip install peaccel[cli]")
    try:
        if arguments[:1] == ["demo"]:
            _run_demo(arguments[1:])
        else:
            commands: dict[str, Callable[..., None]] = {"demo": demo, "rerank": rerank, "info": info, "scores": scores}
            tyro.extras.subcommand_cli_from_dict(commands, prog="peaccel", description=DESCRIPTION, args=arguments)
    except USER_ERRORS as error:
        _fail(command, " ".join(str(error).split()))
    except KeyboardInterrupt:
        sys.exit(130)


def demo() -> None:
    """Train on images of digits, search with FAISS, rerank by uncertainty, and print what that gains or loses."""
    # Only its sentence is used, by 'peaccel --help': its options stand in peaccel.demo, which imports torch.


def _run_demo(arguments: Sequence[str]) -> None:
    import tyro

    try:
        from peaccel.demo import DemoSettings, run
    except ModuleNotFoundError as error:
        raise ImportError(f"the demo needs {error.name}: pip install peaccel[all]") from None
    run(tyro.cli(DemoSettings, prog="peaccel demo", description=demo.__doc__, args=arguments))


def rerank(
    *,
    gallery: Path,
    queries: Path,
    out: Path,
    candidates: Path | None = None,
    index: Path | None = None,
    k: int = 10,
    score: str = "mls",
    shortlist: int = 100,
) -> None:
    """Rerank candidates, given or found by a FAISS index, by a score that knows uncertainty.

    Parameters
    ----------
    gallery : path
        The gallery, G items in D dimensions. An .npz or .safetensors file with the keys
        mu: float [G, D]; and at most one of
        var: float [G] or [G, D], VARIANCE, neither sigma nor its logarithm;
        kappa: float [G] or [G, D], concentrations, where rows of mu have length 1;
        scale: float [G], where rows of mu have length 1.
        Or an .npy file with an array [G, D], which has no uncertainty.
        Float is float16, float32 or float64, the same for all keys.
    queries : path
        The queries, Q items in D dimensions, in a file of the same form.
    out : path
        The ranking to write, .npz or .safetensors, best first, with the keys
        scores: float [Q, k], padded with -inf;
        ids: int64 [Q, k], rows of the gallery, padded with -1.
    candidates : path
        Rows of the gallery to choose from, int [Q, K], -1 for none:
        an .npy file, or .npz or .safetensors with the key candidates.
        Exactly one of this and --index is needed.
    index : path
        A FAISS index over the rows of mu of the gallery, in their order, as faiss.write_index writes it.
    k : int
        How many to keep for each query, at least 1.
    score : str
        A name that 'peaccel scores' lists, perhaps with parameters: "ppk:rho=0.5".
    shortlist : int
        With --index: how many candidates to ask of it for each query.
    """
    io.check_output(out)
    if candidates is not None and index is None:
        rows = io.read_candidates(candidates)

        def rank() -> tuple[Any, Any]:
            return pe.rerank(q, g, rows, k, score=score)

    elif index is not None and candidates is None:

        def rank() -> tuple[Any, Any]:
            return pe.FaissReranker(index, g, score=score).search(q, k, shortlist=shortlist)

    else:
        raise ValueError("expected exactly one of --candidates and --index")
    g, q = io.read_distribution(gallery), io.read_distribution(queries)
    start = perf_counter()
    ranking = rank()
    seconds = perf_counter() - start
    io.write_ranking(out, ranking)
    print(f"{score}: {len(q)} queries, gallery {len(g)} x {g.dim}, top {k} in {seconds:.3f} s -> {out}")


def info() -> None:
    """Print what this build can do here: version, SIMD path, threads, CUDA or why not, and versions of libraries."""
    versions = {"python": platform.python_version()}
    for name in ("numpy", "torch", "faiss-cpu", "faiss-gpu"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    rows = {**pe.build_info(), **versions}.items()
    _print_table((), ([key.replace("_", " "), str(value)] for key, value in rows))


def scores() -> None:
    """Print the scores: their names, parameters, and the kinds of distributions they take."""
    _print_table(
        ("score, parameters", "what it is, kinds of queries: kinds of galleries"),
        ([f"{s.name}\n{_parameters(s.params)}", f"{s.doc}\n{_pairs(s.pairs)}"] for s in pe.scores.SCORES.values()),
    )


def _parameters(params: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}={'(needed)' if value is None else value}" for name, value in params.items())


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """One line for each set of galleries, behind the kinds of queries that go with exactly these."""
    galleries: dict[str, list[str]] = {}
    for query, gallery in pairs:
        galleries.setdefault(query, []).append(gallery)
    queries: dict[str, list[str]] = {}
    for query, kinds in galleries.items():
        queries.setdefault(", ".join(kinds), []).append(query)
    return "\n".join(f"{', '.join(names)}: {kinds}" for kinds, names in queries.items())


def _print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, show_header=bool(header), show_lines=bool(header))
    for row in rows:
        table.add_row(*row)
    Console().print(table, markup=False)


def _fail(command: str, message: str) -> NoReturn:
    print(f"{command}: {message}", file=sys.stderr)
    sys.exit(2)
