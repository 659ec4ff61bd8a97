"""Sharing of a head, calibrations, priors and thresholds: in a folder, or in a repository of the Hugging Face Hub, with
a card that says on what they were fitted.

All of it is JSON, but for a head's weights, which are safetensors: nothing is unpickled, and no code comes along.
"""

from __future__ import annotations

import json
import re
import reprlib
import shlex
import shutil
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peaccel._core import __version__
from peaccel._utils.atomic_files import PathLike, aside, names_within
from peaccel._utils.python_files import is_file
from peaccel.io.fits import read_fit, write_fit
from peaccel.io.states import Fit
from peaccel.scores import Score, get, spelled

__all__ = ["Pretrained"]

VERSION = 1  # of the folder's format
ABOUT, CARD, RECORD, WEIGHTS, RESULT = "config.json", "README.md", "run.json", "model.safetensors", "result.json"
RESERVED = ("config", "run", "result")
FILE = re.compile(r"[A-Za-z0-9_-]+")  # the name of a fit, which leads to no other folder
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
PATHS = ("out", "root", "begin", "weights")
"""Settings of a run that are paths of the machine on which it was trained."""


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A head, fits, or both, which belong together, and what others must know of them.

    Parameters
    ----------
    fitted_on
        What they were fitted on, and how much of it: "20,000 sentences of 5,000 paraphrases, all-MiniLM-L6-v2".
    fits
        By name what `pe.calibrate_variance`, `pe.fit_prior`, `pe.choose_threshold` (its ``accept``) and all others
        found that ``pe.io.write_fit`` writes. Each becomes a file that commands take too: "accept" becomes accept.json.
    run
        The folder that ``peaccel fit-head`` or ``peaccel train`` left; ``peaccel.train.load`` reads it.
    score
        The score by which items are compared, and which thresholds are of.
    figures
        Results by their names: numbers, or words. Results of a run stand on the card by themselves.
    command
        What they were fitted by; None for the command of the run, if there is one.
    license
        An identifier that the Hub knows, such as "mit".
    fitted_with
        The version of peaccel that fitted them.

    Raises
    ------
    TypeError
        A fit is none, a figure neither a number nor words.
    ValueError
        There is nothing to be shared, or no word of what it was fitted on; a name that is none of a file; a run that
        needs a Python file of yours, since no code is shared; no run.
    FileNotFoundError
        The folder of the run has no run.json or no model.safetensors.

    Examples
    --------
    >>> fits = {"calibration": pe.Calibration(a=4.0, b=0.01, of="Normal")}
    >>> shared = pe.hub.Pretrained(fitted_on="600 scans of 200 numbers", fits=fits, score="mls")
    >>> shared.save_pretrained("shared")
    >>> pe.hub.Pretrained.from_pretrained("shared").fits == fits
    True
    """

    fitted_on: str
    fits: Mapping[str, Fit | float] = field(default_factory=dict)
    run: PathLike | None = None
    score: str | Score | None = None
    figures: Mapping[str, float | str] = field(default_factory=dict)
    command: str | None = None
    license: str | None = None
    fitted_with: str = __version__

    def __post_init__(self) -> None:
        if not isinstance(self.fitted_on, str) or not self.fitted_on.strip():
            raise ValueError(
                f"Pretrained: fitted_on is {self.fitted_on!r}, expected what it was fitted on, and how much of it"
            )
        if not self.fits and self.run is None:
            raise ValueError("Pretrained: neither fits nor run is given, expected something to be shared")
        for name, fit in self.fits.items():
            if not FILE.fullmatch(name) or name in RESERVED:
                expected = f"a file's name of letters, digits, - and _, and none of {', '.join(RESERVED)}"
                raise ValueError(f"Pretrained: fits has the name {name!r}, expected {expected}")
            if not isinstance(fit, float | Fit):
                raise TypeError(f"Pretrained: {name} of fits must be a fit or a float, got {type(fit).__name__}")
        for name, figure in self.figures.items():
            if isinstance(figure, bool) or not isinstance(figure, int | float | str):
                raise TypeError(f"Pretrained: {name} of figures must be a number or words, got {type(figure).__name__}")
        if self.score is not None:
            object.__setattr__(self, "score", spelled(get(self.score)))
        if self.run is not None:
            object.__setattr__(self, "run", Path(self.run))
            _record(Path(self.run))

    def save_pretrained(self, folder: PathLike) -> None:
        """Write all of it, and the card, README.md.

        Paths of your machine are left out of a run's settings, and cut to their last part in its command.

        Parameters
        ----------
        folder
            A new one, an empty one, or one that this has written, which is replaced once the new one is whole.

        Raises
        ------
        ValueError
            The folder holds anything else; a fit has values that no file of fits may hold.
        FileNotFoundError, OSError
            There is no folder to make it in; writing fails, as on a full disk.
        """
        folder = Path(folder)
        _require_replaceable(folder)
        with aside(folder, folder=True) as fresh:
            for name, fit in self.fits.items():
                write_fit(fresh / f"{name}.json", fit)
            if self.run is not None:
                run = Path(self.run)
                _write(fresh / RECORD, _without_paths(_record(run)))
                for name in (WEIGHTS, RESULT):
                    if (run / name).is_file():
                        shutil.copyfile(run / name, fresh / name)
            words = ("fitted_on", "score", "figures", "command", "license", "fitted_with")
            content = {"fits": list(self.fits), "run": self.run is not None}
            about = {"peaccel": "pretrained", "version": VERSION, **{key: getattr(self, key) for key in words}}
            _write(fresh / ABOUT, {**about, **content})
            (fresh / CARD).write_text(self.card(), encoding="utf-8")

    @classmethod
    def from_pretrained(
        cls, source: PathLike, *, revision: str | None = None, token: str | bool | None = None
    ) -> Pretrained:
        """Read what `save_pretrained` or `push_to_hub` wrote.

        Parameters
        ----------
        source
            A folder; or, where there is no such folder, a repository of the Hub, "owner/name".
        revision
            A branch, a tag or a commit of the repository.
        token
            As ``huggingface_hub`` takes it: None for the one that you logged in with.

        Returns
        -------
        Pretrained
            Its ``run`` is a folder, which ``peaccel.train.load`` and ``peaccel embed --run`` read.

        Raises
        ------
        FileNotFoundError
            Neither is there, or a file is missing in it.
        ValueError
            It was not written by these, or by a later version; a file is damaged; it asks for code.
        ImportError
            source is no folder, and huggingface_hub is not installed.
        OSError
            The Hub cannot be reached.
        """
        folder = Path(source)
        if not folder.is_dir():
            folder = _downloaded(str(source), revision, token)
        elif revision is not None:
            raise ValueError(f"from_pretrained: revision is {revision!r}, expected none of a folder ({folder})")
        path = folder / ABOUT
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file: was {source} written by save_pretrained?")
        about = _read(path)
        if about.pop("peaccel", None) != "pretrained":
            raise ValueError(f"{path}: was not written by save_pretrained")
        if (version := about.pop("version", None)) != VERSION:
            raise ValueError(f"{path}: has format version {version}, expected {VERSION}")
        names, has_run = about.pop("fits", None), about.pop("run", None)
        if not isinstance(names, list) or not all(isinstance(x, str) and FILE.fullmatch(x) for x in names):
            raise ValueError(f"{path}: fits is {reprlib.repr(names)}, expected a list of files' names")
        fits = {name: read_fit(folder / f"{name}.json") for name in names}
        try:
            return cls(**about, fits=fits, run=folder if has_run else None)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: does not describe what was saved: {error}") from None

    def push_to_hub(self, repo: str, *, private: bool = False, token: str | bool | None = None) -> str:
        """Upload what `save_pretrained` writes as one commit to a repository of the Hub, made if missing.

        Look at what `save_pretrained` writes first: everybody may read the uploaded files, unless the repository is
        private.

        Parameters
        ----------
        repo
            "owner/name".
        private
            Whether a repository that is made is private.
        token
            As ``huggingface_hub`` takes it: None for the one that you logged in with.

        Returns
        -------
        str
            The address of the repository.

        Raises
        ------
        ImportError
            huggingface_hub is not installed.
        ValueError
            repo is no name of a repository; and as `save_pretrained`.
        OSError
            The Hub cannot be reached or refuses.
        """
        if not REPOSITORY.fullmatch(repo):
            raise ValueError(f"push_to_hub: repo is {repo!r}, expected a repository's name, 'owner/name'")
        hub = _huggingface_hub("push_to_hub")
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "pretrained"
            self.save_pretrained(folder)
            api = hub.HfApi(token=token, library_name="peaccel", library_version=__version__)
            with _in_one_line(f"push_to_hub: {repo}"):
                url = api.create_repo(repo, private=private, exist_ok=True)
                message = f"Upload by peaccel {__version__}"
                api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message)
        return str(url)

    def card(self) -> str:
        """The text of README.md, in Markdown: on what it was fitted, by what, what it reached, and how it is used."""
        head = {"library_name": "peaccel", "tags": ["peaccel", "uncertainty"]}
        head |= {} if self.license is None else {"license": self.license}
        yaml = [f"{key}: {json.dumps(value)}" for key, value in head.items()]
        record = {} if self.run is None else _record(Path(self.run))
        rows = {"fitted on": self.fitted_on, "score": self.score, **_of_run(record), **_reached(self.run)}
        rows |= {**self.figures, "peaccel": self.fitted_with}
        table = [f"| {_cell(key)} | {_cell(value)} |" for key, value in rows.items() if value is not None]
        holds = [f"- `{name}.json`: {_cell(_sentence(fit))}" for name, fit in self.fits.items()]
        holds += [f"- `{RECORD}`, `{WEIGHTS}`: a head, by {record['name']}"] if record else []
        command = self.command or _without_folders(record.get("command"))
        use = [f"import peaccel{'.train' if record else ''}", "from peaccel.hub import Pretrained", ""]
        use += ['shared = Pretrained.from_pretrained("owner/name")', *(f'shared.fits["{name}"]' for name in self.fits)]
        use += ["peaccel.train.load(shared.run).model"] if record else []
        blocks = [
            ["---", *yaml, "---"],
            ["# Uncertainty of embeddings, by peaccel"],
            ["|  |  |", "|---|---|", *table],
            *([["It was fitted by:"], [f"    {line}" for line in command.splitlines()]] if command else []),
            holds,
            ["```python", *use, "```"],
        ]
        return "\n\n".join("\n".join(block) for block in blocks) + "\n"


# -- the record of a run -----------------------------------------------------------------------------------------------


def _record(run: Path) -> dict[str, Any]:
    """Content of run.json, if the folder holds a run that needs no file of its author's machine."""
    for name in (RECORD, WEIGHTS):
        if not (run / name).is_file():
            raise FileNotFoundError(f"{run / name}: there is no such file: is {run} the folder of a run that ended?")
    record = _read(run / RECORD)
    settings = record.get("run")
    if not isinstance(settings, dict) or not all(isinstance(record.get(key), str) for key in ("name", "method")):
        raise ValueError(f"{run / RECORD}: is not the record of a run")
    for key, value in {"method": record["method"], "data": settings.get("data")}.items():
        if is_file(str(value)):
            raise ValueError(f"{run / RECORD}: {key} is {value}, expected a name that peaccel knows: no code is shared")
    return record


