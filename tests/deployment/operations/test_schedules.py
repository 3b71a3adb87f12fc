"""A server asks for a run every day, keeps so many, and says what it did."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest

pytest.importorskip("psutil")

import sites
from command_line import one_error
from intarsia.cli.main import main
from intarsia.deployment import federation_file, server
from intarsia.deployment.client_setup import site_in
from intarsia.deployment.operations.schedules import Daily, add, schedules
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.errors import ExperimentError
from intarsia.experiment import config as experiments
from intarsia.inspection.holdings import Holdings, Part
from intarsia.training import run as running
from tests.deployment import test_run as remote

TREE = {
    "experiment": {"name": "calm"},
    "algorithm": {"name": "hyfdca"},
    "labels": {"task": "binary", "positive": "1"},
    "client": [{"name": "bank"}, {"name": "shop"}],
}


@pytest.fixture
def kit(tmp_path):
    (tmp_path / "server" / "local").mkdir(parents=True)
    described = federation_file.FederationFile(
        name="two", sites=("bank", "shop"), patience=RetryPolicy()
    )
    federation_file.finish_kits(described, {"server": tmp_path / "server"})
    return tmp_path / "server"


class Days:
    """A server's supervisor with a clock that a test sets."""

    def __init__(self, kit):
        self.kit, self.said, self.now = kit, [], datetime(2026, 11, 26, 12, 0)
        self._daily = Daily(kit, self.said.append, self.clock)

    def clock(self, zone=None):
        return self.now.replace(tzinfo=zone)

    def add(self, at="02:00", keep=0):
        description = experiments.from_dict(TREE)
        return add(self.kit, description, at, keep, self.now)

    def at(self, day, hour, minute=0):
        """Look at a time; return the runs that there are."""
        self.now = datetime(2026, 11, day, hour, minute)
        self._daily.look()
        return [one.name for one in server.list_statuses(self.kit / "local")]

    def end(self, day, *, failed=False, error="SiteError"):
        """Let the run of a day end."""
        own = self.kit / "local" / "runs" / f"calm-2026-11-{day}"
        (own / "out").mkdir(exist_ok=True)
        problem = {"error": error, "sentence": "it failed", "again": False}
        name, content = ("failure.json", problem) if failed else ("out/result.json", {})
        (own / name).write_text(json.dumps(content))


def test_a_run_is_asked_for_once_a_day_from_its_time_on(kit):
    days = Days(kit)
    assert days.add().since == "2026-11-27"  # today's time is over
    assert days.at(26, 23, 59) == []
    assert days.at(27, 1, 59) == []
    assert days.at(27, 2) == ["calm-2026-11-27"]
    asked = json.loads((kit / "local/runs/calm-2026-11-27/request.json").read_text())
    assert asked["sites"] == ["bank", "shop"]
    assert asked["experiment"]["experiment"]["name"] == "calm-2026-11-27"
    days.end(27)
    assert days.at(27, 3) == ["calm-2026-11-27"]
    assert days.at(28, 9) == ["calm-2026-11-27", "calm-2026-11-28"]  # it was away at two
    assert days.said == [f"calm-2026-11-{day} is asked for by its schedule" for day in (27, 28)]


@pytest.fixture
def middle_europe(monkeypatch):
    """Clocks are put forward from 2 to 3 on the last Sunday of March, and back in October."""
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("day", "first", "ahead"), [("2026-10-25", "00:30", False), ("2027-03-28", "01:00", True)]
)
def test_a_night_in_which_clocks_are_put_forward_or_back_has_one_run(
    kit, middle_europe, day, first, ahead
):
    """02:30 is twice on the one night, and never on the other; `first` is in UTC."""
    days = Days(kit)
    begin = datetime.fromisoformat(f"{day}T00:00:00+00:00")
    days.now = datetime.fromtimestamp(begin.timestamp())
    days.add(at="02:30")
    asked = []
    for minutes in range(0, 240, 10):
        moment = begin + timedelta(minutes=minutes)
        days.now = datetime.fromtimestamp(moment.timestamp())
        days._daily.look()
        asked += [f"{moment:%H:%M}"] * (len(days.said) > len(asked))
    assert (asked, days.now.hour) == ([first], 5 if ahead else 4)
    assert [one.name for one in server.list_statuses(kit / "local")] == [f"calm-{day}"]


