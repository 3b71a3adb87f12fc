from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from intarsia.errors import CheckpointError
from intarsia.maths.figures import Figures
from intarsia.partition.client_clusters import Structure, Structures
from intarsia.reports.sentences import (
    certificate_sentence,
    gain_sentence,
    gains,
    verdict_sentences,
)
from intarsia.results.comparison import compare, judged_by
from intarsia.results.result import (
    Certificate,
    Metrics,
    Result,
    Score,
    deciles,
    load,
    mean,
    worse_by_joining,
    worse_probabilities,
    worst,
)

KEYS = [
    "algorithm",
    "experiment",
    "seed",
    "rounds",
    "finished",
    "seconds",
    "bytes",
    "exchanges",
    "certificate",
    "metrics",
    "environment",
    "hyperparameters",
    "best_round",
    "positive_class",
    "privacy",
    "structure",
    "yardsticks_left",
    "notes",
]


def example(**changes) -> Result:
    clients = {"bank": Score(0.5, 0.75), "telecom": Score(0.25, 0.25)}
    values = {
        "algorithm": "hyfdca",
        "experiment": "credit",
        "seed": 3,
        "rounds": 12,
        "finished": "tolerance",
        "seconds": {"total": np.float64(1.5), "training": 1.0},
        "bytes": {"up": np.int64(10), "down": 20, "by_message": {"Duals": {"up": 10, "down": 0}}},
        "exchanges": 40,
        "certificate": Certificate(0.5, 0.25, 0.5),
        "metrics": Metrics(
            server=Score(0.4, 0.8, samples=120),
            clients=clients,
            clients_mean=mean(clients),
            centralised=Score(0.39, 0.81),
            standalone=clients,
            standalone_mean=mean(clients),
            clients_worst=worst(clients),
            clients_deciles=deciles(clients),
        ),
        "environment": {"version": "0.1.0", "threads": 1, "folder": Path("a")},
        "hyperparameters": {"loss": "hinge", "regularisation": 1e-3, "blocks": (1, 2)},
        "notes": ("one", "two"),
    }
    return Result(**{**values, **changes})


def test_the_file_has_exactly_the_documented_keys(tmp_path):
    example().write(tmp_path)
    found = json.loads((tmp_path / "result.json").read_text())
    assert list(found) == KEYS
    assert list(found["metrics"]) == [
        "server",
        "clients",
        "clients_mean",
        "centralised",
        "standalone",
        "standalone_mean",
        "clients_worst",
        "clients_deciles",
    ]
    assert found["metrics"]["server"] == {
        "loss": 0.4,
        "accuracy": 0.8,
        "r2": None,
        "macro_f1": None,
        "samples": 120,
        "figures": None,
    }
    assert len(found["metrics"]["clients_deciles"]) == 9
    assert found["certificate"] == {"primal": 0.5, "dual": 0.25, "gap_relative": 0.5}
    assert found["bytes"]["up"] == 10


def test_load_returns_what_was_written(tmp_path):
    result = example()
    result.write(tmp_path)
    found = load(tmp_path)
    assert found.to_dict() == result.to_dict()
    assert found.metrics == result.metrics
    assert found.certificate == result.certificate
    assert found.folder == tmp_path


def test_structures_are_scored_and_come_back(tmp_path):
    clients = ("bank", "shop", "telecom")
    truth = Structure(clients, {"clusters": (0, 0, 1)})
    levels = {"level 1": (0, 0, 0), "level 2": (4, None, None)}
    learned = Structure(clients[::-1], levels, {"level 1": "global", "level 2": "5 clusters"})
    result = example(structure=Structures(truth, learned))
    result.write(tmp_path)
    found = json.loads((tmp_path / "result.json").read_text())["structure"]
    assert found["clients"] == list(clients)
    assert found["truth"] == {"clusters": [0, 0, 1]}
    assert found["learned"] == {"level 1": [0, 0, 0], "level 2": [None, None, 4]}
    assert found["words"] == {"level 1": "global", "level 2": "5 clusters"}
    assert set(found["agreement"]["clusters"]) == {"level 1", "level 2"}
    back = load(tmp_path)
    assert back.to_dict() == result.to_dict()
    assert back.structure == Structures(truth, learned.among(clients))
    alone = example(structure=Structures(truth))
    assert alone.to_dict()["structure"]["learned"] is None
    assert alone.to_dict()["structure"]["agreement"] == {}
    assert example().to_dict()["structure"] is None


