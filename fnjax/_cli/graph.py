"""`fnjax graph`: the picture of a function, from the command line."""

from __future__ import annotations

import argparse
import functools
from typing import Any

from fnjax import graph
from fnjax._cli.call import UsageError, add_call, arguments
from fnjax._cli.target import find_target


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "graph",
        help="draw what a Function, or any function, runs and saves",
        description="Draw forward, backward and what is saved in between (fnjax.make_dot), or print it as a table.",
        epilog='example: fnjax graph layers.py:Swish --args "randn(3, 8)" -o swish.svg',
    )
    add_call(parser)
    parser.add_argument("-o", "--output", metavar="PATH", help="the picture: .svg, .png, .pdf, .dot, …")
    parser.add_argument("--order", type=int, choices=(1, 2), default=1, help="2 for double backward")
    parser.add_argument("--open", default="", metavar="NAMES", help="Functions to open, with commas, or all")
    parser.set_defaults(run=_graph)


def _graph(options: argparse.Namespace) -> int:
    args, kwargs = arguments(options.args, options.kwargs, options.seed)
    func, parameters = find_target(options.target, "", options.seed)
    args = (*parameters.values(), *args)
    func = functools.partial(func, **kwargs) if kwargs else func
    names = [name.strip() for name in options.open.split(",") if name.strip()]
    try:
        if options.output is None:
            print(graph.saved_report(func, *args))
            return 0
        picture = graph.make_dot(func, *args, order=options.order, opened=names == ["all"] or names)
        print(picture.render(options.output))
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as e:
        raise UsageError(f"{options.target} cannot be drawn with {options.args}: {e}") from e
    return 0
