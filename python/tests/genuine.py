"""Calls of fmm3dpy or fmm2dpy, in the Python that has the package: ``python genuine.py MODULE calls.npz results.npz``.

``calls.npz`` holds ``calls``, a list in JSON of [function, arguments] where an argument "array:NAME" is the array NAME of
the file. For call k, ``results.npz`` has ``k/ATTRIBUTE`` for each output that is an array, and the other attributes, or
the name of the exception, in ``others`` (JSON).
"""

import importlib
import json
import sys
import warnings

import numpy as np


def called(module, name, arguments):
    """The attributes of the result, or the name of the exception."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            out = getattr(module, name)(**arguments)
        except Exception as e:
            return {"raised": type(e).__name__}
    names = [attribute for attribute in dir(type(out)) if not attribute.startswith("_")]
    return {"warnings": sorted(w.category.__name__ for w in caught), **{a: getattr(out, a) for a in names}}


def main():
    module = importlib.import_module(sys.argv[1])
    arrays, others = {}, []
    with np.load(sys.argv[2]) as file:
        for k, (name, arguments) in enumerate(json.loads(str(file["calls"]))):
            given = {a: file[v[6:]] if isinstance(v, str) and v.startswith("array:") else v for a, v in arguments.items()}
            found = called(module, name, given)
            # Files of arrays keep Fortran order.
            arrays.update({f"{k}/{a}": v for a, v in found.items() if isinstance(v, np.ndarray)})
            plain = {a: v for a, v in found.items() if not isinstance(v, np.ndarray)}
            others.append({a: int(v) if isinstance(v, np.integer) else v for a, v in plain.items()})
    np.savez(sys.argv[3], others=json.dumps(others), **arrays)


if __name__ == "__main__":
    main()
