"""What a user can deploy, as a table: accuracy, agreement and measured speed beside dense and ToMe."""

from redi.records.deployed import Deployed
from redi.records.results import Results, Row
from redi.records.timing import Timing
from redi.report.sheets import Sheet
from redi.rows import DENSE

Measured = tuple[Row, Timing]


def deployed_rows(results: Results, deployed: Deployed | None, classifier: str) -> list[Measured]:
    """Dense and the rows that were both measured and timed, the dearest first; empty if only dense is left."""
    if deployed is None:
        return []
    rows = {row.name: row for row in results.rows if row.classifier == classifier}
    pairs = [(rows[timing.row], timing) for timing in deployed.timings if timing.row in rows and timing.speedup]
    order = [row.reducer for row, _ in pairs]
    pairs.sort(key=lambda pair: (-round(pair[0].cost, 2), order.index(pair[0].reducer)))
    return pairs if len(pairs) > 1 and pairs[0][0].name == DENSE else []


def spread(timing: Timing) -> str:
    """The speed-up with its quartiles."""
    return f"{timing.speedup:.2f} ({timing.speedup_low:.2f}-{timing.speedup_high:.2f})"


def deployed_sheets(results: Results, deployed: Deployed | None) -> dict[str, Sheet]:
    """One table per classifier by the name of its file; none if the run has no times of rows."""
    return {
        f"deployed-{classifier}": _sheet(rows, deployed, classifier)
        for classifier in results.classifiers
        if deployed and (rows := deployed_rows(results, deployed, classifier))
    }


def _sheet(rows: list[Measured], deployed: Deployed, classifier: str) -> Sheet:
    _, dense = rows[0]
    where = deployed.environment
    return Sheet(
        f"What you can deploy, {classifier} classifier, {rows[0][0].images} images",
        ("Configuration", "Cost", "Top-1", "Δ", "95 % of Δ", "Same", "Speed-up"),
        [
            [
                row.title,
                f"{row.cost:.2f}",
                f"{row.top1:.2f}",
                *(["", "", ""] if row.name == DENSE else _against_dense(row)),
                "1" if row.name == DENSE else spread(timing),
            ]
            for row, timing in rows
        ],
        [
            "No row needs a label or a dense pass. Δ: points of Top-1 against dense. Same: percent of images with "
            "dense's Top-1.",
            "Speed-up: dense's time divided by the row's; median and quartiles of calls in turn, measured with batch "
            f"{dense.batch} in FP32 ({where.device}, threads: {where.threads}). Dense takes {dense.median_ms:.0f} ms. "
            "Timed from pixels to logits, by the pass that the accuracy is read from: the full grid is restored.",
            "redi.accelerate: its merging and schedule under the paper's protocol. As in the module itself, every "
            "patch has the updates of the token that it went into, and a probe reads the mean of all patches.",
        ],
    )


def _against_dense(row: Row) -> list[str]:
    low, high = row.delta_interval
    return [f"{row.delta_dense:+.2f}", f"{low:+.1f} {high:+.1f}", f"{row.agreement:.1f}"]
