from __future__ import annotations

import csv
import dataclasses
import json
import shutil
import threading

import numpy as np
import pytest

import federations
import sites
from federations import BINARY
from intarsia.core.block import Block
from intarsia.core.plugins import functions_in
from intarsia.core.schema import Schema
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_folder import SiteSettings, alone_in, check_files, read_settings
from intarsia.deployment.client_setup import site_in
from intarsia.deployment.policy import Policy, check_experiment
from intarsia.deployment.site_log import load
from intarsia.engines import codec
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.engines.remote import site as remote_site
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.engines.remote.server import Remote
from intarsia.engines.remote.wire import Answer, Call
from intarsia.errors import (
    AbsentError,
    BusyError,
    CheckpointError,
    ExperimentError,
    FederationError,
    PolicyError,
    RefusedError,
    TamperedError,
)
from intarsia.experiment import config as experiment
from intarsia.experiment.federation import build
from intarsia.privacy.keys.keyring import Drawn, KeyFolder
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.training import privacy_guarantee
from intarsia.training import registry as catalogue
from intarsia.training import run as running
from key_folders import exchanged
from killed_runs import run_killed

NAMES = ("bank", "telecom", "retailer", "post")
HASTY = RetryPolicy(seconds=60.0, deadline=60.0, pause=0.001, probe=0.2)


def write_tables(folder):
    """Write four clients' tables: rows and columns overlap in part, one column is categorical."""
    x, y = federations.table(60, 5)
    rng = np.random.default_rng(1)
    rows = {
        "bank": range(50),
        "telecom": range(20, 60),
        "retailer": range(10, 55),
        "post": range(60),
    }
    columns = {"bank": (0, 1), "telecom": (1, 2), "retailer": (3,), "post": (4,)}
    kinds = rng.choice(["a", "b", "c"], 60)
    for name in NAMES:
        with (folder / f"{name}.csv").open("w") as file:
            out = csv.writer(file)
            labelled = name != "post"
            out.writerow(
                ["id", *(f"x{c}" for c in columns[name])]
                + (["kind"] if name == "post" else [])
                + (["label"] if labelled else [])
            )
            for row in rows[name]:
                values = [
                    "" if rng.random() < 0.02 else repr(float(x[row, c])) for c in columns[name]
                ]
                out.writerow(
                    [row, *values]
                    + ([kinds[row]] if name == "post" else [])
                    + (["yes" if y[row] > 0 else "no"] if labelled else [])
                )


def described(folder, mode="plain", **settings):
    """Return the experiment with all tables in one place."""
    clients = [
        {"name": name, "path": f"{name}.csv", "id": "id"}
        | ({"label": "label"} if name != "post" else {"categorical": ["kind"]})
        for name in NAMES
    ]
    return experiment.from_dict(
        {
            "experiment": {
                "name": "four",
                "rounds": 6,
                "tolerance": 0.0,
                "evaluate_every": 2,
                "checkpoint_seconds": 0.0,
                "yardsticks": False,
                **settings,
            },
            "algorithm": {"name": "hyfdca", "loss": "logistic", "regularisation": 0.01},
            "privacy": {"mode": mode, "key": "shared.key" if mode != "plain" else ""},
            "client": clients,
        },
        folder,
    )


def set_up(folder, plain=True):
    """Write a folder for each site; return the sites by name."""
    write_tables(folder)
    exchanged(folder, NAMES, "four")
    found = {}
    for name in NAMES:
        own = folder / name
        own.mkdir()
        more = 'categorical = ["kind"]' if name == "post" else 'label = "label"'
        (own / "site.toml").write_text(
            f'[site]\nname = "{name}"\nplain = {str(plain).lower()}\nids = true\n'
            f'key = "../keys/{name}/shared.key"\n'
            f'[table]\npath = "../{name}.csv"\nid = "id"\n{more}\n'
        )
        found[name] = site_in(own)
    return found


def history(folder):
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: one for key, one in line.items() if key != "seconds"} for line in lines]


def weights_of(folder):
    return codec.decode((folder / "conclusion.state").read_bytes())["weights"]


