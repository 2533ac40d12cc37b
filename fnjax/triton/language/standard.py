"""`tl.standard`: the names of the language, which Triton keeps there."""

from fnjax.triton import language as _language


def __getattr__(name):
    """Return a name of the language."""
    return getattr(_language, name)
