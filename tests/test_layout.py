"""The layout of the source: small folders, ten layers, no coupling that imports do not show."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/intarsia"
MOST = 12  # modules of a folder, and packages in a package
LAYERS = 10
BESIDE_THE_PACKAGES = {
    "attacks",
    "fixtures",
    "installs",
    "oracles",
    "support",
}  # folders of tests that mirror no package

# (file, string) → why the name of a module above, or beside, the file's own layer may stand there
COUPLINGS: dict[tuple[str, str], str] = {}  # (file, what its string names): why it has to
FILE_NAMES = {"intarsia.pid", "intarsia.lock"}  # of a kit's folder: they look like modules


def contract() -> dict:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return next(one for one in contracts if one.get("containers") == ["intarsia"])


def modules(source: Path) -> list[Path]:
    return sorted(path for path in source.rglob("*.py") if path.name != "__init__.py")


def packages(source: Path) -> list[Path]:
    return sorted({path.parent for path in source.rglob("*.py")})


def crowded_folders(source: Path) -> list[str]:
    """Return the folders with too many modules or, below the root, too many packages."""
    found = []
    for folder in packages(source):
        held = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        below = [path for path in folder.iterdir() if (path / "__init__.py").is_file()]
        if len(held) > MOST or (len(below) > MOST and folder != source):
            found.append(folder.relative_to(source).as_posix())
    return found


def layer_of(layers: list[str]) -> dict[str, tuple[int, bool]]:
    """Return for each package its layer, from the top, and whether those of it may not meet."""
    return {
        name.strip(): (number, "|" in layer)
        for number, layer in enumerate(layers)
        for name in re.split(r"[|:]", layer)
    }


def faults_of_layers(layers: list[str], source: Path) -> list[str]:
    """Return what a list of layers lacks, names twice or has too many of."""
    named = Counter(name.strip() for layer in layers for name in re.split(r"[|:]", layer))
    there = {path.stem for path in source.glob("[!_]*.py")}
    there |= {path.parent.name for path in source.glob("*/__init__.py")}
    return [
        *(f"{len(layers)} layers" for _ in [0] if len(layers) > LAYERS),
        *sorted(f"{name} is in no layer" for name in there - set(named)),
        *sorted(f"{name} is not there" for name in set(named) - there),
        *sorted(f"{name} is in {count} layers" for name, count in named.items() if count > 1),
    ]


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def syntax(module: Path) -> ast.Module:
    """Return the syntax tree of a module, which all tests of this file share."""
    return parsed(module.read_text(encoding="utf-8"))


def strings(module: Path) -> Iterator[str]:
    for node in ast.walk(syntax(module)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def couplings(source: Path, layers: list[str]) -> set[tuple[str, str]]:
    """Return strings that name a module which the file that holds them may not import."""
    layer, found = layer_of(layers), set()
    for module in source.rglob("*.py"):
        file = module.relative_to(source)
        own = file.parts[0].removesuffix(".py")
        if own not in layer:  # the root's own names, above all layers
            continue
        for text in strings(module):
            name = re.fullmatch(r"intarsia\.(\w+)[\w.]*", text)
            if name is None or name[1] not in layer or name[1] == own:
                continue
            (mine, _), (other, apart) = layer[own], layer[name[1]]
            if other < mine or (other == mine and apart):
                found.add((file.as_posix(), text))
    return found


def names_in(module: Path) -> set[str]:
    """Return what a module defines or imports, for type checkers too."""
    found: set[str] = set()
    for node in ast.walk(syntax(module)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
    return found


def resolves(name: str, source: Path) -> bool:
    """Return whether a dotted name leads to a module, or to something in one."""
    place = source
    for part in name.split(".")[1:]:
        if (place / part).is_dir():
            place = place / part
        elif (place / f"{part}.py").is_file():
            place = place / f"{part}.py"
        else:
            module = place if place.is_file() else place / "__init__.py"
            return part in names_in(module)
    return True


def dangling_names(source: Path) -> list[tuple[str, str]]:
    """Return dotted names in strings, docstrings too, that lead nowhere."""
    return [
        (module.relative_to(source).as_posix(), name)
        for module in sorted(source.rglob("*.py"))
        for text in strings(module)
        for name in re.findall(r"(?<![\w./@-])intarsia(?:\.[A-Za-z_]\w*)+", text)
        if name not in FILE_NAMES and not resolves(name, source)
    ]


def stray_test_folders(tests: Path, source: Path) -> list[str]:
    """Return folders of tests that mirror no package."""
    held = {path.parent.relative_to(tests) for path in tests.rglob("*.py")}
    return sorted(
        folder.as_posix()
        for folder in held
        if not BESIDE_THE_PACKAGES & {*folder.parts[:1]} and not (source / folder).is_dir()
    )


def left_out(patterns: str, root: Path) -> list[str]:
    """Return tracked files that a file of patterns leaves out of packages or of an image."""
    listing = ["git", "-C", str(root), "ls-files", "-z", "-c", "-i", f"--exclude-from={patterns}"]
    done = subprocess.run(listing, capture_output=True, check=True, text=True)
    return [name for name in done.stdout.split("\0") if name]


def importers(library: str, source: Path) -> set[str]:
    """Return the files that import a library, wherever in them."""
    found = set()
    for module in source.rglob("*.py"):
        for node in ast.walk(syntax(module)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            if any(name.split(".")[0] == library for name in names):
                found.add(module.relative_to(source).as_posix())
    return found


def packages_without_docstring(source: Path) -> list[str]:
    return [
        folder.relative_to(source).as_posix()
        for folder in packages(source)
        if not (folder / "__init__.py").is_file()
        or not ast.get_docstring(syntax(folder / "__init__.py"))
    ]


def lost_names(source: Path) -> list[tuple[str, str]]:
    """Return what a package's docstring names and neither it nor the root has."""
    found = []
    for folder in packages(source):
        text = ast.get_docstring(syntax(folder / "__init__.py"))
        held = [names_in(path) for path in folder.glob("*.py")]
        for name in re.findall(r"`([A-Za-z_.]+)(?<!\.py)`", text or ""):
            package = ".".join(["intarsia", *folder.relative_to(source).parts])
            places = (f"{package}.{name}", f"intarsia.{name}")
            if not any(resolves(place, source) for place in places) and not any(
                name in names for names in held
            ):
                found.append((folder.relative_to(source).as_posix(), name))
    return found


