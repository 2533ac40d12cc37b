"""The plots of REPORT.md and GPU.md."""


def draw(reports, folder):
    """Draw a PNG for each report that has a plot."""
    from matplotlib.figure import Figure  # here, because `make gpu` does without where it is not installed

    folder.mkdir(parents=True, exist_ok=True)
    for name, plot in PLOTS.items():
        if reports.get(name, {}).get("tables"):
            figure = Figure(figsize=(7, 3.6), layout="constrained")
            plot(figure.subplots(), reports[name]["tables"][0])
            figure.savefig(folder / f"{name}.png", dpi=110)


def tracing(axes, table):
    for kind, style in (("swish", "-"), ("tanh", "--")):
        rows = [r for r in table["rows"] if r[1] == "trace" and r[0].startswith(f"{kind}: bare")]
        calls = [int(r[0].split()[-2]) for r in rows]
        for column, label in ((2, "fnjax"), (3, "custom_vjp")):
            axes.plot(calls, [float(r[column]) for r in rows], style, marker="o", label=f"{kind}, {label}")
    axes.set(
        xscale="log",
        xlabel="calls in the chain",
        ylabel="µs per call",
        title="jit(grad(chain)).trace()",
        ylim=(0, None),
    )
    axes.legend()


def memory(axes, table):
    rows = table["rows"]
    for shift, column, label in ((-0.2, 1, "unrolled"), (0.2, 2, "in scan")):
        axes.bar([i + shift for i in range(len(rows))], [float(r[column]) for r in rows], 0.4, label=label)
    axes.axhline(float(rows[0][3]), color="black", linestyle="--", label="saved by save_for_backward")
    axes.set(ylabel="MiB", title=table["title"], ylim=(0, 320))
    axes.set_xticks(range(len(rows)), [r[0] for r in rows])
    axes.legend(loc="upper left")


def against_torch(axes, table):
    from matplotlib.ticker import NullLocator

    rows, labels = table["rows"][::-1], table["columns"][2:6]
    axes.figure.set_size_inches(7, 6)
    for k, label in enumerate(labels):
        present = [(i, float(r[2 + k])) for i, r in enumerate(rows) if r[2 + k] != "-"]
        axes.barh([i + 0.3 - 0.2 * k for i, _ in present], [x for _, x in present], 0.2, label=label)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [r[0] for r in rows])
    axes.set(xscale="log", xlabel="time, in those of fnjax (right of 1: fnjax is faster)", title="Training steps")
    axes.set_xticks(ticks := [0.5, 1, 2, 5, 10, 20], map(str, ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.figure.legend(loc="outside lower center", ncols=2, fontsize="small")  # no bar behind it


def gpu(axes, table):
    """Step times in µs; they stand in the columns 1 to 3, with a dash where there is none."""
    rows, labels = table["rows"][::-1], table["columns"][1:4]
    for k, label in enumerate(labels):
        present = [(i, float(r[1 + k])) for i, r in enumerate(rows) if r[1 + k] != "-"]
        axes.barh([i + 0.25 - 0.25 * k for i, _ in present], [x for _, x in present], 0.25, label=label)
    axes.set_yticks(range(len(rows)), [r[0] for r in rows])
    axes.set(xscale="log", xlabel="a training step (less is better)", title=table["title"])
    axes.figure.legend(loc="outside lower center", ncols=3, fontsize="small")


PLOTS = {"tracing": tracing, "memory": memory, "against_torch": against_torch, "gpu": gpu}
