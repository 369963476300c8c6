"""The names of a language model's tensors in a checkpoint that holds more.

Such checkpoints put the language model below a prefix of their own: ``model.language_model.layers``,
``language_model.model.layers`` and others, where the language model by itself has ``model.layers``. The prefix is found
by which one makes most of the stored names those that the language model declares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from lsv_base.errors import CheckpointError
from lsv_runtime.weights.naming import Prefixes, rename, spellings

Path = tuple[str, ...]
"""The components of a name."""

_USUAL = ("model.language_model", "language_model.model")
"""How transformers 5 and 4 call what a language model alone calls ``model``. Adapters and lists of layers that are not
quantised may use either name, whatever the files do."""


_BESIDE = "beside"
"""Goes before names that are not of the language model, and begin as its own do."""


@dataclass(frozen=True, slots=True)
class Half:
    """Where a language model is in a checkpoint."""

    prefixes: Prefixes
    """From the checkpoint's names to those of the language model alone."""
    unread: tuple[str, ...]
    """The beginnings of the names of everything else."""

    def rename(self, name: str) -> str:
        """A checkpoint's name of a tensor or layer -> that in the language model alone."""
        return rename(name, self.prefixes)

    def leaves_out(self, name: str) -> bool:
        """Whether a tensor or layer is beside the language model. One of both names may begin with ``model``: that of
        the files, or that in an adapter.
        """
        bare = name.removeprefix("model.")
        return any(f"{bare}.".startswith(f"{begin.removeprefix('model.')}.") for begin in self.unread)

    def restore(self, name: str) -> str:
        """What the checkpoint calls a tensor of the language model's body, or would call it if it had one."""
        others = spellings(name, self.prefixes)[1:]
        return next((one for one in others if self.rename(one) == name), name)


def find_half(stored: Iterable[str], declared: Collection[str], own: Callable[[str], str]) -> Half:
    """``stored`` are the tensors of a checkpoint, ``declared`` those of the language model, and ``own`` renames what
    checkpoints of the language model alone call otherwise.

    Raises ``CheckpointError`` where the checkpoint holds no such model.
    """
    names = [tuple(name.split(".")) for name in stored]
    telling = [name for name in names if _layer(name) in (None, "0")]  # all layers have the same names
    own_layers, wanted = _layers_of(declared), frozenset(declared)
    tops = _tops(wanted, own_layers)
    best, most = None, 0
    for layers in dict.fromkeys(_stem(name) for name in telling if _layer(name) == "0"):
        place = layers[:-1]
        for prefixes in _spell(layers, own_layers, names, wanted):
            inside = _places(prefixes)
            read = (".".join(name) for name in telling if _is_read(name, place, inside, tops))
            count = len(wanted.intersection(own(rename(name, prefixes)) for name in read))
            if count > most:
                best, most = (place, prefixes), count
    if best is None:
        raise CheckpointError(
            f"the checkpoint has no tensors of the language model that its config.json describes, such as "
            f"{next(iter(declared), own_layers)} below a prefix of its own"
        )
    (place, prefixes), body = best, own_layers[:-1]
    unread = tuple(_outside(names, place, prefixes, tops))
    # what lies beside the language model must not be taken for a strange part of it
    aside = tuple((name, f"{_BESIDE}.{name}") for name in unread if name.split(".")[:1] == [*body[:1]])
    return Half((*prefixes, *aside, *_usual(body, place)), unread)


def _spell(layers: Path, own: Path, names: Iterable[Path], declared: Collection[str]) -> Iterator[Prefixes]:
    """What may have become of the names of a body whose layers are at ``layers`` and were declared at ``own``: another
    beginning, also of the layers alone, or a longer one.
    """
    place, body = layers[:-1], own[:-1]
    tops = sorted(_tops(declared, own))
    above = [place[:count] for count in range(1, len(place) + 1)]
    heads = tuple((_join(*outer, top), top) for outer in above for top in tops)
    renamed = ((_join(*layers), _join(*own)),) if layers[-1:] != own[-1:] else ()
    yield (*renamed, *_move(place, body, declared), *heads)
    for outer in above:
        below = sorted({name[len(outer)] for name in names if name[: len(outer)] == outer and len(name) > len(outer)})
        yield tuple((_join(*outer, each), each) for each in below)


def _move(place: Path, body: Path, declared: Collection[str]) -> Prefixes:
    """From a body at ``place`` to the declared one; what lies below moves piece by piece where ``place`` is the top."""
    if place:
        return ((_join(*place), _join(*body)),)
    depth = len(body)
    below = sorted({name.split(".")[depth] for name in declared if tuple(name.split(".")[:depth]) == body})
    return tuple((each, _join(*body, each)) for each in below)


def _usual(body: Path, place: Path) -> Prefixes:
    usual = (name for name in _USUAL if name != _join(*place))
    return (*((name, _join(*body)) for name in usual), ("language_model.lm_head", "lm_head"))


def _tops(declared: Iterable[str], own: Path) -> set[str]:
    """What is declared beside the body, such as the head."""
    return {name.partition(".")[0] for name in declared} - set(own[:1])


def _places(prefixes: Prefixes) -> frozenset[Path]:
    return frozenset(tuple(theirs.split(".")) for theirs, _ in prefixes)


def _is_read(name: Path, place: Path, inside: Collection[Path], tops: Collection[str]) -> bool:
    """Whether a name is of the language model whose body is at ``place``; ``tops`` may stand beside its body."""
    return any(name[: len(each)] == each for each in inside) or (name[0] in tops and name[:1] != place[:1])


def _outside(names: Iterable[Path], place: Path, prefixes: Prefixes, tops: Collection[str]) -> Iterator[str]:
    """The beginnings of names that are not of the language model, each once."""
    inside, seen = _places(prefixes), set[Path]()
    for name in names:
        if _is_read(name, place, inside, tops):
            continue
        begin = name[: 1 + _common(name, place)]
        if begin not in seen:
            seen.add(begin)
            yield _join(*begin)


def _common(one: Path, other: Path) -> int:
    """How many components both begin with."""
    pairs = zip(one, other, strict=False)
    return next((number for number, (mine, theirs) in enumerate(pairs) if mine != theirs), min(len(one), len(other)))


def _layers_of(declared: Iterable[str]) -> Path:
    """The list of a language model's layers."""
    stems = Counter(_stem(name) for name in (tuple(each.split(".")) for each in declared) if _layer(name))
    return stems.most_common(1)[0][0] if stems else ()


def _layer(name: Path) -> str | None:
    """The first number in a name."""
    return next((part for part in name if part.isdecimal()), None)


def _stem(name: Path) -> Path:
    """What stands before the first number."""
    return name[: next((at for at, part in enumerate(name) if part.isdecimal()), len(name))]


def _join(*parts: str) -> str:
    return ".".join(parts)
