"""Write what runs came to for others: an HTML page that needs nothing else, and a model card.

Read `page` first: it has the sequence. `contents` reads a run's folder and `sentences` says it in
plain words. `charts` and `holdings` draw, by `drawing`, and `model_card` writes the card.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.reports.model_card import write_card as write_card
    from intarsia.reports.page import write_report as write_report
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
