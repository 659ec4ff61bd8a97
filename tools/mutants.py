"""A mutation run (`make mutants`): plants small mistakes, one after the other, and says which of them no test sees.

cargo-mutants lists those of Rust, cosmic-ray those of Python; of each a random sample is planted in a copy of the tree.
The core takes minutes to build, so that all of Rust's mistakes go in one library, where a number in the environment
chooses among them. Each is tested in a fork of this process, which has imported what takes long to import.
"""

import argparse
import functools
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TREE = ROOT / "target" / "mutants" / "tree"
LIBRARY = TREE / "python" / "peaccel" / "_core.abi3.so"
CHOICE = "PEACCEL_MUTANT"

# Where mistakes are planted, by the start of a path, and the tests that ought to see them, quick ones first.
SCORES = "search retrieval every_score every_op"
TESTS = {
    "rust/special/": "special samplers every_score",
    "rust/kernels/bessel.rs": "special every_op",
    "rust/kernels/samplers": "samplers sampled_scores",
    "rust/kernels/sampled_scores": "sampled_scores every_op",
    "rust/kernels/": SCORES,
    "rust/rng.rs": "samplers",
    "rust/drivers": SCORES + " parallel",
    "rust/topk.rs": SCORES,
    "rust/panels.rs": SCORES,
    "python/peaccel/scores/": "bad_input sending sampled_scores every_score",
    "python/peaccel/distributions/checks.py": "bad_input retrieval first_stage",
    "python/peaccel/retrieval/half_precision.py": "half_precision",
    "python/peaccel/retrieval/prepared.py": "few_candidates retrieval bad_input half_precision every_score",
    "python/peaccel/retrieval/verbs.py": "retrieval bad_input every_score",
    "python/peaccel/retrieval/faiss/items.py": "first_stage faiss_reranker",
    "python/peaccel/metrics/": "metrics retrieval_metrics rejection verification calibration_error",
    "python/peaccel/fits/calibrate_variance.py": "calibrate_variance fit_prior bad_input",
    "python/peaccel/distributions/confidence.py": "confidence bad_input",
    "python/peaccel/distributions/entropy.py": "log_prob bad_input",
    "python/peaccel/distributions/log_prob.py": "log_prob bad_input",
    "python/peaccel/distributions/kl.py": "kl log_prob bad_input",
    "python/peaccel/distributions/_numerics.py": "kl log_prob calibrate_variance",
    "python/peaccel/fits/fit_prior.py": "fit_prior bad_input",
    "python/peaccel/fits/fit_vmf.py": "fit_prior bad_input",
    "python/peaccel/distributions/fuse.py": "fuse bad_input",
    "python/peaccel/distributions/sample.py": "bad_input samplers",
    "python/peaccel/distributions/triplet_probability.py": "triplet_probability bad_input",
    "python/peaccel/distributions/classes.py": "distributions bad_input",
    "python/peaccel/special.py": "special",
    "python/peaccel/_utils/arrays.py": "distributions bad_input retrieval half_precision compile every_op",
    "python/peaccel/_utils/seeds.py": "bad_input samplers sampled_scores",
}
GENERATED = "rust/special/tables.rs"
HANGS = (400, 3600)  # tests that take more seconds than these of a processor, or on the clock

