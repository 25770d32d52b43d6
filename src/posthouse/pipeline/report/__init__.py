"""The report: one page that shows a history."""

from posthouse.pipeline.report.figures import Figures
from posthouse.pipeline.report.gather import gather_figures
from posthouse.pipeline.report.page import render_page

__all__ = ["Figures", "gather_figures", "render_page"]