@pytest.fixture(params=[pytest.param("plain", marks=pytest.mark.slow), "masked"])
def federation(request, tmp_path):
    """Return sites, the experiment, and what runs it in one process with their secrets."""
    found = set_up(tmp_path, plain=request.param == "plain")
    description = described(tmp_path, request.param)
    return found, description, in_one_process(description, tmp_path), tmp_path


def in_one_process(description, folder):
    """Return what runs it in this process with the secrets of the sites in the run over them."""

    def run():
        secrets = sites.in_run_of(folder / "sites", {name: folder / name for name in NAMES})
        return running.run(description, out=folder / "one", secrets=secrets)

    return run


def same(run, found, folder):
    expected = run()
    assert found.certificate == expected.certificate
    assert found.metrics == expected.metrics
    assert found.bytes == expected.bytes
    assert found.exchanges == expected.exchanges
    assert history(folder / "sites") == history(folder / "one")
    assert json.loads((folder / "sites" / "audit.json").read_text()) == json.loads(
        (folder / "one" / "audit.json").read_text()
    )


def test_the_tables_of_these_tests_are_numbers_but_for_one_column(federation):
    _, description, _, _ = federation
    schema = build(description).schema
    kinds = ["a", "b", "c"]
    assert sorted(schema.features.ids) == sorted(
        [*(f"x{number}" for number in range(5)), *(f"kind={one}" for one in kinds)]
    )


def test_an_experiment_over_sites_comes_to_the_bits_of_the_one_in_this_process(federation):
    found, description, expected, folder = federation
    over = dataclasses.replace(
        description,
        clients=tuple(dataclasses.replace(one, path=None) for one in description.clients),
    )
    result = remote_running.run_over(
        over, sites.Lines(found), NAMES, folder / "sites", patience=HASTY
    )
    same(expected, result, folder)
    # nothing goes back to what sites answered, which is most of the folder
    assert not (folder / "sites" / "journal").exists()
    resumed = remote_running.resume_over(folder / "sites", None)
    assert resumed.metrics == result.metrics


def test_a_server_keeps_no_id_of_a_finished_run(tmp_path):
    set_up(tmp_path)
    for name in NAMES:
        head, *rows = (tmp_path / f"{name}.csv").read_text().splitlines()
        text = "\n".join([head, *(f"person-{row}" for row in rows)])
        (tmp_path / f"{name}.csv").write_text(text)
    found, during = {name: site_in(tmp_path / name) for name in NAMES}, []

    def kept():
        files = [one for one in (tmp_path / "out").rglob("*") if one.is_file()]
        forms = [b"person-40", "person-40".encode("utf-32-le")]  # as text, and as arrays have it
        return [f.name for f in files if any(one in f.read_bytes() for one in forms)]

    remote_running.run_over(
        described(tmp_path, rounds=1),
        *(sites.Lines(found), NAMES, tmp_path / "out"),
        patience=HASTY,
        progress=lambda _: during.extend(kept()),
    )
    assert "set-up.state" in during  # a run that goes on needs it
    assert kept() == []


def test_a_run_whose_server_and_sites_are_killed_goes_on_to_the_same_bits(federation):
    found, description, expected, folder = federation
    result, processes = run_killed(
        found, folder, NAMES, description, folder / "sites", patience=HASTY, every=61
    )
    same(expected, result, folder)
    assert processes > 2


