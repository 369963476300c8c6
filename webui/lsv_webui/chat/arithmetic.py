"""The value of an arithmetic expression, for the page's calculator: nothing else is evaluated."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from lsv_base.errors import BadRequest

LONGEST = 200
"""Characters of an expression."""
LARGEST = 1e15
"""Values beyond this are refused, so that nothing takes long."""

Number = int | float

_TWO: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_ONE: Mapping[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculate(expression: str) -> str:
    """The value of sums, differences, products, quotients and remainders, to six places.

    Raises ``BadRequest`` for anything else.
    """
    if len(expression) > LONGEST:
        raise BadRequest(f"an expression has at most {LONGEST} characters")
    try:
        found = round(_value(ast.parse(expression.strip(), mode="eval").body), 6)
    except ZeroDivisionError:
        raise BadRequest("division by zero") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise BadRequest("not an arithmetic expression") from None
    return str(int(found)) if found == int(found) else str(found)


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _checked(number)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _TWO:
            return _checked(_TWO[type(sign)](_value(left), _value(right)))
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _ONE:
            return _ONE[type(sign)](_value(operand))
    raise ValueError(node)


def _checked(number: Number) -> Number:
    if abs(number) > LARGEST:
        raise BadRequest("too large")
    return number
