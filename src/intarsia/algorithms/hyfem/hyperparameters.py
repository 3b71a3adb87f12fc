"""The hyperparameters of `hyfem`, and the networks that they describe for a federation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from intarsia.algorithms.hyfem.extractors import Extractor, check_kind, extractor
from intarsia.algorithms.hyfem.network import Composition
from intarsia.algorithms.networks.options import TrainingOptions, check_training
from intarsia.algorithms.networks.targets import output_count
from intarsia.core.block import ClientId
from intarsia.core.feature_blocks import FeatureBlock, feature_blocks
from intarsia.core.schema import Schema
from intarsia.core.settings import (
    Count,
    FractionBelowOne,
    NotNegative,
    Positive,
    PositiveFraction,
    check_ranges,
)
from intarsia.errors import ExperimentError, FederationError, listed, nearest
from intarsia.maths.matching.neuron_assignment import BetaBernoulli, Cost, SquaredDistance


@dataclass(frozen=True, kw_only=True)
class HyFEM(TrainingOptions):
    """Hyperparameters; `extractors` has the kinds of single blocks, the others take `extractor`."""

    loss: ClassVar[str] = "cross_entropy"  # that the scores, log-odds, are evaluated by

    variant: Literal["prox", "avg"] = "prox"  # with the proximal terms, or without
    mu1: NotNegative = 0.01  # μ1 of the extractors' proximal term
    mu2: NotNegative = 0.01  # μ2 of the classifier's
    steps: Count = 32  # Q, of a client in a round
    rate: Positive = 0.1  # of descent, in the first round
    decay: PositiveFraction = 0.98  # of the rate, from round to round
    batch: Count = 32  # rows of a step
    extractor: str = "auto"  # by the block's shape; see `extractors`
    extractors: Mapping[str, str] = field(default_factory=dict[str, str])
    extractor_hidden: tuple[Count, ...] = (64,)  # units of a perceptron's hidden layers
    features: Count = 32  # that an extractor gives
    hidden: tuple[Count, ...] = (128,)  # units of the classifier's hidden layers
    # p_m: 1/M, or by labelled rows; "equal" is what "clients" was called
    weights: Literal["samples", "clients", "equal"] = "clients"
    # rows of the output layer for classes that a client lacks: the server's, or as if trained
    unseen_rows: Literal["kept", "averaged"] = "kept"
    # in training: over all classes, by how many clients have each of the blocks that a row keeps;
    # over all alike; or over the client's own
    softmax: Literal["balanced", "all", "held"] = "balanced"
    scaling: bool = True  # of the first layer's input, by d₀/d_m
    block_dropout: FractionBelowOne = 0.5  # probability that a row's block is left out in a step
    # classifiers: drawn by the server; or each client's own, matched before the first round, or put
    # together in their order as if neurons of one number were one
    start: Literal["common", "matched", "unmatched"] = "common"
    # whether the server matches the classifiers' neurons in every round, and at what cost
    matching: Literal["none", "rounds"] = "none"
    # hidden layers: together, by all their weights, or one after the other, by those that come in
    matched_layers: Literal["together", "successive"] = "together"
    passes: Count = 10  # of a matching over all clients at most; it ends where one changes nothing
    # squared distances; PFNM's posterior as published; the same with the server's weights
    # integrated out
    cost: Literal["squared", "pfnm", "marginal"] = "squared"
    # of a neuron at the cost "squared", in halves of the mean p_m ‖w‖²
    price: Annotated[float, Ge(0), "inf opens no neuron"] = 4.0
    sigma2: float = 1.0  # σ², σ0² and γ of the other costs
    sigma02: float = 1.0
    gamma: float = 1.0
    # server neurons that matching opens where it is cheaper: none, or some, of all clients
    growth: Literal["none", "everybody"] = "none"
    most_hidden: tuple[int, ...] = ()  # units of the server's hidden layers; (): any number
    shares: Literal["all", "extractors", "nothing"] = "all"
    blocks: Literal["all", "common"] = "all"  # those that anybody holds, or those that all hold
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_ranges(self)
        matched = self.start != "common" or self.matching != "none"
        if matched and (self.shares != "all" or not self.hidden):
            raise ExperimentError(
                f'algorithm.start is "{self.start}" and matching "{self.matching}" with shares '
                f'"{self.shares}" and hidden layers {list(self.hidden)}; only shared classifiers '
                'with hidden layers have neurons to match: set start to "common" and matching to '
                '"none".'
            )
        _ = self.matching_cost  # says what is wrong with its numbers
        if self.matched_layers != "together" and not matched:
            raise ExperimentError(
                f'algorithm.matched_layers is "{self.matched_layers}" and nothing is matched; set '
                'start to "matched" or matching to "rounds", or leave matched_layers out.'
            )
        self._check_growth(matched)
        check_training(self, "sgd")
        if self.label_smoothing and self.softmax == "held":
            raise ExperimentError(
                f'algorithm.label_smoothing is {self.label_smoothing:g} with softmax = "held", '
                "where a class that a client lacks has no chance to share in a label; set softmax "
                '= "all", or label_smoothing = 0.'
            )
        check_kind(self.extractor, "extractor")
        for name, kind in self.extractors.items():
            check_kind(kind, f"extractors.{name}")

    def _check_growth(self, matched: bool) -> None:
        if self.growth != "none" and not matched:
            raise ExperimentError(
                f'algorithm.growth is "{self.growth}" and nothing is matched; set start to '
                '"matched" or matching to "rounds", or growth to "none".'
            )
        if self.growth != "none" and self.matching == "none" and self.start == "unmatched":
            raise ExperimentError(
                f'algorithm.growth is "{self.growth}" and start "unmatched", where neurons of one '
                'number are one; set start to "matched".'
            )
        most, hidden = list(self.most_hidden), list(self.hidden)
        if most and self.growth == "none":
            raise ExperimentError(
                f'algorithm.most_hidden is {most} and growth "none", so that the server has '
                f'{hidden} units; set growth to "everybody", or leave most_hidden out.'
            )
        if most and (
            len(most) != len(hidden) or any(a < b for a, b in zip(most, hidden, strict=True))
        ):
            raise ExperimentError(
                f"algorithm.most_hidden is {most} and hidden {hidden}; give as many layers, each "
                "at least as wide."
            )

    @property
    def matching_cost(self) -> Cost:
        """Return what matching minimises."""
        if self.cost == "squared":  # where none is opened, all neurons cost the same
            return SquaredDistance(price=self.price) if self.price < math.inf else SquaredDistance()
        return BetaBernoulli(
            sigma2=self.sigma2,
            sigma02=self.sigma02,
            gamma=self.gamma,
            marginal=self.cost == "marginal",
        )

    @property
    def widest(self) -> tuple[float, ...] | None:
        """Return how many units the server's hidden layers may come to have, None: as clients'."""
        if self.growth == "none" or (self.cost == "squared" and self.price == math.inf):
            return None
        return self.most_hidden or (math.inf,) * len(self.hidden)

    @property
    def pulls(self) -> tuple[float, float]:
        """Return μ1 and μ2 as the variant has them."""
        return (self.mu1, self.mu2) if self.variant == "prox" else (0.0, 0.0)


def used_blocks(options: HyFEM, schema: Schema) -> dict[str, FeatureBlock]:
    """Return the blocks that the networks take.

    Raises
    ------
    FederationError
        If a block is cut, one has no extractor that fits, or the blocks are to be those that all
        clients hold and there is none.
    """
    found = dict(feature_blocks(schema))
    for name in options.extractors:
        if name not in found:
            raise ExperimentError(
                f"algorithm.extractors names the feature block {name!r}; {nearest(name, found)}."
            )
    if options.blocks == "all":
        return found
    common = {name: one for name, one in found.items() if len(one.owners) == len(schema.clients)}
    if not common:
        raise FederationError(
            f"No feature block is held by all {len(schema.clients)} clients "
            f'({listed(found, 6)}), and algorithm.blocks is "common"; set it to "all".'
        )
    return common


def composition(options: HyFEM, schema: Schema, client: ClientId | None = None) -> Composition:
    """Return what a client's network is made of, or the server's (client = None).

    Raises
    ------
    FederationError
        If the client holds no block.
    """
    blocks = used_blocks(options, schema)
    whole = Composition(
        blocks=tuple(blocks),
        columns=tuple(one.features for one in blocks.values()),
        extractors=tuple(_extractor(options, one) for one in blocks.values()),
        hidden=options.hidden,
        outputs=output_count(schema),
    )
    if client is None:
        return whole
    own = [name for name, one in blocks.items() if client in one.owners]
    if not own:
        raise FederationError(
            f"Client {client!r} has no column, and a network needs at least one block; leave the "
            "client out."
        )
    scaled = options.scaling and options.shares != "nothing"
    return whole.of(own, len(blocks) / len(own) if scaled else 1.0)


def _extractor(options: HyFEM, block: FeatureBlock) -> Extractor:
    kind = options.extractors.get(block.name, options.extractor)
    shape = block.shape or (len(block.features),)
    return extractor(block.name, kind, shape, options.features, options.extractor_hidden)


def share_of(options: HyFEM, schema: Schema) -> dict[ClientId, float]:
    """Return p_m of each client; they add up to 1."""
    weights = {
        client: float(held.labelled.sum()) if options.weights == "samples" else 1.0
        for client, held in schema.holdings.items()
    }
    total = math.fsum(weights.values())
    return {client: weight / total for client, weight in weights.items()}
