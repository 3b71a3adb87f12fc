"""The report of a run: its numbers are those of result.json; it loads nothing and is escaped."""

from __future__ import annotations

import errno
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import intarsia
from command_line import one_error, said
from intarsia.cli.main import main
from intarsia.core.block import Labels
from intarsia.models import LinearClassifier
from intarsia.models.serialization import write_model
from intarsia.partition.client_clusters import Structure, Structures
from intarsia.plots import rounds_figure, scores_figure
from intarsia.reports.anchors import Anchor, anchors_of
from intarsia.reports.charts import points_chart
from intarsia.reports.levels import Level, groups_drawing, levels_of
from intarsia.reports.sentences import MEANINGS, TRAINED
from intarsia.results.audit import load as load_audit
from intarsia.results.audit import sentences
from intarsia.results.comparison import FIGURES
from intarsia.results.history import Course, course_of
from intarsia.training.registry import algorithm_names

OLDER = Path(__file__).parents[1] / "fixtures" / "574201d"
EVIL = "<script>alert(1)</script>"

EXPERIMENT = """
[experiment]
name = "small"
rounds = 60
tolerance = 1e-6
evaluate_every = 1

[algorithm]
name = "hyfdca"
loss = "logistic"

[labels]
positive = "yes"

[[client]]
name = "bank"
path = "bank.csv"
id = "customer"
label = "<b>late</b>"

[[client]]
name = "shop"
path = "shop.csv"
id = "customer"
label = "<b>late</b>"
"""