def modules_with_public_lists(source: Path) -> list[str]:
    """Return modules that list public names, which stand in the package's `__init__.py` alone."""
    return [
        module.relative_to(source).as_posix()
        for module in modules(source)
        for node in syntax(module).body
        if "__all__" in {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        and isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
    ]


def test_no_folder_has_more_than_twelve_modules_or_packages():
    assert crowded_folders(SOURCE) == []


def test_ten_layers_name_every_package_once():
    assert faults_of_layers(contract()["layers"], SOURCE) == []
    assert contract()["exhaustive"] is True
    assert contract()["exhaustive_ignores"] == ["__main__"]


def test_make_lint_checks_the_imports():
    lint = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nlint:")[2]
    assert "lint-imports" in lint.partition("\n\n")[0]


def test_no_string_names_a_module_that_may_not_be_imported():
    assert couplings(SOURCE, contract()["layers"]) == set(COUPLINGS)


def test_every_dotted_name_in_a_string_leads_somewhere():
    assert dangling_names(SOURCE) == []


def test_the_tests_mirror_the_packages():
    assert stray_test_folders(ROOT / "tests", SOURCE) == []


def test_every_package_says_what_it_is_for():
    assert packages_without_docstring(SOURCE) == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")
@pytest.mark.parametrize("patterns", [".gitignore", ".dockerignore"])
def test_what_is_tracked_is_packed(patterns):
    assert left_out(patterns, ROOT) == []


def test_packages_name_modules_that_are_there():
    assert lost_names(SOURCE) == []


def test_public_names_stand_in_packages_alone():
    assert modules_with_public_lists(SOURCE) == []


@pytest.mark.parametrize(("library", "module"), [("flwr", "flower"), ("ray", "ray")])
def test_a_library_of_an_engine_is_imported_in_one_file_alone(library, module):
    assert importers(library, SOURCE) == {f"engines/transports/{module}.py"}


QUESTIONS = re.findall(
    r"^\| \d+ \| (.+\?) \| `([\w/]+\.py)` \|$",
    (ROOT / "tests/layout_questions.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_there_are_two_readings_of_fifteen_questions():
    assert len({question for question, _ in QUESTIONS}) == 30


@pytest.mark.parametrize(("question", "file"), QUESTIONS)
def test_the_answer_to_a_question_is_a_file(question, file):
    assert (SOURCE / file).is_file(), question


# What each check finds on a tree with one fault: the checks above would pass if they found nothing.


@pytest.fixture
def tree(tmp_path):
    """A tree without a fault: two layers, a package in each, a test folder for one of them."""
    for folder in ("", "top", "low"):
        (tmp_path / "intarsia" / folder).mkdir()
        (tmp_path / "intarsia" / folder / "__init__.py").write_text('"""What it is for."""\n')
    (tmp_path / "intarsia/low/solver.py").write_text('"""See `intarsia.top.run`."""\n')
    (tmp_path / "intarsia/top/run.py").write_text('HOME = "intarsia.low.solver"\n')
    (tmp_path / "tests/low").mkdir(parents=True)
    (tmp_path / "tests/low/test_solver.py").write_text("")
    return tmp_path / "intarsia"


TWO_LAYERS = ["top", "low"]


def test_a_tree_without_a_fault_passes_every_check(tree):
    assert crowded_folders(tree) == []
    assert faults_of_layers(TWO_LAYERS, tree) == []
    assert couplings(tree, TWO_LAYERS) == set()
    assert dangling_names(tree) == []
    assert stray_test_folders(tree.parent / "tests", tree) == []
    assert packages_without_docstring(tree) == []
    assert lost_names(tree) == []
    assert modules_with_public_lists(tree) == []


def test_a_thirteenth_module_and_a_thirteenth_package_are_found(tree):
    for number in range(12):
        (tree / f"low/part{number}.py").write_text("")
    assert crowded_folders(tree) == ["low"]
    for number in range(13):
        (tree / f"top/part{number}").mkdir()
        (tree / f"top/part{number}/__init__.py").write_text("")
    assert crowded_folders(tree) == ["low", "top"]


@pytest.mark.parametrize(
    ("layers", "fault"),
    [
        (["top"], "low is in no layer"),
        (["top", "low : lower"], "lower is not there"),
        (["top", "low", "top"], "top is in 2 layers"),
        (["top", "low", *(f"a{number}" for number in range(9))], "11 layers"),
    ],
)
def test_a_fault_of_the_layers_is_found(tree, layers, fault):
    assert fault in faults_of_layers(layers, tree)


def test_a_string_that_names_a_module_above_is_found(tree):
    (tree / "low/solver.py").write_text('CALLER = "intarsia.top.run"\n')
    assert couplings(tree, TWO_LAYERS) == {("low/solver.py", "intarsia.top.run")}


def test_a_string_that_names_a_module_beside_is_found_where_layers_keep_them_apart(tree):
    assert couplings(tree, ["top | low"]) == {("top/run.py", "intarsia.low.solver")}
    assert couplings(tree, ["top : low"]) == set()


@pytest.mark.parametrize(
    "name", ["intarsia.low.solve", "intarsia.high", "intarsia.low.solver.gone"]
)
def test_a_name_that_leads_nowhere_is_found(tree, name):
    (tree / "top/run.py").write_text(f'"""See `{name}`."""\n')
    assert dangling_names(tree) == [("top/run.py", name)]


def test_each_way_of_importing_a_library_is_found(tree):
    (tree / "low/solver.py").write_text("def solve():\n    from flwr.app import Context\n")
    (tree / "top/run.py").write_text("import ray.util, flwr\n")
    assert importers("flwr", tree) == {"low/solver.py", "top/run.py"}
    assert importers("ray", tree) == {"top/run.py"}


def test_a_test_folder_without_a_package_is_found(tree):
    tests = tree.parent / "tests"
    for folder in ("high", "support"):
        (tests / folder).mkdir()
        (tests / folder / "test_it.py").write_text("")
    assert stray_test_folders(tests, tree) == ["high"]


def test_a_package_without_a_docstring_is_found(tree):
    (tree / "low/__init__.py").write_text("")
    assert packages_without_docstring(tree) == ["low"]


def test_a_folder_of_modules_that_is_no_package_is_found(tree):
    (tree / "low/runs").mkdir()
    (tree / "low/runs/artist.py").write_text("")
    assert packages_without_docstring(tree) == ["low/runs"]


def test_a_tracked_file_that_is_left_out_is_found(tree):
    root = tree.parent
    (root / "ignored").write_text("low/\n!tests/low/\n")
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    assert left_out("ignored", root) == ["intarsia/low/__init__.py", "intarsia/low/solver.py"]


def test_a_docstring_that_names_a_lost_module_is_found(tree):
    (tree / "low/__init__.py").write_text('"""Read `solver` first, then `top.run` and `gone`."""')
    assert lost_names(tree) == [("low", "gone")]


@pytest.mark.parametrize(
    "text", ["__all__ = ['run']\n", "__all__: list[str] = []\n", "__all__ += []\n"]
)
def test_a_list_of_public_names_in_a_module_is_found(tree, text):
    (tree / "top/run.py").write_text(text)
    assert modules_with_public_lists(tree) == ["top/run.py"]
