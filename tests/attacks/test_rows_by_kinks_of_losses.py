"""A data scientist who follows the protocol: runs on the same rows tell rows whole.

The hinge has a kink at 1. Under a penalty so large that no row's margin reaches it, λNw is Σ y x
over all rows, and the first row that comes there leaves that sum: what two runs differ by is a part
of y x. The row lies at the kink, w·x y = 1, which gives its length; that its constant is 1 says
whether it is one row alone. Huber's kink is at δ: under a large penalty λNw moves by the rows whose
labels are beyond it. Sums are masked, and rows, split and seed are the same in all runs. So
`least_changed` sees nothing, and `jobs_total` counts.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.deployment.job_requests import Asked, Requests
from intarsia.deployment.policy import Policy
from intarsia.errors import PolicyError


@pytest.fixture(scope="module")
def patients(data_folder):
    path = data_folder / "heart" / "cleveland.csv"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    found = pd.read_csv(path, na_values="?").dropna().reset_index(drop=True)
    return found.assign(target=np.where(found.target > 0, "ill", "well"))


def standardised(patients, label):
    """Return the rows as they train, and what turns weights of raw columns into those of them."""
    x = patients.drop(columns=label).to_numpy(float)  # means and scales stand in the model
    mean, scale = x.mean(axis=0), x.std(axis=0)
    rows = np.column_stack([np.ones(len(x)), (x - mean) / scale])

    def weights(model):
        raw = np.ravel(model.coef_)
        return np.array([*(np.ravel(model.intercept_) + mean @ raw), *(raw * scale)])

    return rows, weights


def run(patients, label, **how):
    half = len(patients) // 2
    return intarsia.run(
        tables={"bank": patients[:half], "clinic": patients[half:]},
        label=label,
        algorithm="hyfdca",
        privacy="masked",
        test=0.0,
        rounds=60,
        yardsticks=False,
        **how,
    ).model


def test_few_runs_of_the_hinge_tell_a_patient_s_row_whole(patients):
    rows, weights = standardised(patients, "target")

    def told(penalty):
        model = run(patients, "target", loss="hinge", regularisation=penalty, tolerance=1e-11)
        return weights(model), penalty * len(patients) * weights(model)

    (_, whole), above, below = told(10.0), 10.0, 0.5
    for _ in range(6):
        between = (above * below) ** 0.5
        w, some = told(between)
        left = whole - some
        if np.abs(left).max() < 1e-5 * np.abs(whole).max():
            above = between
            continue
        below, found = between, left / (w @ left)  # where it is one row, y x
        if abs(abs(found[0]) - 1) < 1e-4:
            break
    apart = np.abs(found / found[0] - rows).max(axis=1)
    assert apart.min() < 1e-3  # standard deviations; in the fourth run
    assert patients.target[apart.argmin()] == ("ill" if found[0] > 0 else "well")


def test_two_runs_of_huber_s_loss_tell_the_row_of_the_largest_label(patients):
    patients = patients.drop(columns="target")
    rows, weights = standardised(patients, "chol")

    def told(delta):
        how = {"loss": "huber", "huber_delta": delta, "regularisation": 1e3, "tolerance": 1e-12}
        return weights(run(patients, "chol", **how))

    left = told(500.0) - told(450.0)
    apart = np.abs(left / left[0] - rows).max(axis=1)
    assert apart.argmin() == patients.chol.argmax()
    assert apart.min() < 1e-2


def asked_for(penalty, name="first"):
    tree = {
        "experiment": {"name": name, "out": f"runs/{name}", "rounds": 50},
        "algorithm": {"name": "hyfdca", "loss": "hinge", "regularisation": penalty},
    }
    return Asked(
        *(name, "hyfdca", "masked", "pseudonyms", 50, 0.0, 1e-5, 1),
        *(("bank", "clinic"), ("age", "chol"), (), "", (), tree),
    )


def test_a_site_counts_jobs_that_differ_and_not_those_of_a_schedule(tmp_path):
    policy = Policy(jobs_total=2)

    def begin(run, asked):
        known = Requests(tmp_path)  # a process that was started again
        known.begin(run, known.admit(run, asked, policy).digest, policy)

    begin("a0", asked_for(10.0))
    waits = Requests(tmp_path).admit("b0", asked_for(5.0), policy)  # let in, and not begun
    for night in range(3):
        begin(f"a{night + 1}", asked_for(10.0, f"night-{night}"))
    begin("a4", asked_for(4.7))
    with pytest.raises(PolicyError, match=r"more than 2 that differ, and 2 began .* jobs_total"):
        begin("a5", asked_for(2.2))
    with pytest.raises(PolicyError, match="jobs_total"):
        Requests(tmp_path).begin("b0", waits.digest, policy)
    with pytest.raises(PolicyError, match="jobs_total"):  # the others that take part count, too
        begin("a6", dataclasses.replace(asked_for(10.0), clients=("bank", "shop")))
    begin("a7", asked_for(4.7))
    later = asked_for(4.7)  # a newer version of the calls makes no other job of it
    begin("a8", dataclasses.replace(later, experiment={**later.experiment, "protocol": 99}))
    begin("a0", asked_for(10.0))  # goes on
