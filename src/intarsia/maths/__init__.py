"""Mathematics without any federation: kernels and solvers on arrays.

`linear` has the losses and solvers of linear models, `training` gradient training of networks, and
`matching` distances, clustering and the matching of neurons. `jit` compiles all kernels: read it
before you write one.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.maths.jit import compiled as compiled
    from intarsia.maths.jit import inlined as inlined
    from intarsia.maths.jit import reassociated as reassociated
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
