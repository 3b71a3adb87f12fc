from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import intarsia
import intarsia.errors

ROOT = Path(intarsia.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.stat().st_size)
PACKAGES = sorted(path for path in MODULES if path.name == "__init__.py")


def named(module: Path) -> str:
    return module.relative_to(ROOT).as_posix()


PUBLIC = [
    "AbsentError",
    "AlgorithmError",
    "BusyError",
    "Certificate",
    "CheckpointError",
    "CodecError",
    "Contribution",
    "ConvergenceError",
    "ExperimentError",
    "FederationError",
    "GreetingError",
    "Inspection",
    "IntarsiaError",
    "KeyMaterialError",
    "LinearClassifier",
    "LinearRegressor",
    "Metrics",
    "PendingError",
    "PolicyError",
    "Predictions",
    "Progress",
    "RangeError",
    "RefusedError",
    "ReplayError",
    "Result",
    "Score",
    "SealedError",
    "SiteError",
    "StaleError",
    "TableError",
    "TamperedError",
    "Tuned",
    "UserError",
    "VersionError",
    "WorkerError",
    "compare",
    "contribution",
    "export",
    "inspect",
    "join",
    "load",
    "predict",
    "resume",
    "run",
    "tune",
]

PARAMETERS = {
    "compare": ["results"],
    "contribution": [
        "experiment",
        "tables",
        "id",
        "label",
        "weights",
        "id_type",
        "categorical",
        "exclude",
        "missing",
        "table_settings",
        "algorithm",
        "measure",
        "out",
        "overwrite",
        "progress",
        "settings",
    ],
    "export": ["folder", "format", "out", "client", "allow_modules"],
    "inspect": [
        "experiment",
        "tables",
        "id",
        "label",
        "weights",
        "id_type",
        "categorical",
        "exclude",
        "missing",
        "table_settings",
        "picture",
        "settings",
    ],
    "join": [
        "folder",
        "table",
        "name",
        "id",
        "label",
        "id_type",
        "categorical",
        "exclude",
        "missing",
        "epochs",
        "seed",
        "out",
        "overwrite",
        "allow_modules",
        "reading",
    ],
    "load": ["folder", "allow_modules"],
    "predict": ["folder", "table", "id", "client", "missing", "decimal", "allow_modules"],
    "resume": [
        "folder",
        "tables",
        "table_settings",
        "algorithm",
        "progress",
        "yardstick_progress",
        "callbacks",
        "yardsticks",
        "workers",
        "ray",
        "allow_modules",
    ],
    "run": [
        "experiment",
        "tables",
        "id",
        "label",
        "weights",
        "id_type",
        "categorical",
        "exclude",
        "missing",
        "table_settings",
        "algorithm",
        "out",
        "overwrite",
        "progress",
        "yardstick_progress",
        "callbacks",
        "settings",
    ],
    "tune": [
        "experiment",
        "tables",
        "id",
        "label",
        "weights",
        "id_type",
        "categorical",
        "exclude",
        "missing",
        "table_settings",
        "algorithm",
        "search",
        "out",
        "overwrite",
        "progress",
        "settings",
    ],
}


def test_the_public_names_do_not_drift():
    assert intarsia.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(intarsia))
    for name in PUBLIC:
        found = getattr(intarsia, name)
        assert found.__name__ == name
        assert found.__doc__


def test_the_public_functions_keep_their_arguments():
    functions = [name for name in PUBLIC if inspect.isfunction(getattr(intarsia, name))]
    found = {
        name: list(inspect.signature(getattr(intarsia, name)).parameters) for name in functions
    }
    assert found == PARAMETERS


def test_every_error_is_public():
    errors = {name for name, one in vars(intarsia.errors).items() if inspect.isclass(one)}
    assert {name for name in errors if name.endswith("Error")} <= set(PUBLIC)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'intarsia' has no attribute 'ruin'"):
        intarsia.ruin  # noqa: B018  # the access is what is tested
    with pytest.raises(ImportError, match=r"cannot import name 'ruin' from 'intarsia\.core'"):
        from intarsia.core import ruin  # noqa: F401


def named_for_type_checkers(package: Path) -> dict[str, str]:
    """Return the names that a package imports for type checkers, with the module of each."""
    tree = ast.parse(package.read_text(encoding="utf-8"))
    blocks = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        name.asname: found.module
        for block in blocks
        for found in block.body
        if isinstance(found, ast.ImportFrom)
        for name in found.names
    }


@pytest.mark.parametrize("package", PACKAGES, ids=named)
def test_a_package_gives_the_names_that_type_checkers_read(package):
    parts = ["intarsia", *package.parent.relative_to(ROOT).parts]
    found = importlib.import_module(".".join(parts))
    names = named_for_type_checkers(package)
    assert sorted(names) == getattr(found, "__all__", [])
    assert set(names) <= set(dir(found))
    for name, home in names.items():
        try:
            module = importlib.import_module(home)
        except ModuleNotFoundError as problem:  # of an extra
            assert not str(problem.name).startswith("intarsia"), problem  # noqa: PT017
            continue
        assert getattr(found, name) is getattr(module, name)
    # of a name that is a module too, Python gives the module once that is imported
    assert not {module.stem for module in package.parent.iterdir()} & set(names)


def test_the_version_is_the_installed_one():
    assert intarsia.__version__ == importlib.metadata.version("intarsia")


@pytest.mark.parametrize("module", MODULES, ids=named)
def test_a_module_says_what_it_is_for(module):
    if module.name != "__init__.py":
        assert ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))


def test_no_file_is_a_bin():
    bins = {"utils", "util", "helpers", "common", "misc", "base", "types", "manager", "factory"}
    assert not bins & {module.stem for module in MODULES}


def test_the_command_line_starts_without_the_heavy_libraries():
    code = "import sys, intarsia, intarsia.cli.main; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numba", "sklearn", "matplotlib", "scipy", "pyarrow", "polars", "sqlalchemy", "torch"}
    assert not heavy & set(found.stdout.split())


_RUN = """
import sys
from intarsia.data.reader import read
from intarsia.data.source import Source
read(Source(name="bank", path="bank.csv", id="id", label="y", categorical=("c",)))
print("pandas" in sys.modules)  # which scikit-learn imports, where it is installed
import intarsia
intarsia.run("run.toml")
print(*sys.modules)
"""


def test_a_linear_run_imports_only_the_libraries_that_it_needs(tmp_path):
    rows = [f"{row},{row % 7},{'ab'[row % 2]},{row % 3 == 0:d},{row / 9}" for row in range(60)]
    (tmp_path / "bank.csv").write_text("id,whole,c,y,x\n" + "\n".join(rows))
    (tmp_path / "run.toml").write_text(
        '[experiment]\nname = "one"\nyardsticks = false\n[algorithm]\nname = "hyfdca"\n[[client]]\n'
        'name = "bank"\npath = "bank.csv"\nid = "id"\nlabel = "y"\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", _RUN], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    pandas, modules = done.stdout.split("\n")[:2]
    assert pandas == "False"
    unneeded = {
        "torch",
        "sqlalchemy",
        "optuna",
        "statsmodels",
        "polars",
        "duckdb",
        "h5py",
        "tenseal",
    }
    assert not unneeded & set(modules.split())
