"""``f(a=1, b="x")``: a call as Python writes it. Only literals are read, and nothing is evaluated."""

from __future__ import annotations

import json

from lsv_parsers.source import Reading
from lsv_parsers.tools.call import Call
from lsv_parsers.values import copy_value, read_atom


class PythonicCall:
    """A call with named arguments."""

    def read(self, call: Call) -> Reading[bool]:
        source = call.source
        name = yield from read_atom(source)
        if not name or not call.may_be(name):
            return False
        if not (yield from source.comes("(")):
            return False
        while True:
            yield from source.skip()
            if (yield from source.comes(")")):
                call.open(name)
                call.arguments("}")
                return True
            if not (yield from self._argument(call, name)):
                return False
            yield from source.skip()
            following = yield from source.peek()
            if following == ",":
                source.take(1)
            elif following != ")":
                return False

    def _argument(self, call: Call, name: str) -> Reading[bool]:
        key = yield from read_atom(call.source)
        if not key.isidentifier():
            return False
        yield from call.source.skip()
        if not (yield from call.source.comes("=")):
            return False
        comma = ", " if call.begun else ""
        call.open(name)
        call.arguments(f"{comma}{json.dumps(key)}: ")
        return (yield from copy_value(call.source, call.arguments, python=True))
