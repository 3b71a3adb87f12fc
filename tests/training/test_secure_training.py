"""Sealed sums reach the optimum of the plain run on whole data sets, to the same certificate."""

from __future__ import annotations

from pathlib import Path

import pytest

from intarsia.experiment import config as experiment
from intarsia.training.run import run

NAMES = ("a9a", "covtype15k")
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def trained(data_folder, tmp_path_factory):
    """Return a function from a data set and a mode to the result of its experiment, 4x4."""
    found = {}

    def result(name, mode):
        if (name, mode) not in found:
            description = experiment.load(EXPERIMENTS / f"hyfdca-{name}.toml")
            tree = experiment.to_dict(description)
            tree["experiment"] |= {"yardsticks": False, "out": str(tmp_path_factory.mktemp(mode))}
            # in steps of CKKS for the default range, sums are rounded by more than the tolerance
            fine = {"range": 1e5} if mode == "ckks" else {}
            tree["privacy"] = {"mode": mode, **fine}
            tree["dataset"] |= {"folder": str(data_folder)}
            found[name, mode] = run(experiment.from_dict(tree), overwrite=True)
        return found[name, mode]

    return result


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["masked", "ckks"])
@pytest.mark.parametrize("name", NAMES)
def test_sealed_training_reaches_the_gap_and_the_accuracy_of_the_plain_run(trained, name, mode):
    plain, sealed = trained(name, "plain"), trained(name, mode)
    assert sealed.certificate.gap_relative <= 1e-6
    assert sealed.certificate.primal == pytest.approx(plain.certificate.primal, rel=2e-6)
    assert sealed.metrics.server.accuracy == pytest.approx(plain.metrics.server.accuracy, abs=0.001)
