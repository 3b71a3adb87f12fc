"""Check an algorithm of your own as those of this package are checked: before it meets a table.

`check_algorithm(MINE, regularisation=0.1)` trains it on small federations, in this process and
over sites with masks, and raises an error with all that it found. Read `rules` first: what every
algorithm keeps. `trials` trains it for them, and `told_values` finds values of tables in what the
server reads. `toy_federations` makes the clients, `watched_clients` stands between the server and
them, and `toy_sites` has sites in this process.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.testing.rules import Finding as Finding
    from intarsia.testing.rules import check_algorithm as check_algorithm
    from intarsia.testing.rules import find_faults as find_faults
    from intarsia.testing.toy_federations import ToyFederation as ToyFederation
    from intarsia.testing.toy_federations import small_federations as small_federations
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
