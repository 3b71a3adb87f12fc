"""Draw the pictures that a run writes into its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.core.block import Array, ClientId
from intarsia.core.files.atomic_files import write_over
from intarsia.core.schema import Schema
from intarsia.maths.figures import Figures, has_curves
from intarsia.partition.client_clusters import Structures

if TYPE_CHECKING:
    from intarsia.results.result import Result


@dataclass(frozen=True, eq=False)
class Held:
    """Who holds what of the training rows, as it is drawn."""

    schema: Schema
    # client -> (parts of all samples, features), as `sides.missing_fractions` finds them
    missing: Mapping[ClientId, Array] = field(default_factory=dict[ClientId, Array])


def drawn_holdings(held: Held) -> bytes:
    """Return the picture of who holds what of the training rows, as a PNG."""
    from intarsia.plots.overlap import holdings_figure  # here: it imports matplotlib
    from intarsia.plots.style import png_of

    how: dict[str, Any] = {"which": "training rows", "missing": held.missing}
    return png_of(holdings_figure(held.schema, **how))


def write_holdings(folder: Path, picture: bytes) -> None:
    """Write the picture of who holds what into a run's folder."""
    write_over(folder / "holdings.png", picture)


@dataclass(frozen=True)
class Shown:
    """What is drawn of a result."""

    experiment: str
    algorithm: str
    structure: Structures
    figures: Figures | None  # of the scores of all clients' samples
    samples: int  # that these are of
    classes: tuple[str, ...] = ()  # of the model; (): none, or not known

    @classmethod
    def of(cls, result: Result) -> Shown:
        """Return what is drawn of a result, with its model."""
        trained = getattr(result.trained, "any", result.trained)  # clients' models have the same
        known = getattr(trained, "classes", getattr(trained, "classes_", None))
        classes = () if known is None else tuple(str(one) for one in known)
        score = result.metrics.server
        figures, samples = (None, 0) if score is None else (score.figures, score.samples or 0)
        return cls(
            *(result.experiment, result.algorithm, result.structure, figures, samples, classes)
        )


def draw(folder: Path, shown: Shown) -> None:
    """Draw who was found to belong together, and how the scores rank, where there is such."""
    if shown.structure.learned is not None:
        from intarsia.plots.client_clusters import structure_picture

        title = f"{shown.experiment}: who belongs together, by {shown.algorithm}"
        structure_picture(shown.structure, folder / "structure.png", title=title)
    if shown.figures is not None and has_curves(shown.figures):
        from intarsia.plots.score_curves import scores_picture

        scores_picture(
            shown.figures,
            folder / "figures.png",
            title=f"{shown.experiment}: {shown.algorithm}",
            whose=f"{shown.samples:,} samples of all clients, in ranges of five or more",
            classes=shown.classes,
        )
