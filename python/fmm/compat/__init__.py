"""Modules with the names, arguments and conventions of other packages, computed by this library.

``import fmm.compat.fmm3dpy as fmm3dpy`` stands for fmm3dpy 2.1.0, ``import fmm.compat.fmm2dpy as fmm2dpy`` for
fmm2dpy 0.0.5. ``eps`` bounds the relative l2 error of every output by itself, at the sources and at the targets.
"""