# What cosmic-ray does to Python: of the ways to change an operator, the nearest; not to annotations.
OPERATORS = [
    *("AddNot", "NumberReplacer", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse"),
    *("ReplaceFalseWithTrue", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Pow_Mul")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("NotEq_Eq", "Is_IsNot", "IsNot_Is")),
    *("ReplaceUnaryOperator_USub_UAdd", "ReplaceUnaryOperator_Delete_Not"),
]


def run(*command, **options):
    return subprocess.run(command, cwd=TREE, check=True, text=True, stdout=subprocess.PIPE, **options).stdout


def copy_tree():
    """The files that git knows, as they are now, and the core as it is built."""
    shutil.rmtree(TREE, ignore_errors=True)
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
        (TREE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, TREE / name)
    shutil.copy2(ROOT / LIBRARY.relative_to(TREE), LIBRARY)


# -- Rust --------------------------------------------------------------------------------------------------------------


def rust_mutants():
    """All that cargo-mutants lists for functions of the files at hand."""
    files = [f"--file={path}{'**/*.rs' if path.endswith('/') else '*'}" for path in TESTS if path.startswith("rust/")]
    listed = json.loads(run("cargo", "mutants", "--list", "--json", *files, "--file=rust/drivers/*.rs"))
    genres = ("BinaryOperator", "UnaryOperator", "FnValue")
    return [m for m in listed if m["genre"] in genres and m["function"] and m["file"] != GENERATED]


def place(text, position):
    """The index in a text of a line and column, which count from 1."""
    return sum(len(line) for line in text.splitlines(keepends=True)[: position["line"] - 1]) + position["column"] - 1


def plant(mutants, files):
    """Writes the files, in which `crate::planted(number)` chooses one of the mutants, {number: mutant}."""
    for path in files:
        source = (ROOT / path).read_text()
        here = {number: m["function"]["span"] for number, m in mutants.items() if m["file"] == path}
        spans = {number: (place(source, span["start"]), place(source, span["end"])) for number, span in here.items()}
        functions = {}
        for number, (start, end) in spans.items():
            outermost = min(s for s in spans.values() if s[0] <= start and end <= s[1])
            functions.setdefault(outermost, []).append(number)
        text = source
        for (start, end), numbers in sorted(functions.items(), reverse=True):
            body = source.index("{\n", start) + 1  # where the line ends, as rustfmt has it
            branches = []
            for number in numbers:
                first, last = (place(source, mutants[number]["span"][side]) for side in ("start", "end"))
                changed = source[body:first] + mutants[number]["replacement"] + source[last : end - 1]
                branches.append(f"if crate::planted({number}) {{{changed}}} else ")
            text = text[:body] + "\n" + "".join(branches) + "{" + source[body : end - 1] + "}\n}" + text[end:]
        (TREE / path).write_text(text)


PLANTED = f"""
/// Whether the environment chooses this mutant.
pub(crate) fn planted(number: u32) -> bool {{
    static CHOSEN: std::sync::LazyLock<Option<u32>> =
        std::sync::LazyLock::new(|| std::env::var("{CHOICE}").ok()?.parse().ok());
    *CHOSEN == Some(number)
}}
"""


def build_rust(mutants):
    """Builds the library with all mutants that compile, and returns these."""
    # Quick to build: nobody waits for the kernels here.
    quick = {"OPT_LEVEL": "1", "CODEGEN_UNITS": "16", "INCREMENTAL": "true"}
    env = {**os.environ, **{f"CARGO_PROFILE_RELEASE_{k}": v for k, v in quick.items()}, "PEACCEL_CUDA": "off"}
    env["CARGO_TARGET_DIR"] = str(TREE.parent / "target")
    arguments = ("--release", "--features", "python,pyo3/extension-module", "--message-format=json")
    with (TREE / "rust" / "lib.rs").open("a") as file:
        file.write(PLANTED)
    files = {m["file"] for m in mutants.values()}
    while True:
        plant(mutants, files)
        check = ["cargo", "check", *arguments]
        done = subprocess.run(check, cwd=TREE, env=env, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode == 0:
            break
        refused = set()
        for message in map(json.loads, done.stdout.splitlines()):
            for span in (message.get("message") or {}).get("spans", []) if is_error(message) else []:
                before = (TREE / span["file_name"]).read_text().splitlines()[: span["line_end"]]
                refused.update(map(int, re.findall(r"crate::planted\((\d+)\)", "\n".join(before))[-1:]))
        assert refused, done.stdout
        mutants = {number: m for number, m in mutants.items() if number not in refused}
    run("cargo", "build", *arguments, env=env)
    shutil.copy2(TREE.parent / "target" / "release" / "libpeaccel.so", LIBRARY)
    return mutants


def is_error(message):
    return message["reason"] == "compiler-message" and message["message"]["level"] == "error"


# -- Python ------------------------------------------------------------------------------------------------------------


def python_mutants():
    """All that cosmic-ray lists for the files at hand: (file, operator, occurrence, line)."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator

    for path in sorted((TREE / "python").glob("**/*.py")):
        file = str(path.relative_to(TREE))
        if not file.startswith(tuple(TESTS)):
            continue
        nodes = list(ast_nodes(get_ast_from_path(path)))
        for name in OPERATORS:
            operator = get_operator(f"core/{name}")()
            places = [where for node in nodes for where in operator.mutation_positions(node)]
            for occurrence, (start, _) in enumerate(places):
                yield {"file": file, "operator": name, "occurrence": occurrence, "line": start[0]}


def changed(mutant):
    """The text of a file with the mutant."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (ROOT / mutant["file"]).read_text()
    return mutate_code(source, get_operator(f"core/{mutant['operator']}")(), mutant["occurrence"])


# -- tests -------------------------------------------------------------------------------------------------------------


def tests_of(path):
    return next(tests for start, tests in TESTS.items() if path.startswith(start))


def passes(tests, number=0):
    """Whether the tests pass, in a fork that works on the copy of the tree."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (HANGS[0], HANGS[0]))
        signal.alarm(HANGS[1])
        os.chdir(TREE)
        os.environ |= {CHOICE: str(number), "PYTHONPATH": str(TREE / "python")}
        sys.path.insert(0, str(TREE / "python"))
        log = os.open(TREE.parent / "pytest.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        import pytest

        files = [str(next(TREE.glob(f"tests/**/test_{name}.py"))) for name in tests.split()]
        os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *files]))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@functools.cache
def require_passing(tests):
    if not passes(tests):
        raise SystemExit(f"mutants: {tests} fail without one; see {TREE.parent / 'pytest.log'}")


def survives(mutant, number):
    tests = tests_of(mutant["file"])
    if "operator" not in mutant:
        return passes(tests, number)
    try:
        (TREE / mutant["file"]).write_text(changed(mutant))
        return passes(tests)
    finally:
        shutil.copy2(ROOT / mutant["file"], TREE / mutant["file"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("language", choices=["rust", "python"])
    parser.add_argument("--number", type=int, default=100, help="how many to plant")
    parser.add_argument("--minutes", type=float, default=60, help="after which no other is tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip-baseline", action="store_true", help="the tests are known to pass")
    settings = parser.parse_args()
    copy_tree()
    for name in ("faiss", "scipy.stats", "torch"):
        __import__(name)
    every = rust_mutants() if settings.language == "rust" else list(python_mutants())
    sample = random.Random(settings.seed).sample(every, min(settings.number, len(every)))
    mutants = dict(enumerate(sample, 1))
    if settings.language == "rust":
        mutants = build_rust(mutants)
    print(f"{len(every)} mutants, {len(mutants)} of {len(sample)} compile", flush=True)
    end, tried, caught = time.monotonic() + 60 * settings.minutes, 0, 0
    for number, mutant in mutants.items():
        if time.monotonic() > end:
            break
        tried += 1
        if not settings.skip_baseline:
            require_passing(tests_of(mutant["file"]))
        lives = survives(mutant, number)
        caught += not lives
        name = mutant.get("name") or "{file}:{line}: {operator}, number {occurrence}".format(**mutant)
        print(f"{'LIVES ' if lives else 'caught'} {name}", flush=True)
    print(f"{caught} of {tried} caught")


if __name__ == "__main__":
    main()
