"""Reports: all about a fit in one file of HTML that needs nothing else.

Every piece is a function from a value to markup. Pictures are there without a script, which only
adds what moves: values at the pointer, zoom, and a choice of slices.
"""

from robustcp.report.data import ReportData
from robustcp.report.page import page

__all__ = ["ReportData", "page"]
