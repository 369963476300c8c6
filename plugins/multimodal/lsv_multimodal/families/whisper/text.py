"""Whisper's prompts, languages and timestamps, read from the files beside a checkpoint's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsv.media.transcriber import Span, Task
from lsv.resolve.locate import read_object
from lsv_base.errors import BadRequest, CheckpointError
from lsv_multimodal.families.named_tokens import named_tokens
from lsv_multimodal.families.whisper.languages import NAMES
from lsv_multimodal.families.whisper.rules import NAME, Timestamps, WhisperRules

_MARKS_A_SECOND = 50
"""As many as the encoder has positions."""
_LATEST = 50
"""Marks an answer may begin with behind the first, unless the checkpoint says: one second's."""
_ENGLISH_VOCABULARY = 51864
"""Size of the published vocabularies that know English alone."""


class WhisperTranscriber:
    """See ``lsv.media.transcriber.Transcriber``. Raises ``CheckpointError`` where tokens can't be found."""

    seconds: float
    languages: Mapping[str, str]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._known = {**config, **(read_object(folder / "generation_config.json") or {})}
        self._named = named_tokens(folder)
        self.seconds = int(config.get("max_source_positions", 1500)) / _MARKS_A_SECOND
        self._begin = self._find("decoder_start_token_id", "<|startoftranscript|>")
        self._end = self._find("eos_token_id", "<|endoftext|>")
        self._no_marks = self._find("no_timestamps_token_id", "<|notimestamps|>")
        self._codes = self._language_tokens()
        self._tokens = {code: token for token, code in self._codes.items()}
        self.languages = {code: NAMES[code] for code in self._tokens or ("en",)}
        self._tasks = {task: self._find(None, f"<|{task}|>") for task in ("transcribe", "translate") if self._codes}
        self._most_before = int(config.get("max_target_positions", 448)) // 2 - 1

    def prompt(self, task: Task, language: str, *, timed: bool, before: Sequence[int] = ()) -> tuple[int, ...]:
        said = [token for token in before if token < self._end][-self._most_before :]
        previous = (self._find("prev_sot_token_id", "<|startofprev|>"), *said) if said else ()
        marks = () if timed else (self._no_marks,)
        return (*previous, self._begin, *self._asked(task, language), *marks)

    def logits_processors(self, *, timed: bool) -> Mapping[str, WhisperRules]:
        return {NAME: self._rules(timed=timed)}

    def _rules(self, *, timed: bool) -> WhisperRules:
        never, not_begin = (self._listed(name) for name in ("suppress_tokens", "begin_suppress_tokens"))
        first = self._no_marks + 1
        if not timed:
            all_marks = range(first, first + round(self.seconds * _MARKS_A_SECOND) + 1)
            return WhisperRules(never=(*never, *all_marks), not_begin=not_begin)
        latest = self._known.get("max_initial_timestamp_index") or _LATEST
        timestamps = Timestamps(first=first, text_end=self._end, max_initial=latest)
        return WhisperRules(never=(*never, self._no_marks), not_begin=not_begin, timestamps=timestamps)

    def ask_language(self) -> tuple[tuple[int, ...], Mapping[int, str]]:
        return (self._begin,), self._codes

    def ask_silence(self) -> tuple[tuple[int, ...], int] | None:
        """The token was called for captions in the first vocabularies."""
        tokens = [self._named[name] for name in ("<|nospeech|>", "<|nocaptions|>") if name in self._named]
        return ((self._begin,), tokens[0]) if tokens else None

    def spans(self, ids: Sequence[int], seconds: float) -> tuple[Span, ...]:
        """A mark ends the text before it and begins the text behind it; text that nothing ends goes on to the end.

        What would be said in no time, or behind the sound's end, is left out: nobody says it.
        """
        found: list[Span] = []
        start, text = 0.0, []
        for token in (*ids, None):
            if token is not None and token <= self._no_marks:
                text += [token] if token < self._end else []
                continue
            time = seconds if token is None else (token - self._no_marks - 1) / _MARKS_A_SECOND
            stop = max(start, min(time, seconds))
            if text and start < stop:
                found.append(Span(start, stop, tuple(text)))
            start, text = stop, []
        return tuple(found)

    def _asked(self, task: Task, language: str) -> tuple[int, ...]:
        """The tokens for a language and a task; a model of one language has none."""
        if language not in self.languages:
            known = ", ".join(sorted(self.languages))
            raise BadRequest(f"language: this model does not know {language!r:.32}; it knows {known}", param="language")
        if not self._codes and task == "translate":
            raise BadRequest("this model knows English alone: there is nothing to translate", param="model")
        return (self._tokens[language], self._tasks[task]) if self._codes else ()

    def _language_tokens(self) -> dict[int, str]:
        """Codes of languages by token; none for a model that knows English alone, whatever its tokenizer holds."""
        several = self._known.get("is_multilingual", self._known.get("vocab_size") != _ENGLISH_VOCABULARY)
        if not several:
            return {}
        listed: Mapping[str, int] = self._known.get("lang_to_id") or self._named
        return {token: name[2:-2] for name, token in listed.items() if name[2:-2] in NAMES}

    def _listed(self, name: str) -> tuple[int, ...]:
        return tuple(token for token in self._known.get(name) or () if token >= 0)

    def _find(self, key: str | None, name: str) -> int:
        """A token's id by what the configuration calls it, else by its text."""
        given = self._known.get(key) if key else None
        found = given[0] if isinstance(given, list) else given
        token = self._named.get(name) if found is None else found
        if token is None:
            told = f"generation_config.json has no {key}" if key else "it is not an added token of tokenizer.json"
            raise CheckpointError(f"the checkpoint does not say which token {name} is: {told}")
        return int(token)
