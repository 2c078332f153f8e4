"""The report: one self-contained HTML page that opens offline."""

from tumoar.report.content import report_data, still_pictures
from tumoar.report.notebook import notebook_html
from tumoar.report.page import read_data, read_page, render
from tumoar.report.targets import add_targets, grid_of_page

__all__ = [
    "add_targets",
    "grid_of_page",
    "notebook_html",
    "read_data",
    "read_page",
    "render",
    "report_data",
    "still_pictures",
]
