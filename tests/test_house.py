"""The plan of the house: imports go down only, each tool is used in one place, generated files regenerate."""

import ast
import contextlib
import graphlib
import importlib
import importlib.util
import inspect
import pathlib
import re
import subprocess
import sys

import pytest

import peaccel as pe
from peaccel import evaluation, methods
from peaccel import train as pe_train

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "python" / "peaccel"

# From the bottom up; modules of one layer do not import each other, except inside their own folder.
LAYERS = [layer.split() for layer in (
    "_core", "_utils", "data metrics ops", "special", "distributions", "heads scores", "fits", "io", "retrieval hub",
    "evaluation losses", "methods", "published", "train", "cli", "__main__"
)]  # fmt: skip
PYO3 = {f"python/{name}.rs" for name in ("mod", "array", "cuda", "cuda_elements", "elements", "scores")}
RUST_LAYERS = [layer.split() for layer in (
    "error layout", "memory", "simd parallel", "view topk special rng rows", "coded_panels", "drivers panels codes",
    "kernels", "cuda", "python",
)]  # fmt: skip


# Folders of cuda/, and the headers beside them.
CUDA_LAYERS = [layer.split() for layer in (
    "arguments", "common", "warps pair", "numerics", "formulas", "drivers", "families"
)]  # fmt: skip


def imports(path):
    """Every module that a Python file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_python_imports_go_down():
    height = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    for path in set(PACKAGE.rglob("*.py")) - {PACKAGE / "__init__.py"}:
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for module in imports(path):
            # Names of the package's own file come from above: real modules are imported.
            assert module != "peaccel", f"{path.relative_to(ROOT)} imports peaccel, expected its modules"
            parts = module.split(".")
            if parts[0] == "peaccel" and parts[1] != own:
                assert parts[1] in height, f"{path.relative_to(ROOT)} imports {module}, which is no module"
                assert height[parts[1]] < height[own], f"{path.relative_to(ROOT)} imports {module}"


def test_the_reproduction_is_a_user_and_imports_what_is_public():
    """Of modules without an underscore, names of their `__all__`."""
    for path in (ROOT / "reproduction").glob("*.py"):
        for name in imports(path):
            module, _, attribute = name.rpartition(".")
            if name.startswith("peaccel."):
                assert "._" not in name, f"{path.relative_to(ROOT)} imports {name}"
                known = getattr(importlib.import_module(module), "__all__", ())
                is_public = attribute in known or importlib.util.find_spec(name) is not None
                assert is_public, f"{path.relative_to(ROOT)} imports {name}, which is not in __all__ of {module}"


def imported_files(path, files):
    """The files of the package that a file of it imports; of a name in a package, its module if it is one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (files[alias.name] for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.relative_to(ROOT)} imports relatively, expected whole names"
            for alias in node.names:
                found = files.get(f"{node.module}.{alias.name}", files.get(node.module))
                yield from () if found is None else (found,)


def test_no_python_files_import_each_other():
    """Nor in a circle: imports in functions and for type checkers count. The package's own file stands for the user."""
    names = {p: p.relative_to(PACKAGE.parent).with_suffix("").parts for p in PACKAGE.rglob("*.py")}
    files = {".".join(name[:-1] if name[-1] == "__init__" else name): p for p, name in names.items()}
    user = files.pop("peaccel")
    edges = {str(p.relative_to(PACKAGE)): set() for p in files.values()}
    for path in files.values():
        edges[str(path.relative_to(PACKAGE))] |= {str(p.relative_to(PACKAGE)) for p in imported_files(path, files)}
    assert len(edges) > 150 and "ops/_definitions.py" in edges["ops/_cuda.py"] and user.name == "__init__.py"
    graphlib.TopologicalSorter(edges).prepare()  # raises an error that names the circle


def paths_under(module, text):
    """The first part of every path under a module, those in braces too."""
    yield from re.findall(rf"{module}::(\w+)", text)
    for group in re.findall(rf"{module}::\{{(.*?)\}};", text, re.DOTALL):
        yield from re.findall(r"(?:^|,)\s*(\w+)", re.sub(r"\{[^{}]*\}", "", group))


