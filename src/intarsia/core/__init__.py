"""What every other package speaks: a client's data, who owns what, and the algorithm vocabulary.

Read `client_functions` first: what runs at clients, and `ask`, `sum` and `reveal`. `disclosure` is
what an algorithm declares of all that crosses, and `algorithm` the record that holds both together.
`block` is one client's data. `schema` is what is public about all clients: who owns which samples
and features. `settings` makes a frozen dataclass of a table of settings and refuses unknown keys.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.core.algorithm import Algorithm as Algorithm
    from intarsia.core.algorithm import FinalResult as FinalResult
    from intarsia.core.algorithm import LinearClient as LinearClient
    from intarsia.core.algorithm import LocalBaseline as LocalBaseline
    from intarsia.core.algorithm import Model as Model
    from intarsia.core.algorithm import Ready as Ready
    from intarsia.core.algorithm import RoundMetrics as RoundMetrics
    from intarsia.core.algorithm import ServerModel as ServerModel
    from intarsia.core.block import Array as Array
    from intarsia.core.block import Block as Block
    from intarsia.core.block import ClientId as ClientId
    from intarsia.core.block import Labels as Labels
    from intarsia.core.client_functions import ClientCall as ClientCall
    from intarsia.core.client_functions import ClientFunction as ClientFunction
    from intarsia.core.client_functions import Clients as Clients
    from intarsia.core.client_functions import ClientsInPart as ClientsInPart
    from intarsia.core.client_functions import Counts as Counts
    from intarsia.core.client_functions import Halves as Halves
    from intarsia.core.client_functions import Layout as Layout
    from intarsia.core.client_functions import Messages as Messages
    from intarsia.core.client_functions import NoiseKey as NoiseKey
    from intarsia.core.client_functions import Part as Part
    from intarsia.core.client_functions import PerBlock as PerBlock
    from intarsia.core.client_functions import PerFeature as PerFeature
    from intarsia.core.client_functions import PerLabelledScore as PerLabelledScore
    from intarsia.core.client_functions import PerSample as PerSample
    from intarsia.core.client_functions import PerScore as PerScore
    from intarsia.core.client_functions import PerSelected as PerSelected
    from intarsia.core.client_functions import PerSelectedScore as PerSelectedScore
    from intarsia.core.client_functions import RandomKey as RandomKey
    from intarsia.core.client_functions import Sealed as Sealed
    from intarsia.core.client_functions import SecretKey as SecretKey
    from intarsia.core.client_functions import client_function as client_function
    from intarsia.core.client_functions import evolve as evolve
    from intarsia.core.client_functions import no_such_view as no_such_view
    from intarsia.core.client_functions import noise_function as noise_function
    from intarsia.core.client_functions import on_part as on_part
    from intarsia.core.client_functions import one_sender as one_sender
    from intarsia.core.client_functions import secret_function as secret_function
    from intarsia.core.client_functions import told_before as told_before
    from intarsia.core.client_functions import told_the_same as told_the_same
    from intarsia.core.client_functions import vectorised_function as vectorised_function
    from intarsia.core.disclosure import AS_IT_IS as AS_IT_IS
    from intarsia.core.disclosure import PUBLIC as PUBLIC
    from intarsia.core.disclosure import Disclosure as Disclosure
    from intarsia.core.disclosure import Origin as Origin
    from intarsia.core.disclosure import Release as Release
    from intarsia.core.disclosure import Sends as Sends
    from intarsia.core.disclosure import asks as asks
    from intarsia.core.disclosure import describe as describe
    from intarsia.core.disclosure import each as each
    from intarsia.core.disclosure import holds_model as holds_model
    from intarsia.core.disclosure import opening as opening
    from intarsia.core.disclosure import sums as sums
    from intarsia.core.feature_blocks import FeatureBlock as FeatureBlock
    from intarsia.core.schema import Cell as Cell
    from intarsia.core.schema import Holding as Holding
    from intarsia.core.schema import Index as Index
    from intarsia.core.schema import Schema as Schema
    from intarsia.core.settings import Count as Count
    from intarsia.core.settings import CountOrZero as CountOrZero
    from intarsia.core.settings import Fraction as Fraction
    from intarsia.core.settings import NotNegative as NotNegative
    from intarsia.core.settings import Positive as Positive
    from intarsia.core.settings import PositiveFraction as PositiveFraction
    from intarsia.core.settings import check_ranges as check_ranges
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
