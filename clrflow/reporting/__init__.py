"""Self-contained HTML reports with pictures: one look for every step.

report = Report("Semantic ids", "what the catalogue's codes look like")
report.tiles({"items": 1682, "collision": 0.001})
report.section("Code usage", "Share of items a code, most used first.")
report.figure(fig, "usage by level")
report.table(["level", "used"], [[1, 256], [2, 251]])
html = report.html()
"""

from clrflow.reporting.report import Report, new_figure

__all__ = ["Report", "new_figure"]