def _without_paths(record: Mapping[str, Any]) -> dict[str, Any]:
    settings = {key: value for key, value in record["run"].items() if key not in PATHS}
    return {**record, "run": settings, "command": _without_folders(record.get("command"))}


def _without_folders(command: str | None) -> str | None:
    """A command whose absolute paths are cut to their last part."""
    if command is None:
        return None

    def cut(word: str) -> str:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        return f"{option}{equals}{Path(value).name if Path(value).is_absolute() else value}"

    return shlex.join(map(cut, shlex.split(command)))


def _of_run(record: Mapping[str, Any]) -> dict[str, Any]:
    """Training of a head, as the card tells it."""
    if not record:
        return {}
    size = f"{record['items']} items of {record['classes']} classes" if "items" in record else None
    return {"head": f"{record['name']}, seed {record['run'].get('seed', 0)}", "trained on": size}


def _reached(run: PathLike | None) -> dict[str, str]:
    """Results of a head on held-out items, as the card tells them."""
    if run is None or not (path := Path(run) / RESULT).is_file():
        return {}
    result = _read(path)
    try:
        recall = f"{100 * result['recall_at_1']:.2f} % ({100 * result['chance']:.2f} % by chance)"
        of = f"of {result['queries']} queries, part {result['part']}"
        return {f"Recall@1 {of}": recall, f"MAP@R {of}": f"{100 * result['map_at_r']:.2f} %"}
    except (KeyError, TypeError):
        raise ValueError(f"{path}: is not the result of a run") from None


