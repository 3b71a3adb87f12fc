"""Named public data sets as arrays, read from a folder and never downloaded.

Read `registry` first: the names, and the options that every set takes. A new set is a function in
`tabular`, `digits`, `images`, `herigraph` or `synthetic`, and a line in the registry. `options`
filters and relabels, `pixels` makes rows of images, `files` finds the folder.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.datasets.registry import dataset_names as dataset_names
    from intarsia.datasets.registry import load as load
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
