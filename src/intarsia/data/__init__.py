"""Read a client's table from a file, a query or a DataFrame, and turn it into a `Block`.

Read `reader` first: it goes from a `Source` (where a table is) to a `Table` (its columns), with
`formats` and `dataframe` for the kinds of sources. `column_roles` finds ids, labels, features and
groups among the columns, `column` reads the texts and numbers of one, `column_types` makes
features, ids and labels of them, `labels` says what labels mean for all clients, and `encoding`
encodes text and assembles the block. `parsing` gives one spelling to one value.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.data.dataset import Dataset as Dataset
    from intarsia.data.encoding import Encoding as Encoding
    from intarsia.data.encoding import encode as encode
    from intarsia.data.encoding import encoding_of as encoding_of
    from intarsia.data.labels import LabelColumn as LabelColumn
    from intarsia.data.labels import LabelSettings as LabelSettings
    from intarsia.data.labels import encode_labels as encode_labels
    from intarsia.data.reader import read as read
    from intarsia.data.reader import table_from as table_from
    from intarsia.data.source import Source as Source
    from intarsia.data.table import Table as Table
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