def test_a_table_that_is_another_matter_than_the_night_before_is_noted_once(kit):
    """Nobody looks at a run of a night that finished: a column may have gone by mistake."""
    days = Days(kit)
    days.add(keep=2)
    tables = {
        27: (700, ["late", "orders", "city=Rome", "city=Oslo"]),
        28: (690, ["age", "orders", "city=Rome", "city=Lima"]),
        29: (345, ["age", "orders", "city=Oslo"]),
        30: None,  # of an older version
    }
    for day, known in tables.items():
        days.at(day, 2)
        days.end(day)
        if known is not None:
            rows, columns = known
            bank, shop = Part(("bank",), 2, (), ("debt", "income")), Part(("shop",), 4, (), columns)
            held = Holdings(("bank", "shop"), (Part(("bank", "shop"), rows),), (bank, shop))
            out = kit / f"local/runs/calm-2026-11-{day}/out/holdings.json"
            out.write_text(json.dumps(held.to_dict()))
        days.at(day, 3)
        days.at(day, 4)
    said = [one for one in days.said if "the table of" in one]
    assert said == [
        "calm-2026-11-28: the table of 'shop' lacks 'late', has 'age' anew, unlike in "
        "calm-2026-11-27",
        "calm-2026-11-29: the table of 'bank' has 345 rows to train, for 690, unlike in "
        "calm-2026-11-28",
        "calm-2026-11-29: the table of 'shop' has 345 rows to train, for 690, unlike in "
        "calm-2026-11-28",
    ]


