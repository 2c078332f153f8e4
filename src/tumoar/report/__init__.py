"""The report: one HTML page that opens anywhere, offline, and holds all it shows."""

from tumoar.report.content import report_data
from tumoar.report.page import read_data, render

__all__ = ["read_data", "render", "report_data"]
