"""Tell others how a run goes: callbacks of your own, and trackers.

    intarsia.run("mine.toml", callbacks=[intarsia.callbacks.MLflow()])

A callback has those methods of `Callback` that it needs. `trackers` makes those that an experiment
names, each is in a file of its own, and `contents` is what all of them are told.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.callbacks.callback import Callback as Callback
    from intarsia.callbacks.mlflow_tracker import MLflow as MLflow
    from intarsia.callbacks.tensorboard_tracker import TensorBoard as TensorBoard
    from intarsia.callbacks.wandb_tracker import WeightsAndBiases as WeightsAndBiases
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
