"""The documentation site of the Python package: ``scripts/docs.sh``."""

import importlib.util

import fmm

project = "fmm"
author = "the fmm authors"
release = fmm.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["dollarmath"]
exclude_patterns = ["_build", "gallery/*.py", "gallery/README.rst"]
html_theme = "furo"
html_title = f"fmm {release} for Python"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_mock_imports = [name for name in ("torch", "jax") if importlib.util.find_spec(name) is None]
nitpicky = False

# Every example runs when the site is built, and asserts its own errors: one that fails ends the build. An example of a
# library that is not installed is shown and not run.
_missing = [name for name in ("torch", "jax") if importlib.util.find_spec(name) is None]
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "examples",
    "filename_pattern": r"/plot_(?!" + "|".join([*_missing, "$"]) + ")",
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 0,
}

# Only the blocks of the pages: scripts/python.sh runs those of the docstrings.
doctest_test_doctest_blocks = ""