@pytest.mark.parametrize("missed", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_a_site_that_is_offline_for_many_rounds_catches_up(tmp_path, missed):
    found = set_up(tmp_path)
    # first, so that no call has to wait for a function that is being compiled
    running.run(described(tmp_path, rounds=1), out=None)
    description = described(tmp_path, rounds=40 + missed, tolerance=1e-6, evaluate_every=5)
    gone, seen = "post", 0

    def line(client, number, data, deliver):
        nonlocal seen
        if client == gone and data:
            seen += 1
        rounds = (
            len(history(tmp_path / "sites")) if (tmp_path / "sites/history.jsonl").exists() else 0
        )
        if client == gone and 2 <= rounds < 2 + missed:
            raise ConnectionRefusedError
        return deliver(data)

    patience = RetryPolicy(deadline=10.0, pause=0.5, probe=0.2, absent="continue", quorum=3)
    result = remote_running.run_over(
        description, sites.Lines(found, line), NAMES, tmp_path / "sites", patience=patience
    )
    assert result.certificate.gap_relative <= 1e-6
    away = [one for one in history(tmp_path / "sites") if one["gap_relative"] is None]
    assert len(away) >= missed - 1
    assert result.rounds > 2 + missed
    assert not (tmp_path / "sites" / "away.json").exists()


@pytest.mark.parametrize("extra", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_a_round_without_a_site_goes_on_without_it_in_another_process(tmp_path, extra):
    found = set_up(tmp_path)
    for share in (1.0, 0.5):  # compiles the functions of rounds with all sites, and without some
        running.run(described(tmp_path, "masked", rounds=2, participation=share), out=None)
    # checkpoints are rare: the next process begins some rounds back, and with all sites there
    description = described(tmp_path, "masked", rounds=30, tolerance=1e-6, checkpoint_seconds=1e6)
    gone, out, lock, since = "post", tmp_path / "sites", threading.Lock(), []

    class Killed(Exception):  # noqa: N818 - not an error of anybody
        pass

    def line(client, number, data, deliver):
        rounds = len(history(out)) if (out / "history.jsonl").exists() else 0
        if client == gone and rounds >= 2:
            raise ConnectionRefusedError
        with lock:
            if rounds >= 4 and data:
                since.append(client)
            if len(since) > extra:
                raise Killed
        return deliver(data)

    patience = RetryPolicy(deadline=5.0, pause=0.5, probe=0.2, absent="continue", quorum=3)
    with pytest.raises(Killed):
        remote_running.run_over(
            description, sites.Lines(found, line), NAMES, out, patience=patience
        )
    assert (out / "away.json").exists()
    again = {name: site_in(tmp_path / name) for name in NAMES}
    result = remote_running.resume_over(out, sites.Lines(again), patience=patience)
    assert result.certificate.gap_relative <= 1e-6
    assert [one["gap_relative"] is None for one in history(out)][2:4] == [True, True]


def test_a_site_refuses_a_run_that_its_settings_do_not_allow(tmp_path):
    found = set_up(tmp_path, plain=False)
    description = described(tmp_path)
    with pytest.raises(PolicyError, match=r"takes no part .*\[site\] plain .*mode = \"masked\""):
        remote_running.run_over(description, sites.Lines(found), NAMES, tmp_path / "sites")
    (entry,) = load(tmp_path / "bank").of("refused")
    assert "[site] plain in site.toml" in entry["sentence"]
    assert str(tmp_path) not in entry["sentence"]


@pytest.mark.parametrize("ids", ["plain", "pseudonyms"])
def test_a_site_shows_ids_of_rows_only_if_its_settings_allow_it(tmp_path, ids):
    set_up(tmp_path)
    for name in NAMES:
        path = tmp_path / name / "site.toml"
        path.write_text(path.read_text().replace("ids = true\n", ""))
    found = {name: site_in(tmp_path / name) for name in NAMES}
    tree = experiment.to_dict(described(tmp_path, rounds=1, tolerance=0.0))
    tree["alignment"] = {"ids": ids} | ({"key": "shared.key"} if ids != "plain" else {})
    description = experiment.from_dict(tree, tmp_path)
    over = sites.Lines(found)
    if ids == "plain":
        with pytest.raises(PolicyError, match=r"no ids of rows \(\[site\] ids"):
            remote_running.run_over(description, over, NAMES, tmp_path / "sites")
        said = (tmp_path / NAMES[0] / "errors.log").read_text()
        assert 'set alignment.ids = "pseudonyms" in the experiment, or ids = true' in said
    else:
        remote_running.run_over(description, over, NAMES, tmp_path / "sites")
        assert (tmp_path / "sites" / "result.json").is_file()


@pytest.mark.parametrize(
    "place", [{"path": "a.csv", "label": "y"}, {"name": "eurosat", "path": "a"}]
)
def test_a_site_opens_no_file_that_the_run_names(tmp_path, place):
    (tmp_path / "site.toml").write_text('[site]\nname = "bank"\nplain = true\n')
    found = {"bank": site_in(tmp_path)}
    description = experiment.from_dict(
        {"dataset": place, "partition": {"kind": "grid"}, "algorithm": {"name": "hyfdca"}}, tmp_path
    )
    with pytest.raises(ExperimentError, match="does not fit the site"):
        remote_running.run_over(description, sites.Lines(found), ["bank"], tmp_path / "out")
    assert "opens only files that its own folder names" in (tmp_path / "errors.log").read_text()


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "own-networks", "model": "networks:Small"},
        {"name": "own-networks", "model": "a:B", "models": {"bank": "networks:Small"}},
        {"name": "hyfem", "extractor": "networks:Small"},
        {"name": "fedprox", "embedding": "networks:Small"},
        {"name": "femam-flic", "flic": {"embedding": "networks:Small"}},
        {"name": "own-networks", "model": "networks: Small"},
        {"name": "own-networks", "model": "a:B", "models": {"device": "networks:Small"}},
        {"name": "hyfem", "extractors": {"device": "networks:Small"}},
        {"name": "own-networks", "model": "networks:Small:x"},
        {"name": "own-networks", "model": ["a:B", "networks:Small"]},
    ],
)
def test_a_site_runs_no_function_that_it_does_not_name(tmp_path, algorithm):
    tree = {"experiment": {"rounds": 1}, "algorithm": algorithm, "privacy": {"mode": "plain"}}
    settings = SiteSettings(name="bank", plain=True, modules=("a:B",))
    with pytest.raises(PolicyError, match=r"runs only functions .*networks.*\[site\] modules"):
        check_experiment(settings.policy, tree, settings.modules, own_table=False)
    named = ("a:B", *functions_in(algorithm))
    check_experiment(settings.policy, tree, named, own_table=False)


