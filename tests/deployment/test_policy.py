"""What an owner's policy forbids is refused by its key, at that site, while others go on."""

from __future__ import annotations

import dataclasses
import json
import tomllib

import numpy as np
import pytest

import sites
from intarsia.core.block import Labels
from intarsia.core.schema import Holding, Schema
from intarsia.deployment import policy as policies
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_folder import log_of, read_settings
from intarsia.deployment.client_setup import SETTLE, Settled, site_in
from intarsia.deployment.job_requests import Requests, asked_of, digest_of
from intarsia.deployment.policy import Policy, policy_of
from intarsia.deployment.site_log import load
from intarsia.engines import codec
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.engines.remote.wire import Call
from intarsia.errors import ExperimentError, FederationError, PolicyError
from intarsia.experiment import config as experiment
from intarsia.training import run as running
from intarsia.training.registry import choose
from tests.deployment.test_run import HASTY, NAMES, described, history, set_up

FEDAVG = {"name": "fedavg", "loss": "logistic", "regularisation": 0.01}


def job(folder, mode="masked", algorithm=None, privacy=None, **settings):
    """Return the experiment of four clients, with other tables [algorithm] and [privacy]."""
    tree = experiment.to_dict(described(folder, mode, **settings))
    tree["privacy"] |= privacy or {}
    return experiment.from_dict({**tree, "algorithm": algorithm or tree["algorithm"]}, folder)


def with_policy(folder, text, name="bank", plain=False):
    """Return sites of which one has a policy."""
    found = set_up(folder, plain=plain)
    path = folder / name / "site.toml"
    path.write_text(f"{path.read_text()}\n[policy]\n{text}\n")
    return {**found, name: site_in(folder / name)}


def run_over(folder, found, description, patience=HASTY, line=None, out="sites"):
    lines = sites.Lines(found, line)
    return remote_running.run_over(description, lines, NAMES, folder / out, patience=patience)


