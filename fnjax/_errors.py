"""The former name of `fnjax.errors`, for files that are being moved."""

# ruff: noqa: F403, PLC0414
from fnjax.errors import *
from fnjax.errors import ErrorT as ErrorT
from fnjax.errors import describe as describe
from fnjax.errors import error as error
from fnjax.errors import location as location
from fnjax.errors import message as message
from fnjax.errors import type_name as type_name
from fnjax.errors import warn as warn
