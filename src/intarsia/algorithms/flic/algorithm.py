"""FLIC: clients with nothing in common but the labels, aligned in a latent space.

Rakotomamonjy, Vono, Medina Ruiz and Ralaivola, "Personalised Federated Learning On Heterogeneous
Feature Spaces", Transactions on Machine Learning Research 2024: Algorithm 1 with the local scheme
of FedRep. Client i has its own features, an embedding φ_i of them and a classifier β_i; all share
anchors µ_c = N(v_c, e·I), one for each class c, and in the variant "hl" a hidden layer α:

    F_i = 1/n_i Σ_j l(y_j, β_i∘α∘φ_i(x_j))
          + λ1 Σ_c W₂²(µ_c, N(m_c, S_c)) + λ2 Σ_c 1/J Σ_j l(c, β_i∘α(Z_c,j)),   Z_c,j ~ µ_c    (3)

m_c and S_c are mean and covariance of the embedded samples of class c in a batch, c runs over the
client's classes, l is the cross-entropy. Before the first round every client trains φ_i on the
second term alone. A round, at the clients that are there:

1. local training: open α and the anchors; some epochs on (φ_i, β_i), all else fixed
2. shared step: one step (or some epochs) on α and the anchors, all else fixed; send their change
3. the server averages the changes. It never reads α or an anchor: with a fixed covariance the
   Wasserstein barycentre of Gaussians is the average of their means, a sum over the clients

At the end all clients take the last α and anchors and go through step 1 once more.

Where labels are numbers, l is half the squared error and the anchors lie along a line, µ_y =
N(y a + (1-y) b, e·I) with a and b learned as the v_c are: see `objective`. With `meta_classes`
(S1.4) groups of classes have an anchor together: `initial_anchors`, `objective`.

With `anchor_covariance` = "learned" an anchor is N(v_c, L_c L_cᵀ), and step 2 moves the triangular
L_c too. The server averages the L_c, as Algorithm S2 does (line 29), which is one descent step to
the barycentre of the clients' Gaussians. With `anchor_average` = "barycentre" step 3 comes to the
barycentre itself, by a sum for each step of its iteration: see `barycentre`.

With `keep_own` a client that FLIC would harm keeps a network that it trained alone, see
`own_network`.

In the variant "class" there is no α: anchors are all that is shared.

The paper's Table 2 has two more local schemes. With `scheme` = "fedavg-ft" α and β are those of all
clients: step 1 trains both, their change is sent too, and the last training is the fine-tuning.
With "l2gd" there are common α and β, and the client's network takes ω common + (1-ω) own: step 1
trains φ and the own ones, step 2 the common ones, which are sent.

With differential privacy a client scales its change down to a norm of at most `clip` and adds its
share of the noise, as in `fedavg`: what all share keeps the secret of whether a client is among
them. The clients' own networks stay at the clients, without noise.

Departures from the paper
- Algorithm S2 has steps that are not those of (3): its sums over a batch are not divided by their
  number but times n_i, and its anchors' terms for α and β have the opposite sign and a second η.
  Here all steps descend (3).
- J: a batch has as many samples of an anchor as rows of its class, so that classes that it does
  not have are left out of the third term, as they are of the second; one standard normal number
  ξ_j is drawn for each row, Z_c,j = v_c + √e ξ_j. Algorithm S2 draws a batch for each class.
- W₂² of a batch has infinite slopes where S_c is singular, as it is for fewer samples than the
  latent space is wide; √(λ + ε) - √ε with ε = 1e-4 stands for the roots √λ of its eigenvalues.
- Numbers to predict are brought to mean 0 and deviation 1 over all clients first, by sums; the
  paper does not say the scale of y. Meta-classes: the paper does not say the third term of a class
  in a group; here a point of µ_c is to be of one of the group's classes.
- Optimal transport (`alignment` = "transport") assigns the rows of a class to a sample of its
  anchor, exactly; the maximum mean discrepancy ("energy") is that of the kernel -‖x - y‖.

Where the authors' code (github.com/arakotom/flic) departs from the text, the default is the text
but for `anchor_scale`, `weight_decay` and the variant "class". With `pretraining_epochs` = 10,
where both have 100, and `embedding_decay` = 3e-3, where both have none, these were chosen on
problems of clients with few rows (`benchmarks/unseen.py`). Embeddings of images have 100 epochs and
anchors at 1. The code has:
- `alignment` = "sample": the statistics of a batch against those of a fresh sample of the anchors
  of the same size, which is larger by what the sample strays; the covariances of both have the
  divisor n - 1, while those of "gaussian" have n
- `anchor_scale` = 10, the "very large variance" of the text; the default is 3 (images: 1)
- `weight_decay` = 1e-3 on α and β; the default is 1e-2
- `dropout` = 0.5 in the embeddings of BCI, after both hidden layers, and in those of digits, of the
  second convolution's channels; the paper's figures are of this code
- `shared_from` = 21 of 50 rounds: α stays as it was drawn until then
- `shared_epochs` = 1: an epoch on α and the anchors in place of one step
- `anchor_classes` = "all": step 2 takes the third term over all classes, each with a full batch
- `alignment_epochs` = 1: a further epoch on the second term at all clients after every round. Who
  was absent makes up for it when it is there again, to the anchors of then: in a round there is
  nobody to ask but those who take part
- it takes a fresh optimiser (Adam) in each round, as is done here; the paper does not say. The one
  step on α and the anchors then moves each entry by `rate` against the sign of its slope, whatever
  λ1 and λ2 are; Algorithm S2 steps along the slope. With `shared_epochs` sizes count from the
  second step on; 1 and 10 made no difference on BCI-common beyond the spread over seeds

A new client of a finished federation learns from what is shared (S1.4 of the paper). Its own are an
embedding φ and a classifier β; the hidden layer α and the anchors stay as they are.

1. align: some epochs on φ, by the second term of `flic`'s objective alone
2. calibrate: some epochs on β, by the third term alone: it needs no row of the client
3. learn: some epochs on φ and β, by all three

Steps 1 and 3 are those of the federation's clients; step 2 is not in the paper, which does not say
how β starts. A client of the federation has had rounds for it, a new one starts with less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from intarsia import core as fl
from intarsia.algorithms.flic import barycentre, initial_anchors, own_network
from intarsia.algorithms.flic.hyperparameters import Flic
from intarsia.algorithms.flic.objective import trainings_of
from intarsia.algorithms.networks import parameter_sharing as sharing
from intarsia.algorithms.networks.client_network import check_clients
from intarsia.algorithms.networks.parameter_sharing import Change, Client, Server, Shared
from intarsia.algorithms.networks.training_rows import held_out_rows
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.errors import ExperimentError


def init_client(
    options: Flic,
    schema: Schema,
    client: ClientId,
    block: Block,
    rng: fl.RandomKey,
    *,
    release: fl.Release | None = None,
) -> Client:
    """Return a client's state: a network that is drawn from the client's own key.

    Raises
    ------
    ExperimentError
        If the steps to a barycentre, or the choice of a network, would need noise.
    """
    if release is not None and options.anchor_average == "barycentre":
        raise ExperimentError(
            'algorithm.anchor_average is "barycentre" with privacy.epsilon, whose noise covers the '
            'average of the factors only; set anchor_average = "factors", or epsilon = 0.'
        )
    if release is not None and options.keep_own:
        raise ExperimentError(
            "algorithm.keep_own is true with privacy.epsilon, whose noise does not cover the sums "
            "by which a network is chosen; set keep_own = false, or epsilon = 0."
        )
    made = sharing.init_client(options, schema, client, block, rng, release=release)
    if options.keep_own:
        made = fl.evolve(made, held_out=held_out_rows(block, options.validation, rng))
    kind = made.parameters["anchors.means"].dtype
    parameters = {**made.parameters, **initial_anchors.blank(options, schema, kind)}
    meta = initial_anchors.meta_of(options, schema.labels)
    return fl.evolve(made, parameters=parameters, anchors=meta)


@fl.vectorised_function
def pretrain(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, fl.Ready]]:
    """Align the embeddings with the anchors."""
    return sharing.train_and_keep(trainings_of(*calls[0][:2]).pretraining, calls)


@fl.told_the_same
@fl.vectorised_function
def local_training(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, Change]]:
    """Train φ and β, then take the step on α and the anchors; send the change of what all share."""
    options, trainings = calls[0][0].options, trainings_of(*calls[0][:2])
    # step 1: local training
    tasks = _realigned(sharing.open_messages(calls), calls[0][2].round - 1)
    local = sharing.train(trainings.local, tasks, "local")
    # step 2: shared step
    moves = calls[0][2].round >= options.shared_from
    shared = trainings.shared if moves else trainings.anchors
    moved = sharing.train(shared, local, "shared")
    replies = []
    for before, one, after in zip(tasks, local, moved, strict=True):
        client = one.client
        if options.anchor_average == "barycentre":
            client, after = barycentre.begun(client, after)
        replies.append((client, sharing.change(before, after)))
    return replies


@fl.told_the_same
@fl.noise_function
@fl.vectorised_function
def noisy_training(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, Change]]:
    """Train as without noise; clip the change and add this client's noise."""
    assert local_training.together is not None
    trained = local_training.together(
        [(client, block, message, key.public) for client, block, message, key in calls]
    )
    return [
        (client, sharing.protect(client, moved, message.clients, key))
        for (client, moved), (_, _, message, key) in zip(trained, calls, strict=True)
    ]


