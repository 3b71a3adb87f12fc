"""What every other package speaks: a client's data, who owns what, and the algorithm vocabulary.

Read `algorithm` first: client functions, `ask`, `sum` and `reveal`, and the record `Algorithm`.
`block` is one client's data. `schema` is what is public about all clients: who owns which samples
and features. `settings` makes a frozen dataclass of a table of settings and refuses unknown keys.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.core.algorithm import PUBLIC as PUBLIC
    from intarsia.core.algorithm import Algorithm as Algorithm
    from intarsia.core.algorithm import ClientFunction as ClientFunction
    from intarsia.core.algorithm import Clients as Clients
    from intarsia.core.algorithm import Counts as Counts
    from intarsia.core.algorithm import Disclosure as Disclosure
    from intarsia.core.algorithm import FinalResult as FinalResult
    from intarsia.core.algorithm import Layout as Layout
    from intarsia.core.algorithm import LinearClient as LinearClient
    from intarsia.core.algorithm import LocalBaseline as LocalBaseline
    from intarsia.core.algorithm import Messages as Messages
    from intarsia.core.algorithm import Model as Model
    from intarsia.core.algorithm import NoiseKey as NoiseKey
    from intarsia.core.algorithm import PerBlock as PerBlock
    from intarsia.core.algorithm import PerFeature as PerFeature
    from intarsia.core.algorithm import PerSample as PerSample
    from intarsia.core.algorithm import PerSelected as PerSelected
    from intarsia.core.algorithm import RandomKey as RandomKey
    from intarsia.core.algorithm import Ready as Ready
    from intarsia.core.algorithm import Release as Release
    from intarsia.core.algorithm import RoundMetrics as RoundMetrics
    from intarsia.core.algorithm import Sealed as Sealed
    from intarsia.core.algorithm import SecretKey as SecretKey
    from intarsia.core.algorithm import Sends as Sends
    from intarsia.core.algorithm import ServerModel as ServerModel
    from intarsia.core.algorithm import asks as asks
    from intarsia.core.algorithm import client_function as client_function
    from intarsia.core.algorithm import describe as describe
    from intarsia.core.algorithm import each as each
    from intarsia.core.algorithm import evolve as evolve
    from intarsia.core.algorithm import noise_function as noise_function
    from intarsia.core.algorithm import one_sender as one_sender
    from intarsia.core.algorithm import opening as opening
    from intarsia.core.algorithm import secret_function as secret_function
    from intarsia.core.algorithm import sums as sums
    from intarsia.core.algorithm import told_the_same as told_the_same
    from intarsia.core.algorithm import vectorised_function as vectorised_function
    from intarsia.core.block import Array as Array
    from intarsia.core.block import Block as Block
    from intarsia.core.block import ClientId as ClientId
    from intarsia.core.block import Labels as Labels
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
