"""A network over feature blocks: an extractor for each block, a classifier on what they give.

    scores(x) = W_L a(… W_2 a(W_1 v + β_1) + β_2 …) + β_L,   v = s [h_b(x_b)]_b

with a = ReLU. s is d₀/d of d₀ blocks where the network has d: its first layer then sees as much as
that of a network of all blocks. The first layer is a sum over blocks, W_1 v = s Σ_b W_1b h_b(x_b):
clients that hold different blocks of a sample can add up what each has of it.

Where it trains the blocks are slots, numbered, so that clients with different blocks of one kind
train at once. Between exchanges a network is its `Parts`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import DTypeLike, NDArray

from intarsia.algorithms.hyfem.extractors import Extractor, module_of
from intarsia.algorithms.networks.architecture import Arrays, TrainedArchitecture, as_tensors
from intarsia.algorithms.networks.targets import odds
from intarsia.algorithms.networks.training_rows import check_whole, rows_of
from intarsia.core.block import Array, Block, Labels
from intarsia.core.client_functions import RandomKey
from intarsia.core.settings import frozen
from intarsia.errors import ExperimentError
from intarsia.maths.training.layers import StackedLinear
from intarsia.maths.training.locks import applied, drawing_from
from intarsia.maths.training.sparse_rows import Picked, Rows, in_full, parts_of_rows
from intarsia.maths.training.torch_import import Tensor, nn, torch

_ROWS = 2048  # that are scored at a time


@dataclass(frozen=True)
class Composition(TrainedArchitecture):
    """What a network over feature blocks is made of."""

    blocks: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]  # of each block, in the block's order
    extractors: tuple[Extractor, ...]  # of each block
    hidden: tuple[int, ...]  # units of the classifier's hidden layers
    outputs: int
    scale: float = 1.0  # s

    @property
    def stacked(self) -> bool:
        """Return whether the network takes several learners, stacked in front of all axes."""
        return all(one.stacked for one in self.extractors)

    @property
    def ragged(self) -> dict[str, int]:
        """Return the axes along which networks of one structure may differ."""
        slots = enumerate(self.extractors)
        return {name: axis for slot, one in slots for name, axis in one.ragged(slot).items()}

    @property
    def structure(self) -> Composition:
        """Return what is alike in all networks that train at once."""
        numbers = tuple(str(slot) for slot in range(len(self.blocks)))
        extractors = tuple(one.structure for one in self.extractors)
        return replace(self, blocks=numbers, columns=(), extractors=extractors)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters, by their names by block; it takes no memory."""
        with torch.device("meta"):
            named = BlockNetwork(self).named_parameters()
        return {_by_block(self, name): tuple(values.shape) for name, values in named}

    def predict(self, parameters: Arrays, block: Block, labels: Labels) -> Array:
        """Return the log-odds of the classes, (outputs, samples)."""
        return odds(scores(self, numbered(self, parameters), block))

    def embed(self, parameters: Arrays, block: Block) -> Array:
        """Refuse: blocks have a space each."""
        raise ExperimentError(
            f"The network is one over the feature blocks {', '.join(self.blocks)},"
            " which have a space each; a common one have the networks of flic."
        )

    def first_layer(
        self, parameters: Arrays, blocks: Sequence[str], block: Block
    ) -> dict[str, Array]:
        """Return what some feature blocks add to the first layer, each (units, samples)."""
        whole = numbered(self, parameters)
        columns = parts_of(self, whole).columns
        own: dict[str, NDArray[Any]] = {}
        for name, values in whole.items():
            part, slot, *inner = name.split(".")
            if part != "extractors":
                own[name] = values
            elif self.blocks[int(slot)] in blocks:
                place = list(blocks).index(self.blocks[int(slot)])
                own[".".join([part, str(place), *inner])] = values
        return first_layer(self.of(blocks, 1.0), own, columns, block)

    def scores_of(self, parameters: Arrays, total: Array) -> Array:
        """Return the log-odds, (outputs, samples), from the sum over all blocks."""
        rest = parts_of(self, numbered(self, parameters)).rest
        return odds(from_first_layer(rest, (*self.hidden, self.outputs), self.scale * total))

    def as_module(self, parameters: Arrays, features: Sequence[str], outputs: int) -> nn.Module:
        """Return a module of torch that gives the scores of rows, (rows, outputs)."""
        return _Blocks(self, numbered(self, parameters), features)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what stands in a network's own file."""
        return {"composition": np.array(json.dumps(asdict(self)))}

    def grown(self, parameters: Arrays) -> Composition:
        """Return the network with hidden layers as wide as in these parameters."""
        layers = range(len(self.hidden))
        return replace(
            self, hidden=tuple(len(parameters[f"classifier.{layer}.bias"]) for layer in layers)
        )

    def of(self, blocks: Sequence[str], scale: float) -> Composition:
        """Return the network of some of the blocks."""
        places = [self.blocks.index(name) for name in blocks]
        return replace(
            self,
            blocks=tuple(blocks),
            columns=tuple(self.columns[place] for place in places),
            extractors=tuple(self.extractors[place] for place in places),
            scale=scale,
        )