def test_what_json_lacks_becomes_null(tmp_path):
    result = example(
        certificate=None,
        metrics=Metrics(server=Score(math.inf, None, math.nan)),
    )
    result.write(tmp_path)
    found = load(tmp_path)
    assert found.certificate is None
    assert found.metrics.server is not None
    assert math.isnan(found.metrics.server.loss)
    assert found.metrics.clients_mean is None


def test_the_mean_over_clients_is_unweighted():
    assert mean({"a": Score(1.0, 0.5), "b": Score(3.0, 1.0)}) == Score(2.0, 0.75)
    assert mean({"a": Score(1.0, None, 0.5), "b": Score(2.0, None, -0.5)}) == Score(1.5, None, 0.0)
    assert mean({}) is None


def test_the_worst_and_the_deciles_are_of_each_figure_for_itself():
    scores = {
        f"c{at}": Score(loss=at / 10, accuracy=at / 20, macro_f1=1 - at / 10) for at in range(11)
    }
    assert worst(scores) == Score(1.0, 0.0, None, 0.0)
    found = deciles(scores)
    assert len(found) == 9
    for tenth, score in enumerate(found, 1):  # of a loss the largest is the worst
        assert score.loss == pytest.approx(1 - tenth / 10)
        assert score.accuracy == pytest.approx(tenth / 20)
        assert score.macro_f1 == pytest.approx(tenth / 10)
    assert found[4].accuracy == np.median([score.accuracy for score in scores.values()])
    assert worst({}) is None
    assert deciles({"a": Score(1.0)}) == ()


def test_a_result_from_before_there_were_macro_f1_and_counts_can_be_read(tmp_path):
    tree = example().to_dict()
    for key in ("clients_worst", "clients_deciles"):
        del tree["metrics"][key]
    for score in (tree["metrics"]["server"], *tree["metrics"]["clients"].values()):
        del score["macro_f1"], score["samples"]
    (tmp_path / "result.json").write_text(json.dumps(tree))
    assert load(tmp_path).metrics.server == Score(0.4, 0.8)


