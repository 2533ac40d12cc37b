"""Functions that expressions of the table call: a port contains a copy of them, fnjax.torch imports them."""
