"""Reports: a fit, its diagnostics and its pictures in one self-contained HTML file.

Every section is a function from `ReportData` to markup. The page is complete without JavaScript,
which adds values at the pointer, zoom, and a choice of slices.
"""

from robustcp.report.data import ReportData
from robustcp.report.page import page

__all__ = ["ReportData", "page"]