def test_a_folder_without_a_result_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="is not a folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"holds no result\.json"):
        load(tmp_path)
    (tmp_path / "experiment.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"unfinished run; .* intarsia resume"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"algorithm": "x"', "null", "\xff"])
def test_a_damaged_result_is_named(tmp_path, text):
    (tmp_path / "result.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"result\.json is not a result"):
        load(tmp_path)


def test_clients_that_the_federation_makes_worse_are_named():
    def metrics(federated, alone, rows=4000):
        names = ("north", "south", "west")
        return Metrics(
            clients={n: Score(0.4, a, samples=rows) for n, a in zip(names, federated, strict=True)},
            standalone={n: Score(0.4, a, samples=rows) for n, a in zip(names, alone, strict=True)},
        )

    (note,) = worse_by_joining(metrics((0.7, 0.9, 0.5), (0.75, 0.8, 0.625)))
    assert "worse than the own model of 2 of 3 clients on their rows" in note
    assert "north (accuracy 0.75 alone, 0.7 federated), west (accuracy 0.625 alone, 0.5" in note
    assert "intarsia contribution" in note
    assert "femam" not in note
    # of few rows both differences may be chance, and of some the smaller one
    assert worse_by_joining(metrics((0.7, 0.9, 0.5), (0.75, 0.8, 0.625), 40)) == ()
    (some,) = worse_by_joining(metrics((0.7, 0.9, 0.5), (0.75, 0.8, 0.625), 400))
    assert "of 1 of 3 clients on their rows, by more than chance: west (" in some
    (alike,) = worse_by_joining(metrics((0.7, 0.9, 0.5), (0.75, 0.8, 0.625)), ["Try this."])
    assert "0.5 federated). Try this. See" in alike
    assert worse_by_joining(metrics((0.7, 0.9, 0.5), (0.7, 0.8, 0.4))) == ()
    assert worse_by_joining(Metrics()) == ()


def test_networks_as_accurate_as_the_own_ones_with_worse_probabilities_are_told():
    def notes(losses, accuracies=(0.9, 0.8, 0.85)):
        names = ("north", "south", "west")
        pairs = zip(names, losses, accuracies, strict=True)
        return worse_probabilities(
            Metrics(
                clients={name: Score(loss, accuracy) for name, loss, accuracy in pairs},
                standalone={name: Score(0.4, 0.85) for name in names},
            )
        )

    (note,) = notes((0.7, 0.6, 0.8))
    assert "the mean loss is 0.7 for 0.4 alone, and higher at 3 of 3 clients" in note
    assert "early_stopping = 20" in note
    assert notes((0.41, 0.42, 0.43)) == ()  # hardly higher
    assert notes((2.0, 0.3, 0.3)) == ()  # at one client
    assert notes((0.7, 0.6, 0.8), (0.8, 0.7, 0.75)) == ()  # less accurate too, of which others tell
    numbers = {"north": Score(0.7, r2=0.5), "south": Score(0.8, r2=0.5)}
    assert worse_probabilities(Metrics(clients=numbers, standalone=numbers)) == ()
    assert worse_probabilities(Metrics()) == ()


def test_means_of_macro_f1_are_of_the_same_clients():
    federated = {"north": Score(0.4, 0.9, macro_f1=0.5), "south": Score(0.1, 1.0)}  # withheld
    alone = {"north": Score(0.4, 0.9, macro_f1=0.4), "south": Score(0.1, 1.0, macro_f1=1.0)}
    metrics = Metrics(clients=federated).beside(alone)
    assert metrics.standalone_mean is not None
    assert metrics.standalone_mean.macro_f1 == 0.4
    assert metrics.standalone["south"].macro_f1 is None


@pytest.mark.parametrize(("federated", "told"), [(0.69, True), (0.6, False), (None, False)])
def test_a_client_that_is_worse_by_accuracy_and_better_by_auc_is_told_both(federated, told):
    scores = {"clients": (0.7, federated), "standalone": (0.75, 0.65)}
    metrics = Metrics(
        **{
            name: {"north": Score(0.4, a, samples=4000, figures=Figures(auc=b))}
            for name, (a, b) in scores.items()
        }
    )
    (note,) = worse_by_joining(metrics)
    assert ("federated; AUC 0.65 alone, 0.69 federated)" in note) is told
    assert "north (accuracy 0.75 alone, 0.7 federated" in note


SAYS_ONE, SAYS_BOTH = ((90.0, 0.0), (10.0, 0.0)), ((85.0, 5.0), (8.0, 2.0))


@pytest.mark.parametrize(
    ("alone", "joined", "told"),
    [  # accuracy, AUC, loss, confusion
        ((0.9, 0.75, 0.25, None), (0.9, 0.5, 0.25, None), "north (AUC 0.75 alone, 0.5 federated)"),
        ((0.9, 0.5, 0.25, None), (0.9, 0.75, 0.5, None), ""),
        # the accuracy of a model of one class says nothing of it
        ((0.9, 0.5, 0.25, SAYS_ONE), (0.87, 0.75, 0.25, SAYS_BOTH), ""),
        ((0.87, 0.75, 0.25, SAYS_BOTH), (0.9, 0.5, 0.25, SAYS_ONE), "north (AUC 0.75 alone, 0.5"),
        # nor where nine of ten rows are of one class
        ((0.93, 0.5, 0.25, SAYS_BOTH), (0.87, 0.75, 0.25, SAYS_BOTH), ""),
    ],
)
def test_where_the_accuracy_says_nothing_models_are_compared_by_auc_then_loss(alone, joined, told):
    def score(accuracy, auc, loss, counts):
        majority = None if counts is None else 0.9
        known = {
            "confusion": counts,
            "majority": majority,
            "intervals": {"auc": (auc - 0.1, auc + 0.1)},
        }
        return {"north": Score(loss, accuracy, samples=4000, figures=Figures(auc=auc, **known))}

    scores = [score(*one) for one in (joined, alone)]
    metrics = Metrics(clients=scores[0], standalone=scores[1])
    assert told in "".join(worse_by_joining(metrics))
    assert bool(worse_by_joining(metrics)) is bool(told)
    report = gains(replace(example(), metrics=metrics))
    assert gain_sentence(report).startswith(f"By federating north {'loses' if told else 'gains'}")


def test_a_client_whose_rows_are_all_of_one_class_is_told_with_what_its_accuracy_is():
    counts = ((0.0, 0.0), (4.0, 27.0))  # as Switzerland's of heart
    alone = Score(0.3, 27 / 31, samples=31, figures=Figures(majority=1.0, confusion=counts))
    joined = Score(0.4, 25 / 31, samples=31, figures=Figures())
    both = Score(0.4, 0.8, samples=40, figures=Figures(auc=0.7, confusion=SAYS_BOTH))
    result = replace(
        example(),
        positive_class="ill",
        metrics=Metrics(
            clients={"swiss": joined, "va": both}, standalone={"swiss": alone, "va": both}
        ),
    )
    (swiss,) = [one for one in gains(result) if one.client == "swiss"]
    assert swiss.verdict == "loses; it may be chance; all its rows are of one class"
    told = (
        "All evaluated rows of swiss are of the class 'ill': the accuracy there is the share of "
        "that class that is said right (the sensitivity)."
    )
    assert told in " ".join(verdict_sentences(result))
    assert told in " ".join(str(result).split())
    assert "all these rows are of one class" in "".join(
        worse_by_joining(
            Metrics(clients={"swiss": replace(joined, accuracy=0.1)}, standalone={"swiss": alone})
        )
    )
    some = replace(result, metrics=Metrics(clients={"va": both}, standalone={"va": both}))
    assert "of one class" not in " ".join([str(some), *verdict_sentences(some)])


@pytest.mark.parametrize(("share", "measure"), [(0.74, "accuracy"), (0.75, "AUC"), (0.9, "AUC")])
def test_cards_and_verdicts_are_by_one_figure_where_a_class_is_common(share, measure):
    def score(accuracy, auc):
        figures = Figures(auc=auc, majority=share)
        return Score(0.4, accuracy, samples=4000, figures=figures)

    metrics = Metrics(
        server=score(0.8, 0.7),
        clients={"north": score(0.8, 0.7)},
        standalone={"north": score(0.6, 0.6)},
    )
    result = replace(example(), metrics=metrics)
    assert judged_by(result) == measure
    assert [one.by.figure for one in gains(result)] == [measure]


def test_a_comparison_says_of_how_many_runs_its_reference_models_are():
    whole = replace(example(), metrics=Metrics(server=Score(0.4, 0.8), centralised=Score(0.3, 0.9)))
    without = replace(whole, seed=1, metrics=replace(whole.metrics, centralised=None))
    some = " ".join(str(compare([whole, without, replace(without, seed=2)])).split())
    assert "centralised figures are of 1 of 3 runs; the others have no such reference model" in some
    assert "intarsia resume DIR --yardsticks" in some
    for runs in ([whole, replace(whole, seed=1)], [without, replace(without, seed=2)], [whole]):
        assert "reference model" not in str(compare(runs))


def test_figures_come_back_from_the_file(tmp_path):
    made = Figures(auc=0.75, confusion=((3.0, 1.0), (2.0, 4.0)), intervals={"auc": (0.5, 0.875)})
    result = example()
    server = replace(result.metrics.server, figures=made)
    replace(result, metrics=replace(result.metrics, server=server)).write(tmp_path)
    written = json.loads((tmp_path / "result.json").read_text())["metrics"]["server"]["figures"]
    assert written == {
        "auc": 0.75,
        "confusion": [[3.0, 1.0], [2.0, 4.0]],
        "intervals": {"auc": [0.5, 0.875]},
    }
    assert load(tmp_path).metrics.server.figures == made


def test_the_mean_and_the_worst_client_have_figures():
    scores = {n: Score(0.4, 0.8, figures=Figures(auc=a, brier=b)) for n, a, b in (
        ("north", 0.5, 0.125), ("south", 0.75, 0.25)
    )}  # fmt: skip
    assert mean(scores).figures == Figures(auc=0.625, brier=0.1875)
    assert worst(scores).figures == Figures(auc=0.5, brier=0.25)


@pytest.mark.parametrize(("dual", "said"), [(0.25, "lies between"), (0.75, "none, as rounding")])
def test_a_dual_above_the_primal_is_said_to_bound_nothing(dual, said):
    certificate = Certificate(0.5, dual, (0.5 - dual) / 0.5)
    one = example(certificate=certificate)
    assert certificate.holds == (dual < 0.5)
    assert said in str(one)
    assert ("no model of this kind" in certificate_sentence(one)) == (dual < 0.5)
    assert ("There is no certificate" in certificate_sentence(one)) == (dual > 0.5)