@pytest.mark.parametrize("table", ["algorithm", "dataset", "partition"])
def test_what_is_no_table_is_refused_before_anything_is_read_of_it(table):
    tree = {"experiment": {"rounds": 1}, "algorithm": {"name": "hyfdca"}, table: "Ridge"}
    with pytest.raises(RefusedError, match=f"experiment's {table} is 'Ridge'; expected a table"):
        check_experiment(Policy(), tree, (), own_table=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("site = 3", r"site is 3; expected a table \[site\]"),
        ("[[table]]\nx = 1", r"expected a table \[table\]"),
        ('[site]\nname = "a"\nplain = false', "there is no key"),
        ('[site]\nname = "a"\nkey = "none.key"', r"\[site\] key is .*none.key"),
        ('[site]\nname = "a"\nplain = true\n[table]\npath = "no.csv"', r"\[table\] path is"),
    ],
)
def test_what_is_wrong_in_a_site_s_folder_is_said_when_it_starts(tmp_path, text, said):
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(ExperimentError, match=said):
        check_files(read_settings(tmp_path))


def test_sealed_averages_need_as_many_sites_as_a_quorum_may_leave(tmp_path):
    pytest.importorskip("torch")
    description = described(tmp_path, "masked")
    description = dataclasses.replace(description, algorithm="fedavg-ft", hyperparameters={})
    algorithm, options = catalogue.choose(description)
    x, y = np.ones((3, 2)), np.array([1.0, -1.0, 1.0])
    blocks = {name: Block(np.arange(3) + 3 * k, ("a", "b"), x, y) for k, name in enumerate(NAMES)}
    schema = Schema.of(blocks, BINARY)
    privacy_guarantee.check_summands(description, algorithm, options, schema, quorum=3)
    with pytest.raises(ExperimentError, match=r"can have 1 of 4 clients.*quorum"):
        privacy_guarantee.check_summands(description, algorithm, options, schema, quorum=1)


