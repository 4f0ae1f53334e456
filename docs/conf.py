"""How Sphinx builds the site: `make docs`. Nothing is fetched from a network."""

import logging
import os
import sys
import warnings
from importlib.metadata import version as installed
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ["MPLBACKEND"] = "Agg"
logging.getLogger("robustcp.engines").setLevel(logging.ERROR)  # that code is compiled
logging.getLogger("sphinx.sphinx.directives.other").addFilter(
    lambda record: "toctree glob pattern" not in str(record.msg)  # pages that may come
)
warnings.filterwarnings("ignore", category=DeprecationWarning)

from _site import THEORY  # noqa: E402

project = "robustcp"
author = "The robustcp developers"
project_copyright = author
version = release = installed("robustcp")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.bibtex",
    "_site",
    "_run",
]
root_doc = "index"
exclude_patterns = [
    "_build",
    "_drawn",
    "results",
    "_templates",
    "**/GALLERY_HEADER.rst",
    "**sg_execution_times.rst",
]
nitpicky = False
default_role = "py:obj"
suppress_warnings = ["config.cache"]
templates_path = [str(HERE / "_templates")]

# Pages
myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath", "html_image"]
myst_heading_anchors = 4
bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"
bibtex_reference_style = "author_year"

# The API reference
autosummary_generate = True
autosummary_context = {"theory": THEORY}
autosummary_ignore_module_all = False
autodoc_typehints = "none"
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
numpydoc_attributes_as_param_list = True
numpydoc_xref_param_type = False

# The gallery
sphinx_gallery_conf = {
    "examples_dirs": [str(HERE.parent / "examples" / "gallery")],
    "gallery_dirs": ["gallery"],
    "filename_pattern": "",
    "ignore_pattern": r"__init__\.py",
    "subsection_order": "_site.section",
    "within_subsection_order": "_site.Order",
    "doc_module": ("robustcp",),
    "backreferences_dir": "gallery/backreferences",
    "reference_url": {"robustcp": None},
    "image_scrapers": ("matplotlib",),
    "matplotlib_animations": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "plot_gallery": True,
    "thumbnail_size": (400, 280),
    "nested_sections": False,
    "abort_on_example_error": False,
    "min_reported_time": 1,
    "reset_modules": ("matplotlib",),
}

# The look
html_theme = "pydata_sphinx_theme"
html_title = "robustcp"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # it would fetch pages, which browsers refuse for files
html_sidebars = {"index": [], "start": [], "changes": []}
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "robustcp"},
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "navbar_end": ["theme-switcher"],
    "show_prev_next": True,
    "secondary_sidebar_items": {"**": ["page-toc"], "gallery/index": []},
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
    "show_toc_level": 2,
    "back_to_top_button": False,
}
