"""Write what a finished run leaves in its folder: pictures, audit, model, and last the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from intarsia.core.algorithm import Sends
from intarsia.core.block import Block, ClientId
from intarsia.experiment.config import Experiment
from intarsia.inspection.overlap import Parties, missing_percent
from intarsia.results import audit
from intarsia.results.result import Result
from intarsia.results.run_folder import _clear, _describe, alone_in


def finish_run(
    result: Result,
    *,
    holdings: Parties | None = None,
    audited: tuple[str, Mapping[str, Any], Iterable[Sends]] | None = None,
    whole: tuple[Experiment, str] | None = None,
) -> Result:
    """Write what a run came to into its folder, where it has one; return the result.

    Parameters
    ----------
    holdings
        Who holds what, to be drawn; None: it is drawn, or nobody asks.
    audited
        The mode of the sums, what crossed, and what is declared; None: nothing crossed.
    whole
        The experiment and the tables' checksum of what was done in one go, which is described when
        it is done: there is nothing to resume before.
    """
    folder = result.folder
    if folder is None:
        return result
    with nullcontext() if whole is None else alone_in(folder):
        if whole is not None:
            _clear(folder)
        if holdings is not None:
            draw(folder, holdings)
        if audited is not None:
            audit.write(folder, *audited)
        finish(folder, result)
        if whole is not None:
            _describe(folder, *whole)
    return result


def draw_missing(folder: Path, blocks: Mapping[ClientId, Block]) -> bool:
    """Draw who holds what if a value is missing, and return whether one is.

    Only the blocks know that. Otherwise the index sets will do, when the blocks are gone.
    """
    missing = any(missing_percent(block) > 0 for block in blocks.values())
    if missing:
        draw(folder, blocks)
    return missing


def draw(folder: Path, parties: Parties) -> None:
    """Draw who holds what of the training rows into the folder."""
    from intarsia.plots.overlap import holdings_picture  # here: the library takes 150 MB

    holdings_picture(parties, folder / "holdings.png", which="training rows")


def finish(folder: Path, result: Result) -> None:
    """Write the model, the structure, and last the result, which says that the run is done."""
    if result.model is not None:
        from intarsia.models.serialization import (  # here: it imports what the model is made of
            write_model,
        )

        write_model(result.model, folder / "model")
    if result.structure.learned is not None:
        from intarsia.plots.client_clusters import (  # here: the library takes 150 MB
            structure_picture,
        )

        title = f"{result.experiment}: who belongs together, by {result.algorithm}"
        structure_picture(result.structure, folder / "structure.png", title=title)
    result.write(folder)