def test_a_site_takes_the_dictionary_of_its_own_folder(tmp_path):
    found = set_up(tmp_path)
    (tmp_path / "d.toml").write_text("[feature.x0]\n[client.bank]\nx0 = { feature = 'x0' }\n")
    description = described(tmp_path, rounds=1)
    named = dataclasses.replace(
        description,
        alignment=dataclasses.replace(description.alignment, dictionary=str(tmp_path / "d.toml")),
    )
    with pytest.raises(PolicyError, match=r"\[site\] dictionary in site.toml"):
        remote_running.run_over(named, sites.Lines(found), NAMES, tmp_path / "none")
    for name in NAMES:
        path = tmp_path / name / "site.toml"
        path.write_text(path.read_text().replace("[table]", 'dictionary = "own.toml"\n[table]'))
        own = "renamed" if name == "bank" else "x0"
        (tmp_path / name / "own.toml").write_text(
            f"[feature.{own}]\n[client.bank]\nx0 = {{ feature = '{own}' }}\n"
        )
    again = {name: site_in(tmp_path / name) for name in NAMES}
    remote_running.run_over(named, sites.Lines(again), NAMES, tmp_path / "out")
    assert "renamed" in (tmp_path / "out" / "holdings.json").read_text()


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_whole_numbers_as_ids_are_text_beside_a_table_without_ids(tmp_path, mode):
    """The sites kept whole numbers, and could not find their rows: the run ended at all of them."""
    set_up(tmp_path)
    lines = (tmp_path / "retailer.csv").read_text().splitlines()
    (tmp_path / "retailer.csv").write_text("\n".join(one.partition(",")[2] for one in lines))
    own = tmp_path / "retailer/site.toml"
    own.write_text(own.read_text().replace('id = "id"\n', ""))
    tree = experiment.to_dict(described(tmp_path, mode, rounds=2))
    del next(one for one in tree["client"] if one["name"] == "retailer")["id"]
    description = experiment.from_dict(tree, tmp_path)
    found = {name: site_in(tmp_path / name) for name in NAMES}
    given = description, sites.Lines(found), NAMES, tmp_path / "sites"
    result = remote_running.run_over(*given, patience=HASTY)
    same(in_one_process(description, tmp_path), result, tmp_path)


def test_a_site_that_never_answers_ends_the_run_with_its_name(tmp_path):
    found = set_up(tmp_path)

    def line(client, number, data, deliver):
        if client == "bank":
            raise ConnectionRefusedError
        return deliver(data)

    with pytest.raises(AbsentError, match="bank did not answer to read"):
        remote_running.run_over(
            described(tmp_path),
            sites.Lines(found, line),
            NAMES,
            tmp_path / "sites",
            patience=RetryPolicy(deadline=3.0),
        )


def test_a_server_goes_on_from_the_checkpoint_before_a_damaged_one(federation):
    found, description, expected, folder = federation
    out = folder / "sites"

    def line(client, number, data, deliver):
        if (out / "checkpoints" / "round-00000001").exists():  # the second
            raise RuntimeError("the server ends here")
        return deliver(data)

    with pytest.raises(RuntimeError, match="ends here"):
        remote_running.run_over(description, sites.Lines(found, line), NAMES, out, patience=HASTY)
    newest = max((out / "checkpoints").iterdir()) / "server.state"
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="is damaged"):
        result = remote_running.resume_over(out, sites.Lines(found), patience=HASTY)
    same(expected, result, folder)


def test_a_table_that_does_not_fit_the_others_ends_the_run_by_name(tmp_path):
    found = set_up(tmp_path)
    rows = "".join(f"{name},7,{'yes' if name in 'ace' else 'no'}\n" for name in "abcdef")
    (tmp_path / "retailer.csv").write_text(f"id,x3,label\n{rows}")  # ids are text
    with pytest.raises(FederationError, match="ids"):
        remote_running.run_over(described(tmp_path), sites.Lines(found), NAMES, tmp_path / "sites")


