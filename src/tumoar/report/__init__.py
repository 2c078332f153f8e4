"""The report: one HTML page that opens anywhere, offline, and holds all it shows."""

from tumoar.report.content import report_data
from tumoar.report.page import read_data, read_page, render

__all__ = ["read_data", "read_page", "render", "report_data"]
