"""The training report: loss and validation by epoch for each schedule that was tried, and what was kept."""

from __future__ import annotations

from typing import Any

from matplotlib.ticker import MaxNLocator

from clrflow.progress import duration
from clrflow.reporting import Report, new_figure
from clrflow.training.settings import TrainingSettings


def training_report(curves: dict[str, Any], settings: TrainingSettings) -> Report:
    """From curves.json."""
    schedules, picked = curves["schedules"], curves["picked"]
    best = max(schedules[picked]["history"], key=lambda figures: figures["score"])
    report = Report("Training", f"Validation picked the schedule {picked}, epoch {best['epoch']}.")
    report.tiles(
        {
            "schedule": picked,
            "validation recall@50": best["recall"],
            "validation NDCG@10": best["ndcg"],
            "table rows": sum(curves["table_rows"].values()),
            "processes": curves["num_processes"],
            "trained": duration(sum(figures["seconds"] for result in schedules.values() for figures in result["history"])),
        }
    )
    report.section("Curves", "A schedule is kept at its best epoch by validation; hollow marks are epochs with frozen tables.")
    report.figure(_curves(schedules), "loss, validation recall@50 and NDCG@10 by epoch")
    report.section("Losses by part", f"Of {picked}: what the unconditional, the conditioned and the history targets cost.")
    report.figure(_parts(schedules[picked]["history"]), "mean cross-entropy by part and epoch")
    report.section("Epochs")
    rows = [
        [name, figures["epoch"], "frozen" if figures["frozen"] else "co-trained", figures["loss"], figures["recall"], figures["ndcg"],
         duration(figures["seconds"])]
        for name, result in schedules.items()
        for figures in result["history"]
    ]  # fmt: skip
    at = next(i for i, row in enumerate(rows) if row[0] == picked and row[1] == best["epoch"])
    report.table(["schedule", "epoch", "tables", "loss", "recall@50", "NDCG@10", "time"], rows, highlight=at)
    report.section("Tables", "Rows of each embedding table; all are split by rows over the processes.")
    report.table(["table", "rows"], [[name, rows] for name, rows in curves["table_rows"].items()])
    report.text(
        f"{curves['num_steps_an_epoch']:,} steps an epoch of {settings.batch_size} requests a process; {curves['num_dropped_an_epoch']} requests "
        f"don't fill a last step and are left out, others each epoch. Relative error of the {settings.serving_table_bits}-bit serving tables: "
        f"{curves['quantisation_error']:.4f}. Learnt softmax scale (1 / temperature): {curves['scale']:.1f}."
    )
    return report


def _curves(schedules: dict[str, Any]) -> Any:
    figure, axes = new_figure(width=9.5, columns=3)
    for name, result in schedules.items():
        history = result["history"]
        epochs = [figures["epoch"] for figures in history]
        for ax, key in zip(axes, ("loss", "recall", "ndcg"), strict=True):
            (line,) = ax.plot(epochs, [figures[key] for figures in history], label=name, linewidth=1.6)
            for figures in history:
                face = "white" if figures["frozen"] else line.get_color()
                ax.plot(figures["epoch"], figures[key], "o", color=line.get_color(), markerfacecolor=face, markersize=5)
    for ax, title in zip(axes, ("training loss", "validation recall@50", "validation NDCG@10"), strict=True):
        ax.set_title(title)
        ax.set_xlabel("epoch")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(fontsize=8, frameon=False)
    return figure


def _parts(history: list[dict[str, Any]]) -> Any:
    figure, (ax,) = new_figure()
    for part in ("unconditional", "conditioned", "history"):
        ax.plot([figures["epoch"] for figures in history], [figures[part] for figures in history], "o-", label=part, markersize=4)
    ax.set_xlabel("epoch")
    ax.set_ylabel("cross-entropy (nats)")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(fontsize=8, frameon=False)
    return figure
