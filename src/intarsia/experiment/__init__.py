"""Read the experiment file, and build the clients that it describes.

Read `config` first: the file's tables, keys and defaults. `federation` builds training and test
blocks, with `entity_alignment` for sample ids and `feature_dictionary` for column names and units.
`checks` holds what clients' tables must have in common, `checksums` tells whether they changed,
`published` holds the figures of papers, and `search` what `intarsia tune` tries.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.experiment.config import Alignment as Alignment
    from intarsia.experiment.config import Experiment as Experiment
    from intarsia.experiment.config import NamedDataset as NamedDataset
    from intarsia.experiment.config import Partition as Partition
    from intarsia.experiment.config import Preprocessing as Preprocessing
    from intarsia.experiment.config import Split as Split
    from intarsia.experiment.config import from_dict as from_dict
    from intarsia.experiment.config import load as load
    from intarsia.experiment.config import to_dict as to_dict
    from intarsia.experiment.feature_dictionary import Dictionary as Dictionary
    from intarsia.experiment.federation import Federation as Federation
    from intarsia.experiment.federation import build as build
    from intarsia.experiment.published import Published as Published
    from intarsia.experiment.search import Range as Range
    from intarsia.experiment.search import Search as Search
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