noisy_training = replace(noisy_training, stream=local_training.name)


@fl.vectorised_function
def personalise(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, fl.Ready]]:
    """Train φ and β to the last α and anchors."""
    training = trainings_of(*calls[0][:2]).final
    tasks = _realigned(sharing.open_messages(calls), calls[0][2].round)
    return [(one.client, fl.Ready()) for one in sharing.train(training, tasks, "local")]


def _realigned(tasks: Sequence[sharing.ClientTask], rounds: int) -> list[sharing.ClientTask]:
    """Return the clients after the alignment that they owe for rounds that are over."""
    options, found = tasks[0].client.options, list(tasks)
    if not options.alignment_epochs:
        return found
    training = trainings_of(*tasks[0][:2]).realignment
    for number in range(rounds):
        owing = [place for place, task in enumerate(found) if task.client.aligned <= number]
        done = sharing.train(training, [found[place] for place in owing], f"alignment {number}")
        for place, task in zip(owing, done, strict=True):
            found[place] = task._replace(client=fl.evolve(task.client, aligned=number + 1))
    return found


def init_server(options: Flic, schema: Schema, rng: fl.RandomKey) -> Server:
    """Return the server's state before the set-up.

    Raises
    ------
    FederationError
        If clients have samples in common, or one has no labels.
    ExperimentError
        If the anchors do not fit the labels.
    """
    check_clients(schema, "flic")
    given = initial_anchors.drawn(options, schema, rng.fold_in("anchors"))
    return sharing.start(options, schema, rng, given=given)