def composition_of(content: Mapping[str, Any]) -> Composition:
    """Return the composition that `dataclasses.asdict` wrote, from lists as JSON has them."""
    known = frozen(content)
    extractors = tuple(Extractor(**one) for one in known["extractors"])
    return Composition(**{**known, "extractors": extractors})


class BlockNetwork(nn.Module):
    """The extractors and the classifier as one module."""

    def __init__(self, made_of: Composition) -> None:
        super().__init__()
        self._scale = made_of.scale
        self.extractors = nn.ModuleList([module_of(one) for one in made_of.extractors])
        width = sum(one.width for one in made_of.extractors)
        layers: list[nn.Module] = []
        for units in (*made_of.hidden, made_of.outputs):
            layers.append(StackedLinear(width, units))
            width = units
        self.classifier = nn.ModuleList(layers)

    def forward(self, values: Sequence[Picked], factors: Tensor | None = None) -> Tensor:
        """Return the classes' scores, (..., rows, outputs), of the values by slot.

        `factors` of what each slot gives, (..., rows, slots), come beside s.
        """
        features = [in_full(h(x)) for h, x in zip(self.extractors, values, strict=True)]
        if factors is not None:
            features = [one * factors[..., slot, None] for slot, one in enumerate(features)]
        found = torch.cat(features, -1) * self._scale
        for layer in self.classifier[:-1]:
            found = layer(found).relu()
        scores: Tensor = self.classifier[-1](found)
        return scores


class _Blocks(nn.Module):
    """A trained network that takes the columns of all its blocks as one table."""

    def __init__(self, made_of: Composition, parameters: Arrays, features: Sequence[str]) -> None:
        super().__init__()
        self.network = BlockNetwork(made_of).eval()
        self.network.load_state_dict(as_tensors(parameters))
        self._places = [[list(features).index(one) for one in own] for own in made_of.columns]

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of rows, (rows, outputs)."""
        found: Tensor = self.network([x[:, places] for places in self._places])
        return found


@lru_cache(maxsize=256)
def structure(made_of: Composition) -> BlockNetwork:
    """Return a module whose own values are not read; `made_of` is a `Composition.structure`."""
    return BlockNetwork(made_of)


@lru_cache(maxsize=256)
def _judging(made_of: Composition) -> BlockNetwork:
    """Return the same for predictions, in which dropout and the like rest."""
    module: BlockNetwork = copy.deepcopy(structure(made_of)).eval()
    return module


def drawn(made_of: Composition, kind: Any, rng: RandomKey) -> Arrays:
    """Return the parameters of a new network, as torch draws them from this key's stream.

    An extractor is drawn from a stream of the block's own, whatever blocks are beside it.
    """
    with drawing_from(rng.integer()):
        module = BlockNetwork(made_of)
        for slot, (name, extractor) in enumerate(
            zip(made_of.blocks, made_of.extractors, strict=True)
        ):
            with drawing_from(rng.fold_in("extractor", name).integer()):
                module.extractors[slot] = module_of(extractor)
    found = module.named_parameters()
    return {name: values.detach().numpy().astype(kind) for name, values in found}


@dataclass(frozen=True)
class Parts:
    """A network apart: by block what only the holders of the block have, and what all have."""

    extractors: Mapping[str, Array]  # block → (its parameters,) in the order of their names
    columns: Mapping[str, Array]  # block → (units, its features), W_1b
    rest: Array  # β_1, W_2, β_2, … one after the other


def rounded(parts: Mapping[str, Array] | Array, kind: Any) -> Any:
    """Return parameters as they are sent: in the precision that networks have."""
    if isinstance(parts, Mapping):
        return {name: own.astype(kind) for name, own in parts.items()}
    return parts.astype(kind)


def _of_slot(parameters: Arrays, slot: int) -> list[str]:
    return sorted(name for name in parameters if name.startswith(f"extractors.{slot}."))


def parts_of(made_of: Composition, parameters: Arrays) -> Parts:
    """Return a network's parts, in double precision."""
    first = parameters["classifier.0.weight"].astype(np.float64)
    ends = np.cumsum([one.width for one in made_of.extractors])
    extractors = {
        name: np.concatenate(
            [np.zeros(0), *(parameters[key].ravel() for key in _of_slot(parameters, slot))]
        )
        for slot, name in enumerate(made_of.blocks)
    }
    pieces = [parameters["classifier.0.bias"]]
    for layer in range(1, len(made_of.hidden) + 1):
        pieces += [parameters[f"classifier.{layer}.{what}"] for what in ("weight", "bias")]
    return Parts(
        extractors,
        dict(zip(made_of.blocks, np.split(first, ends[:-1], axis=1), strict=True)),
        np.concatenate([piece.ravel() for piece in pieces]).astype(np.float64),
    )


