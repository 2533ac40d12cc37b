"""`triton.testing`: timings of functions, and tables of them."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

Table = list[dict[str, Any]]  # of its rows, by column


def do_bench(
    fn: Callable[[], Any],
    warmup: int = 25,
    rep: int = 100,
    grad_to_none: object = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> float | list[float]:
    """Return the time of a call in milliseconds, measured until its results are there.

    Args:
        fn: a function without arguments.
        warmup: milliseconds of calls before the measurement.
        rep: milliseconds of calls that are measured.
        grad_to_none: ignored; gradients are results here.
        quantiles: return these quantiles of the times, as a list, or one number for one of them.
        return_mode: "min", "max", "mean", "median" or "all".

    Raises:
        ValueError: `return_mode` is none of these.
    """
    if return_mode not in ("min", "max", "mean", "median", "all"):
        raise ValueError(f"return_mode must be min, max, mean, median or all, not {return_mode!r}")

    def once() -> float:
        begin = time.perf_counter()
        jax.block_until_ready(fn())
        return 1000 * (time.perf_counter() - begin)

    once()  # compiles
    estimate = max(min(once() for _ in range(3)), 1e-4)
    for _ in range(int(warmup / estimate)):
        once()
    times = [once() for _ in range(max(1, int(rep / estimate)))]
    if quantiles is not None:
        found: list[float] = np.quantile(times, quantiles).tolist()
        return found[0] if len(found) == 1 else found
    return times if return_mode == "all" else float(getattr(np, return_mode)(times))


do_bench_cudagraph = do_bench


class Benchmark:
    """Table of measurements: one row for each value of `x_names`, one column for each of `line_vals`."""

    def __init__(
        self,
        x_names: Sequence[str],
        x_vals: Sequence[Any],
        line_arg: str,
        line_vals: Sequence[Any],
        line_names: Sequence[str],
        plot_name: str,
        args: dict[str, Any],
        xlabel: str = "",
        ylabel: str = "",
        **options: object,
    ) -> None:
        self.x_names, self.x_vals, self.line_arg, self.line_vals = list(x_names), list(x_vals), line_arg, line_vals
        self.line_names, self.plot_name, self.args, self.ylabel = line_names, plot_name, dict(args), ylabel


Benchmarks = Benchmark | list[Benchmark] | tuple[Benchmark, ...]


class Mark:
    """Function to be measured for one or several benchmarks: what `perf_report` makes of it."""

    def __init__(self, fn: Callable[..., Any], benchmarks: Benchmarks) -> None:
        self.fn, self.benchmarks = fn, benchmarks
        functools.update_wrapper(self, fn)  # type: ignore[arg-type]  # it wraps any callable

    def run(
        self,
        show_plots: bool = False,
        print_data: bool = False,
        save_path: str = "",
        return_df: bool = False,
        **kwargs: Any,
    ) -> list[Table] | Table | None:
        """Measure; print the tables with `print_data`, and return them with `return_df`, as lists of dicts by column.

        Plots and files are not made.
        """
        benchmarks = self.benchmarks if isinstance(self.benchmarks, list | tuple) else [self.benchmarks]
        tables = [self._measure(b, kwargs) for b in benchmarks]
        for benchmark, table in zip(benchmarks, tables, strict=True):
            if print_data:
                lines = [f"{benchmark.plot_name}:", *_list_lines(table)]
                sys.stdout.write("\n".join(lines) + "\n")
        if return_df:
            return tables if isinstance(self.benchmarks, list | tuple) else tables[0]
        return None

    def _measure(self, benchmark: Benchmark, kwargs: dict[str, Any]) -> Table:
        table = []
        for x in benchmark.x_vals:
            values = x if isinstance(x, list | tuple) else [x] * len(benchmark.x_names)
            row = dict(zip(benchmark.x_names, values, strict=True))
            for line, name in zip(benchmark.line_vals, benchmark.line_names, strict=True):
                found = self.fn(**row_of(benchmark, row), **{benchmark.line_arg: line}, **benchmark.args, **kwargs)
                row[name] = found[0] if isinstance(found, tuple | list) else found
            table.append(row)
        return table


def row_of(benchmark: Benchmark, row: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a row, without what was measured in it."""
    return {name: row[name] for name in benchmark.x_names}


def _list_lines(table: Table) -> list[str]:
    """Return the lines of a table, the names of its columns first."""
    rows = [" ".join(f"{value:>12.6g}" for value in row.values()) for row in table]
    return [" ".join(f"{name:>12}" for name in table[0]), *rows] if table else []


def perf_report(benchmarks: Benchmarks) -> Callable[[Callable[..., Any]], Mark]:
    """Return a decorator that makes a function a `Mark`: `bench.run(print_data=True)` measures it."""
    return lambda fn: Mark(fn, benchmarks)


def assert_close(
    x: ArrayLike, y: ArrayLike, atol: float | None = None, rtol: float | None = None, err_msg: str = ""
) -> None:
    """Raise an AssertionError where two arrays differ by more than `atol` (1e-2) and `rtol` (0)."""
    a, b = (np.asarray(v, np.float32) for v in (x, y))
    np.testing.assert_allclose(a, b, atol=1e-2 if atol is None else atol, rtol=rtol or 0.0, err_msg=err_msg)


def nvsmi(attrs: Sequence[str]) -> list[int]:
    """Return zeros for the attributes of a GPU that are asked for: there is no nvidia-smi."""
    return [0 for _ in attrs]
