"""The plan of the house: functions, not files, have a limit."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent

# Functions of more than 60 lines of code, and why.
LONG_FUNCTIONS = {
    "rust/kernels/diag_scores/listed.rs add": "cut in two, the gradient of LLR takes 2.4 % more instructions",
}
NO_CODE = r"""r#".*?"#|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])'|//[^\n]*|^\s*#[^\n]*"""
OPENS_A_SCOPE = r"""(?x) \s* (?: pub(?:\(\w+\))? \s | template\ <[^{]*>\s | unsafe\s )*
    (?: struct | class | namespace | enum | union | extern | impl | trait | mod | macro_rules! ) \b"""


def functions_in_braces(text):
    """(name, lines of code) of each function in Rust or CUDA; a function inside of another is a part of that."""
    text = re.sub(NO_CODE, lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.DOTALL | re.MULTILINE)
    # For each open brace the name and the beginning of its function, or None; for each other open bracket False.
    scopes, start = [], 0
    for found in re.finditer(r"[{}()\[\];]", text):
        if found[0] in "([":
            scopes.append(False)
        elif found[0] in ")]":
            scopes.pop()
        elif found[0] == "{":
            head = text[start : found.start()]
            name = re.search(r"\bfn\s+(\w+)", head) or re.search(r"(?<![\w\]])(\w+|operator\S+)\s*\(", head)
            outermost = not any(scopes) and False not in scopes and not re.match(OPENS_A_SCOPE, head)
            scopes.append((name[1], found.start() - len(head.lstrip())) if name and outermost else None)
        elif found[0] == "}" and (function := scopes.pop()):
            yield function[0], sum(bool(line.strip()) for line in text[function[1] : found.end()].splitlines())
        if found[0] in "{}" or (found[0] == ";" and (not scopes or scopes[-1] is not False)):
            start = found.end()


def functions_in_python(text):
    """(name, lines of code) of each function; strings that stand alone are docstrings."""
    lines, tree = text.splitlines(), ast.parse(text)
    alone = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    no_code = {line for node in alone for line in range(node.lineno, node.end_lineno + 1)}
    no_code |= {i for i, line in enumerate(lines, 1) if re.fullmatch(r"\s*(#.*)?", line)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, len(set(range(node.lineno, node.end_lineno + 1)) - no_code)


def test_no_function_is_too_long():
    sizes, folders = {}, ("python", "tests", "benches", "tools")
    for pattern in ("rust/**/*.rs", "cuda/**/*.cu*", *(f"{folder}/**/*.py" for folder in folders)):
        for path in ROOT.glob(pattern):
            found = (functions_in_python if path.suffix == ".py" else functions_in_braces)(path.read_text())
            for name, size in found:  # functions of one name in a file: the longest of them
                place = f"{path.relative_to(ROOT)} {name}"
                sizes[place] = max(size, sizes.get(place, 0))
    # Each language is read: these are known to be there.
    assert {"rust/rows.rs reduce", "cuda/drivers/search.cuh search", "tests/test_house.py imports"} <= sizes.keys()
    assert sizes["rust/topk.rs new"] > 0 and len(sizes) > 3000
    assert {name for name, size in sizes.items() if size > 60} == LONG_FUNCTIONS.keys()


RUST = """impl X {
    // {
    fn a(&self, x: [u8; 2]) -> u8 {

        let s = "}"; // no end
        if x { 1 } else { 2 }
    }
}"""
CUDA = """template <typename T>
__device__ int b(int (&x)[2]) {
    return [&](int i) {
        return i;
    }(1);
}
"""
PYTHON = """def c(
    x,
):
    'Says this.'
    # and that

    return x
"""


def test_lines_of_functions_are_those_of_code():
    assert list(functions_in_braces(RUST)) == [("a", 4)]
    assert list(functions_in_braces(CUDA)) == [("b", 6)]
    assert list(functions_in_python(PYTHON)) == [("c", 4)]
