"""Kernels written in Python: :func:`kernel` runs a function once with symbols and keeps the operations."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

from .kernels import Kernel, KernelText

_RESERVED = {"x", "y", "z", "r", "q", "pi", "and", "or", "not", "where", "name", "parameter", "value", "strengths"}


class _Text:
    """The statements of a kernel file, each operation once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[str, str] = {}

    def name(self, expression: str) -> str:
        if expression not in self._known:
            name = f"t{len(self._known)}_"
            self.lines.append(f"{name} = {expression}")
            self._known[expression] = name
        return self._known[expression]


class Symbol:
    """A number of a kernel that is being traced."""

    __array_ufunc__ = None  # NumPy leaves operators to this class.

    def __init__(self, text: _Text, word: str) -> None:
        self._text, self._word = text, word

    def _other(self, other: Any) -> str:
        if isinstance(other, Symbol):
            return other._word
        if isinstance(other, Condition):
            raise TypeError("a condition is no number; use fmm.where(condition, a, b)")
        number = float(other)
        if not math.isfinite(number):
            raise ValueError(f"the kernel contains {number}")
        return f"({number!r})" if number < 0 else repr(number)

    def _new(self, expression: str) -> Symbol:
        return Symbol(self._text, self._text.name(expression))

    def _call(self, function: str, *others: Any) -> Symbol:
        return self._new(f"{function}({', '.join([self._word, *map(self._other, others)])})")

    def __add__(self, o: Any) -> Symbol:
        return self._new(f"{self._word} + {self._other(o)}")

    def __sub__(self, o: Any) -> Symbol:
        return self._new(f"{self._word} - {self._other(o)}")

    def __mul__(self, o: Any) -> Symbol:
        return self._new(f"{self._word} * {self._other(o)}")

    def __truediv__(self, o: Any) -> Symbol:
        return self._new(f"{self._word} / {self._other(o)}")

    def __radd__(self, o: Any) -> Symbol:
        return self._new(f"{self._other(o)} + {self._word}")

    def __rsub__(self, o: Any) -> Symbol:
        return self._new(f"{self._other(o)} - {self._word}")

    def __rmul__(self, o: Any) -> Symbol:
        return self._new(f"{self._other(o)} * {self._word}")

    def __rtruediv__(self, o: Any) -> Symbol:
        return self._new(f"{self._other(o)} / {self._word}")

    def __pow__(self, o: Any) -> Symbol:
        return self._new(f"{self._word} ^ {self._other(o)}")

    def __rpow__(self, o: Any) -> Symbol:
        return self._new(f"{self._other(o)} ^ {self._word}")

    def __neg__(self) -> Symbol:
        return self._new(f"-{self._word}")

    def __pos__(self) -> Symbol:
        return self

    def __abs__(self) -> Symbol:
        return self._call("abs")

    def __lt__(self, o: Any) -> Condition:
        return Condition(self._text, f"({self._word} < {self._other(o)})")

    def __le__(self, o: Any) -> Condition:
        return Condition(self._text, f"({self._word} <= {self._other(o)})")

    def __gt__(self, o: Any) -> Condition:
        return Condition(self._text, f"({self._word} > {self._other(o)})")

    def __ge__(self, o: Any) -> Condition:
        return Condition(self._text, f"({self._word} >= {self._other(o)})")

    def __eq__(self, o: object) -> Condition:  # type: ignore[override]
        return Condition(self._text, f"({self._word} == {self._other(o)})")

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("a kernel is traced once, for all r: instead of `if`, use fmm.where(condition, a, b)")

    def __float__(self) -> float:
        raise TypeError("this is a symbol, not a number: use fmm.sqrt, fmm.exp, … instead of those of math and numpy")

    __int__ = __index__ = __complex__ = __float__


class Condition:
    """The result of a comparison of symbols. Combine conditions with ``&``, ``|``, ``~``."""

    __array_ufunc__ = None

    def __init__(self, text: _Text, word: str) -> None:
        self._text, self._word = text, word

    def __and__(self, o: Condition) -> Condition:
        return Condition(self._text, f"({self._word} and {o._word})")

    def __or__(self, o: Condition) -> Condition:
        return Condition(self._text, f"({self._word} or {o._word})")

    def __invert__(self) -> Condition:
        return Condition(self._text, f"(not {self._word})")

    def __bool__(self) -> bool:
        raise TypeError("a kernel is traced once, for all r: instead of `if`, `and`, `or`, use fmm.where, &, |, ~")


class Vector:
    """Target minus source."""

    def __init__(self, text: _Text) -> None:
        self.x, self.y, self.z = (Symbol(text, axis) for axis in "xyz")
        self._text = text

    def norm(self) -> Symbol:
        """The length."""
        return Symbol(self._text, "r")

    def dot(self, other: Any) -> Symbol:
        """The scalar product with three numbers."""
        a, b, c = other
        product: Symbol = self.x * a + self.y * b + self.z * c
        return product

    def __iter__(self) -> Iterator[Symbol]:
        return iter((self.x, self.y, self.z))

    def __len__(self) -> int:
        return 3

    def __getitem__(self, axis: int) -> Symbol:
        return (self.x, self.y, self.z)[axis]


def _function(name: str) -> Callable[[Any], Any]:
    def call(a: Any) -> Any:
        if isinstance(a, Symbol):
            return a._call(name)
        if name == "rsqrt":
            return 1 / math.sqrt(a)
        known = getattr(math, {"ln": "log"}.get(name, name), None)
        if known is None:
            raise TypeError(f"fmm.{name} takes a symbol of a kernel")
        return known(a)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{name}(a), for use in a kernel."
    return call


