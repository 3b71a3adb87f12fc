"""Which algorithm fits what the clients of a federation hold, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from intarsia.core.block import ClientId
from intarsia.core.feature_blocks import doubled, feature_blocks
from intarsia.core.schema import Cell, Schema
from intarsia.data.encoding import notes_on_levels
from intarsia.data.labels import LabelSettings, notes_on_labels
from intarsia.errors import FederationError

# in which clients learn from each other that share neither a row nor a column
_BY_LABELS = ("femam-flic", "fedhenn", "flic", "flic-linear", "hetfedrep", "own-networks")


@dataclass(frozen=True)
class Advice:
    """Which algorithm fits what the clients hold, and why."""

    algorithm: str | None  # None: none of the available ones
    why: str
    remarks: tuple[str, ...] = ()
    obstacle: str = ""  # why a run would stop as the experiment is


def advise(
    schema: Schema, chosen: str | None = None, labels: LabelSettings | None = None
) -> Advice:
    """Return the algorithm that fits who holds what, and remarks on the chosen or else on that."""
    found = fitting(schema)
    return replace(
        found, remarks=_remarks(schema, chosen or found.algorithm, labels or LabelSettings())
    )


def personal(schema: Schema) -> str:
    """Return which algorithm trains a network for each client of such a federation; "": none."""
    labelled = all(held.labelled.any() for held in schema.holdings.values())
    alone = all(len(cell.owners) == 1 for cell in schema.samples.cells)
    if len(schema.clients) < 2 or not labelled or not alone:
        return ""
    if len(schema.features.cells) == 1:
        return "fedavg-ft" if schema.labels.task == "regression" else "femam"
    return "flic"


def fitting(schema: Schema) -> Advice:
    """Return the algorithm that fits who holds what, and why, without remarks."""
    by_blocks = _by_blocks(schema)
    clients = schema.clients
    if len(clients) == 1:
        return Advice(
            "hyfdca",
            f"{clients[0]} is the only client; on its table alone hyfdca is centralised dual "
            "coordinate ascent.",
        )
    if by_blocks:
        return Advice("hyfem", by_blocks)
    common_samples = [cell for cell in schema.samples.cells if len(cell.owners) > 1]
    common_features = [cell for cell in schema.features.cells if len(cell.owners) > 1]
    if not common_samples and not common_features:
        return _apart(schema)
    groups = _groups(schema)
    if not common_samples and len(groups) > 1 and _all_classes(schema):
        return Advice(
            "flic",
            f"the clients fall into {len(groups)} groups ({_names([some[0] for some in groups])} "
            "and those that share columns with them) without a row or a column in common, only "
            "what the labels mean; flic maps each client's own features into one space (it needs "
            "the library torch); hyfdca would learn from each group apart.",
        )
    same_samples = len(schema.samples.cells) == 1
    same_features = len(schema.features.cells) == 1
    if same_features and not common_samples:
        trains = (
            "fedavg-ft trains a network of all, and on from there at each client"
            if schema.labels.task == "regression"
            else "femam finds groups of them and trains networks for all, for each group and for "
            "each client"
        )
        why = (
            "horizontal: all clients have the same columns and no row in common; hyfdca then needs "
            "no exchange over rows and is CoCoA (cocoa and fedavg are there as baselines). Where "
            f"the clients' populations differ, {trains} (it needs the library torch)."
        )
    elif same_samples and not common_features:
        why = (
            "vertical: all clients have the same rows and no column in common; hyfdca adds up "
            "their parts of each score without showing them."
        )
    elif same_samples and same_features:
        why = (
            "every client has the whole table: nothing is gained by a federation, but hyfdca "
            "trains on it and counts every entry once."
        )
    else:
        rows, features = _count(common_samples), _count(common_features)
        why = (
            f"hybrid: {rows:,} of {len(schema.samples):,} rows and {features:,} of "
            f"{len(schema.features):,} features are held by more than one client; hyfdca trains a "
            "linear model to the centralised optimum on such parts and certifies it by the "
            "duality gap."
        )
    return Advice("hyfdca", why)


def _by_blocks(schema: Schema) -> str:
    """Return why networks over feature blocks fit; "": clients name none, or learn by others."""
    named = {
        name for client, held in schema.holdings.items() for name in held.groups if name != client
    }
    try:
        blocks = {name: one for name, one in feature_blocks(schema).items() if name in named}
    except FederationError:  # clients hold parts of blocks
        return ""
    several = [name for name, one in blocks.items() if len(one.owners) > 1]
    everywhere = all(len(one.owners) == len(schema.clients) for one in blocks.values())
    if not several or everywhere or not _all_classes(schema):
        return ""
    counts = [sum(client in one.owners for one in blocks.values()) for client in schema.clients]
    least, most = min(counts), max(counts)
    held = f"{least}" if least == most else f"{least} to {most}"
    return (
        f"the clients name feature blocks and hold {held} of {len(blocks)} "
        f"({_names(list(blocks))}); {len(several)} are with several clients; hyfem trains an "
        "extractor of each block at those that hold it, and a network of its own blocks for each "
        "client and of all blocks for the server, and needs no row in common (it needs the library "
        "torch); hyfdca would train one linear model on the columns."
    )


def _apart(schema: Schema) -> Advice:
    """Return what fits clients with no sample and no feature in common."""
    why = "no two clients have a sample or a feature in common"
    bare = [name for name, held in schema.holdings.items() if not held.labelled.any()]
    if bare:
        return Advice(
            None,
            f"{why}; flic, which maps each client's own features into one space, learns at each "
            f"client from its own labels, and {_names(bare)} has none.",
        )
    if schema.labels.task == "regression":
        least = min(len(held.features) for held in schema.holdings.values())
        return Advice(
            "flic-linear",
            f"{why}, only what the labels mean, and these are numbers to predict; flic-linear maps "
            "each client's own features into one space and learns what is linear there (set "
            f"algorithm.latent, at most {least:,}, and algorithm.rank); flic learns networks (it "
            "needs the library torch).",
        )
    return Advice(
        "flic",
        f"{why}, only what the labels mean; flic maps each client's own features into one space, "
        "where the classes are the same for all (it needs the library torch).",
    )


def _all_classes(schema: Schema) -> bool:
    """Return whether every client has classes as labels."""
    classes = schema.labels.task != "regression"
    return classes and all(held.labelled.any() for held in schema.holdings.values())


def _groups(schema: Schema) -> list[list[ClientId]]:
    """Return the clients by whom they share a row or a column with, also through others."""
    group = {name: [name] for name in schema.clients}
    for index in (schema.samples, schema.features):
        for cell in index.cells:
            first, *others = cell.owners
            for other in others:
                if group[other] is not group[first]:
                    group[first].extend(group[other])
                    for name in group[other]:
                        group[name] = group[first]
    found = {id(some): some for some in group.values()}
    order = {name: place for place, name in enumerate(schema.clients)}
    return [sorted(some, key=order.__getitem__) for some in found.values()]


def _count(cells: Sequence[Cell]) -> int:
    return sum(cell.stop - cell.start for cell in cells)


def _remarks(schema: Schema, algorithm: str | None, labels: LabelSettings) -> tuple[str, ...]:
    remarks = [*notes_on_labels(schema, labels), *notes_on_levels(schema), *doubled(schema)]
    linked: set[ClientId] = set()
    for index in (schema.samples, schema.features):
        for cell in index.cells:
            if len(cell.owners) > 1:
                linked.update(cell.owners)
    alone = [name for name in schema.clients if name not in linked]
    if alone and linked and algorithm not in _BY_LABELS:
        share = f"{_names(alone)} {'shares' if len(alone) == 1 else 'share'} no row and no column"
        them = "it" if len(alone) == 1 else "them"
        use = (
            "hyfem gives and takes the classifier behind the extractors, and no extractor."
            if algorithm == "hyfem"
            else f"with {algorithm or 'any other'} the federation neither helps {them} nor is "
            f"helped by {them}."
        )
        remarks.append(f"{share} with another client: {use}")
    unlabelled = int((schema.label_holders == 0).sum())
    if unlabelled:
        remarks.append(
            f"{unlabelled:,} of {len(schema.samples):,} samples have a label at no client; "
            "training leaves them out."
        )
    return tuple(remarks)


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