def test_rust_uses_go_down():
    height = {name: i for i, layer in enumerate(RUST_LAYERS) for name in layer}
    for path in (ROOT / "rust").rglob("*.rs"):
        own = path.relative_to(ROOT / "rust").parts[0].removesuffix(".rs")
        if own == "lib":
            continue
        for used in paths_under("crate", path.read_text()):
            assert used == own or height[used] < height[own], f"{path.relative_to(ROOT)} uses {used}"


RUST_FOLDERS = [path for path in (ROOT / "rust").rglob("*") if path.is_dir()]


@pytest.mark.parametrize("folder", RUST_FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_files_of_a_folder_do_not_import_in_a_circle(folder):
    module = "::".join(("crate", *folder.relative_to(ROOT / "rust").parts))
    files = {path.stem: path.read_text() for path in folder.glob("*.rs") if path.stem != "mod"}
    sorter = graphlib.TopologicalSorter()
    for name, text in files.items():
        used = {*paths_under("super", text), *paths_under(module, text)}
        sorter.add(name, *(used & files.keys() - {name}))
    sorter.prepare()  # raises an error that names the circle


def cuda_layer(path):
    return path.relative_to(ROOT / "cuda").parts[0].removesuffix(".cuh")


def test_cuda_includes_go_down():
    """So formulas include no driver, and families not each other."""
    height = {name: i for i, layer in enumerate(CUDA_LAYERS) for name in layer}
    for path in (ROOT / "cuda").rglob("*.cu*"):
        own = cuda_layer(path)
        for included in re.findall(r'#include "(.*)"', path.read_text()):
            used = cuda_layer((path.parent / included).resolve())
            down = height[used] < height[own] or used == own != "families"
            assert down, f"{path.relative_to(ROOT)} includes {included}"


@pytest.mark.parametrize(
    ("files", "what", "where"),
    [
        ("python/**/*.py", r"torch\.library", {"ops/_torch.py"}),
        ("python/**/*.py", r"^\s*(import|from) faiss\b", {"retrieval/faiss/index.py"}),
        ("python/**/*.py", r"^\s*(import|from) pyarrow\b", {"io/_arrow_sources.py"}),
        ("python/**/*.py", r"^\s*(import|from) lance\b", {"io/_arrow_sources.py", "retrieval/lance/table.py"}),
        ("python/**/*.py", r"^\s*(import|from) huggingface_hub\b", {"hub.py"}),
        (
            "python/**/*.py",
            r"^\s*(import|from) ray\b",
            {"retrieval/ray/map_parts.py", "retrieval/ray/sharded_gallery.py"},
        ),
        (
            "rust/**/*.rs",
            r"pyo3",
            PYO3,
        ),
        ("rust/**/*.rs", r"std::arch|target_feature", {"simd.rs", "simd/bytes.rs", "simd/neon.rs", "simd/x86.rs"}),
        ("rust/**/*.rs", r"rayon", {"parallel.rs"}),
        ("rust/**/*.rs", r"libloading", {"cuda/libcuda.rs", "cuda/libcublas.rs"}),
        ("rust/**/*.rs", r"nvcc", {"build.rs"}),
    ],
)
def test_each_tool_is_used_in_one_place(files, what, where):
    users = {p for p in ROOT.glob(files) if re.search(what, re.sub(r"//.*", "", p.read_text()), re.MULTILINE)}
    assert {str(p.relative_to(PACKAGE if p.suffix == ".py" else ROOT / "rust")) for p in users} == where


# Sources that no test file is named after, by the file that tests them.
TESTED_IN = {
    "_utils/test_config": "python_files",
    "_utils/test_numbers": "arrays warn",
    "_utils/test_progress": "progress_bar",
    "_utils/test_words": "suggestions",
    "cli/test_arrivals": "embed_data feature_files fitted_files labelled_files search_files trial_files",
    "cli/test_cli": "embed embed_options info outputs rerank scores shares",
    "cli/test_options": "check_answers check_threshold option_groups",
    "cli/test_tables": "npy_files table_paths",
    "data/test_data_images": "corruption images transforms",
    "data/test_data_readers": "captions datasets faces features ijbc_matches listings metric_learning places",
    "distributions/test_distributions": "checks classes torch_containers",
    "distributions/test_log_prob": "entropy match_variance numerics",
    "evaluation/test_audit": "audit_pages",
    "evaluation/test_choose_score": "criteria drawn_pairs pair_rates",
    "evaluation/test_choose_threshold": "promises threshold_pages threshold_results",
    "evaluation/test_evaluate": "columns evaluate_trials formatting results",
    "evaluation/test_promise_monitor": "evidence monitor_pages",
    "evaluation/test_score_trials": "calibrate_scores",
    "evaluation/test_separation": "intervals",
    "fits/test_fit_match_probability": "reliability_curve",
    "fits/test_fit_quality": "quality",
    "fits/test_fit_prior": "fit_shift fit_vmf labelled_pairs",
    "io/test_arrow_tables": "arrow_columns arrow_sources item_columns table_of_items",
    "io/test_damaged_files": "array_files stored_arrays",
    "io/test_fits": "records saved_fit states",
    "io/test_projects": "ensembles",
    "io/test_reading": "rankings read_enrolment read_ids read_labels read_trials scored_pairs text_columns",
    "losses/test_between": "score_distance",
    "losses/test_losses_classes": "bottleneck easy_margin margin regression spherical_confidence vmf",
    "losses/test_losses_processes": "base batch mean_score",
    "losses/test_pairs": "likelihood matches nce",
    "losses/test_proxies": "nca",
    "losses/test_triplets": "bayesian_triplet_listing",
    "metrics/test_calibration_error": "confidences",
    "metrics/test_rejection": "error_versus_discard reject_verification ties",
    "metrics/test_retrieval_metrics": "judged_ranking",
    "metrics/test_verification": "detection_cost draws equal_error_rate trial_clusters",
    "ops/test_parallel": "runtime",
    "ops/test_samplers": "sample",
    "ops/test_special": "bessel",
    "published/test_published": "non_isotropic revisited",
    "retrieval/faiss/test_ids_of_the_index": "indexed_items items vectors",
    "retrieval/faiss/test_index": "linearisation serialization",
    "retrieval/lance/test_gallery": "commit_checksums item_tables mapped_rows seen_rows version_rows",
    "retrieval/ray/test_map_parts": "parquet_parts",
    "retrieval/ray/test_sharded_gallery": "gallery_parts",
    "retrieval/test_exclude_same": "exclusions",
    "retrieval/test_normalise_scores": "adaptive_norm",
    "retrieval/test_retrieval": "plan prepared",
    "test_every_method": "method parts points",
    "test_every_op": "autograd cpu definitions diag_scores dispatch dot_scores numpy",
    "test_every_score": "densities distances inputs",
    "train/test_backbones": "backbone bn_inception clip_tower iresnet network pooling small_cnn timm_network weights",
    "train/test_train": "batch_sampling embedding loop optim",
    "train/test_train_cli": "fit_head named_function outline training tune",
    "train/test_train_runs": "encoder folder interruption recipes resuming runs sources tuning",
}


def test_the_test_of_a_source_is_found_by_name():
    """A test's name begins with the source's, or `TESTED_IN` has it; `test_methods.py` has all papers."""
    tests = {str(path.relative_to(ROOT / "tests"))[:-3] for path in (ROOT / "tests").rglob("test_*.py")}
    assert TESTED_IN.keys() <= tests
    named = {name.rpartition("/test_")[2].removeprefix("test_") for name in tests}
    files = [path for path in PACKAGE.rglob("*.py") if path.stem not in ("__init__", "__main__")]
    stems = {path.stem.strip("_") for path in files if path.stem not in methods.FILES}
    left = {stem for stem in stems if not any(f"{name}_".startswith(f"{stem}_") for name in named)}
    assert left == set(" ".join(TESTED_IN.values()).split()), "expected tests/<room>/test_<source>.py or TESTED_IN"


# Adding a line to a file loses nothing of it.
WRITES = (
    r"""\.write_(text|bytes)\(|np\.save|\.save_file\(|faiss_index\.write\(|torch\.save|\.dump\(|open\([^)]*["'][wx]"""
)


def test_whoever_writes_a_file_writes_it_aside():
    without_examples = {p: re.sub(r"(?m)^ *>>> .*", "", p.read_text()) for p in PACKAGE.rglob("*.py")}
    writers = {p.relative_to(PACKAGE) for p, text in without_examples.items() if re.search(WRITES, text)}
    assert pathlib.Path("io", "_array_files.py") in writers
    assert {str(p) for p in writers if not re.search(r"with .*\baside\(", (PACKAGE / p).read_text())} == set()


def test_no_two_files_and_no_two_classes_have_one_name():
    """Of files, commands apart, which bear the names of what they call; of classes, those that libraries name so, and
    each method's settings.
    """
    paths = [path for path in PACKAGE.rglob("*.py") if path.stem not in ("__init__", "__main__")]
    files = [path.stem.strip("_") for path in paths if path.parent.name != "cli"]
    assert {name for name in files if files.count(name) > 1} == set()
    classes = [
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    # The same laws as torch.distributions.Distribution have its names.
    known = {"Settings", "VonMisesFisher", "NonIsotropicVonMisesFisher"}
    assert {name for name in classes if classes.count(name) > 1} == known


# Public functions that stand in files of other names, and why.
STAND_TOGETHER = {
    "build_info": "runtime: the extension's face",
    "set_num_threads": "runtime: the extension's face",
    "concat": "classes: it makes one of these of several",
    "choose_pair_threshold": "choose_threshold: the same choice of pairs",
    "enable_torch": "ops/_dispatch, which alone says who computes",
    "first_stage_reference": "first_stage_features: what these are relative to",
    "limit_false_matches": "learn_then_test: the same promise of searches without a mate",
    "merge": "ranking: it makes one of these of several",
    "prepare": "prepared, the class of what it returns",
    **dict.fromkeys(("paired", "pairwise", "rescore", "rerank", "search"), "verbs: one grammar of five"),
}


def public_functions(module):
    """The functions of a package's face that are defined in it, by name."""
    found = {name: getattr(module, name) for name in module.__all__}
    return {name: x for name, x in found.items() if inspect.isfunction(x) and x.__module__.startswith("peaccel.")}


def test_a_public_function_stands_in_a_file_of_its_name():
    files = {name: x.__module__.rpartition(".")[2] for name, x in public_functions(pe).items()}
    assert len(files) > 30
    assert {name for name, file in files.items() if file != name} == STAND_TOGETHER.keys()
    assert pe.io.read_ids.__module__ == "peaccel.io.read_ids"
    assert pe.io.read_labels.__module__ == "peaccel.io.read_labels"


def test_a_subject_has_one_name_in_all_public_functions():
    """The table in CONTRIBUTING has the names, and in its last column those that nothing bears."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| (`.*`) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    refused = {other: name for name, others in rows for other in re.findall(r"\w+", others)}
    functions = {x for module in (pe, pe.io, pe.metrics, evaluation) for x in public_functions(module).values()}
    for kind in (pe.FaissReranker, pe.Gallery, pe.Plda, pe.Distribution):
        functions |= {x for _, x in inspect.getmembers(kind, inspect.isroutine) if not isinstance(x, type(len))}
    used = {name for x in functions for name in _parameters(x)}
    assert {"alpha", "delta", "seed"} <= {name for name, _ in rows} <= used
    assert {f"{name}, expected {refused[name]}" for name in used & refused.keys()} == set()


ROOMS = ("data", "evaluation", "hub", "io", "methods", "published", "train", "train.backbones")


def test_every_public_path_is_text_or_path_like():
    """Type checkers refuse what a path cannot do where a parameter may be text."""
    found, places = {}, [pe, *(importlib.import_module(f"peaccel.{room}") for room in ROOMS)]
    for thing in (getattr(place, name) for place in places for name in place.__all__):
        calls = [f for key, f in vars(thing).items() if key[0] != "_"] if inspect.isclass(thing) else []
        for call in filter(callable, [thing, *(getattr(f, "__func__", f) for f in calls)]):
            with contextlib.suppress(ValueError, TypeError):  # without a signature
                for each in inspect.signature(call).parameters.values():
                    if re.search(r"\bPath\b", str(each.annotation)):
                        found.setdefault(call.__qualname__, set()).add(each.name)
    made = {"Gallery": {"derived"}, "Run": {"out", "begin", "root", "weights"}}
    assert found == made  # of which the first is made by its `open` and `create`, and the second makes paths of text
    run = pe_train.Run(out="a", begin="b", root="c", weights="d")
    assert (run.out, run.begin, run.root, run.weights) == tuple(map(pathlib.Path, "abcd"))


def test_names_say_what_they_hold():
    """CONTRIBUTING has the words that say nothing of it. Keys of files and the words of options are no names."""
    (listed,) = re.findall(r"^No name has the words (.*?) in it:", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    words = re.findall(r"\w+", listed)
    assert "own" in words
    found = re.compile(rf"(^|_)({'|'.join(words)})(_|$)")
    for path in {*PACKAGE.rglob("*.py"), *(ROOT / "reproduction").glob("*.py")}:
        names = {name for node in ast.walk(ast.parse(path.read_text())) for name in _names(node)}
        assert {name for name in names if found.search(name)} == set(), path.relative_to(ROOT)


def test_no_docstring_begins_with_what():
    folders = "python/peaccel", "reproduction", "benches", "tests", "tools", "examples", "docs", "rust", "cuda"
    endings = "*.py", "*.rs", "*.cu*", "*.?pp"
    files = {path for folder in folders for ending in endings for path in (ROOT / folder).rglob(ending)}
    found = re.compile(r'^\s*("""|//[/!]?\s)What ', re.MULTILINE)
    assert {str(path.relative_to(ROOT)) for path in files if found.search(path.read_text())} == set()


def _names(node):
    """The names in a node of a syntax tree: of variables, parameters, attributes, functions and classes."""
    return [value for field in ("id", "arg", "attr", "name") if isinstance(value := getattr(node, field, None), str)]


def _parameters(function):
    try:
        return inspect.signature(function).parameters
    except ValueError:  # of a routine in C
        return ()


def test_each_family_stands_in_its_three_places():
    families = {p.stem for p in (PACKAGE / "ops").glob("[!_]*.py")}
    # What a score of pairs is, and the table of them all, are of no family.
    assert families == {p.stem for p in (ROOT / "rust" / "kernels").glob("*.rs")} - {"mod", "pair_op", "table"}
    # Selecting is no op: it is part of others.
    assert families == {p.stem for p in (ROOT / "cuda" / "families").iterdir()} - {"topk"}


def test_generated_tables_regenerate_byte_for_byte():
    subprocess.run([sys.executable, "-m", "tests.oracle", "--check"], cwd=ROOT, check=True, timeout=120)


def test_import_brings_no_large_library():
    large = "torch", "faiss", "scipy", "rich", "lance", "pyarrow", "ray"
    code = f"import sys, peaccel; print([m for m in {large} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_package_that_tests_need_has_its_version_in_the_lock_file():
    """Pinned, and without the host of a registry; `make lock` writes the file."""
    locked = (ROOT / "tools/locked.txt").read_text().splitlines()
    assert all(re.match(r"[\w.-]+==\S+( ; .*)?$", line) for line in locked)
    asked = subprocess.run(
        [sys.executable, ROOT / "tools/requirements.py", "dev"], capture_output=True, text=True, check=True
    )
    names = {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in asked.stdout.splitlines()}
    assert names <= {line.partition("==")[0] for line in locked}


def test_tools_import_what_there_is():
    """The wheel's checks run at releases alone, so a name that moved would be missed until then."""
    for path in (ROOT / "tools").glob("*.py"):
        for name in imports(path):
            if name.startswith("peaccel"):
                module, _, attribute = name.rpartition(".")
                assert not module or hasattr(importlib.import_module(module), attribute), f"{path.name}: {name}"
