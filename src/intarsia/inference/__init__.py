"""Use a finished run: predict, predict with columns at several clients, add a client, embed.

Read `predict` first: a finished run's model on one table. `federated_predict` scores samples whose
columns are at several clients. `new_client` and `new_client_hyfem` train a client that joins later,
`new_table` reads a table as the run's were read, and `latent_space` embeds samples for a plot.
`export` writes the model for use elsewhere.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.inference.export import Exported as Exported
    from intarsia.inference.federated_predict import predict_federated as predict_federated
    from intarsia.inference.latent_space import latent_of as latent_of
    from intarsia.inference.new_client import join as join
    from intarsia.inference.predict import Predictions as Predictions
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