# -- texts and files ---------------------------------------------------------------------------------------------------


def _sentence(fit: Fit | float) -> str:
    return textwrap.shorten(f"a shift of {fit:.6g}" if isinstance(fit, float) else str(fit), 300, placeholder=" ...")


def _cell(value: object) -> str:
    """A value in one line of a table."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as JSON, truncated or damaged? ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: holds a {type(found).__name__}, expected an object")
    return found


def _require_replaceable(folder: Path) -> None:
    """Refuse a folder with anything but what `save_pretrained` wrote, so that no other files are lost."""
    names = names_within(folder)
    about = _read(folder / ABOUT) if ABOUT in names else {}
    fits = found if isinstance(found := about.get("fits"), list) else []
    written = {ABOUT, CARD, RECORD, WEIGHTS, RESULT, *(f"{name}.json" for name in fits)}
    if names and not (about.get("peaccel") == "pretrained" and names <= written):
        other = min(names - written, default=min(names))
        raise ValueError(f"{folder}: holds {other}, expected what save_pretrained wrote, or an empty or a new folder")


# -- the Hub -----------------------------------------------------------------------------------------------------------


def _downloaded(source: str, revision: str | None, token: str | bool | None) -> Path:
    """The folder into which a repository's files were downloaded, or where they were already."""
    if not REPOSITORY.fullmatch(source):
        raise FileNotFoundError(f"{source}: there is no such folder, and it is no repository's name (owner/name)")
    hub = _huggingface_hub("from_pretrained")
    with _in_one_line(f"from_pretrained: {source} is no folder here, and of the Hub"):
        files = ["*.json", WEIGHTS]
        return Path(hub.snapshot_download(source, revision=revision, token=token, allow_patterns=files))


@contextmanager
def _in_one_line(what: str) -> Iterator[None]:
    """Tell in one line what the Hub refused; which library's errors these are changed between its versions."""
    try:
        yield
    except Exception as error:
        missing = type(error).__name__ in ("RepositoryNotFoundError", "RevisionNotFoundError")
        kind = FileNotFoundError if missing else OSError
        raise kind(f"{what}: {' '.join(str(error).split()) or type(error).__name__}") from error


def _huggingface_hub(owner: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ImportError(f"{owner}: the Hub needs huggingface_hub: pip install peaccel[hub]") from None
    return huggingface_hub