@pytest.mark.parametrize("trust", ["pairs", "clients"])
def test_a_site_with_another_key_is_found_out(tmp_path, trust):
    found = set_up(tmp_path, plain=False)
    own = KeyFolder(tmp_path / "keys" / "post")
    if trust == "pairs":  # its card is none that the others confirmed
        cards = [one for one in own.cards() if one.name != "post"]
        own.create("post", "four", replace=True)
        cards = (*cards, own.identity().card)
        own.keep(Drawn(own.shared(), None, cards, {}))
    else:
        SharedKey(bytes(32), "four").store(own.shared_file)
    for name in NAMES:
        path = tmp_path / name / "site.toml"
        path.write_text(path.read_text().replace("ids =", f'trust = "{trust}"\nids ='))
        found[name] = site_in(tmp_path / name)
    settings = described(tmp_path, "masked")
    privacy = dataclasses.replace(settings.privacy, trust=trust)
    settings = dataclasses.replace(settings, privacy=privacy)
    said = "meet: The greeting of 'post'" if trust == "pairs" else "sealed with another key"
    with pytest.raises(TamperedError, match=said):
        remote_running.run_over(settings, sites.Lines(found), NAMES, tmp_path / "sites")


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_a_site_that_missed_a_rotation_of_the_key_is_named(tmp_path, mode):
    """Else its rows, which have labels, would be nobody else's, without a word."""
    found = set_up(tmp_path, plain=mode == "plain")
    for name in NAMES:
        if name != "telecom":
            SharedKey(bytes(32), "four", 2).store(tmp_path / "keys" / name / "shared.key")
    settings = described(tmp_path, mode)
    hidden = dataclasses.replace(settings.alignment, ids="pseudonyms")
    settings = dataclasses.replace(settings, alignment=hidden)
    others = ", ".join(repr(name) for name in NAMES if name != "telecom")
    with pytest.raises(TamperedError, match="Another shared key than at") as caught:
        remote_running.run_over(settings, sites.Lines(found), NAMES, tmp_path / "sites")
    assert f"than at {others} is at 'telecom', whose rows" in str(caught.value)
    SharedKey(bytes(32), "four", 2).store(tmp_path / "keys" / "telecom" / "shared.key")
    with pytest.raises(TamperedError, match="begin the run anew"):  # what was said is kept
        remote_running.resume_over(tmp_path / "sites", sites.Lines(found))
    remote_running.run_over(settings, sites.Lines(found), NAMES, tmp_path / "sites", overwrite=True)


@pytest.mark.parametrize("name", ["index", "state", "stage"])
def test_a_site_whose_folder_is_damaged_says_so(tmp_path, name):
    found, calls = set_up(tmp_path), 0

    def line(client, number, data, deliver):
        nonlocal calls
        calls += client == "bank"
        if client == "bank" and calls == 25:
            (folder,) = (tmp_path / "bank" / "runs").iterdir()
            for path in folder.glob(f"{name}*"):
                path.write_bytes(path.read_bytes()[:-3])
            found["bank"] = site_in(tmp_path / "bank")
        return found[client].handle(data)

    with pytest.raises(CheckpointError, match=r"At client 'bank'.*cannot be read"):
        remote_running.run_over(
            described(tmp_path), sites.Lines(found, line), NAMES, tmp_path / "sites"
        )


@pytest.mark.parametrize("patient", [True, False])
def test_two_processes_do_not_work_on_one_site_at_once(tmp_path, monkeypatch, patient):
    """Of two jobs one waits for the other; errors.log and the audit name one that stays long."""
    if not patient:
        monkeypatch.setattr(remote_site, "_BUSY", 0.0)
    found = set_up(tmp_path)
    description, held = described(tmp_path), threading.Event()
    told = []
    found["bank"] = site_in(tmp_path / "bank", told.append)

    def line(client, number, data, deliver):
        if client == "bank" and number == 9:
            with alone_in(tmp_path / "bank"):  # the process of a job before this one
                answers = [deliver(data) for _ in range(2)]
            for answer in answers:
                assert codec.decode(answer, Answer).error == "BusyError"
            held.set()
            return answer
        return deliver(data)

    expected = in_one_process(description, tmp_path)
    over = sites.Lines(found, line)
    result = remote_running.run_over(description, over, NAMES, tmp_path / "sites", patience=HASTY)
    same(expected, result, tmp_path)
    assert held.is_set()
    assert [type(one) for one in told] == [BusyError] * (not patient)
    refused = load(tmp_path / "bank").of("refused")
    assert [one["error"] for one in refused] == ["BusyError"] * (not patient)