sqrt, rsqrt, exp, log = _function("sqrt"), _function("rsqrt"), _function("exp"), _function("ln")
sin, cos, tan = _function("sin"), _function("cos"), _function("tan")
sinh, cosh, tanh = _function("sinh"), _function("cosh"), _function("tanh")
erf, erfc = _function("erf"), _function("erfc")
bessel_k0, bessel_k1 = _function("bessel_k0"), _function("bessel_k1")


def _two(name: str) -> Callable[[Any, Any], Any]:
    def call(a: Any, b: Any) -> Any:
        if isinstance(a, Symbol):
            return a._call(name, b)
        if isinstance(b, Symbol):
            return b._new(f"{name}({b._other(a)}, {b._word})")
        return {"minimum": min, "maximum": max, "min": min, "max": max}[name](a, b)

    call.__name__ = call.__qualname__ = f"{name}imum"
    call.__doc__ = f"The {name}imum of two numbers, for use in a kernel."
    return call


minimum, maximum = _two("min"), _two("max")


def where(condition: Condition | bool, a: Any, b: Any) -> Any:
    """``a`` where the condition holds, else ``b``, for use in a kernel."""
    if isinstance(condition, Condition):
        text = condition._text
        any_symbol = Symbol(text, "r")
        return any_symbol._new(f"where({condition._word}, {any_symbol._other(a)}, {any_symbol._other(b)})")
    return a if condition else b


F = TypeVar("F", bound=Callable[..., Any])


class OwnKernel:
    """A kernel of one's own: call it with values of its parameters, ``matern(l=0.1)``, to get a :class:`Kernel`."""

    def __init__(self, function: Callable[..., Any], strengths: int, include: bool | None) -> None:
        functools.update_wrapper(self, function)
        self._include = include
        self.text, self.parameters = _traced(function, strengths)
        self()  # What is wrong with the kernel is an error here.

    def __call__(self, **parameters: float) -> Kernel:
        unknown = set(parameters) - set(self.parameters)
        if unknown:
            raise TypeError(f"the kernel has no parameter {sorted(unknown)[0]}; it has {', '.join(self.parameters)}")
        made = KernelText(self.text, **{**self.parameters, **parameters})
        return made if self._include is None else made.with_self(self._include)


def _traced(function: Callable[..., Any], strengths: int) -> tuple[str, dict[str, float]]:
    """The text of the kernel, and its parameters with their usual values."""
    first, *rest = inspect.signature(function).parameters.values()
    takes_strengths = bool(rest) and rest[0].default is inspect.Parameter.empty
    given = rest[1:] if takes_strengths else rest
    if not takes_strengths and strengths != 1:
        raise TypeError("a kernel of several strengths takes them as its second argument")
    parameters = {}
    for p in given:
        if p.default is inspect.Parameter.empty:
            raise TypeError(f"parameter {p.name} has no usual value: write {p.name}=1.0")
        if p.name in _RESERVED or p.name.startswith("q") and p.name[1:].isdigit():
            raise ValueError(f"a parameter cannot be called {p.name}")
        parameters[p.name] = float(p.default)
    text = _Text()
    symbols = {name: Symbol(text, name) for name in parameters}
    if takes_strengths:
        q = [Symbol(text, f"q{i + 1}") for i in range(strengths)]
        values = function(Vector(text), q[0] if strengths == 1 else tuple(q), **symbols)
    else:
        values = function(Symbol(text, "r"), **symbols)
    values = values if isinstance(values, (tuple, list)) else (values,)
    any_symbol = Symbol(text, "r")
    lines = [f"name {function.__name__.strip('_') or 'own'}"]
    lines += [f"parameter {name} = {value!r}" for name, value in parameters.items()]
    if takes_strengths:
        lines.append(f"strengths {strengths}")
    words = [any_symbol._other(value) for value in values]
    return "\n".join([*lines, *text.lines, *(f"value {word}" for word in words)]) + "\n", parameters


@overload
def kernel(function: F) -> OwnKernel: ...
@overload
def kernel(*, strengths: int = 1, include_self: bool | None = None) -> Callable[[F], OwnKernel]: ...
def kernel(function: Any = None, *, strengths: int = 1, include_self: bool | None = None) -> Any:
    """Makes a kernel of a function of r and parameters with usual values. The function runs once, with symbols.

    A radial kernel takes the distance:

    >>> import fmm
    >>> @fmm.kernel
    ... def matern(r, l=0.2):
    ...     a = 3**0.5 / l
    ...     return (1 + a * r) * fmm.exp(-a * r)
    >>> matern(l=0.1).strengths
    1

    Any other kernel takes r = target - source as a vector (``r.x, r.y, r.z, r.norm(), r.dot``), then the strength of a
    source (``strengths=n``: a tuple), in which its values are linear:

    >>> @fmm.kernel(strengths=3)
    ... def biot_savart(r, q, c=1.0):
    ...     f = c / r.norm() ** 3
    ...     return f * (q[1] * r.z - q[2] * r.y), f * (q[2] * r.x - q[0] * r.z), f * (q[0] * r.y - q[1] * r.x)
    >>> biot_savart().strengths
    3

    ``include_self`` says whether a source acts on itself (default: if the kernel is finite at r = 0).
    """
    if function is None:
        return lambda function: OwnKernel(function, strengths, include_self)
    return OwnKernel(function, strengths, include_self)
