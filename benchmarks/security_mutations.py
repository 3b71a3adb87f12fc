"""Take protections out of the code one by one, and name those that no test misses.

Each mutation replaces a text at one place in a copy of the tree and runs the test files that should
notice; the first test that fails is printed beside it. One whose tests pass is a survivor: a
protection that may be lost without anybody knowing. Before any, the same files have to pass as they
are.

    python benchmarks/security_mutations.py             # all; the survivors are printed at the end
    python benchmarks/security_mutations.py --only gcm  # those whose name has the text
    python benchmarks/security_mutations.py --list
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOTALS = "tests/attacks/test_replaced_totals.py"
OPENING = "tests/attacks/test_opening.py"
INIT = "tests/cli/test_init.py"
REPLIES = "tests/attacks/test_malformed_replies.py"
LATE = "tests/engines/remote/test_caller.py"
SHARED_ROWS = "tests/attacks/test_labels_by_shared_rows.py"
LEFT = "tests/attacks/test_labels_of_who_is_left.py"
GRADES = "tests/attacks/test_labels_by_metrics.py"
BY_LOSSES = "tests/attacks/test_labels_by_losses.py"
ROWS_BY_GRADES = "tests/attacks/test_rows_by_metrics.py"
POLICY = "tests/deployment/test_policy.py"
OBJECTIVES = "tests/attacks/test_rows_by_objectives.py"
RANGES = "tests/attacks/test_labels_by_ranges.py"
BEYOND = "tests/attacks/test_values_beyond_the_range.py"
ODD_SET_UPS = "tests/deployment/test_odd_set_ups.py"
TOLD = "tests/privacy/test_accounting.py"
OVERFLOW = "tests/attacks/test_updates_that_are_no_numbers.py"
FIGURES = "tests/protocols/test_figures.py"
PAD = "tests/attacks/test_two_time_pad.py"
KEYS = "tests/attacks/test_weakened_keys.py"
APART = "tests/attacks/test_round_apart.py"
FRAME = "tests/attacks/test_public_frame.py"
COLLUSION = "tests/attacks/test_collusion.py"
ATTACKS = "tests/privacy/test_attacks.py"
FEW_VALIDATED = "tests/attacks/test_rows_by_few_for_validation.py"
FEW_VALUES = "tests/attacks/test_values_of_a_column_that_most_lack.py"
BETWEEN_JOBS = "tests/attacks/test_rows_added_between_jobs.py"
CLAIMED = "tests/attacks/test_rows_claimed_by_name.py"
PAIR_KEYS = "tests/privacy/keys/test_pair_keys.py"
MEETING = "tests/deployment/test_pairs.py"
CALLER = "tests/attacks/test_site_as_server.py"
LABELS = "tests/attacks/test_labels_by_agreement.py"
CLAIMS = "tests/attacks/test_labels_by_claims.py"
COPIES = "tests/attacks/test_values_by_copies.py"
MADE_UP = "tests/attacks/test_values_of_a_made_up_column.py"
SINGLE = "tests/attacks/test_single_update.py"
WEIGHED = "tests/attacks/test_weighed_to_nothing.py"
CHOSEN = "tests/attacks/test_chosen_models.py"
UNNEEDED = "tests/attacks/test_undeclared_exchanges.py"
WORDS = "tests/attacks/test_mixed_words.py"
LOGS = "tests/attacks/test_private_files.py"
TEXTS = "tests/attacks/test_free_text.py"
MODULES = "tests/attacks/test_named_modules.py"
PLUGINS = "tests/deployment/test_own_algorithm.py"
QUERIES = "tests/attacks/test_queries.py"
VIEWS = "tests/attacks/test_views_without_end.py"
FILES = "tests/attacks/test_open_files.py"
CODES = "tests/attacks/test_escape_codes.py"
BOMBS = "tests/attacks/test_bombs.py"
SERVER = "tests/engines/remote/test_server.py"
MASKS = "tests/privacy/secure_aggregation/test_masking.py"
CKKS = "tests/privacy/secure_aggregation/test_ckks.py"
SUMS = "tests/engines/sums/test_secure.py"
EXCHANGE = "tests/privacy/keys/test_key_exchange.py"
CRYPTO = "tests/privacy/keys/test_crypto.py"
PSI = "tests/privacy/entity_matching/test_psi.py"
CODEC = "tests/engines/test_codec.py"
NO_CERTIFICATE = "tests/attacks/test_connections_without_a_certificate.py"
WHO_IS_LEFT = "tests/attacks/test_shares_of_who_is_left.py"
KINKS = "tests/attacks/test_rows_by_kinks_of_losses.py"
NORMS = "tests/attacks/test_weights_by_norms.py"
RIDGE = "tests/attacks/test_system_without_rows.py"
CLOSED = "tests/attacks/test_levels_closed_twice.py"
NUMBERS = "tests/attacks/test_numbers_of_the_servers.py"
BETWEEN = "tests/attacks/test_model_between_steps.py"
APART_MODELS = "tests/attacks/test_models_told_apart.py"
ONE_MODEL = "tests/attacks/test_models_of_one_client.py"
KEPT = "tests/attacks/test_models_overwritten.py"
FEW = "tests/attacks/test_rows_of_a_round.py"
PREPARED = "tests/attacks/test_prepared_folders.py"
STEPS = "tests/attacks/test_steps_told_apart.py"
SHARES = "tests/algorithms/hyfdca/test_newton_shares.py"
ENCRYPTED = "tests/attacks/test_encrypted_products.py"
PRODUCTS = "tests/maths/test_encrypted_products.py"
ENCODING = "tests/attacks/test_labels_by_encoding.py"
AS_CLASSES = "tests/attacks/test_numbers_as_classes.py"
GUESSED = "tests/attacks/test_guessed_levels.py"
CLIPPED = "tests/attacks/test_rows_not_clipped.py"
RARE = "tests/attacks/test_labels_by_rare_numbers.py"
HEAVY = "tests/attacks/test_weights_beyond_the_noise.py"
JOINING = "tests/deployment/operations/test_joining.py"
BACKUP = "tests/deployment/operations/test_backup.py"
APPROVED = "tests/attacks/test_approved_jobs.py"
METRICS = "tests/deployment/operations/test_metrics.py"
REVOKED = "tests/engines/transports/test_revocation.py"
MEANS = "tests/attacks/test_means_of_others.py"
ODD_JOBS = "tests/attacks/test_odd_jobs.py"
ODD_CALLS = "tests/attacks/test_odd_calls.py"
FLARE_CALLS = "tests/engines/transports/test_nvflare_calls.py"
FLARE_KITS = "tests/engines/transports/test_nvflare_kits.py"
SPARE = "tests/engines/transports/test_spare.py"
SYSTEM = "tests/attacks/test_shared_system.py"
OPTIMUM = "tests/attacks/test_noise_far_from_optimum.py"
COMPARED = "tests/attacks/test_models_compared_again.py"
LEVELS = "tests/attacks/test_levels_told_apart.py"
PICTURES = "tests/attacks/test_missing_cells_by_pictures.py"
CLUSTER = "tests/attacks/test_cluster_of_a_file.py"
PUT_BACK = "tests/attacks/test_put_back.py"
PAGES = "tests/attacks/test_pages_of_the_console.py"
CALIBRATION = "tests/attacks/test_rows_by_calibration.py"

DECLARED = "engines/remote/declared.py"
SITE = "engines/remote/site.py"
ANSWERS = "engines/remote/replies.py"
SEALS = "privacy/secure_aggregation/masking.py"
CIPHERS = "privacy/secure_aggregation/ckks.py"
WRAPS = "privacy/keys/key_exchange.py"


@dataclass(frozen=True)
class Mutation:
    """A text that protects, what stands in its place, and which tests should notice."""

    name: str
    file: str  # below src/intarsia
    before: str
    after: str
    tests: tuple[str, ...]


def _of(file: str, *cases: tuple[str, str, str, str]) -> list[Mutation]:
    return [
        Mutation(name, file, before, after, tuple(tests.split()))
        for name, before, after, tests in cases
    ]


MUTATIONS = [
    *_of(
        "inspection/proposals/unfit_columns.py",
        (
            "columns named as persons that init has learned from",
            "    if not (text or numbered) or not names_persons(own.name):\n",
            "    if True:\n",
            INIT,
        ),
        (
            "addresses and telephones that init has learned from",
            'return f"has {kind}, which may tell persons"',
            "pass",
            INIT,
        ),
        (
            "columns of persons at a small table",
            "if words(own.name) not in persons",
            "if not _of_persons(own)",
            INIT,
        ),
    ),
    *_of(
        "deployment/client_models.py",
        (
            "means and scales that nobody trained with",
            "            alike = np.isnan(known[own]) | (known[own] == value)\n",
            "            alike = np.ones(len(own), bool)\n",
            MEANS,
        ),
        (
            "scales that are no scales",
            'good = np.isfinite(value) & ((value >= 0) | (part != "scale"))',
            "good = np.ones(len(own), bool)",
            MEANS,
        ),
    ),
    *_of(
        "training/run.py",
        ("missing cells of few rows", ", least=evaluation_rows.LEAST_ROWS)", ")", PICTURES),
    ),
    *_of(
        "engines/remote/replies.py",
        (
            "answers with fields of other classes",
            "    if odd or not isinstance(found, record):\n",
            "    if False:\n",
            REPLIES,
        ),
        (
            "what lies within a mapping",
            "    if isinstance(value, Mapping) and len(inner) == 2:\n",
            "    if False:\n",
            REPLIES,
        ),
        (
            "parts of weights without a bound",
            "known[~(np.isfinite(known) | (np.isneginf(known) & bound))]",
            "known[~(np.isfinite(known) | np.isneginf(known))]",
            REPLIES,
        ),
        (
            "blocks of another shape",
            "return {name: np.shape(one) for name, one in value.items()}",
            "return {}",
            REPLIES,
        ),
        (
            "scores of other outputs",
            "np.shape(value)[: None if layout is None else -1]",
            "np.shape(value) if layout is None else ()",
            REPLIES,
        ),
        (
            "scores that are no numbers",
            'withheld = fn.protocol == "evaluation" and not summed',
            'withheld = fn.protocol == "evaluation"',
            REPLIES,
        ),
    ),
    *_of(
        "protocols/figures.py",
        (
            "figures of another shape",
            "    if np.shape(told.values) != (len(MEASURES), 3):\n",
            "    if False:\n",
            REPLIES,
        ),
    ),
    *_of(
        "algorithms/femam/clustering.py",
        ("models of another size", "    if strange:\n", "    if False:\n", REPLIES),
        (
            "counts that no rows add up to",
            "if not ((wrong >= 0) & (wrong <= rows)).all():",
            "if False:",
            REPLIES,
        ),
        (
            "losses that no rows add up to",
            "if not (rows > 0 and np.isfinite(total).all()):",
            "if False:",
            REPLIES,
        ),
    ),
    *_of(
        "algorithms/hyfem/matching.py",
        (
            "classifiers of other layers",
            "        _check_sent(made_of, client, one)",
            "        pass",
            REPLIES,
        ),
    ),
    *_of(
        "engines/remote/wire.py",
        (
            "whose greeting does not fit",
            "if answer.error == GreetingError.__name__:",
            "if False:",
            ODD_SET_UPS,
        ),
        (
            "long names in calls",
            "if long > _LONGEST or sum(map(len, named)) > _MOST_NAMES:",
            "if False:",
            ODD_CALLS,
        ),
        (
            "lines of a site's own in the server's log",
            "_SENTENCES.get(answer.error, shown(answer.sentence)[:200])",
            "_SENTENCES.get(answer.error, answer.sentence[:200])",
            REPLIES,
        ),
    ),
    *_of(
        "engines/remote/site.py",
        (
            "calls with fields of other classes",
            "if odd := wire.odd_field(found, Call):",
            'if odd := "" if isinstance(found, Call) else "it is none":',
            ODD_CALLS,
        ),
    ),
    *_of(
        "engines/transports/nvflare.py",
        (
            "names by which sites call themselves",
            'replaced.note(self._file.parent.parent, refused.rpartition(": ")[2])',
            "replaced.note(self._file.parent.parent, site)",
            FLARE_KITS,
        ),
        (
            "ids of jobs that are no text",
            'jobs = {str(one["job_id"])}',
            'jobs = {one["job_id"]}',
            FLARE_KITS,
        ),
        (
            "numbers in the place of bytes",
            "    if not isinstance(found, bytes | bytearray | memoryview | None):\n",
            "    if False:\n",
            FLARE_CALLS,
        ),
    ),
    *_of(
        "callbacks/contents.py",
        (
            "links that trackers follow",
            "is_file() and _is_in(own / name, own)",
            "is_file()",
            "tests/attacks/test_names_in_trackers.py",
        ),
    ),
    *_of(
        "algorithms/hyfdca/newton/client.py",
        ("points measured twice", "if not point.gathered:", "if False:", NORMS),
        (
            "the elastic net begun elsewhere than at zeros",
            "if threshold and (message.warm or",
            "if False and (message.warm or",
            NORMS,
        ),
    ),
    *_of(
        "algorithms/hyfdca/newton/direction.py",
        ("two directions at a point", "point.directed == point.measured:", "False:", NORMS),
        ("many steps along a direction", "steps.shape[1] > len(_STEPS) or ", "", NORMS),
        ("steps along a direction again and again", " or before >= most + finer", "", NORMS),
    ),
    *_of(
        "algorithms/hyfdca/algorithm.py",
        (
            "w(α) added up by the server",
            '"MeasurePoint.w": "Gathered.w"',
            '"MeasurePoint.w": _W',
            NORMS,
        ),
        (
            "duals times a factor",
            '"Gather.alpha": "DualPoint.alpha"',
            '"Gather.alpha": _ALPHA',
            NORMS,
        ),
    ),
    *_of(
        "algorithms/hyfdca/algorithm.py",
        ("objectives of HyFDCA", "each_round=_OBJECTIVES.get(name, 0),", "", OBJECTIVES),
        ("ascents of HyFDCA", 'each_round_times=_TIMES.get(name, ""),', "", OBJECTIVES),
    ),
    *_of(
        "algorithms/hyfdca/dual_ascent.py",
        ("lengths of others' rows told", "untold = shared and not wide", "untold = False", SYSTEM),
        (
            "lengths of rows told as they are",
            "_sizes(own) if message.sizes else None",
            "own",
            SYSTEM,
        ),
    ),
    *_of(
        "algorithms/networks/label_scaling.py",
        (
            "the mean of one client's labels",
            'fl.each(fl.sums(count_labels, square_labels), together="all")',
            "fl.sums(count_labels, square_labels)",
            SINGLE,
        ),
    ),
    *_of(
        "algorithms/flic/linear.py",
        (
            "moments of clients that count for nothing",
            'pooled=lambda options: True), present="clients"',
            "pooled=lambda options: True)",
            WEIGHED,
        ),
    ),
    *_of(
        "protocols/figures.py",
        (
            "counts by score read by the client that opens them",
            "hidden, key = len(asked) > 1, b",
            "hidden, key = False, b",
            "tests/attacks/test_rows_by_scores.py",
        ),
    ),
    *_of(
        "training/privacy_guarantee.py",
        ("noise for rows of large weights", "if schema.labels.weighted:", "if False:", HEAVY),
    ),
    *_of(
        "protocols/preprocessing/rare_values.py",
        (
            "levels of few training rows",
            "rare = (counts > 0) & (counts < least)",
            "rare = (counts > 0) & (counts < 0)",
            RARE,
        ),
        (
            "few rows that lack a level",
            "if 0 < lacked[column] < least[one[0]] and not (",
            "if False and not (",
            RARE,
        ),
        (
            "numbers of few training rows",
            "few |= (other > 0) & (other < least) & (2 * other < known)",
            "pass",
            RARE,
        ),
        (
            "numbers that few training rows store",
            "some = (count > 0) & (count < least)",
            "some = (count > 0) & (count < 0)",
            RARE,
        ),
        (
            "columns of few numbers",
            "few = known < least",
            "few = known < 0",
            RARE,
        ),
        (
            "numbers of few of the rows that another client lacks",
            "if len(rows) < FEWEST or not (told > 1).any():",
            "if True:",
            RARE,
        ),
        (
            "few copies that train",
            "told = few_values.without_few(block, client, schema)",
            "told = block",
            FEW_VALUES,
        ),
    ),
    *_of(
        "training/setup.py",
        (
            "what few training rows have in a simulation",
            "made = without_rare(made, name, schemas[part], **how)",
            "pass",
            RARE,
        ),
    ),
    *_of(
        "deployment/client_setup.py",
        (
            "rows without ids that another client claims",
            "_check_alone(settled.schemas, self._settings.name)",
            "pass",
            CLAIMED,
        ),
        (
            "sums of columns rounded to any step",
            'allowed["MeasureFeatures.step"] = (step,)',
            "pass",
            WEIGHED,
        ),
        (
            "what few training rows of a site have",
            'train = without_rare(self._blocks["train"], name, schema, standardise=standardise)',
            'train = self._blocks["train"]',
            "tests/attacks/test_guessed_levels.py",
        ),
        (
            "weights of rows that labels say nothing of",
            "if self._table.weights is not None and not encoding.labels.weighted:",
            "if False:",
            HEAVY,
        ),
    ),
    *_of(
        "engines/remote/declared.py",
        (
            "rows multiplied by who is left alone",
            "if exact and left and known.layout is Layout.SELECTED:",
            "if False:",
            WHO_IS_LEFT,
        ),
    ),
    *_of(
        "engines/transports/handshakes.py",
        (
            "few connections with one certificate",
            "while len(known) >= _MOST_OF_ONE:",
            "while False:",
            NO_CERTIFICATE,
        ),
        (
            "any number of connections without a certificate",
            "while len(self._waiting) >= _MOST:",
            "while False:",
            NO_CERTIFICATE,
        ),
    ),
    *_of(
        "engines/transports/nvflare.py",
        (
            "a server whose port anybody may hold open",
            "[revocation.component(kit), arrivals, few]",
            "[revocation.component(kit), arrivals]",
            NO_CERTIFICATE,
        ),
    ),
    *_of(
        "deployment/earlier_jobs.py",
        (
            "few rows that other rules join with another client's",
            "if said != named and (few := _few(before, rows, self._least)):",
            "if few := 0:",
            BETWEEN_JOBS,
        ),
    ),
    *_of(
        "deployment/policy.py",
        (
            "any delta where epsilons add up",
            "(policy.epsilon_most or policy.epsilon_total) and",
            "policy.epsilon_most and",
            POLICY,
        ),
        (
            "any number of jobs that differ",
            "if policy.jobs_total and begun >= policy.jobs_total:",
            "if False:",
            KINKS,
        ),
    ),
    *_of(
        "protocols/certified_release.py",
        ("noise at any gap", "if not gap <= noise.gap:", "if False:", OPTIMUM),
        (
            "noise for a model whose gap was not measured last",
            "_check_progress(state, _MEASURED)",
            "pass",
            OPTIMUM,
        ),
        (
            "a gap by another model's scores",
            "state.progress != progress:",
            "False:",
            OPTIMUM,
        ),
        (
            "weights times a factor in the gap",
            '"FinalModel.w": "Proposed.w"',
            '"FinalModel.w": ("Proposed.w",)',
            OPTIMUM,
        ),
        (
            "duals times a factor in the gap",
            '"FinalModel.alpha": "Proposed.alpha"',
            '"FinalModel.alpha": ("Proposed.alpha",)',
            OPTIMUM,
        ),
        (
            "scores times a factor in the gap",
            '"FinalTotals.z": "FinalScores.z"',
            '"FinalTotals.z": ("FinalScores.z",)',
            OPTIMUM,
        ),
        (
            "w(α) times a factor in the gap",
            '"FinalTotals.w": "FinalScores.w"',
            '"FinalTotals.w": ("FinalScores.w",)',
            OPTIMUM,
        ),
        (
            "a gap times a factor",
            '"ShareOut.gap": "FinalGap.gap"',
            '"ShareOut.gap": ("FinalGap.gap",)',
            OPTIMUM,
        ),
        (
            "a gap that some clients find",
            'fl.each(steps, together="all")',
            "steps",
            OPTIMUM,
        ),
        (
            "duals outside their box",
            "factor * losses.project(loss, alpha[:, read] / factor, y, shape=shape)",
            "alpha[:, read]",
            OPTIMUM,
        ),
        ("several models proposed", "fl.sums(propose), once=True", "fl.sums(propose)", OPTIMUM),
        ("noise for weights of before", "state, final=message.w, duals", "state, duals", OPTIMUM),
    ),
    *_of(
        "algorithms/femam/client.py",
        (
            "levels that the run has not",
            "if message.level != client.level + 1 or message.level > len(client.options.levels):",
            "if False:",
            CLOSED,
        ),
        (
            "models of levels that have no clusters",
            'if client.options.kind(level) != "clusters":',
            "if False:",
            ONE_MODEL,
        ),
        (
            "a model added up over other clients",
            "if client.members not in ((), message.members):",
            "if False:",
            ONE_MODEL,
        ),
        ("a level closed again", " or client.closed >= client.level:", ":", CLOSED),
        (
            "models compared at levels that are none",
            "    _check_looked_for(client, message.level)",
            "    pass",
            COMPARED,
        ),
        (
            "groupings compared at levels that are none",
            "    _check_looked_for(client, (message.look + 1) // 2)",
            "    pass",
            COMPARED,
        ),
        (
            "losses of one row",
            "rows = np.flatnonzero(rows_told_of(client))\n    trials",
            "rows = np.flatnonzero(client.held_out)\n    trials",
            COMPARED,
        ),
        ("errors of few rows", " if len(y) >= LEAST_ROWS else ()", "", COMPARED),
        (
            "factors that were not tried",
            "message.factor not in validation.FACTORS or ",
            "",
            NUMBERS,
        ),
        ("scores multiplied again", " or client.scaled >= client.level:", ":", NUMBERS),
        (
            "femam: losses that are bound to no model",
            "@_with_told_models\n@fl.told_the_same\n@fl.client_function\ndef part_of_loss",
            "@fl.told_the_same\n@fl.client_function\ndef part_of_loss",
            LEVELS,
        ),
        (
            "femam: models that are not remembered",
            "told={**client.told, str(level): told}",
            "told=client.told",
            LEVELS,
        ),
        (
            "femam: another level weighed",
            "if message.level != client.level:",
            "if False:",
            LEVELS,
        ),
        (
            "femam: a level weighed, or kept, by one row",
            "rows = rows_told_of(client)\n    before",
            "rows = client.held_out\n    before",
            FEW_VALIDATED,
        ),
        (
            "femam: right predictions of one row",
            "rows = np.flatnonzero(rows_told_of(client))\n    if",
            "rows = np.flatnonzero(client.held_out)\n    if",
            LEVELS,
        ),
        (
            "femam: one row that a network names wrongly",
            "held = rows_told_of(client)",
            "held = client.held_out",
            FEW_VALIDATED,
        ),
        (
            "femam: losses of one row by factor",
            "rows = rows_told_of(client)\n    scores",
            "rows = client.held_out\n    scores",
            FEW_VALIDATED,
        ),
    ),
    *_of(
        "algorithms/femam/class_priors.py",
        (
            "femam: losses of one row by weight",
            "rows = rows_told_of(client)",
            "rows = client.held_out",
            FEW_VALIDATED,
        ),
    ),
    *_of(
        "algorithms/femam/algorithm.py",
        (
            "the choice of a model that is none",
            "if not 0 <= number < len(level.models):",
            "if False:",
            REPLIES,
        ),
        ("a level closed by another message", ', once_for="level"', "", CLOSED),
        ("models compared again", '                    once_for="level",\n', "", COMPARED),
        ("groupings compared again", '                    once_for="look",\n', "", COMPARED),
        (
            "femam: a level weighed again",
            'once_for="level",  # for a sum of what it is worth',
            "",
            LEVELS,
        ),
        ("femam: a model times a factor", "fl.PUBLIC, fl.AS_IT_IS)", "fl.PUBLIC)", LEVELS),
        (
            "femam: models of the level before",
            "at_client.begin_level), begins=True)",
            "at_client.begin_level))",
            LEVELS,
        ),
        (
            "femam: models of the level before that trains on",
            "at_client.train_again), begins=True)",
            "at_client.train_again))",
            LEVELS,
        ),
        (
            "rows of each class of the server's own",
            '"Weighed.counts"], "Counted.at")',
            '"Weighed.counts"], ("Counted.at", fl.PUBLIC))',
            NUMBERS,
        ),
        (
            "differences of the server's own",
            '"Weighed.compared"], "Differences.at")',
            '"Weighed.compared"], ("Differences.at", fl.PUBLIC))',
            NUMBERS,
        ),
    ),
    *_of(
        DECLARED,
        (
            "metrics of all by the scores of one",
            'if exact and one.together == "all" and summed is None and own:',
            "if False:",
            ROWS_BY_GRADES,
        ),
        ("femam: totals of before", "if single and number < began", "if False", LEVELS),
        (
            "femam: a model that a client seals anew",
            "                if single:",
            "                if False:",
            LEVELS,
        ),
        (
            "femam: a combination as it is sealed anew",
            "isinstance(origin, tuple) and AS_IT_IS not in origin",
            "isinstance(origin, tuple)",
            LEVELS,
        ),
        (
            "femam: began after the best round",
            "_RESTORED: ()}, begun=begun)",
            "_RESTORED: ()})",
            LEVELS,
        ),
    ),
    *_of(
        "protocols/early_stopping.py",
        (
            "femam: the best round is not marked",
            'keep_best), keeps=True, together="all"',
            'keep_best), together="all"',
            LEVELS,
        ),
        (
            "some alone go back to the best round",
            'restores=True, together="all", parties=_all)',
            "restores=True)",
            ROWS_BY_GRADES,
        ),
    ),
    *_of(
        "algorithms/flic/own_network.py",
        (
            "what own networks are worth times a factor",
            '{"OwnCompared.at": "OwnWorth.at"}',
            '{"OwnCompared.at": ("OwnWorth.at",)}',
            NUMBERS,
        ),
    ),
    *_of(
        "deployment/client_setup.py",
        (
            "metrics of as many rows as the owner asks for",
            "replace(block, y=None) if LEAST_ROWS <= labelled < least else block",
            "block",
            POLICY,
        ),
        (
            "metrics of as many rows that count as the owner asks for",
            "check_evaluated(self._settings.policy, part, rows)",
            "pass",
            POLICY,
        ),
    ),
    *_of(
        "deployment/policy.py",
        (
            "a forbidden algorithm by its name",
            'check_algorithm(policy, str(dict(tree.get("algorithm") or {}).get("name")))',
            "pass",
            PLUGINS,
        ),
    ),
    *_of(
        "cli/doctor.py",
        ("code of others in a diagnosis", "if load:", "if True:", "tests/core/test_plugins.py"),
    ),
    *_of(
        "deployment/client_setup.py",
        (
            "labels stored as the experiment has it",
            "check_meaning(encoding.labels, encoding.codes, self._experiment.labels)",
            "pass",
            ENCODING,
        ),
        (
            "no classes of numbers to predict",
            "check_classes_at(self._table.labels, encoding.labels)",
            "pass",
            AS_CLASSES,
        ),
        (
            "schemas with the labels of the encoding",
            "if any(schema.labels != self._labels for schema in settled.schemas.values()):",
            "if False:",
            ENCODING,
        ),
        (
            "a test part that is left out",
            "    if lacking:",
            "    if False:",
            "tests/attacks/test_set_up_twice.py",
        ),
        ("rows clipped to the experiment's norm", "state.clip != self._clip", "False", CLIPPED),
        ("rows scaled after they were measured", "state.row_scale is not None", "False", CLIPPED),
        ("columns scaled in a run that does not", "standardise=standardise", "", CLIPPED),
    ),
    *_of(
        "algorithms/hyfdca/dual_ascent.py",
        ("no more than a whole step", "if not 0.0 <= taken <= 1.0:", "if False:", CLIPPED),
    ),
    *_of(
        "deployment/earlier_jobs.py",
        (
            "few new rows at once",
            "if few := self._few(rows):",
            "if False:",
            BETWEEN_JOBS,
        ),
        (
            "few rows left out",
            "if not left_out and added < least:",
            "if added < least:",
            BETWEEN_JOBS,
        ),
        (
            "few values left out",
            "if 0 < min(few, default=0) < self._least:",
            "if False:",
            BETWEEN_JOBS,
        ),
        (
            "values of columns that once were whole",
            "kept = [(known, sets), (jobs[0], jobs[1] & _bits(held))]",
            "kept = [(known, sets)]",
            BETWEEN_JOBS,
        ),
        ("levels at a site", "category.public_levels", "category.levels", TEXTS),
        (
            "levels that one row more or fewer makes known",
            "if not 0 < few < self._least:\n            return None\n        return ascending(",
            "if True:\n            return None\n        return ascending(",
            BETWEEN_JOBS,
        ),
        (
            "levels that were told in a set-up alone",
            "content = codec.encode((known, sets, told))",
            "return found\n        content = codec.encode((known, sets, told))",
            BETWEEN_JOBS,
        ),
    ),
    *_of(
        "deployment/policy.py",
        (
            "rows to train on without a policy",
            "least_rows: CountOrZero = 5",
            "least_rows: CountOrZero = 0",
            "tests/attacks/test_rows_by_models.py",
        ),
    ),
    *_of(
        "algorithms/hyfdca/newton/shares.py",
        ("a system without rows", "if point.ended:", "if False:", RIDGE),
        (
            "words bound to what they hide",
            'return key.fold_in("nonce", digest_of(*hidden)).stream(16)',
            'return key.fold_in("nonce").stream(16)',
            "tests/attacks/test_words_used_twice.py",
        ),
        (
            "words over a pair's product",
            'secret.fold_in("pair", seeds[name].hex(), seeds[one.name].hex())',
            'secret.fold_in("pair", name, one.name)',
            "tests/attacks/test_words_used_twice.py",
        ),
    ),
    *_of(
        "algorithms/hyfdca/newton/encrypted.py",
        (
            "ciphertexts bound to what they hide",
            'rng.fold_in("rows", digest_of(point.selected, own))',
            'fl.SecretKey(bytes(32)).fold_in("rows")',
            ENCRYPTED,
        ),
        (
            "ciphertexts of other sizes refused",
            "if mine.shape == (size, count):",
            "if True:",
            SHARES,
        ),
        ("rows encrypted twice", "if message.part != before:", "if False:", SHARES),
        (
            "dealt words not declared under encryption",
            'needed=lambda options: options.system == "encrypted",',
            "",
            ENCRYPTED,
        ),
    ),
    *_of(
        "algorithms/hyfdca/newton/shares.py",
        (
            "encrypted products not declared where the server deals",
            'needed=lambda options: options.system != "encrypted",',
            "",
            ENCRYPTED,
        ),
    ),
    *_of(
        "maths/encrypted_products.py",
        (
            "an encryption of zero over the multiplier",
            '_spread(_ternary(random.fold_in("secret").words(SIZE)), _PRIMES)',
            '_spread(0 * _ternary(random.fold_in("secret").words(SIZE)), _PRIMES)',
            PRODUCTS,
        ),
        (
            "noise in the encryption of zero",
            '_add(found[1], _binomial(random.fold_in("noise").words(SIZE)), _PRIMES)',
            "pass",
            PRODUCTS,
        ),
        (
            "numbers that hide the noise",
            "found[:, ~sure], share[~sure] = drawn[:, ~sure], np.uint64(0) - words[~sure]",
            "found[:], share[:] = 0, 0",
            f"{PRODUCTS} {ENCRYPTED}",
        ),
        (
            "words alone in the place of numbers uniform modulo q",
            "        sure |= distance > _UNSURE",
            "        sure |= distance > _UNSURE\n        found[:] = 0\n"
            "        _add_scaled(found, np.uint64(0) - share, _REST, _SCALES, _PRIMES)",
            ENCRYPTED,
        ),
        (
            "other numbers for each column",
            "drawn = one.random.fold_in(q, g)",
            "drawn = one.random",
            PRODUCTS,
        ),
        (
            "other noise for each ciphertext",
            "drawn = random.fold_in(number)",
            "drawn = random",
            PRODUCTS,
        ),
        (
            "noise in ciphertexts",
            'noise = _spread(_binomial(drawn.fold_in("noise").words(SIZE)), _PRIMES)',
            'noise = _spread(0 * _binomial(drawn.fold_in("noise").words(SIZE)), _PRIMES)',
            PRODUCTS,
        ),
        (
            "a key that is drawn",
            "_spread(_ternary(random.words(SIZE)), _PRIMES)",
            "_spread(0 * _ternary(random.words(SIZE)), _PRIMES)",
            PRODUCTS,
        ),
        ("residues beyond their prime", "if value >= primes[i]:", "if False:", PRODUCTS),
    ),
    *_of(
        DECLARED,
        ("another word for a level", "if type(value) is not int:", "if False:", CLOSED),
        ("models compared in another state", "digest.update(state())", "pass", COMPARED),
        (
            "the best round gone back to again and again",
            "{**sums.once, _RESTORED: ()}",
            "{_RESTORED: ()}",
            COMPARED,
        ),
        (
            "training after the model was read",
            "if sums.ended and not fn.protocol and (one.trains or not one.model):",
            "if False:",
            BETWEEN,
        ),
        (
            "objectives on training rows counted",
            "if one.each_round and self._rounds:",
            "if False:",
            OBJECTIVES,
        ),
        (
            "objectives of rounds that a site has counted",
            "min(self._rounds, max(1, sums.rounds.count))",
            "self._rounds",
            OBJECTIVES,
        ),
        (
            "training by what tells the model after it was read",
            "(one.trains or not one.model)",
            "(not one.model)",
            BETWEEN,
        ),
        (
            "a model told that is not the one gone back to",
            "told = tuple(one for one in self.told if one[0] <= sequence)",
            "told = self.told",
            ROWS_BY_GRADES,
        ),
        (
            "the best round not among what is told",
            "if one.restores:\n            before",
            "if False:\n            before",
            ROWS_BY_GRADES,
        ),
        (
            "what was told forgotten where the site goes back to",
            "marks = anchor, *self.kept",
            "marks = ()",
            ROWS_BY_GRADES,
        ),
        (
            "a second message to what is asked for once",
            "if known != told and not fewer:",
            "if False:",
            BETWEEN,
        ),
        (
            "the end of training going back",
            "return cls(found, forgotten, *rest)",
            "return cls(found, forgotten)",
            BETWEEN,
        ),
        (
            "one model of all where some may be away",
            "counts = one.restores or (fn.alike and self._renews and not fn.protocol)",
            "counts = False",
            ROWS_BY_GRADES,
        ),
        (
            "a model told anew by what tells none",
            "elif one.renews and everyone and not self.complete:",
            "elif not self.complete:",
            ROWS_BY_GRADES,
        ),
        (
            "metrics of others beside those of all",
            "if others(call.asked):",
            "if wanted.difference(call.asked):",
            ROWS_BY_GRADES,
        ),
    ),
    *_of(
        SITE,
        (
            "answers after one that could not be made",
            '        if self._sums.failed not in ("", _asked(call)):\n',
            "        if False:\n",
            BEYOND,
        ),
        (
            "a model that is opened ending the training",
            "if not name and place.declared().ends(total):",
            "if False:",
            BETWEEN,
        ),
        (
            "replies of a run counted",
            "self._sums = place.declared().check_number(one, reply, model, call, self._sums)",
            "pass",
            ROWS_BY_GRADES,
        ),
        (
            "models of all metrics together counted",
            "place.declared().check_number(one, reply, model, call, self._sums)",
            "place.declared().check_number(one, reply, (), call, self._sums)",
            ROWS_BY_GRADES,
        ),
        (
            "totals of clients that were told the same models",
            "self._sums = place.declared().with_told(one, message, call, self._sums)",
            "pass",
            ROWS_BY_GRADES,
        ),
        (
            "an answer that fails counts",
            "if one.once or one.once_for:  # that",
            "if False:  # that",
            CLOSED,
        ),
        (
            "what is told alike bound into what is sealed",
            "collector = totals.collector(fn, call.round, call.asked, told)",
            "collector = totals.collector(fn, call.round, call.asked)",
            STEPS,
        ),
    ),
    *_of(
        "algorithms/linear/fedavg.py",
        (
            "scores of training rows to holders of the label",
            "z: fl.PerLabelledScore",
            "z: fl.PerSample",
            BY_LOSSES,
        ),
        (
            "changes bound to the model that all are told",
            "@fl.told_the_same\n@fl.client_function\ndef local_descent",
            "@fl.client_function\ndef local_descent",
            APART_MODELS,
        ),
    ),
    *_of(
        "engines/sums/secure.py",
        (
            "totals among what is told alike",
            "digest.update(json.dumps([name, told]).encode())",
            "digest.update(b'' if type(told) is list else json.dumps([name, told]).encode())",
            APART_MODELS,
        ),
    ),
    *_of(
        "deployment/client_models.py",
        (
            "a folder of each run",
            'kept = folder / "trained" / run',
            'kept = folder / "trained" / _file_name(description.name)',
            KEPT,
        ),
    ),
    *_of(
        "deployment/policy.py",
        (
            "rounds that a job says",
            "if policy.rounds_a_job and job.rounds > policy.rounds_a_job:",
            "if False:",
            POLICY,
        ),
        (
            "rounds of few rows",
            "if rows is not None and rows < policy.least_rows:",
            "if False:",
            FEW,
        ),
    ),
    *_of(
        "engines/remote/replies.py",
        ("what is no number named", "if len(odd):", "if False:", REPLIES),
        (
            "no bound in updates of networks",
            "bound = layout is None and self._bounds",
            "bound = layout is None",
            REPLIES,
        ),
        ("who sent huge numbers to networks", "if largest < _LARGE:", "if True:", REPLIES),
        ("numbers that networks overflow by", "_LARGE = 1e9", "_LARGE = 1e18", REPLIES),
        ("parts of another shape", "if shape != usual:", "if False:", REPLIES),
    ),
    *_of(
        "engines/remote/caller.py",
        (
            "who waits for its owner and was left out",
            '            self._note_pending(client, "")\n',
            "            pass\n",
            LATE,
        ),
        (
            "sites that drip where they are asked for versions",
            "within(seconds, partial(transport.send, client, data, seconds))",
            "transport.send(client, data, seconds)",
            LATE,
        ),
        (
            "late words that an owner is to decide",
            "        if self._given_up.is_set():\n            return None",
            "        if False:\n            return None",
            LATE,
        ),
    ),
    *_of(
        "models/serialization.py",
        (
            "layers held against parameters",
            "architecture.check(parameters, len(features), outputs)",
            "pass",
            PREPARED,
        ),
    ),
    *_of(
        "models/linear_parameters.py",
        ("kinds of values of a model", "check_kind(content[name], hint, name)", "pass", PREPARED),
    ),
    *_of(
        "results/result.py",
        ("kinds of values of a result", "    _check(result)\n", "", PREPARED),
    ),
    *_of(
        "results/checkpoint.py",
        ("kinds of values of a checkpoint", "    _check_content(content)\n", "", PREPARED),
    ),
    *_of(
        "protocols/evaluation.py",
        (
            "bins told alike",
            "[fl.told_the_same(fn, *apart[fn.name]) for fn in named]",
            "named",
            STEPS,
        ),
    ),
    *_of(
        "engines/sums/plain.py",
        (
            "one reader of a score",
            "run for run in runs if cells[run[0]].reader(there) == client",
            "run for run in runs",
            "tests/attacks/test_scores.py",
        ),
    ),
    *_of(
        "data/column_types.py",
        ("nearly unique texts", "levels * LEAST_ROWS > rows", "levels > rows", TEXTS),
        ("long texts", "if any(len(one) > LONGEST_LEVEL or", "if any(", TEXTS),
        ("sentences", " or len(one.split()) > MOST_WORDS", "", TEXTS),
        ("addresses", "if any(_ADDRESS.search(one) for one in given):", "if False:", TEXTS),
        ("dates as text", "return 2 * sum(bool(_DATE", "return 0 * sum(bool(_DATE", TEXTS),
        ("texts as categories", "        if not own.listed:\n", "        if False:\n", TEXTS),
    ),
    *_of(
        "data/column.py",
        ("levels of few rows", "least = 1 if self.listed else LEAST_ROWS", "least = 1", TEXTS),
    ),
    *_of(
        "deployment/client_setup.py",
        (
            "rows of a job kept for the next",
            "self._trained.keep(rows)",
            "pass",
            BETWEEN_JOBS,
        ),
        (
            "rows that were evaluated kept for the next job",
            "self._evaluated.keep(evaluated)",
            "pass",
            BETWEEN_JOBS,
        ),
        (
            "new labels that wait",
            "y[own[out]] = np.nan",
            "pass",
            BETWEEN_JOBS,
        ),
        (
            "evaluated training rows compared with test parts",
            "= self._evaluated.check(evaluated)",
            "= evaluated",
            BETWEEN_JOBS,
        ),
        (
            "values of a job kept for the next",
            "self._values.keep(values, rows)",
            "pass",
            BETWEEN_JOBS,
        ),
        (
            "values of a site's own columns, whose means it tells",
            "schema, alone=given)",
            "schema)",
            BETWEEN_JOBS,
        ),
        (
            "values that wait",
            'self._blocks["train"] = few_values.without_values(block, places, waiting)',
            "pass",
            BETWEEN_JOBS,
        ),
        (
            "rows of jobs with noise",
            "        if self._waiting:\n            kept",
            "        if self._waiting and not job.privacy.epsilon:\n            kept",
            BETWEEN_JOBS,
        ),
        (
            "ids of rows, whatever their pseudonyms",
            "every = hashed(written)",
            "every = hashed(self._table.samples)",
            BETWEEN_JOBS,
        ),
        (
            "ids of rows, whatever rules a job matches them by",
            "every = hashed(written)",
            "every = hashed(names.ids[client])",
            BETWEEN_JOBS,
        ),
        (
            "ids of rows that two clients have",
            "return {other: shown(np.concatenate(known), key) for other, known in ids.items()}",
            'return dict.fromkeys(others, b"")',
            CLAIMED,
        ),
        ("levels that no client sent", "check_levels(encoding, self._prove)", "pass", GUESSED),
        (
            "levels that clients of another job sent",
            "pseudorandom(key, self._call.run, message, *self._call.asked)",
            "key",
            GUESSED,
        ),
        (
            "levels of another column",
            "pseudorandom(job, column, level)",
            "pseudorandom(job, level)",
            GUESSED,
        ),
    ),
    *_of(
        "deployment/table_metadata.py",
        ("levels without a proof", "len(told) != len(right) or not", "not", GUESSED),
        (
            "levels with another proof",
            " or not all(map(compare_digest, told, right))",
            "",
            GUESSED,
        ),
        ("classes at a site", "if labels.telling and", "if False and", TEXTS),
        ("listed classes", "<= set(settings.named)", "<= {*found.tolist()}", TEXTS),
    ),
    *_of(
        "deployment/job_requests.py",
        (
            "set-ups of a day that never come to training",
            "check_set_ups(policy, sum(other.let_in[:10] == today() for other in self.all()))",
            "pass",
            POLICY,
        ),
    ),
    *_of(
        "data/labels.py",
        (
            "no more classes than a thousand at a site",
            "if len(classes) > MOST_CLASSES:",
            "if False:",
            AS_CLASSES,
        ),
        (
            "numbers among words that are no classes",
            'if self.values.dtype.kind != "f":',
            'if self.values.dtype.kind != "f" and False:',
            AS_CLASSES,
        ),
        (
            "numbers that are not whole as no classes",
            " or bool((found % 1 != 0).any())",
            "",
            AS_CLASSES,
        ),
    ),
    *_of(
        "data/encoding.py",
        ("levels in one place", "update(category.public_levels)", "update(category.levels)", TEXTS),
    ),
    *_of("core/plugins.py", ("allowed modules", "if module not in allowed:", "if 0:", MODULES)),
    *_of(
        "models/serialization.py",
        ("module of a model", 'check_allowed(f"{made_of.module}:",', "check_allowed((),", MODULES),
        (
            "embedding of a model",
            "check_allowed(made_of, allow_modules, folder)",
            "check_allowed((), allow_modules, folder)",
            MODULES,
        ),
        (
            "extractors of a model",
            "check_allowed([one.kind for one in made_of.extractors],",
            "check_allowed((),",
            MODULES,
        ),
        (
            "files of a model",
            "if not path.resolve().is_relative_to(",
            "if not (folder,) and (",
            BOMBS,
        ),
        ("packed arrays of a model", "check_npz(path, packed=False)", "pass", BOMBS),
        ("shapes of a model", "if parameters[name].shape != shape:", "if False:", BOMBS),
        ("layers of a model", "if layers > len(parameters):", "if False:", BOMBS),
    ),
    *_of(
        "results/run_folder.py",
        ("modules of an experiment", "if allow_modules is not None:", "if False:", MODULES),
        ("mode of experiment.json", "text.encode(), private=True)", "text.encode())", FILES),
    ),
    *_of(
        "inference/new_client.py",
        (
            "modules of a result",
            "check_allowed(run.hyperparameters, allow_modules, folder)",
            "pass",
            MODULES,
        ),
    ),
    *_of(
        "algorithms/networks/named_modules.py",
        (
            "current folder",
            "    try:\n        module = importlib",
            '    import sys\n    sys.path.append("")\n    try:\n        module = importlib',
            MODULES,
        ),
    ),
    *_of("__main__.py", ("current folder first", "    del sys.path[0]", "    pass", MODULES)),
    *_of(
        "core/side_by_side.py",
        (
            "an end to views",
            "made = pool.submit(lambda: do() if begin.result() else None)",
            "return do()",
            VIEWS,
        ),
    ),
    *_of(
        "data/formats/sql.py",
        ("SQLite's steps", "connection.set_authorizer(_allow_reading)", "pass", QUERIES),
        ("SQLite's place", "{file.as_uri()}", "file:{file}", QUERIES),
        (
            "DuckDB's statements",
            "if [one.type for one in statements] != [duckdb.StatementType.SELECT]:",
            "if False:",
            QUERIES,
        ),
        (
            "DuckDB's files",
            '"enable_external_access": False',
            '"enable_external_access": True',
            QUERIES,
        ),
        ("other databases", "if run is None:", "if run is None and False:", QUERIES),
        (
            "written-out passwords",
            "    _check_no_password(written, url, source)",
            "    pass",
            QUERIES,
        ),
        ("hosts of passwords", 'if whole or "@" in (url.host or ""):', "if False:", QUERIES),
        (
            "ends of parameters",
            "{_with_values(parameters)}",
            "{_with_values(parameters, '&=@:')}",
            QUERIES,
        ),
        ("half a password", "not _VARIABLE.fullmatch(secret)", '"$" not in secret', QUERIES),
        ("passwords behind ?", "if _SECRET.search(key))", 'if key == "password")', QUERIES),
    ),
    *_of(
        "core/files/atomic_files.py",
        ("mode of a new file", "0o600 if private else 0o666", "0o666", FILES),
        ("what another left", "temporary.unlink(missing_ok=True)  # what", "pass  # what", FILES),
    ),
    *_of(
        "deployment/client_models.py",
        ("mode at a site", ".encode(), private=True)", ".encode())", FILES),
    ),
    *_of(
        "deployment/server.py",
        ("mode of a request", ".encode(), private=True)", ".encode())", FILES),
    ),
    *_of(
        "deployment/operations/joining.py",
        (
            "kits: a request of a known site",
            "if name not in description.sites:\n",
            "if False:\n",
            JOINING,
        ),
        ("kits: fingerprints heard", "if not heard:", "if False:", JOINING),
        (
            "kits: fingerprints compared",
            'if "".join(heard.split()).lower() !=',
            "if False and (heard) !=",
            JOINING,
        ),
        (
            "kits: the authority confirmed",
            'if heard or not (kit / "startup").exists():',
            "if heard:",
            JOINING,
        ),
    ),
    *_of(
        "engines/transports/kits.py",
        ("kits: a request's own signature", "if not sound:", "if False:", JOINING),
        (
            "kits: a request's kind of key",
            "if not isinstance(key, rsa.RSAPublicKey) or",
            "if False and",
            JOINING,
        ),
        (
            "kits: the key of a certificate",
            "if key.public_key() != certificate.public_key():",
            "if False:",
            JOINING,
        ),
        (
            "kits: the same authority",
            "if (own / _ROOT).is_file() and",
            "if False and",
            JOINING,
        ),
        (
            "kits: mode of a site's key",
            "write_atomically(kit / _JOINING / _KEY, _pem(key), private=True)",
            "write_atomically(kit / _JOINING / _KEY, _pem(key))",
            JOINING,
        ),
        ("kits: a new authority", "if not new:", "if False:", JOINING),
    ),
    *_of(
        "deployment/operations/backup.py",
        (
            "kits: a site's that says it is the server's",
            "if about.server is not is_of_server(found / _KIT):",
            "if False:",
            BACKUP,
        ),
    ),
    *_of(
        "deployment/operations/archive.py",
        ("kits: members too deep to be removed", "len(name.parts) <= _DEEPEST", "True", BACKUP),
        ("kits: members elsewhere", '".." not in name.parts', "True", BACKUP),
        (
            "kits: links in a file",
            "member.isdir() or (member.issym() and _names_one(member, files))",
            "True",
            BACKUP,
        ),
        ("kits: mode of a file", "os.O_EXCL, 0o600)", "os.O_EXCL, 0o644)", BACKUP),
        (
            "kits: members of one name",
            "if len({one.name for one in members}) < len(members):",
            "if False:",
            BACKUP,
        ),
        ("kits: lengths below 0", "if one.size < 0:", "if False:", BOMBS),
        ("kits: odd members", "EOFError, *_ODD):", "EOFError):", BOMBS),
        ("kits: members without a name", "bool(name.parts)", "True", BOMBS),
    ),
    *_of(
        "experiment/config.py",
        ("a cluster that a file names", 'own.get("ray", "")', '""', CLUSTER),
        (
            "clusters of files: those of the machine",
            '("", "local")',
            '("", "local", "auto")',
            CLUSTER,
        ),
    ),
    *_of(
        "training/run.py",
        ("a cluster that a folder names", "if ray is None:", "if False:", CLUSTER),
    ),
    *_of(
        "deployment/operations/backup.py",
        ("kits: written over", "if kit.exists():", "if False:", BACKUP),
        ("kits: a kit at work", "with at_rest(kit):", "if True:", BACKUP),
    ),
    *_of(
        "engines/transports/nvflare.py",
        (
            "calls of other sites",
            "_check_caller(folder, collab.caller, _SERVER)",
            "pass",
            CALLER,
        ),
        (
            "short calls of other sites",
            "_check_caller(folder, request.get_header(MessageHeaderKey.ORIGIN), server)",
            "pass",
            CALLER,
        ),
    ),
    *_of(
        "engines/transports/origins.py",
        (
            "another kit's certificate within a machine",
            "if names == [own]:",
            "if True:",
            "tests/attacks/test_site_as_server.py",
        ),
        (
            "origins that are not the certificate's",
            "FQCN.split(origin)[0] == (FQCN.ROOT_SERVER if name == own else name)",
            "True",
            "tests/attacks/test_site_as_server.py",
        ),
    ),
    *_of(
        "engines/transports/nvflare.py",
        (
            "origins that nobody checks",
            'resources["components"].append(origins.component(kit, server=server))',
            "pass",
            REVOKED,
        ),
        (
            "whoever connects within a machine",
            '"connection_security": "mtls"',
            '"connection_security": "clear"',
            "tests/attacks/test_site_as_server.py",
        ),
    ),
    *_of(
        "engines/transports/revocation.py",
        (
            "kits: a revoked certificate refused",
            "if self.refuses(certificate):\n                return",
            "if False:\n                return",
            REVOKED,
        ),
        ("kits: a revoked certificate cut off", "request.transport.abort()", "pass", REVOKED),
        ("kits: certificates so far", "began <= self._known", "began < self._known", REVOKED),
    ),
    *_of(
        "engines/transports/spare.py",
        (
            "kits: a waiting process that outlives its site",
            "return  # whoever started this has ended",
            "threading.Event().wait()",
            SPARE,
        ),
        (
            "kits: a waiting process for two jobs",
            "spare, self._spare = self._spare, None",
            "spare = self._spare",
            SPARE,
        ),
    ),
    *_of(
        "deployment/operations/metrics.py",
        ("metrics: who asks stays", "self._answered.append(request)", "pass", METRICS),
    ),
    *_of(
        "cli/federation.py",
        ("kits: where metrics are", '= "127.0.0.1",', '= "0.0.0.0",', METRICS),
    ),
    *_of("deployment/federation_file.py", ("mode of site.toml", ", private=True)", ")", FILES)),
    *_of(
        "deployment/client_folder.py",
        ("mode of errors.log", "os.fchmod(file.fileno(), 0o600)", "pass", f"{FILES} {LOGS}"),
    ),
    *_of(
        "cli/console.py",
        ("codes in tables", "Segment(printable(one.text), one.style)", "one", CODES),
        ("markup in tables", '"markup": False, ', "", CODES),
        (
            "codes in sentences",
            "typer.echo(printable(text), err=True)",
            "typer.echo(text, err=True)",
            CODES,
        ),
        ("codes in results", "printable(text) if sys.stdout.isatty() else text", "text", CODES),
    ),
    *_of(
        "errors.py",
        (
            "codes in errors",
            "return printable(super().__str__())",
            "return super().__str__()",
            CODES,
        ),
        ("direction of writing", '("Cc", "Cf",', '("Cc",', CODES),
    ),
    *_of(
        "core/files/npz.py",
        ("packed arrays", "if unpacked > unpacked_limit(size, packed=packed):", "if False:", BOMBS),
        (
            "bytes of shapes",
            "if not dtype.hasobject and announced !=",
            "if False and announced !=",
            BOMBS,
        ),
        ("odd headers", "except _NO_HEADER as problem:", "except KeyError as problem:", BOMBS),
    ),
    *_of(
        "data/reader.py",
        (
            "packed text",
            "if (size := size + len(some)) > most:",
            "if (size := size + len(some)) < 0:",
            BOMBS,
        ),
    ),
    *_of(
        "core/files/json_text.py",
        ("deep JSON", "except RecursionError:", "except KeyError:", BOMBS),
    ),
    *_of(
        "engines/codec.py",
        ("dtypes", "if not _DTYPE.fullmatch(name):", "if False:", BOMBS),
        ("axes", "if axes > _MOST_AXES:", "if False:", BOMBS),
        ("deep values", "if self.depth > _DEEPEST:", "if False:", BOMBS),
        ("many values", "if self.values > _MOST_VALUES:", "if False:", BOMBS),
        ("fields of a record", "if field not in known or field in values:", "if False:", BOMBS),
        (
            "endless shapes",
            "except (ValueError, OverflowError) as problem:",
            "except TypeError as problem:",
            BOMBS,
        ),
    ),
    *_of(
        DECLARED,
        (
            "call kind",
            "call.function, call.part, call.kind))",
            'call.function, call.part, "sum"))',
            SERVER,
        ),
        ("asked without the client", "known = self._client in asked and ", "known = ", SERVER),
        (
            "asked of strangers",
            "self._clients.issuperset(asked)\n        if not known",
            "True\n        if not known",
            SERVER,
        ),
        (
            "numbers for a total",
            "if value is None or PUBLIC not in _names(origin):",
            "if False:",
            TOTALS,
        ),
        (
            "undeclared field",
            "if origin is None:\n            raise",
            "if False:\n            raise",
            TOTALS,
        ),
        ("part of a total", "if total.part != one.function.part:", "if False:", TOTALS),
        (
            "scaled total",
            "if (exact or single) and (len(terms) != 1 or terms[0][0] != 1.0):",
            "if False:",
            TOTALS,
        ),
        ("two terms", "len(terms) != 1 or terms[0][0] != 1.0", "terms[0][0] != 1.0", TOTALS),
        ("layout of a total", "if known.layout is not total.layout:", "if False:", TOTALS),
        (
            "earlier total",
            "if exact and cells.name[1] < sums.last(self._functions[known.name]):",
            "if False:",
            TOTALS,
        ),
        (
            "cells dropped",
            "missing = [cell for cell in own if cell not in cells.pieces] if field_sent else ()",
            "missing = ()",
            TOTALS,
        ),
        (
            "cells of others in a message",
            "if any(cell not in own for _, cells in terms for cell in cells.pieces):",
            "if False:",
            TOTALS,
        ),
        (
            "sealed anew undeclared",
            "if name and not any(names <= some for some in self._combined):",
            "if False:",
            OPENING,
        ),
        (
            "opened cells of others",
            'if others:\n                raise RefusedError(\n                    f"The cells',
            'if False:\n                raise RefusedError(\n                    f"The cells',
            OPENING,
        ),
        ("another run", "if session != call.run:", "if False:", TOTALS),
        ("asked alone", "if others(call.asked):", "if False:", f"{SINGLE} {LABELS}"),
        ("said to be there", "if said != there:", "if False:", WEIGHED),
        (
            "round of a message",
            "if one.number and getattr(message, one.number) != call.round:",
            "if False:",
            WEIGHED,
        ),
        ("drawn models", "if _digest(value) not in allowed:", "if False:", CHOSEN),
        ("large factors", "if not abs(weight) <= MOST:", "if False:", TOTALS),
        (
            "undeclared totals",
            "if not set(known) <= set(names) or any(one not in self._functions for one in known):",
            "if False:",
            f"{TOTALS} {OPENING}",
        ),
        ("contributors", "if whole and names != expected:", "if False:", f"{TOTALS} {OPENING}"),
        ("count goes not back", "if one.sequence <= sequence)", "if one.sequence)", TOTALS),
        (
            "forgotten exchanges",
            "return sequence <= self.forgotten.get(function, 0)",
            "return True",
            TOTALS,
        ),
    ),
    *_of(
        SITE,
        (
            "readable fields unchecked",
            "place.declared().check_readable(one, message)",
            "pass",
            TOTALS,
        ),
        (
            "messages unchecked",
            "place.declared().check_message(one, name, total, self._sums, call)",
            "pass",
            TOTALS,
        ),
        (
            "openings unchecked",
            "place.declared().check_opening(total, asked.cells, self._sums, call, name)",
            "pass",
            OPENING,
        ),
        ("sums uncounted", "self._sums = self._sums.add(fn.name, own)", "pass", TOTALS),
        (
            "replayed calls",
            "if call.sequence < index.sequence or (again and digest != index.digest):",
            "if False:",
            SERVER,
        ),
        (
            "stale states",
            "if call.base not in (index.sequence, index.anchor) or call.base "
            "not in index.versions:",
            "if False:",
            SERVER,
        ),
        (
            "back to the middle of a round",
            "if call.base not in (index.sequence, index.anchor) or call.base "
            "not in index.versions:",
            "if call.base not in index.versions:",
            WORDS,
        ),
        (
            "where a round began",
            "if call.anchor not in (index.anchor, call.base):",
            "if False:",
            WORDS,
        ),
        (
            "complete rounds begin again",
            "if back and place.declared().complete:",
            "if False:",
            WORDS,
        ),
        (
            "who is asked together",
            "place.declared().check_asked(one, message, call)",
            "pass",
            f"{SINGLE} {LABELS}",
        ),
        ("told in the clear", "place.declared().check_clear(message)", "pass", CHOSEN),
        ("names of runs", 'set(run) - set("0123456789abcdef")', "False", SERVER),
        (
            "sums in the clear",
            'if call.kind == "ask" or place.sealing is None:',
            "if True:",
            f"{SERVER} {TOTALS}",
        ),
        (
            "one secret for all runs",
            'secret = self._secret().fold_in("run", run)',
            "secret = self._secret()",
            FRAME,
        ),
    ),
    *_of(
        ANSWERS,
        (
            "left out",
            'raise malformed(client, fn.name, place + field, "it was left out")',
            "continue",
            REPLIES,
        ),
        (
            "undeclared fields",
            "if field not in declared or (declared[field] is Layout.COUNTS) is not counted:",
            "if False:",
            REPLIES,
        ),
        ("cells left out of a reply", "if set(own) - there:", "if False:", REPLIES),
        (
            "shape of a piece",
            "if layout is not None and shape != (*cells.lead, own[cell]):",
            "if False:",
            REPLIES,
        ),
        ("a cell twice", "if one.numbers[2] in seen:", "if False:", REPLIES),
        (
            "factor of a reply",
            "if value.weights != (1.0,) or len(value.cells) != 1:",
            "if len(value.cells) != 1:",
            REPLIES,
        ),
        (
            "layout of a reply",
            'if record.layout != ("" if layout is None else layout.value) or record.part'
            " != fn.part:",
            "if False:",
            REPLIES,
        ),
        (
            "size of a plain reply",
            "if value.ndim == 0 or value.shape[-1] != size:",
            "if False:",
            REPLIES,
        ),
        ("content of a piece", "totals.adder.add(piece)", "pass", REPLIES),
        (
            "answers of less than no bytes",
            "    if min(answer.down, answer.up) < 0:\n",
            "    if False:\n",
            REPLIES,
        ),
    ),
    *_of(
        "engines/sums/secure.py",
        (
            "pieces of another client at the server",
            "or piece.contributors != (client,)",
            "",
            REPLIES,
        ),
        (
            "pieces of another stream at the server",
            "piece.stream != stream\n                    or ",
            "",
            REPLIES,
        ),
        ("names of pieces", "_check_name(piece.stream, one.name, cell)", "pass", SUMS),
    ),
    *_of(
        "results/history.py",
        (
            "a deep line of a history",
            "line = parse_json(text)",
            "line = __import__('json').loads(text)",
            "tests/attacks/test_deep_history.py",
        ),
    ),
    *_of(
        "models/serialization.py",
        (
            "files of clients numbered",
            'files = {name: f"clients/{number:05d}.json"',
            'files = {name: f"clients/{name}.json"',
            "tests/attacks/test_names_as_paths.py",
        ),
    ),
    *_of(
        "protocols/evaluation_rows.py",
        (
            "sums of labels counted once",
            "np.concatenate([some[:, evaluated].T, once[:, evaluated].T])",
            "some[:, evaluated].T",
            SHARED_ROWS,
        ),
        ("sums of a server's network", "if not takes.all():", "if False:", SHARED_ROWS),
        (
            "rows that differences tell",
            "known[key] = rows_that_count(schema, LEAST_ROWS, whole)",
            "known[key] = schema.label_holders > 0",
            SHARED_ROWS,
        ),
        (
            "few rows at the server",
            "if enough(wanted[schema.samples.own(name)] & schema.labelled_at(name))",
            "if schema.labelled_at(name).any()",
            GRADES,
        ),
        ("least rows of one", "LEAST_ROWS: Final = 5", "LEAST_ROWS: Final = 1", GRADES),
    ),
    *_of(
        "protocols/evaluation.py",
        ("totals of who is left", "left = len(own) <", "left = len(own) <= 0 *", LEFT),
        (
            "logarithms of few labels",
            "and len(raw) < _LEAST_LOGARITHMS",
            "and False",
            "tests/attacks/test_labels_by_logarithms.py",
        ),
        (
            "totals in training of who is left",
            "or len(messages) < len(evaluated_clients(schema, wanted)):",
            ":",
            LEFT,
        ),
        (
            "metrics of clients' own beside the server's network",
            "in_training=not served)",
            "in_training=True)",
            ROWS_BY_GRADES,
        ),
        (
            "scores of evaluated rows to holders of the label",
            "z: fl.PerLabelledScore  # (outputs",
            "z: fl.PerSample  # (outputs",
            BY_LOSSES,
        ),
        (
            "one loss more of the same rows",
            "functions.sum_metrics: models,",
            "functions.sum_metrics: 2 * models,",
            ROWS_BY_GRADES,
        ),
        (
            "metrics over all where some are away",
            'together="all",',
            'together="present",',
            ROWS_BY_GRADES,
        ),
        ("few rows at the client", "if not enough(held):", "if False:", GRADES),
        (
            "sum of y of classes",
            "raw, error = 0.0 * raw, 0.0 * error",
            "error = 0.0 * error",
            GRADES,
        ),
        (
            "squares of y of classes",
            "raw, error = 0.0 * raw, 0.0 * error",
            "raw = 0.0 * raw",
            GRADES,
        ),
        (
            "classes of one client",
            'together="all",',
            'together="some",',
            SINGLE,
        ),
        (
            "few rows of a class of the one with labels",
            "kept = 0.0 if alone and found.few else 1.0",
            "kept = 1.0",
            FIGURES,
        ),
    ),
    *_of(
        "protocols/figures.py",
        (
            "ranges of single predictions",
            "if len(message.edges) >= figures.PREDICTION_BINS:",
            "if False:",
            ROWS_BY_GRADES,
        ),
        (
            "sums for intervals of few rows",
            "(others >= _LEAST_OTHERS) * figures.error_products",
            "figures.error_products",
            RANGES,
        ),
        (
            "counts and scales that no run comes to",
            "if not (proper and 0 < message.count <= every * (1 + 1e-9)):",
            "if False:",
            RANGES,
        ),
        (
            "ranges of few rows of a client",
            "figures.merged_bins(np.vstack([rows[:1], bins]), scored.least)",
            "np.vstack([rows[:1], bins])",
            RANGES,
        ),
        (
            "bins of calibration of few rows in a result",
            "figures.merged_calibration(np.asarray(sums.calibration), least, len(confusion))",
            "np.asarray(sums.calibration)",
            CALIBRATION,
        ),
        (
            "curves with thresholds where others cut",
            "figures.curve(one, least, cuts)",
            "figures.curve(one, least)",
            CALIBRATION,
        ),
        (
            "bins of calibration of few rows of a client",
            "sums = figures.merged_calibration(sums, scored.least, len(confusion))\n    told",
            "told",
            CALIBRATION,
        ),
        (
            "labels in the order of scores",
            "    if scored.alone:\n        return ScoreCounts(found, places)\n",
            "",
            FIGURES,
        ),
        (
            "macro-F1 of few rows of one of two classes",
            'return self.labels.task == "binary" and self.few',
            "return False",
            FIGURES,
        ),
        (
            "figures of few rows of a class",
            "known = (held >= scored.least) & (held <= sides.shape[1] - scored.least)",
            "known = (held > 0) & (held < sides.shape[1])",
            FIGURES,
        ),
    ),
    *_of(
        "protocols/certificate.py",
        (
            "a certificate whose steps clients are told apart",
            "@fl.told_the_same\n@fl.client_function\ndef round_duals(",
            "@fl.client_function\ndef round_duals(",
            STEPS,
        ),
    ),
    *_of(
        "protocols/preprocessing/agreement.py",
        (
            "copies of any columns",
            "if cell not in shared() or client not in schema.features.owner_sets[cell]:",
            "if cell < 0 or cell >= len(cells):",
            COPIES,
        ),
        (
            "copies sent as they are",
            "found: Words = ((factors * values + shifts) % _PRIME)[:, order]",
            "found: Words = (factors * values % _PRIME)[:, order]",
            MADE_UP,
        ),
        (
            "copies in the order of rows",
            "((factors * values + shifts) % _PRIME)[:, order]",
            "(factors * values + shifts) % _PRIME",
            MADE_UP,
        ),
        (
            "copies of all runs hidden alike",
            "fl.SecretKey(_digest(np.rint(words) % 2**_BITS))",
            "fl.SecretKey(_digest(np.zeros(1)))",
            f"{MADE_UP} {LABELS}",
        ),
        (
            "labels of rows to evaluate",
            "draw_words, compare_labels = _labels(schema, part)\n    words = clients.sum",
            "draw_words, compare_labels = _labels(schema, part)\n    if part != 'train':\n"
            "        return\n    words = clients.sum",
            CLAIMS,
        ),
        (
            "labels sent as they are",
            "numbers.append(_hidden(values, key, [first, second].index(state.client), 2))",
            "numbers.append(values if state.client == first else (_PRIME - values) % _PRIME)",
            "tests/protocols/test_label_agreement.py",
        ),
    ),
    *_of(
        "protocols/preprocessing/few_values.py",
        (
            "levels of a category that wait together",
            "places.setdefault(category.get(feature, feature), [])",
            "places.setdefault(feature, [])",
            BETWEEN_JOBS,
        ),
        (
            "few copies that another client lacks",
            "told &= ~(few @ self.without.T)",
            "break",
            FEW_VALUES,
        ),
        (
            "few copies beside few of one client alone",
            "told = self.copied | (alone >= FEWEST)[:, None]",
            "told = self.copied | (alone >= 0)[:, None]",
            FEW_VALUES,
        ),
    ),
    *_of(
        "protocols/preprocessing/agreement.py",
        (
            "the constant of few rows",
            'or (part == "train" and few_everywhere(schema, number))',
            "or False",
            FEW_VALUES,
        ),
    ),
    *_of(
        "protocols/preprocessing/standardisation.py",
        (
            "preparation of some",
            'return fl.each(fl.opening(_TOTALS, found), together="all")',
            "return fl.opening(_TOTALS, found)",
            LABELS,
        ),
    ),
    *_of(
        "algorithms/hyfdca/newton/shares.py",
        ("rows masked twice", "if message.part != before:", "if False:", WORDS),
        ("errors nobody asked for", "if not point.options.errors:", "if False:", SHARES),
    ),
    *_of(
        "algorithms/hyfdca/newton/client.py",
        ("a Hessian of few samples", "if message.budget < least:", "if False:", SHARES),
        (
            "counts of curved rows in small groups",
            "elif stop - start < _FEW:",
            "elif False:",
            "tests/attacks/test_counts_of_small_groups.py",
        ),
    ),
    *_of(
        "engines/remote/round_count.py",
        (
            "rounds by what comes again",
            "again = same and call.function in (self.begun if marked else called)",
            "again = False",
            "tests/attacks/test_approved_jobs.py",
        ),
    ),
    *_of(
        SITE,
        (
            "rounds of a run without a number",
            "replace(call, round=max(call.round, 1))",
            "call",
            OBJECTIVES,
        ),
    ),
    *_of(
        "algorithms/hyfdca/algorithm.py",
        ("rows in a frame", '"Gather.framed": (False,)', "", UNNEEDED),
        ("interior point method", '"CountInside.framed": (), ', "", UNNEEDED),
    ),
    *_of(
        "training/setup.py",
        (
            "needless exchanges",
            "*algorithm.disclosure.needed(options)",
            "*algorithm.disclosure.sends",
            UNNEEDED,
        ),
        (
            "training rows evaluated",
            'parts: list[Part] = ["test" if "test" in schemas else "train"]',
            'parts: list[Part] = ["train"]',
            GRADES,
        ),
    ),
    *_of(
        SEALS,
        ("nonce of zeros", "os.urandom(NONCE_BYTES)", "bytes(NONCE_BYTES)", f"{PAD} {MASKS}"),
        (
            "nonce not in the mask",
            '"place", self.name, name, nonce)',
            '"place", self.name, name)',
            f"{PAD} {MASKS}",
        ),
        (
            "integrity key of zeros",
            'pseudorandom(self._key, "check", self.name)',
            'pseudorandom(bytes(32), "check", self.name)',
            KEYS,
        ),
        ("streams twice", "self._ledger.refuse_used(client, stream)", "pass", MASKS),
        (
            "total not checked",
            "if not fixed_point.open_values("
            "words, masks, factors, self._fixed.step, values.reshape(-1)):",
            "if fixed_point.open_values("
            "words, masks, factors, self._fixed.step, values.reshape(-1)) is None:",
            MASKS,
        ),
    ),
    *_of(
        CIPHERS,
        (
            "factors of zeros",
            'pseudorandom(self._token_key, "factors", session)',
            'pseudorandom(bytes(32), "factors", session)',
            KEYS,
        ),
        (
            "tokens of zeros",
            'pseudorandom(self._token_key, "token"',
            'pseudorandom(bytes(32), "token"',
            KEYS,
        ),
        ("check of ciphertexts", "abs(difference) <= 2 * bound", "True", CKKS),
        ("noise shows", "off <= bound and ", "", CKKS),
    ),
    *_of(
        "privacy/secure_aggregation/setup.py",
        (
            "token key of zeros",
            'token = secrets.shared.derive("tokens")',
            "token = bytes(32)",
            KEYS,
        ),
        ("nonce of zeros with pairs", "os.urandom(NONCE_BYTES)", "bytes(NONCE_BYTES)", PAD),
        (
            "a largest value by many ranges",
            "2.0 ** math.ceil(math.log2(settings.range))",
            "settings.range",
            BEYOND,
        ),
    ),
    *_of(
        "deployment/client_setup.py",
        (
            "feature blocks of a site's own",
            "dict(told.groups) == dict(own.groups)",
            "True",
            ODD_SET_UPS,
        ),
    ),
    *_of(
        "deployment/run.py",
        ("columns of parts", "if _columns(one) != _columns(held.train):", "if False:", ODD_SET_UPS),
        ("greetings that are no bytes", "if type(one) is not bytes:", "if False:", ODD_SET_UPS),
        (
            "ids of another kind than was said",
            "            _check_ids(tables, held, text=encoding.text_ids)\n",
            "",
            ODD_SET_UPS,
        ),
        (
            "words for labels that are numbers",
            "np.array(found.classes, np.float64)",
            "pass",
            ODD_SET_UPS,
        ),
        (
            "columns of feature blocks",
            "if len({*grouped}) < len(grouped) or not {*grouped, *of_levels} <= {*one.features}:",
            "if False:",
            ODD_SET_UPS,
        ),
        (
            "shapes of feature blocks",
            "math.prod(shape) != len(one.groups.get(name, ()))",
            "False",
            ODD_SET_UPS,
        ),
    ),
    *_of(
        "deployment/operations/joining.py",
        (
            "kits: files altered on their way",
            "kits.check_signature(written, vouched)",
            "pass",
            JOINING,
        ),
    ),
    *_of(
        "engines/transports/kits.py",
        ("kits: what is a program", "path.stat().st_mode & stat.S_IXUSR", "False", JOINING),
    ),
    *_of(
        ANSWERS,
        ("who sent too large a number", "if first != client:", "if False:", REPLIES),
    ),
    *_of(
        "privacy/settings.py",
        ("noise that float64 cannot tell", "DELTA <= self.delta < 1", "0 < self.delta < 1", TOLD),
    ),
    *_of(
        "protocols/differential_privacy.py",
        ("updates that overflow", "if not math.isfinite(norm):", "if False:", OVERFLOW),
    ),
    *_of(
        "privacy/secure_aggregation/pairwise.py",
        (
            "no masks of pairs",
            "others = neighbours(len(names), at, self._colluders)",
            "others = ()",
            COLLUSION,
        ),
        (
            "pairs share a key that all have",
            "pseudorandom(self._keys.pair(one, other), self._purpose, self._session)",
            "pseudorandom(bytes(32), one, other, self._session)",
            COLLUSION,
        ),
        (
            "owners share a key that all have",
            "pseudorandom(self._keys.owners(owners), self._purpose)",
            "pseudorandom(bytes(32), *owners)",
            COLLUSION,
        ),
        ("fewer neighbours", "wanted = colluders + math.ceil", "wanted = math.ceil", COLLUSION),
        ("no nonce after a start", "extra = 1 if self._nonce else 0", "extra = 0", PAD),
    ),
    *_of(
        "privacy/secure_aggregation/ckks.py",
        (
            "ciphertexts without masks",
            "self._masks.hide(client, stream, parties, parts)",
            "parts",
            f"{ATTACKS} {SUMS}",
        ),
    ),
    *_of(
        "deployment/policy.py",
        (
            "labels of few rows",
            'if count < most and (count or what == "row"):',
            'if count < most and what == "row":',
            POLICY,
        ),
    ),
    *_of(
        "protocols/preprocessing/standardisation.py",
        (
            "sums of columns of few values",
            "count, total = _sums(block, np.zeros(block.shape[1]), 1, least)",
            "count, total = _sums(block, np.zeros(block.shape[1]), 1)",
            FEW_VALUES,
        ),
        (
            "squares of columns of few values",
            "_, squares = _sums(block, mean, 2, state.least)",
            "_, squares = _sums(block, mean, 2)",
            FEW_VALUES,
        ),
    ),
    *_of(
        "protocols/preprocessing/standardisation.py",
        (
            "few labels that another client lacks in the weights of classes",
            "counts[few] = 0",
            "break",
            "tests/attacks/test_labels_by_class_weights.py",
        ),
    ),
    *_of(
        "protocols/preprocessing/preparation.py",
        (
            "few values that train",
            "np.zeros(0, np.intp) if least is None else np.flatnonzero(least > 1)",
            "np.zeros(0, np.intp)",
            FEW_VALUES,
        ),
        (
            "few values that train where nothing is standardised",
            "least_holders(state, block) if state.least is None else state.least",
            "state.least",
            FEW_VALUES,
        ),
    ),
    *_of(
        "privacy/keys/pair_keys.py",
        (
            "no nonces in keys of pairs",
            "ordered = sorted(((me.name, _nonce(secret)), (name, nonce)))",
            'ordered = sorted(((me.name, b""), (name, b"")))',
            PAIR_KEYS,
        ),
        (
            "greetings without what two know",
            '"seen", agreed, known)',
            '"seen", agreed)',
            f"{PAIR_KEYS} {CLAIMED}",
        ),
        (
            "pairs without a private key",
            "secret = crypto.agree(me.private, card.public)",
            "secret = bytes(32)",
            PAIR_KEYS,
        ),
    ),
    *_of(
        "privacy/keys/keyring.py",
        (
            "any card for one's own",
            "if me.card not in cards or sender not in cards:",
            "if False:",
            "tests/cli/test_keys.py",
        ),
    ),
    *_of(
        "deployment/client_setup.py",
        (
            "experiments that fill a site's disk",
            "if len(message) > _MOST_EXPERIMENT:",
            "if False:",
            ODD_JOBS,
        ),
        (
            "tables of sites that are dealt",
            "if self._settings.table is not None:  # which `_read` alone",
            "if False:  # which `_read` alone",
            BETWEEN_JOBS,
        ),
        (
            "rounds that the server gives no number",
            "call.round if self._anchor is None else max(call.round, 1)",
            "call.round",
            APPROVED,
        ),
        (
            "schemas not agreed on",
            '"schemas": dict(self.schemas),',
            '"schemas": {},',
            MEETING,
        ),
        (
            "one key where the owner does not allow it",
            'sealed and privacy.get("trust", "pairs") != "pairs" and settings.trust == "pairs"',
            "False",
            MEETING,
        ),
    ),
    *_of(
        "deployment/policy.py",
        (
            "what an owner lists of installed packages",
            "if one.function not in modules:",
            "if 0:",
            PLUGINS,
        ),
    ),
    *_of(
        DECLARED,
        ("owners as the server says", "piece.owners not in ((), owners)", "False", MEETING),
    ),
    *_of(
        "privacy/keys/crypto.py",
        (
            "gcm nonce of zeros",
            "nonce = os.urandom(_NONCE_BYTES)",
            "nonce = bytes(_NONCE_BYTES)",
            KEYS,
        ),
        (
            "gcm without addresses",
            "AESGCM(key).encrypt(nonce, clear, associated)",
            "AESGCM(key).encrypt(nonce, clear, b'')",
            CRYPTO,
        ),
    ),
    *_of(
        WRAPS,
        (
            "sender of a wrap on both sides",
            'first + second, "wrap"',
            'first, "wrap"',
            f"{KEYS} {EXCHANGE}",
        ),
        (
            "ephemeral key fixed",
            "ephemeral = crypto.new_private_key()",
            "ephemeral = bytes(31) + b'1'",
            KEYS,
        ),
        (
            "purpose of a wrap",
            '"purpose": purpose,\n        "receiver": me.name,',
            '"receiver": me.name,',
            EXCHANGE,
        ),
        ("generation of a key", "if generation <= newer_than:", "if False:", EXCHANGE),
        ("strangers' cards", "if strangers:", "if False:", EXCHANGE),
    ),
    *_of(
        "privacy/entity_matching/psi.py",
        (
            "own rows under the key of both",
            "names = pseudonyms(ids, own_key).copy()",
            "names = pseudonyms(ids, subkey(link, _ROWS)).copy()",
            KEYS,
        ),
        (
            "messages not bound",
            "bound = hashlib.sha256(request).digest() + content",
            "bound = content",
            PSI,
        ),
        (
            "seals not compared",
            "if not hmac.compare_digest(message[:_SEAL], _seal(name, content, request, link)):",
            "if False:",
            PSI,
        ),
    ),
    *_of(
        "deployment/client_setup.py",
        (
            "complete rounds at the site",
            "complete=not algorithm.absences or all_there,",
            "",
            SINGLE,
        ),
        (
            "drawn models at the site",
            "allowed = dict(algorithm.disclosure.allowed(server, self._settings.name))",
            "allowed = {}",
            CHOSEN,
        ),
        (
            "least_clients at the site",
            "privacy_guarantee.check_summands(settings, self._algorithm, self._options, schema)",
            "pass",
            APART,
        ),
    ),
    *_of(
        "deployment/operations/backup.py",
        (
            "put back: runs that had begun",
            "Requests(local).with_noise() if spent else ()",
            "()",
            PUT_BACK,
        ),
    ),
    *_of(
        "deployment/client_folder.py",
        ("put back: what is no number", "not found.epsilon >= 0", "found.epsilon < 0", PUT_BACK),
        ("put back: less than nothing", "if not found.epsilon >= 0:", "if False:", PUT_BACK),
        ("put back: kinds", "check_kind(found, cls)", "pass", PUT_BACK),
    ),
    *_of(
        "deployment/policy.py",
        (
            "epsilons that are no numbers",
            "not spent + epsilon <= most * (1 + 1e-12)",
            "spent + epsilon > most * (1 + 1e-12)",
            PUT_BACK,
        ),
    ),
    *_of(
        "reports/console.py",
        ("pages without the drawn path", 'f"/{_drawn()}/"', '"/"', PAGES),
        ("a cookie for all paths", "value, path=home, ", "value, ", PAGES),
        ("the token as a cookie", "self._entrance.cookie", "self._entrance.token", PAGES),
        (
            "words where the drawn path is not",
            "return Response(status_code=404)",
            "pass",
            PAGES,
        ),
        ("links out of a run's folder, in reports", '"*"))) is None', '"*"))) or True', PAGES),
        ("damaged files of a run's report", "**damaged}", "}", PAGES),
        ("requests that never end", "self.transport.abort()", "pass", PAGES),
        ("any number of connections", "opened.pop(0).abort()", "pass", PAGES),
    ),
    *_of(
        "deployment/server.py",
        ("links out of a run's folder", "if led is None:", "if True:", PAGES),
        ("kinds of what a run's folder says", "check_kind(found, RunStatus)", "pass", PAGES),
        (
            "damaged requests of runs",
            "and (own / _REQUEST).is_file():",
            "and False:",
            PAGES,
        ),
        (
            "damaged folders of runs",
            "except DAMAGE as problem:",
            "except OSError as problem:",
            PAGES,
        ),
    ),
    *_of(
        "deployment/run.py",
        (
            "keeps_apart off",
            "apart=privacy_guarantee.keeps_apart(description, plan.algorithm, plan.options),",
            "apart=False,",
            APART,
        ),
    ),
    *_of(
        "engines/remote/server.py",
        (
            "rounds begin again",
            "if self._apart and self._opened:",
            "if False:",
            "tests/training/test_rounds_begun_again.py",
        ),
        ("malformed openings", "if not right or np.shape(value) != wanted:", "if False:", REPLIES),
    ),
    *_of(
        "engines/codec.py",
        (
            "arrays of objects",
            "if not _DTYPE.fullmatch(name):",
            "if False:",
            CODEC,
        ),
    ),
]


def failing(tree: Path, tests: tuple[str, ...]) -> str:
    """Run test files in a copy of the tree; return the first that fails, or nothing."""
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow and not gpu", *tests],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode == 0:
        return ""
    named = re.findall(r"^(?:FAILED|ERROR) (\S+)", found.stdout, re.MULTILINE)
    if not named:  # nothing was noticed: pytest could not run
        said = (found.stdout + found.stderr)[-2000:]
        raise SystemExit(f"pytest ended with status {found.returncode} and named no test:\n{said}")
    return named[0]


def mutated(tree: Path, one: Mutation) -> str:
    """Run the tests of a mutation in a copy of the tree; return which notices, or nothing."""
    path = tree / "src" / "intarsia" / one.file
    text = path.read_text(encoding="utf-8")
    if text.count(one.before) < 1:
        raise SystemExit(f"{one.name}: {one.before!r} is not in {one.file}; bring the list up.")
    path.write_text(text.replace(one.before, one.after), encoding="utf-8")
    try:
        return failing(tree, one.tests)
    finally:
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """Print what becomes of each mutation, and the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="mutations whose name has this text")
    parser.add_argument("--list", action="store_true", help="name them and stop")
    given = parser.parse_args()
    wanted = [one for one in MUTATIONS if given.only in one.name]
    if given.list:
        print(*(f"{one.name}: {one.file}, {' '.join(one.tests)}" for one in wanted), sep="\n")
        return
    survivors: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("src", "tests", "experiments", "examples", "docs"):
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tree / name)
        shutil.copy(ROOT / "pyproject.toml", tree)
        for tests in sorted({one.tests for one in wanted}):
            if failed := failing(tree, tests):
                raise SystemExit(f"{failed} fails without any mutation; mend that first.")
        for one in wanted:
            noticed = mutated(tree, one)
            survivors += [] if noticed else [one.name]
            print(f"{'noticed' if noticed else 'SURVIVES'}  {one.name}  {noticed}", flush=True)
    print(f"{len(wanted)} mutations, {len(survivors)} survivors: {', '.join(survivors) or 'none'}")


if __name__ == "__main__":
    main()
