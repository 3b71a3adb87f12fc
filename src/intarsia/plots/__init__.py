"""Figures of data overlap and of results; each takes data and writes one PNG.

Each module draws one figure; `style` writes them all. Those that are named `…_figure` give the
figure of matplotlib itself.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.plots.block_classes import blocks_picture as blocks_picture
    from intarsia.plots.client_clusters import structure_picture as structure_picture
    from intarsia.plots.comparison import curves_figure as curves_figure
    from intarsia.plots.comparison import curves_picture as curves_picture
    from intarsia.plots.contribution import contribution_picture as contribution_picture
    from intarsia.plots.latent_space import latent_picture as latent_picture
    from intarsia.plots.learning_curves import rounds_figure as rounds_figure
    from intarsia.plots.learning_curves import rounds_picture as rounds_picture
    from intarsia.plots.overlap import holdings_figure as holdings_figure
    from intarsia.plots.overlap import holdings_picture as holdings_picture
    from intarsia.plots.score_curves import scores_figure as scores_figure
    from intarsia.plots.score_curves import scores_picture as scores_picture
    from intarsia.plots.tuning import tuning_picture as tuning_picture
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
