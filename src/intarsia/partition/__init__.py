"""Split one data set over simulated clients.

Read `registry` first: the kinds by name, and the splits into rows and columns. `label_skew` splits
by class proportions and clusters, `prior_shift` by classes with features of each client's own, and
`by_feature_block` by feature blocks and classes. `flower` takes partitioners of flwr-datasets, and
`flower_export` offers ours there. `client_clusters` says which clients belong together.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.partition.by_feature_block import PATTERNS as PATTERNS
    from intarsia.partition.by_feature_block import Pattern as Pattern
    from intarsia.partition.by_feature_block import blocks as blocks
    from intarsia.partition.client_clusters import Structure as Structure
    from intarsia.partition.client_clusters import agreement as agreement
    from intarsia.partition.flower_export import IntarsiaPartitioner as IntarsiaPartitioner
    from intarsia.partition.label_skew import clusters as clusters
    from intarsia.partition.label_skew import dirichlet as dirichlet
    from intarsia.partition.label_skew import iid as iid
    from intarsia.partition.label_skew import levels as levels
    from intarsia.partition.registry import KINDS as KINDS
    from intarsia.partition.registry import deal as deal
    from intarsia.partition.registry import grid as grid
    from intarsia.partition.registry import horizontal as horizontal
    from intarsia.partition.registry import natural as natural
    from intarsia.partition.registry import overlap as overlap
    from intarsia.partition.registry import partition as partition
    from intarsia.partition.registry import partition_kinds as partition_kinds
    from intarsia.partition.registry import vertical as vertical
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