class Page(HTMLParser):
    """What a page has: its elements, and the numbers in it with the text that shows each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.numbers: list[tuple[float, str]] = []
        self.texts: list[str] = []
        self._value: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "data":
            self._value = dict(attrs)["value"]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._value is not None:
            self.numbers.append((float(self._value), data))
            self._value = None

    @property
    def values(self) -> set[float]:
        return {value for value, _ in self.numbers}

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A finished run: 90 customers at the bank, 90 at the shop, 60 at both."""
    place = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(0)
    age, income, basket = rng.normal(size=(3, 120))
    late = np.where(age + basket + rng.normal(size=120) > 0, "yes", "no")
    for name, columns, rows in (
        ("bank", {"age": age, "</style><img src=x>": income}, range(90)),
        ("shop", {"basket": basket}, range(30, 120)),
    ):
        lines = [",".join(["customer", *columns, "<b>late</b>"])]
        lines += [
            ",".join([f"id{k:04}", *(f"{one[k]:.6f}" for one in columns.values()), late[k]])
            for k in rows
        ]
        (place / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (place / "small.toml").write_text(EXPERIMENT)
    assert main(["run", str(place / "small.toml"), "--quiet", "--out", str(place / "out")]) == 0
    path = place / "out" / "result.json"
    # the name of a run has no slash, but a folder may come from others
    path.write_text(path.read_text().replace('"experiment": "small"', f'"experiment": "{EVIL}"'))
    return place / "out"


@pytest.fixture(scope="module")
def written(folder: Path) -> str:
    assert main(["report", str(folder), "--card", str(folder / "card.md")]) == 0
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_numbers_of_the_page_are_those_of_the_result(folder, written):
    found, result = Page(written), json.loads((folder / "result.json").read_text())
    metrics = result["metrics"]
    heads = ("server", "clients_mean", "centralised", "standalone_mean")
    shown = [metrics[name]["accuracy"] for name in heads]
    for client in ("bank", "shop"):
        shown += [metrics[which][client]["accuracy"] for which in ("clients", "standalone")]
    shown += [*result["certificate"].values(), *result["seconds"].values(), result["seed"]]
    shown += [result["rounds"], result["exchanges"], result["bytes"]["up"], result["bytes"]["down"]]
    assert found.values == {float(one) for one in shown}
    for value, text in found.numbers:  # what a reader sees is the same number
        if text.endswith(" %"):
            assert float(text.removesuffix(" %")) == pytest.approx(100 * value, abs=0.005)
        elif text.endswith(" s"):
            assert float(text.removesuffix(" s")) == pytest.approx(value, rel=0.06)
        elif "min" not in text:
            assert float(text.replace(",", "")) == pytest.approx(value, rel=0.05)
    low, high = (
        f"{100 * one:.2f} %" for one in metrics["server"]["figures"]["intervals"]["accuracy"]
    )
    assert f"95 % interval {low} to {high}" in found.text


def test_the_page_says_who_holds_what_and_who_could_read_what(folder, written):
    found = Page(written)
    rows = json.loads((folder / "holdings.json").read_text())["samples"]
    bank = sum(entries for holders, entries, _ in rows if 0 in holders)
    assert f"bank {bank} 2 {bank} " in found.text
    assert "columns that only bank holds: 2 coefficients" in found.text
    assert all(one in found.text for one in sentences(load_audit(folder)))


def check_alone(text: str) -> None:
    """Hold that a page loads nothing, runs nothing, and says so to the browser."""
    found = Page(text)
    loads = {"script", "link", "img", "iframe", "object", "embed", "image", "use", "base", "form"}
    assert not {tag for tag, _ in found.elements} & loads
    for _, attributes in found.elements:
        assert all(not name.startswith("on") for name in attributes)
        assert all(value is None or "//" not in value for value in attributes.values())
        assert "src" not in attributes
        assert str(attributes.get("href", "#")).startswith("#")
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text
    assert set(re.findall(r"url\(.", text)) <= {"url(#"}
    policy = [one for _, one in found.elements if one.get("http-equiv")]
    assert "default-src 'none'" in str(policy[0]["content"])
    assert len(text.encode()) < 2_000_000
    linked = {one["href"][1:] for tag, one in found.elements if tag == "a"}
    assert linked <= {one.get("id") for _, one in found.elements}
    for tag, one in found.elements:  # each drawing says what it is
        assert tag != "svg" or (one["role"] == "img" and one["aria-label"])


def test_the_page_loads_nothing_and_text_of_files_is_no_markup(folder, written):
    check_alone(written)
    assert EVIL not in written
    assert "<b>late" not in written
    assert "<img" not in written
    assert EVIL in Page(written).text
    assert "</style><img src=x>" in Page(written).text
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<", card)
    assert re.search(r"  - regularisation = [0-9.e-]+: λ of the penalty", card)


def test_the_page_holds_no_row(folder, written):
    """No id of a row, no value of a table, and no path of one."""
    for table in ("bank.csv", "shop.csv"):
        lines = (folder.parent / table).read_text().splitlines()[1:]
        for line in lines:
            name, *values, _ = line.split(",")
            assert name not in written
            assert not any(value in written for value in values)
        assert table not in written
    assert str(folder.parent) not in written


@pytest.mark.parametrize("run", ["hyfdca", "flic", "masked"])
def test_a_folder_of_an_older_version_has_a_page(run, tmp_path, capfd):
    out = tmp_path / "page.html"
    assert main(["report", str(OLDER / run), "--out", str(out), "--json"]) == 0
    assert json.loads(said(capfd)[0]) == {"out": str(out)}
    text = out.read_text(encoding="utf-8")
    check_alone(text)
    found, result = Page(text), json.loads((OLDER / run / "result.json").read_text())
    assert result["metrics"]["server"]["accuracy"] in found.values
    assert "The result has no curves of all rows" in found.text
    assert "does not say who holds what in counts" in found.text


def test_runs_of_one_name_and_seed_have_numbers(folder, tmp_path, capfd):
    out = tmp_path / "several.html"
    assert main(["report", str(folder), str(folder), "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    for number in (1, 2):
        (heading,) = re.findall(rf'<h2 id="run{number}-title">([^<]*)</h2>', text)
        assert heading.endswith(f"seed 0, run {number}")


def test_several_folders_are_compared_beside_published_figures(folder, tmp_path, capfd):
    second = tmp_path / "second"
    shutil.copytree(folder, second)
    result = json.loads((second / "result.json").read_text())
    result["seed"], result["metrics"]["clients_mean"]["accuracy"] = 1, 0.5
    (second / "result.json").write_text(json.dumps(result))
    for place in (folder, second):
        tree = json.loads((place / "experiment.json").read_text())
        figure = {"algorithm": "hyfdca", "accuracy": 0.625, "source": "Nobody <i>et al.</i>"}
        (tmp_path / place.name).mkdir(exist_ok=True)
        for name in ("result.json", "history.jsonl", "holdings.json"):
            if place != second:
                shutil.copy(place / name, tmp_path / place.name)
        tree["published"] = [figure]
        (tmp_path / place.name / "experiment.json").write_text(json.dumps(tree))
    out = tmp_path / "several.html"
    folders = [str(tmp_path / place.name) for place in (folder, second)]
    assert main(["report", *folders, "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    check_alone(text)
    assert "<i>" not in text
    found = Page(text)
    known = json.loads((folder / "result.json").read_text())["metrics"]["clients_mean"]["accuracy"]
    mean, deviation = 50 * (known + 0.5), 100 * abs(known - 0.5) / 2**0.5
    assert f"{mean:.2f} ± {deviation:.2f} %" in found.text
    assert "62.50 % " in found.text
    assert "Nobody <i>et al.</i>" in found.text
    assert said(capfd)[1].splitlines() == [f"report: {out}"]


def test_what_cannot_be_reported_is_one_sentence(folder, tmp_path, capfd):
    (tmp_path / "empty").mkdir()
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    (damaged / "holdings.json").write_text('{"clients": ["bank"], "samples": [[[3], 1, []]]}')
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    (other / "model" / "linear.json").write_text('{"classes": true}')
    cases = {
        "holds an unfinished run; finish it first": [OLDER / "hyfdca-stopped"],
        "is not a folder": [tmp_path / "nowhere"],
        "holds no result.json": [tmp_path / "empty"],
        "does not say who holds what": [damaged],
        "is no model (classes is True, not a list)": [other],
        "does not end in .html": [folder, "--out", folder / "result.json"],
        "is a folder; name a file": [folder, "--out", tmp_path],
        "which is no folder; make it first": [folder, "--out", tmp_path / "a" / "b.html"],
        "--card is for one model": [folder, folder, "--card", tmp_path / "card.md"],
        "does not end in .md": [folder, "--card", folder / "result.json"],
    }
    for sentence, arguments in cases.items():
        before = (folder / "result.json").read_bytes()
        assert main(["report", *map(str, arguments)]) == 2, sentence
        assert sentence in one_error(said(capfd)[1])
        assert (folder / "result.json").read_bytes() == before


def test_a_run_on_a_disk_that_is_read_only_has_its_report_elsewhere(
    folder, tmp_path, monkeypatch, capfd
):
    def read_only(path, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    with monkeypatch.context() as patched:
        # the name of what is written first, which is not there, cannot be removed there either
        patched.setattr("intarsia.core.files.atomic_files.os.open", read_only)
        patched.setattr(Path, "unlink", read_only)
        assert main(["report", str(folder)]) == 2
    assert one_error(said(capfd)[1]) == (
        f"error: {folder / 'report.html'} cannot be written (Read-only file system); name another "
        "file with --out."
    )
    assert main(["report", str(folder), "--out", str(tmp_path / "elsewhere.html")]) == 0


def test_objects_show_the_tables_of_the_terminal_and_escape_them(folder, capfd):
    """`str` is what a command says; a notebook has the same cells, and no markup of a name."""
    experiment = folder.parent / "small.toml"
    said(capfd)
    assert main(["inspect", str(experiment), "-c", f"experiment.out={folder.parent}"]) == 0
    assert main(["compare", str(folder)]) == 0
    assert main(["coefficients", str(folder)]) == 0
    told = [line.rstrip() for line in said(capfd)[0].splitlines()]
    result = intarsia.load(folder)
    inspection, compared = intarsia.inspect(experiment), intarsia.compare([result])
    for one in (inspection, compared, result.model.summary()):
        assert set(str(one).splitlines()) <= set(told)
    assert "certificate: the optimum lies between" in str(result)
    assert "small" not in str(result)
    assert str(result.model).startswith("LinearClassifier of 3 features")
    assert result.model._repr_mimebundle_()["text/html"] == result.model._repr_html_()
    for one in (result, inspection, compared, result.model):
        html = one._repr_html_()
        found = Page(html)
        cells = sum(tag in ("td", "th") for tag, _ in found.elements)
        assert cells > 5
        assert not {tag for tag, _ in found.elements} & {"script", "img", "b", "style", "link"}
    assert EVIL in Page(result._repr_html_()).text
    assert any(tag == "svg" for tag, _ in Page(inspection._repr_html_()).elements)
    assert str(LinearClassifier()) == "LinearClassifier()"


def test_figures_are_objects_of_matplotlib(folder):
    result = intarsia.load(folder)
    drawn = scores_figure(result.metrics.server.figures, title="ROC", whose="all rows")
    assert drawn.axes[0].get_xlabel() == "false positive rate"
    assert len(rounds_figure([course_of(folder)]).axes) == 1
    assert intarsia.inspect(folder.parent / "small.toml").figure().axes


def test_parties_are_points_above_the_line_where_they_gain(folder, tmp_path, capfd):
    drawn = Page(points_chart({"a": (0.5, 0.75), "<b>": (0.9, 0.6)}, "x", "y", "accuracy", "said"))
    places = [(own["cx"], own["cy"]) for name, own in drawn.elements if name == "circle"]
    assert len(places) == 2
    assert {"a: 75 % against 50 %", "<b>: 60 % against 90 %"} <= {*drawn.texts}
    [line] = [own for name, own in drawn.elements if own.get("stroke-dasharray") == "5 4"]

    def gain(place: tuple[str, str]) -> float:  # in pixels above the dashed line
        x, y, x1, y1, x2, y2 = map(float, (*place, *(line[k] for k in ("x1", "y1", "x2", "y2"))))
        return y1 + (x - x1) / (x2 - x1) * (y2 - y1) - y

    assert gain(places[0]) > 0 > gain(places[1])
    # a run of another algorithm beside the first, as both have scores of the same clients
    other = shutil.copytree(folder, tmp_path / "other")
    path = other / "result.json"
    path.write_text(path.read_text().replace('"algorithm": "hyfdca"', '"algorithm": "fedavg"'))
    out = tmp_path / "both.html"
    assert main(["report", str(folder), str(other), "--out", str(out)]) == 0
    assert "accuracy of each client" in Page(out.read_text()).text


def test_groups_at_each_level_are_drawn_and_counted():
    clients = ("north", "south", "<b>east</b>", "west")
    truth = Structure(clients, {"regions": (0, 0, 1, 1)})
    learned = Structure(
        clients, {"level 1": (3, 3, 3, 3), "level 2": (7, 7, 2, None)}, {"level 2": "2 clusters"}
    )
    found = levels_of(Structures(truth, learned), Course("femam", {}, {}, reached={"level 2": 0.5}))
    assert found == (Level("level 1", 1, 4, None), Level("level 2 (2 clusters)", 2, 3, 0.5))
    drawn = Page(groups_drawing(Structures(truth, learned)))
    cells = [own["fill"] for name, own in drawn.elements if name == "rect"]
    assert len(cells) == 3 * 4  # the levels as dealt and as found, of four clients
    assert cells[:2] == cells[8:10]
    assert cells[0] != cells[2] == cells[10]
    assert cells[11] == "currentColor"  # no part in level 2
    assert "<b>east</b>: level 2 (2 clusters), group 2, 1 client" in drawn.texts
    assert groups_drawing(Structures(truth)) == ""
    assert levels_of(Structures(truth), None) == ()


def test_anchors_are_told_by_the_classifiers_of_all_parties(tmp_path):
    pytest.importorskip("torch")
    from intarsia.algorithms.networks.architecture import Architecture
    from intarsia.models.networks import ClientNetwork, Networks

    architecture = Architecture(hidden=2, latent=2, anchors=True)
    means = np.array([[3.0, 0.0], [0.0, 4.0]], np.float32)
    layers = {f"embedding.{at}.weight": np.eye(2, dtype=np.float32) for at in (0, 2, 4)}
    layers |= {f"embedding.{at}.bias": np.zeros(2, np.float32) for at in (0, 2, 4)}
    networks = {}
    for name, weight in (("agrees", np.eye(2)), ("always b", [[0, 0], [1, 1]])):
        own = {
            **layers,
            "anchors.means": means,
            "classifier.weight": np.array(weight, np.float32),
            "classifier.bias": np.zeros(2, np.float32),
        }
        networks[name] = ClientNetwork(
            Labels("multiclass", ("a", "b"), "kind"), ("x", "y"), np.zeros(2), np.ones(2),
            architecture, own,
        )  # fmt: skip
    write_model(Networks("flic", networks), tmp_path / "model")
    described = json.loads((tmp_path / "model/networks.json").read_text())
    assert anchors_of(tmp_path, described) == (
        Anchor("a", "b", 5.0, ("agrees",), {"always b": "b"}),
        Anchor("b", "a", 5.0, ("agrees", "always b"), {}),
    )
    assert anchors_of(tmp_path, {**described, "task": "regression"}) == ()
    # folders that somebody prepared
    for wrong in (means[0], means[:, :1], means * np.nan, np.array([["a", "b"]] * 2)):
        np.savez(tmp_path / "model/shared.npz", **{"anchors.means": wrong})
        assert anchors_of(tmp_path, described) == ()


def test_every_algorithm_is_described():
    assert set(algorithm_names()) <= set(TRAINED)


@pytest.fixture(scope="module")
def incomes(tmp_path_factory):
    """The page of a run whose labels, incomes, are at one of two clients."""
    rng = np.random.default_rng(0)
    age, basket = rng.normal(size=(2, 200))
    income = 40_000 + 9_000 * age + 5_000 * basket + rng.normal(size=200)
    tables = {"bank": (age[:, None], income), "shop": (basket[:, None], None)}
    out = tmp_path_factory.mktemp("incomes") / "out"
    how = {name: {"samples": np.arange(200), "names": [name]} for name in tables}
    intarsia.run(tables=tables, table_settings=how, loss="squared", out=out)
    assert main(["report", str(out)]) == 0
    return (out / "report.html").read_text()


def test_large_numbers_are_written_out_on_axes_in_headings_and_in_tables(incomes):
    assert ">40,000</text>" in incomes
    assert "e+0" not in Page(incomes).text
    assert re.search(r"RMSE [\d,.]+, 95 % interval [\d,.]+ to [\d,.]+<", incomes)


def test_of_one_client_with_labels_no_mean_is_told(incomes):
    text = Page(incomes).text
    assert re.search(r"For bank it is [\d.]+, against -?[\d.]+ where it trains alone", text)
    assert text.count("rows of bank") == 2
    assert "mean of clients" not in "".join(re.findall(r"<dl class=.tiles.*?</dl>", incomes, re.S))


def test_training_of_one_round_has_no_curve_whatever_was_evaluated(incomes):
    assert "Training took one round, so that there is no curve" in Page(incomes).text


def test_each_figure_of_the_page_is_explained(incomes, written):
    assert {*FIGURES.values(), "accuracy", "R²", "loss", "AUC"} == {*MEANINGS}
    for page, names in ((incomes, ("R²", "loss", "mean absolute error")),
                        (written, ("accuracy", "AUC", "Brier score"))):  # fmt: skip
        for name in names:
            assert f"<dt>{name}</dt><dd>{MEANINGS[name]}".split("'")[0] in page
    assert "The score is the prediction itself" in incomes
    assert "The score is the log-odds" in written


def test_where_clients_share_their_rows_in_too_many_ways_a_sentence_says_so(tmp_path):
    rng, tables = np.random.default_rng(0), {}
    for name in "abcdefghijkl":
        rows = np.sort(rng.choice(600, 400, replace=False))
        tables[name] = {"samples": rows, "names": [name]}
    given = {
        name: (rng.normal(size=(400, 1)), np.sign(rng.normal(size=400)) if name == "a" else None)
        for name in tables
    }
    intarsia.run(
        tables=given, table_settings=tables, loss="logistic", yardsticks=False, out=tmp_path / "o"
    )
    assert main(["report", str(tmp_path / "o")]) == 0
    page = (tmp_path / "o/report.html").read_text()
    assert "There is no drawing: " in page
    colours = re.findall(r'class="swatch" style="background:(#[0-9a-f]{6})"', page)
    assert len({*colours}) == 12
    assert (
        '<th scope="col" style="padding:.15em .7em;vertical-align:top;text-align:left"></th>'
        not in page
    )


def test_drawings_keep_letters_that_can_be_read_and_scroll(incomes):
    for width in re.findall(r'<svg[^>]*style="[^"]*min-width:(\d+)px', incomes):
        assert int(width) >= 270  # three quarters of how wide they are drawn
    found = re.findall(r'(<div class="scrolled"[^>]*>)?<svg[^>]* width="760"', incomes)
    assert len(found) == 2
    assert all(found)