def setup(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> Server:
    """Start from what the server drew; align the embeddings with the anchors."""
    server = sharing.setup(server, clients)
    if server.options.pretraining_epochs:
        clients.ask(pretrain, sharing.broadcast(server, clients))
    return server


def round(
    server: Server,
    clients: fl.Clients,
    rng: fl.RandomKey,
    *,
    training: fl.ClientFunction = local_training,
) -> tuple[Server, fl.RoundMetrics]:
    """Let the clients that are there train; average the changes of what all share."""
    server, info = sharing.train_and_average(server, clients, rng, training=training)
    if server.options.anchor_average == "barycentre":
        server = barycentre.settled(server, clients)
    return server, info


def conclude(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> fl.FinalResult:
    """Let every client train to what all share at the end; the networks stay at the clients."""
    options = server.options
    if not options.keep_own and (options.scheme != "fedavg-ft" or not options.final_epochs):
        return sharing.conclude(server, clients, rng, personalise=personalise)
    clients.ask(personalise, sharing.broadcast(server, clients))
    # from here on every client's α and β are its own: they are not to be opened once more
    server = fl.evolve(server, shared=None)
    notes = own_network.settled(server, clients) if options.keep_own else ()
    _, info = sharing.certify(server, clients)
    return fl.FinalResult(info, notes=notes)


def private(release: fl.Release) -> fl.Algorithm:
    """Return FLIC with clipped changes of what all share, and noise in them."""
    sends = tuple(
        replace(one, function=noisy_training) if one.function is local_training else one
        for one in FLIC.disclosure.sends
    )
    return replace(
        FLIC,
        init_client=partial(init_client, release=release),
        round=partial(round, training=noisy_training),
        disclosure=replace(FLIC.disclosure, sends=sends),
    )


@fl.vectorised_function
def calibrate(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, fl.Ready]]:
    """Train β on samples of the anchors."""
    return sharing.train_and_keep(trainings_of(*calls[0][:2]).calibration, calls)


def join(clients: fl.Clients, options: Flic, shared: Array) -> None:
    """Let new clients learn from what all share; `final_epochs` are those of step 3."""
    told = Shared(shared=shared, round=0)
    if options.pretraining_epochs:
        clients.ask(pretrain, told)
        clients.ask(calibrate, told)
    clients.ask(personalise, told)


FLIC = sharing.network_algorithm(
    "flic",
    Flic,
    training=local_training,
    sends=(*barycentre.SENDS, *fl.asks(pretrain, personalise), *own_network.SENDS),
    round=round,
    own_feature_space=True,
    local_baseline=fl.LocalBaseline("local"),
    join=join,
    dp_unit="client",
    states=(fl.Release,),
    init_server=init_server,
    init_client=init_client,
    setup=setup,
    conclude=conclude,
    private=private,
)
