"""Calls checked against the signatures that a vendor's package has, kept beside this as data with their source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
import torch

from lsv_runtime.emulation.placement.device import as_kernel
from lsv_runtime.emulation.vendors.checks import BadCall, require


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """What was read in a package. ``schemas`` are those its libraries register, in torch's own notation; ``functions``
    its Python functions and methods, by name, with their parameters as they are written, ``self`` left out.
    """

    source: str
    read: str
    version: str
    schemas: tuple[str, ...] = ()
    functions: Mapping[str, str] = {}


Read = TypeVar("Read", bound=Package)


def read_package(file: Path, kind: type[Read]) -> Read:
    """Of a JSON file."""
    return msgspec.json.decode(file.read_bytes(), type=kind)


@dataclass(frozen=True, slots=True)
class Op:
    """Stands for one of ``torch.ops``: ``answer`` gets the arguments of a call by the names of the schema."""

    _schema: Any
    answer: Callable[..., Any]

    @property
    def default(self) -> Op:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.answer(**bind_schema(self._schema, args, kwargs))


def fake_ops(package: Package, answers: object) -> SimpleNamespace:
    """What stands for ``torch.ops``: the package's ops, as kernels; methods of ``answers`` of their names answer."""
    spaces: dict[str, SimpleNamespace] = {}
    for text in package.schemas:
        schema = torch._C.parse_schema(text)
        space, _, name = schema.name.partition("::")
        setattr(spaces.setdefault(space, SimpleNamespace()), name, Op(schema, as_kernel(getattr(answers, name))))
    return SimpleNamespace(**spaces)


def bind_schema(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, as torch's dispatcher takes them. Raises ``BadCall`` where it would refuse."""
    names = [argument.name for argument in schema.arguments]
    require(len(args) <= len(names), f"{schema.name} takes {len(names)} arguments, got {len(args)}")
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        require(name in names, f"{schema.name} has no argument {name}")
        require(name not in given, f"{schema.name} gets {name} twice")
        given[name] = value
    for argument in schema.arguments:
        if argument.name not in given:
            require(argument.has_default_value(), f"{schema.name} lacks {argument.name}")
            given[argument.name] = argument.default_value
        _check_kind(f"{argument.name} of {schema.name}", str(argument.real_type), given[argument.name])
    return given


_KINDS: Mapping[str, tuple[type, ...]] = {
    "Tensor": (torch.Tensor,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "str": (str,),
    "ScalarType": (torch.dtype,),
    "Generator": (torch.Generator,),
}


def _check_kind(name: str, kind: str, value: Any) -> None:
    inner = kind.removeprefix("Optional[").removesuffix("]")
    if value is None and inner != kind:
        return
    fits = isinstance(value, _KINDS[inner]) and (inner == "bool" or not isinstance(value, bool))
    require(fits, f"{name} is {kind}, got {type(value).__name__}")


def fake_functions(package: Package, space: str, answers: object) -> SimpleNamespace:
    """What stands for a module or class ``space`` of the package: its functions, answered by methods of their names."""
    made = SimpleNamespace()
    for name in package.functions:
        owner, _, function = name.rpartition(".")
        if owner == space:
            setattr(made, function, _answered(package, name, as_kernel(getattr(answers, function))))
    return made


def _answered(package: Package, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer(**bind_function(package, name, args, kwargs))


def bind_function(package: Package, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of one of the package's Python functions, by name, defaults included."""
    try:
        bound = signature(package.functions[name]).bind(*args, **kwargs)
    except TypeError as error:
        raise BadCall(f"{name}: {error}") from error
    bound.apply_defaults()
    return dict(bound.arguments)


def signature(text: str) -> inspect.Signature:
    """That of parameters as they are written, ``"(x, *more, eps=1e-6)"``; defaults are literals."""
    (function,) = ast.parse(f"def _{text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    written, empty = function.args, inspect.Parameter.empty
    places = [*written.posonlyargs, *written.args]
    defaults: list[Any] = [empty] * (len(places) - len(written.defaults))
    defaults += [ast.literal_eval(value) for value in written.defaults]
    found = [
        inspect.Parameter(one.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value)
        for one, value in zip(places, defaults, strict=True)
    ]
    if written.vararg:
        found.append(inspect.Parameter(written.vararg.arg, inspect.Parameter.VAR_POSITIONAL))
    for one, node in zip(written.kwonlyargs, written.kw_defaults, strict=True):
        default = empty if node is None else ast.literal_eval(node)
        found.append(inspect.Parameter(one.arg, inspect.Parameter.KEYWORD_ONLY, default=default))
    return inspect.Signature(found)