def assembled(made_of: Composition, parts: Parts, parameters: Arrays) -> Arrays:
    """Return the network with these parts; names, precision and extractors as in `parameters`."""
    kind = parameters["classifier.0.weight"].dtype
    found: dict[str, Array] = {}
    for slot, name in enumerate(made_of.blocks):
        names = _of_slot(parameters, slot)
        ends = np.cumsum([parameters[key].size for key in names])
        pieces = np.split(parts.extractors[name], ends[:-1]) if names else []
        for key, piece in zip(names, pieces, strict=True):
            found[key] = piece.reshape(parameters[key].shape)
    found["classifier.0.weight"] = np.concatenate([parts.columns[b] for b in made_of.blocks], 1)
    biases, weights = split_rest(parts.rest, (*made_of.hidden, made_of.outputs))
    for layer, bias in enumerate(biases):
        found[f"classifier.{layer}.bias"] = bias
        if layer:
            found[f"classifier.{layer}.weight"] = weights[layer - 1]
    return {name: np.ascontiguousarray(found[name], kind) for name in parameters}


def split_rest(rest: Array, units: Sequence[int]) -> tuple[list[Array], list[Array]]:
    """Return the biases β_1, β_2, … and the weights W_2, … of layers with so many units."""
    biases = [rest[: units[0]]]
    weights: list[Array] = []
    at = units[0]
    for into, out in pairwise(units):
        weights.append(rest[at : at + into * out].reshape(out, into))
        at += into * out
        biases.append(rest[at : at + out])
        at += out
    return biases, weights


def named_by_block(made_of: Composition, parameters: Arrays) -> Arrays:
    """Return the parameters with the names of blocks in place of numbers, for a model file."""
    return {_by_block(made_of, name): values for name, values in parameters.items()}


def numbered(made_of: Composition, parameters: Arrays) -> Arrays:
    """Return what `named_by_block` was given."""
    slots = {_quoted(name): str(slot) for slot, name in enumerate(made_of.blocks)}
    found: dict[str, NDArray[Any]] = {}
    for key, values in parameters.items():
        part, slot, *inner = key.split(".")
        found[".".join([part, slots[slot], *inner]) if part == "extractors" else key] = values
    return found


def _by_block(made_of: Composition, name: str) -> str:
    part, slot, *inner = name.split(".")
    if part != "extractors":
        return name
    return ".".join([part, _quoted(made_of.blocks[int(slot)]), *inner])


def _quoted(name: str) -> str:
    return quote(name, safe=" ").replace(".", "%2E")


def values_of(made_of: Composition, block: Block, kind: DTypeLike) -> list[Rows]:
    """Return the values of each slot, (samples, n); of a sparse block they stay sparse."""
    check_whole(block)
    place = {name: column for column, name in enumerate(block.features)}
    orders = [np.array([place[name] for name in names], np.intp) for names in made_of.columns]
    return [rows_of(block.x, kind, order) for order in orders]


def scores(made_of: Composition, parameters: Arrays, block: Block, device: str = "cpu") -> Array:
    """Return the scores of a block's samples, (samples, outputs), computed on a device."""
    module = _judging(made_of.structure)
    tensors = as_tensors(parameters, device)
    values = values_of(made_of, block, parameters["classifier.0.bias"].dtype)
    found: list[Tensor] = []
    with torch.no_grad():
        for part in parts_of_rows(values, _ROWS):
            there = [_on(one, device, made_of.stacked) for one in part]
            found.append(applied(module, tensors, there).cpu())
    if not found:
        return np.zeros((0, made_of.outputs))
    array: Array = torch.cat(found).double().numpy()
    return array


def _on(rows: Picked, device: str, stacked: bool) -> Picked:
    """Return rows on a device, as an extractor takes them that may take learners stacked."""
    return rows if stacked and device == "cpu" else in_full(rows).to(device)


def first_layer(
    made_of: Composition,
    parameters: Arrays,
    columns: Mapping[str, Array],
    block: Block,
    device: str = "cpu",
) -> dict[str, Array]:
    """Return what each block gives to a first layer of these columns, (units, samples), s = 1."""
    module = _judging(made_of.structure)
    found: dict[str, Array] = {}
    values = values_of(made_of, block, parameters["classifier.0.bias"].dtype)
    for slot, (name, x) in enumerate(zip(made_of.blocks, values, strict=True)):
        start = f"extractors.{slot}."
        tensors = {
            key.removeprefix(start): torch.from_numpy(parameters[key]).to(device)
            for key in _of_slot(parameters, slot)
        }
        features: list[Array] = [np.zeros((0, columns[name].shape[1]))]
        with torch.no_grad():
            for (part,) in parts_of_rows([x], _ROWS):
                there = _on(part, device, made_of.extractors[slot].stacked)
                given = in_full(applied(module.extractors[slot], tensors, there))
                features.append(given.cpu().double().numpy())
        found[name] = columns[name] @ np.concatenate(features).T
    return found


def from_first_layer(rest: Array, units: Sequence[int], first: Array) -> Array:
    """Return the scores, (samples, outputs), from Σ_b W_1b h_b, (units, samples)."""
    biases, weights = split_rest(rest, units)
    found = first.T + biases[0]
    for weight, bias in zip(weights, biases[1:], strict=True):
        found = np.maximum(found, 0.0) @ weight.T + bias
    return found
