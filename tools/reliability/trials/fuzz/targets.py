"""All targets of the mutation fuzzer."""

from __future__ import annotations

from lsv_base.errors import ConfigError
from trials.fuzz.bodies import BODIES
from trials.fuzz.media import MEDIA
from trials.fuzz.readers import READERS
from trials.fuzz.target import Target

TARGETS = (*READERS, *BODIES, *MEDIA)


def find_target(name: str) -> Target:
    for target in TARGETS:
        if target.name == name:
            return target
    raise ConfigError(f"there is no target {name}; there are {', '.join(target.name for target in TARGETS)}")