DAMAGED = {
    "cut": '{"schedule": {"name"',
    "no table": "[1]",
    "a key of another version": '{"schedule": {"name": "x", "hour": 2}, "experiment": {}}',
    "no time": '{"schedule": {"name": "x", "at": "2:00", "keep": 0, "since": "2026-11-27"}, '
    '"experiment": {"experiment": {}}}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_schedule_is_said_and_holds_up_no_other(kit, capsys, text):
    days = Days(kit)
    days.add()
    path = kit / "local/schedules/aaa.json"
    path.write_text(text)
    assert days.at(27, 2) == ["calm-2026-11-27"]
    days.at(27, 3)
    said = "calm-2026-11-27 is asked for by its schedule"
    assert sorted(days.said)[1:] == [said]  # and the damage once
    assert f"{path} is damaged" in sorted(days.said)[0]
    assert main(["federation", "status", str(kit)]) == 3
    shown = capsys.readouterr().err
    assert f"{path} is damaged" in " ".join(shown.split())
    assert "every day at 02:00: calm" in shown
    assert main(["federation", "unschedule", str(kit), "aaa"]) == 0
    assert not path.exists()


def test_a_run_whose_removal_was_cut_short_is_none_that_waits(kit, monkeypatch):
    days = Days(kit)
    days.add(keep=1)
    for day in (27, 28, 29):
        days.at(day, 2)
        days.end(day)

    def killed(path, **_):
        if path.exists():
            shutil.rmtree(path / "out")
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(server, "shutil", SimpleNamespace(rmtree=killed))
        with pytest.raises(KeyboardInterrupt):
            days.at(29, 3)
    assert [one.state for one in server.list_statuses(kit / "local")] == ["finished"]
    days.at(29, 4)
    assert [one.name for one in server.list_statuses(kit / "local")] == ["calm-2026-11-29"]


def test_none_is_asked_for_while_the_one_before_is_at_work(kit):
    days = Days(kit)
    days.add()
    days.at(27, 2)
    own = kit / "local/runs/calm-2026-11-27"
    (own / "job.id").write_text("job")
    assert days.at(28, 2) == ["calm-2026-11-27"]
    (own / "job.id").unlink()
    (own / "out").mkdir()  # it began, and waits for a site
    assert days.at(28, 2, 1) == ["calm-2026-11-27"]
    days.end(27, failed=True)
    assert days.at(28, 2, 2) == ["calm-2026-11-27", "calm-2026-11-28"]


def test_a_run_that_waits_for_an_owner_puts_off_the_next_and_says_so_once(kit, monkeypatch, capsys):
    days = Days(kit)
    days.add()
    days.at(27, 2)
    own = kit / "local/runs/calm-2026-11-27"
    (own / "out").mkdir()
    (own / "job.id").write_text("job")
    waits = "Site 'shop': the owner has not decided."
    (own / "out" / "pending.json").write_text(json.dumps({"shop": waits}))
    assert days.at(28, 1, 59) == days.at(28, 2) == days.at(28, 2, 1) == ["calm-2026-11-27"]
    said = f"calm-2026-11-28 is not asked for while calm-2026-11-27 is at work ({waits})"
    assert days.said[1:] == [said]
    days.at(29, 2)
    assert days.said[2:] == [said.replace("28", "29")]
    read = SimpleNamespace(now=days.clock, fromisoformat=datetime.fromisoformat)
    monkeypatch.setattr("intarsia.cli.federation.datetime", read)
    assert main(["federation", "status", str(kit)]) == 3
    assert said.replace("28", "29") in " ".join(capsys.readouterr().err.split())
    (own / "out" / "pending.json").unlink()
    days.end(27)
    assert days.at(29, 3) == ["calm-2026-11-27", "calm-2026-11-29"]
    assert main(["federation", "status", str(kit)]) == 3
    assert "is not asked for" not in capsys.readouterr().err


def test_a_run_that_failed_of_what_may_pass_is_tried_again_four_times(kit, monkeypatch, capsys):
    days = Days(kit)
    days.add()
    own, said = kit / "local/runs/calm-2026-11-27", []
    read = SimpleNamespace(now=days.clock, fromisoformat=datetime.fromisoformat)
    monkeypatch.setattr("intarsia.cli.federation.datetime", read)
    days.at(27, 2)

    def state():
        return server.list_statuses(kit / "local")[0].state

    for hour in (2, 3, 4, 5):
        days.end(27, failed=True, error="TableError")  # a database was started again
        days.at(27, hour, 5)
        days.at(27, hour, 19)
        assert state() == "failed"
        assert main(["federation", "status", str(kit)]) == 3
        again = f"calm-2026-11-27 failed and is tried again at 0{hour}:20"
        assert again in capsys.readouterr().err
        days.at(27, hour, 20)
        assert state() == "waiting"
        assert not (own / "failure.json").exists()
        said.append(f"calm-2026-11-27 failed and is tried again, {hour - 1} of 4 times")
    assert days.said[1:] == said
    days.end(27, failed=True)
    for hour in (6, 7, 23):
        days.at(27, hour)
    assert state() == "failed"
    assert main(["federation", "status", str(kit)]) == 3
    assert "tried again" not in capsys.readouterr().err
    assert days.said[1:] == said


def test_a_run_is_tried_again_of_what_may_pass_alone_and_by_no_clock_that_was_put_back(kit):
    days = Days(kit)
    days.add()
    days.at(27, 2)
    days.end(27, failed=True, error="PolicyError")  # an owner said no
    for hour in (3, 4, 5):
        days.at(27, hour)
    assert len(days.said) == 1
    days.at(28, 2)
    days.end(28, failed=True)
    days.at(28, 9)
    days.at(28, 3)  # by a clock that was hours ahead
    days.at(28, 3, 14)
    assert len(days.said) == 2
    days.at(28, 3, 15)
    assert days.said[2:] == ["calm-2026-11-28 failed and is tried again, 1 of 4 times"]
    days.end(28, failed=True)
    (kit / "local/runs/calm-2026-11-28/stopped").touch()
    (kit / "local/runs/calm-2026-11-28/failure.json").unlink()
    days.at(28, 4)
    days.at(28, 5)
    days.at(29, 2)  # another is due: what failed before it is let alone
    days.end(29)
    assert len(days.said) == 4


def test_a_run_of_a_schedule_has_the_order_of_the_experiments_clients_as_one_that_is_submitted(kit):
    described = federation_file.FederationFile(
        name="two", sites=("shop", "bank"), patience=RetryPolicy()
    )
    federation_file.finish_kits(described, {"server": kit})
    days = Days(kit)
    days.add()
    days.at(27, 2)
    asked = json.loads((kit / "local/runs/calm-2026-11-27/request.json").read_text())
    assert asked["sites"] == ["bank", "shop"]


def test_a_run_that_did_not_begin_gives_way_to_that_of_the_next_day(kit):
    days = Days(kit)
    days.add()
    assert days.at(27, 2) == ["calm-2026-11-27"]
    assert days.at(27, 23, 59) == ["calm-2026-11-27"]
    assert days.at(28, 2) == ["calm-2026-11-28"]
    assert days.said[1:] == [
        "calm-2026-11-27 is removed, as it did not begin before calm-2026-11-28 was due",
        "calm-2026-11-28 is asked for by its schedule",
    ]


def test_a_run_in_the_queue_is_not_removed_for_that_of_the_next_day(kit):
    days = Days(kit)
    days.add()
    days.at(27, 2)
    for name in ("job.id", "queued"):  # as the supervisor writes them
        (kit / "local/runs/calm-2026-11-27" / name).write_text("job-1")
    assert days.at(28, 2) == ["calm-2026-11-27"]
    assert "is not asked for while calm-2026-11-27 is at work (in the queue:" in days.said[1]


def test_a_run_that_waits_for_a_site_that_has_left_holds_up_no_later_one(kit):
    days = Days(kit)
    days.add()
    days.at(27, 2)
    (kit / "local/runs/calm-2026-11-27/out").mkdir()
    described = federation_file.FederationFile(
        name="two", sites=("bank", "mill"), patience=RetryPolicy()
    )
    federation_file.finish_kits(described, {"server": kit})
    days.at(28, 2)
    states = {one.name: one.state for one in server.list_statuses(kit / "local")}
    assert states == {"calm-2026-11-27": "stopped", "calm-2026-11-28": "waiting"}
    asked = json.loads((kit / "local/runs/calm-2026-11-28/request.json").read_text())
    assert asked["sites"] == ["bank", "mill"]
    assert "is stopped, as it needs 'shop', which left the federation" in days.said[1]


def test_the_newest_finished_runs_are_kept(kit):
    days = Days(kit)
    days.add(keep=2)
    (kit / "local" / "runs" / "calm-other").mkdir(parents=True)  # no run of the schedule
    for day in (27, 28, 29, 30):
        days.at(day, 2)
        days.end(day, failed=day == 28)
    assert days.at(30, 3) == [
        # of 27, 29 and 30 the newest two; what failed is somebody's to look at
        *(f"calm-2026-11-{day}" for day in (28, 29, 30)),
        "calm-other",
    ]
    assert "calm-2026-11-27 is removed, as 2 finished runs are kept" in days.said


def test_a_run_of_a_day_that_a_clock_was_ahead_by_is_not_the_newest(kit):
    days = Days(kit)
    days.add(keep=1)
    days.at(29, 2)
    days.end(29)
    assert days.at(27, 2) == ["calm-2026-11-27", "calm-2026-11-29"]  # the clock is right again
    days.end(27)
    # that of the 27th would be removed, and asked for again each minute
    assert days.at(27, 3) == days.at(27, 4) == ["calm-2026-11-27"]
    assert days.said.count("calm-2026-11-27 is asked for by its schedule") == 1
    assert days.at(28, 2) == ["calm-2026-11-27", "calm-2026-11-28"]


def test_a_run_that_failed_is_tried_again_beside_one_of_a_clock_that_was_ahead(kit):
    days = Days(kit)
    days.add()
    days.at(30, 2)
    days.end(30)
    days.at(27, 2)
    days.end(27, failed=True)
    days.at(27, 3)
    days.at(27, 4)
    assert days.said[-1] == "calm-2026-11-27 failed and is tried again, 1 of 4 times"


def test_a_schedule_whose_run_is_refused_ends_and_says_so(kit):
    days = Days(kit)
    days.add()
    path = kit / "local" / "schedules" / "calm.json"
    content = json.loads(path.read_text())
    content["experiment"]["experiment"]["nosuch"] = 1  # of a version that had this key
    path.write_text(json.dumps(content))
    assert days.at(27, 2) == []
    assert "is at an end, as its run is refused: " in days.said[0]
    assert schedules(kit) == ([], [])


def test_the_commands_write_show_and_end_a_schedule(kit, tmp_path, capfd):
    file = tmp_path / "calm.toml"
    file.write_text(
        '[experiment]\nname = "calm"\n[algorithm]\nname = "hyfdca"\n'
        '[labels]\ntask = "binary"\npositive = "1"\n'
    )
    words = ["federation", "schedule", str(kit), str(file)]
    assert main([*words, "--at", "03:30", "--keep", "7"]) == 0
    assert "runs calm every day at 03:30, from 20" in capfd.readouterr().err
    assert main(["federation", "status", str(kit), "--json"]) == 3
    (one,) = json.loads(capfd.readouterr().out)["schedules"]
    assert (one["name"], one["at"], one["keep"]) == ("calm", "03:30", 7)
    assert main(["federation", "status", str(kit)]) == 3
    assert "  every day at 03:30: calm, from 20" in capfd.readouterr().err
    for wrong in ("3:30", "25:00", "night"):
        assert main([*words, "--at", wrong]) == 2
        assert "give hours and minutes, such as 02:00" in one_error(capfd.readouterr().err)
    assert main(["federation", "unschedule", str(kit), "clam"]) == 2
    assert "has no schedule 'clam'" in one_error(capfd.readouterr().err)
    assert main(["federation", "unschedule", str(kit), "calm"]) == 0
    assert schedules(kit) == ([], [])
    capfd.readouterr()
    assert main(["federation", "unschedule", str(kit), "calm"]) == 2
    assert "no schedule 'calm', nor any other" in one_error(capfd.readouterr().err)


def test_a_name_that_leaves_no_place_for_a_date_is_refused(kit):
    description = SimpleNamespace(name="a" * 90)
    with pytest.raises(ExperimentError, match="take at most 89 letters"):
        add(kit, description, "02:00", 0, datetime(2026, 11, 26))


def test_the_supervisor_asks_and_a_full_disk_does_not_end_it(kit):
    asked = []

    def each():
        asked.append(1)
        raise OSError(28, "No space left on device")

    jobs = SimpleNamespace(sites=dict)
    server.supervise(
        kit / "local", jobs, None, stopped=lambda: len(asked) == 2, each=each, pause=0.0
    )
    assert len(asked) == 2


class RunsHere:
    """Jobs that run at once, in this process, over sites that were just started."""

    def __init__(self, folder, local):
        self.folder, self.local, self.names = folder, local, {}

    def submit(self, job):
        found = {name: site_in(self.folder / name) for name in remote.NAMES}
        run = self.names[job]
        server.run_in_job(self.local, run, sites.Lines(found))
        return run

    def write(self, own, run, sites, least):
        self.names[own] = run
        return own

    def status(self, job):
        return "FINISHED:COMPLETED"

    def abort(self, job):
        raise AssertionError(f"{job} was ended")

    def sites(self):
        return dict.fromkeys(remote.NAMES, frozenset())


def test_three_nights_of_a_server_train_on_the_tables_of_then(tmp_path):
    """The clock goes on by half an hour a look; a table is another one from the second night on."""
    remote.set_up(tmp_path)
    kit, description = tmp_path / "kits" / "server", remote.described(tmp_path, rounds=6)
    (kit / "local").mkdir(parents=True)
    two = federation_file.FederationFile(name="four", sites=remote.NAMES, patience=remote.HASTY)
    federation_file.finish_kits(two, {"server": kit})
    clock, end = [datetime(2026, 11, 26, 12, 0)], datetime(2026, 11, 29, 6, 0)
    add(kit, description, "02:00", 2, clock[0])
    said, expected = [], []
    daily, jobs = Daily(kit, said.append, lambda: clock[0]), RunsHere(tmp_path, kit / "local")

    def pooled(name):
        out = tmp_path / name
        running.run(dataclasses.replace(description, out=str(out)))
        return running_result(out)

    def stopped():
        clock[0] += timedelta(minutes=30)
        if clock[0] == datetime(2026, 11, 27, 12, 0):
            expected.append(pooled("first"))
            table = tmp_path / "retailer.csv"  # what it measures is another thing from now on
            head, *lines = table.read_text().splitlines()
            table.write_text("\n".join([head, *lines[:30]]) + "\n")
            expected.append(pooled("second"))
        return clock[0] > end

    given = kit / "local", jobs, jobs.write
    server.supervise(*given, stopped=stopped, note=said.append, each=daily.look, pause=0, between=0)
    runs = kit / "local" / "runs"
    assert sorted(one.name for one in runs.iterdir()) == ["four-2026-11-28", "four-2026-11-29"]
    assert "four-2026-11-27 is removed, as 2 finished runs are kept" in said
    assert {one.state for one in server.list_statuses(kit / "local")} == {"finished"}
    assert expected[0] != pytest.approx(expected[1], rel=1e-3)
    for night in ("28", "29"):
        out = runs / f"four-2026-11-{night}" / "out"
        assert running_result(out) == pytest.approx(expected[1], rel=1e-9)
    assert [one for one in said if "asked for" in one] == [
        f"four-2026-11-{night} is asked for by its schedule" for night in ("27", "28", "29")
    ]


def running_result(out):
    """Return P(w) of what was trained."""
    return json.loads((out / "result.json").read_text())["certificate"]["primal"]