def private(folder):
    """Return sites with labels, and an experiment over them whose updates have noise."""
    found = set_up(folder, plain=False)
    made = described(folder, "masked")
    description = dataclasses.replace(
        made,
        algorithm="fedavg",
        hyperparameters={"loss": "logistic", "local_steps": 5},
        preprocessing=dataclasses.replace(made.preprocessing, standardise=False),
        privacy=dataclasses.replace(made.privacy, epsilon=2.0, clip=0.1),
        clients=tuple(dataclasses.replace(one, path=None) for one in made.clients),
    )
    return found, description


def releases(folder, name):
    """Return how often a site has released with noise, as its own folder says."""
    (path,) = (folder / name / "releases").iterdir()
    ledger = ReleaseLedger(path)
    ledger._read()
    assert path.stat().st_mode & 0o077 == 0
    return len(ledger._numbers[name])


def test_sites_count_their_releases_and_a_run_that_was_killed_goes_on_to_the_same_model(tmp_path):
    pytest.importorskip("dp_accounting")
    found, description = private(tmp_path)
    stopped, calls = tmp_path / "sites", 0

    class Killed(Exception):  # noqa: N818 - not an error of anybody
        pass

    def line(client, number, data, deliver):
        nonlocal calls
        calls += 1
        if calls % 11 == 0:
            found[client] = site_in(tmp_path / client)  # killed, and started again
        answer = found[client].handle(data)
        if codec.decode(data, Call).function == "fedavg.noisy_descent" and calls > 90:
            raise Killed  # it has released, and nobody hears of the answer
        return answer

    with pytest.raises(Killed):
        remote_running.run_over(
            description, sites.Lines(found, line), NAMES, stopped, patience=HASTY
        )
    before = {name: releases(tmp_path, name) for name in NAMES}
    result = remote_running.resume_over(stopped, sites.Lines(found), patience=HASTY)
    assert result.rounds == 6
    assert {name: releases(tmp_path, name) for name in NAMES} == dict.fromkeys(NAMES, 6)
    assert 0 < max(before.values()) < 6
    assert result.privacy.releases == 6


def test_a_site_whose_run_is_put_back_has_its_count(tmp_path):
    """The server goes back to before the run's rounds, and so does the folder of a site."""
    pytest.importorskip("dp_accounting")
    found, description = private(tmp_path)
    out, copies, calls = tmp_path / "sites", tmp_path / "copy", []

    def line(client, number, data, deliver):
        call = codec.decode(data, Call)
        if call.function == "fedavg.noisy_descent" and client == "bank":
            if not calls:
                shutil.copytree(tmp_path / "bank" / "runs", copies)
            calls.append(data)
        return deliver(data)

    remote_running.run_over(description, sites.Lines(found, line), NAMES, out, patience=HASTY)
    assert releases(tmp_path, "bank") == len(calls) == 6
    shutil.rmtree(tmp_path / "bank" / "runs")
    shutil.copytree(copies, tmp_path / "bank" / "runs")
    first = codec.decode(calls[0], Call)
    other = dataclasses.replace(first, exchange=9)  # not what it was asked then
    again = codec.decode(site_in(tmp_path / "bank").handle(codec.encode(other)), Answer)
    assert again.error == "SealedError"
    assert releases(tmp_path, "bank") == 7  # an attempt that was refused counts as well


def test_a_run_with_noise_keeps_totals_apart(tmp_path, monkeypatch):
    """No round of it begins again once a total was opened, whoever asks for it."""
    pytest.importorskip("dp_accounting")
    found, description = private(tmp_path)
    apart = []

    class Noted(Remote):
        def __init__(self, *given, **named):
            apart.append(named["apart"])
            super().__init__(*given, **named)

    monkeypatch.setattr(remote_running, "Remote", Noted)
    for name, epsilon in (("noisy", 2.0), ("silent", 0.0)):
        settings = dataclasses.replace(description.privacy, epsilon=epsilon)
        remote_running.run_over(
            dataclasses.replace(description, rounds=1, privacy=settings),
            *(sites.Lines(found), NAMES, tmp_path / name),
            patience=HASTY,
        )
    assert apart == [True, False]