FORBIDDEN = {
    "algorithms": ('algorithms = ["fedavg", "cocoa"]', {}, "allows fedavg, cocoa, and the job is"),
    "least_clients": ("least_clients = 4", {}, "4 clients or more, and the job's privacy.least_cl"),
    "too few clients": (
        "least_clients = 5",
        {"privacy": {"least_clients": 5}},
        "5 clients or more, and the job has 4",
    ),
    "epsilon_most": ("epsilon_most = 1.0", {}, "epsilon of at most 1, and the job adds no noise"),
    "too large an epsilon": (
        "epsilon_most = 1.0",
        {"privacy": {"epsilon": 1.5}},
        "and the job has epsilon = 1.5",
    ),
    "epsilon_total": ("epsilon_total = 1.0", {}, "come to 1 at most, and the job adds no noise"),
    "delta_most": (
        "epsilon_most = 1.0",
        {"privacy": {"epsilon": 0.5, "delta": 0.5}},
        "a delta of at most 1e-05, and the job has 0.5",
    ),
    "delta_most of a sum": (
        "epsilon_total = 1.0",
        {"privacy": {"epsilon": 1e-3, "delta": 0.99}},
        "a delta of at most 1e-05, and the job has 0.99",
    ),
    "rounds_a_job": (
        "rounds_a_job = 3",
        {"rounds": 4},
        "no more than 3 in a job, and the job has 4",
    ),
    "columns": ('columns = ["x0", "y*"]', {}, "does not list a column that the site's table has"),
    "least_rows": ("least_rows = 51", {}, "asks for more rows than would take part"),
    "most_rows": ("most_rows = 49", {}, "allows fewer rows than the site's table has"),
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_a_job_that_the_policy_forbids_is_refused_by_key_before_anything_leaves(tmp_path, kind):
    text, changes, said = FORBIDDEN[kind]
    found = with_policy(tmp_path, text)
    with pytest.raises(PolicyError) as caught:
        run_over(tmp_path, found, job(tmp_path, **changes))
    sentence = str(caught.value)
    key = "delta_most" if kind.startswith("delta_most") else text.partition(" ")[0]
    assert sentence.startswith("Site 'bank': the owner ")
    assert said in sentence
    assert f"([policy] {key} in site.toml)" in sentence
    assert "x1" not in sentence  # a column of the table
    assert "50" not in sentence  # its rows
    assert said in (tmp_path / "bank" / "errors.log").read_text()
    log = load(tmp_path / "bank")
    assert [one["error"] for one in log.of("refused")] == ["PolicyError"]
    assert f"Site 'bank': {log.of('refused')[0]['sentence']}" == sentence
    assert not log.of("answered")
    # the others did what they were asked
    assert all(load(tmp_path / name).of("let in") for name in NAMES[1:])


def test_models_are_read_only_where_the_policy_says_so(tmp_path):
    pytest.importorskip("torch")
    settings = {"name": "hyfem", "start": "matched"}
    settings |= {"features": 4, "extractor_hidden": [8], "hidden": [12]}
    for text, readable in (("", False), ("models_readable = true", True)):
        folder = tmp_path / f"of {readable}"
        folder.mkdir()
        found = with_policy(folder, text)
        for name in NAMES[1:]:
            path = folder / name / "site.toml"
            path.write_text(f"{path.read_text()}\n[policy]\nmodels_readable = true\n")
            found[name] = site_in(folder / name)
        description = job(folder, algorithm=settings)
        if readable:  # it comes further: this algorithm wants labels of each
            with pytest.raises(FederationError):
                run_over(folder, found, description)
            assert load(folder / "bank").of("let in")
        else:
            with pytest.raises(PolicyError, match=r"would read .*\[policy\] models_readable"):
                run_over(folder, found, description)


def test_plain_sums_are_no_way_around_a_policy_that_lets_no_model_be_read(tmp_path):
    found = with_policy(tmp_path, "models_readable = false", plain=True)
    with pytest.raises(PolicyError, match="every contribution of this site"):
        run_over(tmp_path, found, job(tmp_path, "plain"))


def test_a_job_that_keeps_to_every_key_runs(tmp_path):
    found = with_policy(
        tmp_path,
        'algorithms = ["hyfdca"]\nleast_clients = 3\nmodels_readable = false\nmost_rows = 50\n'
        'columns = ["x0", "x[1-3]"]\nleast_rows = 30\njobs_a_day = 1\nrounds_a_day = 3\n'
        "rounds_a_job = 2",
    )
    result = run_over(tmp_path, found, job(tmp_path, rounds=2))
    assert result.rounds == 2
    assert load(tmp_path / "bank").whole


def test_a_server_cannot_have_fewer_rows_trained_on_than_the_policy_asks_for(tmp_path):
    """It says which training rows have a label anywhere: it may leave out all but one."""
    found = with_policy(tmp_path, "least_rows = 30")
    with pytest.raises(PolicyError, match=r"Site 'bank': .*\[policy\] least_rows"):
        run_over(tmp_path, found, job(tmp_path), line=one_row_of_the_bank)


def test_no_job_trains_on_labels_of_few_rows_of_a_site(tmp_path):
    """All its rows have a label elsewhere; sums over all that have labels would tell its own."""
    found = with_policy(tmp_path, "")
    path = tmp_path / "bank.csv"
    first, *lines = path.read_text().splitlines()
    fewer = [one if n < 4 else one.rpartition(",")[0] + "," for n, one in enumerate(lines)]
    path.write_text("\n".join([first, *fewer]))
    with pytest.raises(
        PolicyError, match=r"Site 'bank': .*more labelled rows than would take part"
    ):
        run_over(tmp_path, found, job(tmp_path))


@pytest.mark.parametrize(("least", "evaluated"), [(5, True), (26, False)])
def test_models_are_not_evaluated_on_fewer_rows_of_a_site_than_its_policy_asks_for(
    tmp_path, least, evaluated
):
    """It has between these for the test: their labels stay where they are."""
    found = with_policy(tmp_path, f"least_rows = {least}")
    tree = experiment.to_dict(job(tmp_path, rounds=1))
    description = experiment.from_dict({**tree, "split": {"test": 0.4}}, tmp_path)
    metrics = run_over(tmp_path, found, description).metrics
    assert ("bank" in metrics.clients) == evaluated
    assert "telecom" in metrics.clients


def test_metrics_of_training_rows_are_of_as_many_as_the_policy_asks_for(tmp_path):
    """There is no test part: ten of the bank's rows have a label there, all have one elsewhere."""
    found = with_policy(tmp_path, "least_rows = 50")
    path = tmp_path / "bank.csv"
    first, *lines = path.read_text().splitlines()
    fewer = [one if 25 <= n < 35 else one.rpartition(",")[0] + "," for n, one in enumerate(lines)]
    path.write_text("\n".join([first, *fewer]) + "\n")
    (tmp_path / "telecom.csv").write_text(
        (tmp_path / "telecom.csv").read_text()
        + "".join(f"{n},0.0,0.0,{lines[n].rpartition(',')[2]}\n" for n in range(20))
    )
    found["bank"] = site_in(tmp_path / "bank")
    tree = experiment.to_dict(job(tmp_path, rounds=1))
    description = experiment.from_dict({**tree, "split": {"test": 0.0}}, tmp_path)
    with pytest.raises(
        PolicyError, match=r"would be evaluated on, of the train part \(\[policy\] least"
    ):
        run_over(tmp_path, found, description)
    assert "10 rows, and 50 are the least" in (tmp_path / "bank" / "errors.log").read_text()
    path = tmp_path / "bank" / "site.toml"
    path.write_text(path.read_text().replace("least_rows = 50", "least_rows = 10"))
    again = {name: site_in(tmp_path / name) for name in NAMES}
    result = run_over(tmp_path, again, description, out="again")
    assert result.metrics.clients["bank"].samples == 10


def test_rows_that_no_evaluate_counts_are_none_of_those_that_the_policy_asks_for(tmp_path):
    """It has 19 labelled rows for the test, of which sums of clients would tell one."""
    found = with_policy(tmp_path, "least_rows = 19")
    tree = experiment.to_dict(job(tmp_path, rounds=1))
    description = experiment.from_dict({**tree, "split": {"test": 0.4}}, tmp_path)
    with pytest.raises(
        PolicyError, match=r"would be evaluated on, of the test part \(\[policy\] least"
    ):
        run_over(tmp_path, found, description, line=one_label_less_at_the_telecom)


def one_label_less_at_the_telecom(client, number, data, deliver):
    """Tell the bank that the telecom has the labels of its test rows, but for one."""
    call = codec.decode(data, Call)
    if call.function != SETTLE or client != "bank":
        return deliver(data)
    told = codec.decode(call.body, Settled, Schema, Holding, Labels)
    test = told.schemas["test"]
    own = test.holdings["bank"]
    labelled = own.labelled.copy()
    labelled[np.flatnonzero(labelled)[0]] = False
    others = {
        name: dataclasses.replace(own, labelled=labelled & (name == "telecom"))
        for name in test.holdings
    }
    schema = Schema({**others, "bank": own}, test.labels)
    told = dataclasses.replace(told, schemas={**told.schemas, "test": schema})
    return deliver(codec.encode(dataclasses.replace(call, body=codec.encode(told))))


def one_row_of_the_bank(client, number, data, deliver):
    call = codec.decode(data, Call)
    if call.function != SETTLE or client != "bank":
        return deliver(data)
    told = codec.decode(call.body, Settled, Schema, Holding, Labels)
    kept = np.zeros(len(told.kept), bool)
    kept[0] = True
    told = dataclasses.replace(told, kept=kept, schemas=only_row(told.schemas, kept))
    return deliver(codec.encode(dataclasses.replace(call, body=codec.encode(told))))


def only_row(schemas, kept):
    """Return schemas in which the bank has one row to train on."""
    train = schemas["train"]
    own = train.holdings["bank"]
    one = dataclasses.replace(own, samples=own.samples[:1], labelled=own.labelled[:1])
    return {**schemas, "train": Schema({**train.holdings, "bank": one}, train.labels)}


# -- how often


def test_so_many_jobs_begin_on_a_day_and_one_that_goes_on_counts_once(tmp_path, monkeypatch):
    found = with_policy(tmp_path, "jobs_a_day = 1")
    run_over(tmp_path, found, job(tmp_path, rounds=1), out="first")
    again = {name: site_in(tmp_path / name) for name in NAMES}
    with pytest.raises(
        PolicyError,
        match=r"no more than 1 a day, and 1 began today \(UTC\) \(\[policy\] jobs_a_day",
    ):
        run_over(tmp_path, again, job(tmp_path, rounds=1), out="second")
    monkeypatch.setattr("intarsia.deployment.job_requests.today", lambda: "2999-01-01")
    lines = sites.Lines({name: site_in(tmp_path / name) for name in NAMES})
    remote_running.resume_over(tmp_path / "second", lines, patience=HASTY)


def test_the_epsilons_of_all_jobs_that_began_add_up(tmp_path):
    """0.1 three times is 0.3; a job that was let in and did not begin has spent nothing."""
    known, policy = Requests(tmp_path), Policy(epsilon_total=0.3)
    for number in range(3):
        one = known.admit(f"a{number}", asked_with(tmp_path, 0.1), policy)
        known.begin(one.run, one.digest, policy)
        known.begin(one.run, one.digest, policy)  # a process that was started again
        known.admit(f"b{number}", asked_with(tmp_path, 0.01), Policy())
    with pytest.raises(PolicyError, match=r"before have spent 0\.3, .* epsilon = 0\.01 .*_total"):
        Requests(tmp_path).admit("c0", asked_with(tmp_path, 0.01), policy)
    with pytest.raises(PolicyError, match="epsilon_total"):  # two that were let in together
        known.begin("b0", digest_of(asked_with(tmp_path, 0.01)), policy)
    assert known.admit("a0", asked_with(tmp_path, 0.1), policy).begun


def asked_with(folder, epsilon):
    if not (folder / "bank").exists():
        set_up(folder)
    description = job(folder)
    algorithm, options = choose(description)
    found = asked_of(description, algorithm, options, {}, NAMES, ("x0", "x1"))
    return dataclasses.replace(found, epsilon=epsilon)


def test_a_job_that_was_refused_is_none_of_those_of_the_day(tmp_path):
    found = with_policy(tmp_path, "jobs_a_day = 1\nleast_rows = 30")
    path = tmp_path / "telecom" / "site.toml"
    text = path.read_text()
    path.write_text(f'{text}\n[policy]\nalgorithms = ["fedavg"]\n')
    found["telecom"] = site_in(tmp_path / "telecom")
    with pytest.raises(PolicyError, match=r"Site 'telecom'"):  # refused there
        run_over(tmp_path, found, job(tmp_path, rounds=1), out="first")
    assert load(tmp_path / "bank").of("let in")
    path.write_text(text)
    found["telecom"] = site_in(tmp_path / "telecom")
    with pytest.raises(PolicyError, match="least_rows"):  # and here, in the set-up
        run_over(tmp_path, found, job(tmp_path, rounds=1), out="second", line=one_row_of_the_bank)
    again = {name: site_in(tmp_path / name) for name in NAMES}
    assert run_over(tmp_path, again, job(tmp_path, rounds=1), out="third").rounds == 1
    with pytest.raises(PolicyError, match="jobs_a_day"):
        run_over(tmp_path, again, job(tmp_path, rounds=1), out="fourth")


def test_set_ups_that_never_come_to_training_are_counted_too(tmp_path, monkeypatch):
    """A server read of each what a site tells before training; ten are for each job of the day."""
    known, policy = Requests(tmp_path), Policy(jobs_a_day=1)
    asked = asked_with(tmp_path, 0.0)
    for number in range(10):
        let_in = known.admit(f"a{number}", asked, policy)
    known = Requests(tmp_path)  # a process that was started again
    known.admit("a0", asked, policy)
    other = dataclasses.replace(asked, rounds=asked.rounds + 1)  # of a run that was let in
    for run, job in (("b", asked), ("a0", other)):
        with pytest.raises(PolicyError, match=r"the set-up of 10 began today \(UTC\) .*jobs_a_day"):
            known.admit(run, job, policy)
    known.begin("a9", let_in.digest, policy)  # those that were let in may begin
    assert known.admit("b", asked, Policy()).let_in
    monkeypatch.setattr("intarsia.deployment.job_requests.today", lambda: "2999-01-01")
    assert known.admit("c", asked, policy).let_in


def test_a_run_goes_on_the_next_day_where_the_rounds_of_one_are_used_up(tmp_path, monkeypatch):
    found = with_policy(tmp_path, "rounds_a_day = 2")
    with pytest.raises(PolicyError, match=r"Site 'bank': the owner allows no more than 2 a day"):
        run_over(tmp_path, found, job(tmp_path, rounds=3))
    assert len(history(tmp_path / "sites")) == 2
    monkeypatch.setattr(policies, "today", lambda: "2999-01-01")
    lines = sites.Lines({name: site_in(tmp_path / name) for name in NAMES})
    result = remote_running.resume_over(tmp_path / "sites", lines, patience=HASTY)
    secrets = sites.in_run_of(tmp_path / "sites", {name: tmp_path / name for name in NAMES})
    expected = running.run(job(tmp_path, rounds=3), out=tmp_path / "one", secrets=secrets)
    assert result.certificate == expected.certificate
    assert history(tmp_path / "sites") == history(tmp_path / "one")


# -- what the run does


@pytest.mark.parametrize("killed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_run_that_may_go_on_without_sites_goes_on_without_one_that_refuses(tmp_path, killed):
    found = with_policy(tmp_path, 'algorithms = ["fedavg"]', name="telecom")
    patience = RetryPolicy(deadline=60.0, pause=0.001, probe=0.2, absent="continue", quorum=3)
    calls = 0

    class Killed(Exception):  # noqa: N818 - not an error of anybody
        pass

    def line(client, number, data, deliver):
        nonlocal calls
        calls += 1
        if killed and calls == 12:  # in the set-up
            raise Killed
        return deliver(data)

    description = job(tmp_path)
    if killed:
        with pytest.raises(Killed):
            run_over(tmp_path, found, description, patience, line)
        # its owner allows the job now; this run has begun without it
        path = tmp_path / "telecom" / "site.toml"
        path.write_text(path.read_text().partition("\n[policy]")[0])
        lines = sites.Lines({name: site_in(tmp_path / name) for name in NAMES})
        result = remote_running.resume_over(tmp_path / "sites", lines, patience=patience)
    else:
        result = run_over(tmp_path, found, description, patience)
    assert any("Site 'telecom': " in note for note in result.notes)
    left = [name for name in NAMES if name != "telecom"]
    kept = tuple(one for one in description.clients if one.name in left)
    folders = {name: tmp_path / name for name in left}
    secrets = sites.in_run_of(tmp_path / "sites", folders)
    expected = running.run(
        dataclasses.replace(description, clients=kept), out=tmp_path / "one", secrets=secrets
    )
    assert result.certificate == expected.certificate
    assert history(tmp_path / "sites") == history(tmp_path / "one")
    assert {one["error"] for one in load(tmp_path / "telecom").of("refused")} == {"PolicyError"}


def test_a_run_needs_its_quorum_of_sites_that_do_not_refuse(tmp_path):
    found = with_policy(tmp_path, 'algorithms = ["fedavg"]', name="telecom")
    patience = RetryPolicy(deadline=60.0, absent="continue", quorum=4)
    with pytest.raises(PolicyError, match=r"Site 'telecom': .*\[policy\] algorithms"):
        run_over(tmp_path, found, job(tmp_path), patience)


def test_a_round_begins_again_without_a_site_whose_rounds_are_used_up(tmp_path):
    found = with_policy(tmp_path, "rounds_a_day = 2")
    patience = RetryPolicy(deadline=60.0, pause=0.001, probe=0.2, absent="continue", quorum=3)
    with pytest.raises(PolicyError, match=r"Site 'bank'.*rounds_a_day"):  # all are in the result
        run_over(tmp_path, found, job(tmp_path, rounds=4), patience)
    gaps = [one["gap_relative"] for one in history(tmp_path / "sites")]
    assert [one is None for one in gaps] == [False, False, True, True]
    # the server asked before each round whether the site is there, which is no error
    said = (tmp_path / "bank" / "errors.log").read_text().splitlines()
    assert len(said) >= 2
    assert all("PolicyError: the owner allows no more than 2 a day" in line for line in said)


# -- what is wrong in a policy is said in a sentence


WRONG = {
    "an unknown key": ("least_client = 3", r"\[policy\] .*'least_client'; use 'least_clients'"),
    "an algorithm that is none": ('algorithms = ["hyfdc"]', "algorithm 'hyfdc'; use 'hyfdca'"),
    "a listed one that is none": (
        'approve = "listed"\nlisted = ["abcd"]',
        r"\[policy\] names the algorithm 'abcd'",
    ),
    "a list that is not asked for": (
        'listed = ["hyfdca"]',
        r'listed is \["hyfdca"\] but approve is "all"',
    ),
    "a range": ("epsilon_most = -1.0", "epsilon_most is -1.0; it must be"),
    "no such way": ('approve = "never"', 'approve is "never"'),
    "two names of one key": ("epsilon_most = 1.0\nepsilon_min = 1.0", "which are one key"),
    "no table has as many": ("least_rows = 5\nmost_rows = 4", "no table has as many"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_policy_that_is_wrong_is_refused_in_a_sentence(tmp_path, kind):
    text, said = WRONG[kind]
    (tmp_path / "site.toml").write_text(f'[site]\nname = "bank"\n[policy]\n{text}\n')
    with pytest.raises(ExperimentError, match=said) as caught:
        read_settings(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'site.toml'}: [policy]")


def test_no_policy_in_the_table_of_the_site(tmp_path):
    (tmp_path / "site.toml").write_text('[site]\nname = "bank"\nplain = true\npolicy = "all"\n')
    with pytest.raises(
        ExperimentError,
        match=r"policy is no key of \[site\]; write it as a table \[policy\] of its own",
    ):
        read_settings(tmp_path)


def test_the_least_privacy_is_the_largest_epsilon_under_both_names():
    named = policy_of({"epsilon_most": 2.0}, "[policy]")
    assert policy_of({"epsilon_min": 2.0}, "[policy]") == named
    assert named.epsilon_most == 2.0


def test_what_provisioning_writes_is_a_policy(tmp_path):
    from intarsia.deployment import federation_file

    kits = {name: tmp_path / name for name in ("server", "bank")}
    for kit in kits.values():
        (kit / "local").mkdir(parents=True)
    federation_file.finish_kits(federation_file.FederationFile(name="a", sites=("bank",)), kits)
    text = (tmp_path / "bank" / "local" / "site.toml").read_text()
    assert read_settings(tmp_path / "bank" / "local").policy == Policy(approve="each")
    # what is left as a comment can be switched on, line by line
    named = [line[2:] for line in text.splitlines() if line.startswith("# ") and " = " in line]
    switched = [line for line in named if line.split(" = ")[0] in vars(Policy())]
    assert len(switched) >= 9
    for line in switched:
        key = line.split(" = ")[0]
        assert key in policy_of(tomllib.loads(line), "[policy]").__dict__


def test_a_damaged_count_of_rounds_is_said_in_a_sentence(tmp_path):
    (tmp_path / "rounds.json").write_text("{")
    with pytest.raises(ExperimentError, match="remove it to count anew"):
        policies.RoundCount(tmp_path, 3).begin(called("ab", 1))


def called(run, number, function="f"):
    return Call(run, 10 * number, 3, 3, number, 1, "sum", function, "train", (), b"")


def test_rounds_are_counted_once_whatever_process_counts(tmp_path, monkeypatch):
    for number, function in ((1, "f"), (1, "g"), (2, "f"), (2, "g")):
        policies.RoundCount(tmp_path, 2).begin(called("ab", number, function))
    with pytest.raises(PolicyError):
        policies.RoundCount(tmp_path, 2).begin(called("ab", 1))  # one that begins again is one more
    with pytest.raises(PolicyError):
        policies.RoundCount(tmp_path, 2).begin(called("cd", 2))
    assert json.loads((tmp_path / "rounds.json").read_text())["count"] == 2
    policies.RoundCount(tmp_path, 0).begin(called("cd", 3))  # nothing is counted
    monkeypatch.setattr(policies, "today", lambda: "2999-01-01")
    policies.RoundCount(tmp_path, 2).begin(called("cd", 3))


def test_a_clock_that_was_ahead_gives_no_rounds_for_a_day_that_had_all_of_its_own(
    tmp_path, monkeypatch
):
    count = policies.RoundCount(tmp_path, 2)
    for day, number in (("2026-11-29", 1), ("2026-11-29", 2), ("2026-11-30", 3)):
        monkeypatch.setattr(policies, "today", lambda day=day: day)
        count.begin(called("ab", number))
    monkeypatch.setattr(policies, "today", lambda: "2026-11-29")
    with pytest.raises(PolicyError, match="allows no more than 2 a day"):
        count.begin(called("ab", 4))
    monkeypatch.setattr(policies, "today", lambda: "2026-11-30")
    count.begin(called("ab", 4))
    for day in range(1, 20):
        monkeypatch.setattr(policies, "today", lambda day=day: f"2026-12-{day:02d}")
        count.begin(called("ab", 4 + day))
    assert len(json.loads((tmp_path / "rounds.json").read_text())["days"]) == 8


def test_the_log_of_a_site_is_its_owners_alone(tmp_path):
    log_of(tmp_path).append({"event": "refused"})
    for name in ("log/site.log", "site.head"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
