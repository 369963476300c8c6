"""Prompts of the offline API: every accepted form, read into a ``Prompt``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property
from numbers import Integral
from typing import Any, TypeAlias, TypedDict

import msgspec

from lsv.config import EngineConfig
from lsv.media.content_parts import NO_MARKS, Reference, convert_part, read_part, template_content
from lsv.media.options import MediaOptions
from lsv.media.service import OfflineMedia, open_offline
from lsv.plugins.catalog import Catalog
from lsv.request.encoded import EncodedText
from lsv.request.prompt import Prompt
from lsv.text.chats import check_chat_options, list_conversations
from lsv.text.messages import Turn, order_results, template_role
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import BadRequest

PromptInput: TypeAlias = "str | Sequence[int] | Mapping[str, Any]"
"""A text, token ids, or one of the mappings below."""


class _Media(TypedDict, total=False):
    """What a prompt may have beside its text: see ``lsv.media.service.OfflineMedia``."""

    multi_modal_data: Mapping[str, Any]
    mm_processor_kwargs: Mapping[str, Any]


class TextPrompt(_Media):
    """A prompt as text."""

    prompt: str


class TokensPrompt(_Media):
    """A prompt as token ids."""

    prompt_token_ids: Sequence[int]


class ExplicitEncoderDecoderPrompt(TypedDict):
    """The two prompts of an encoder-decoder: what is encoded, text or audio, and how the answer begins."""

    encoder_prompt: str | TextPrompt | TokensPrompt
    decoder_prompt: str | TextPrompt | TokensPrompt | None


PromptInputs: TypeAlias = str | Sequence[int] | TextPrompt | TokensPrompt | ExplicitEncoderDecoderPrompt
"""Every form of a prompt, for annotations of scripts."""


def zip_enc_dec_prompts(enc_prompts: Iterable[Any], dec_prompts: Iterable[Any]) -> list[ExplicitEncoderDecoderPrompt]:
    """Prompts of encoder-decoders from two lists, pair by pair, as vLLM's users make them.

    Raises ``BadRequest`` for lists of different lengths.
    """
    encoders, decoders = list(enc_prompts), list(dec_prompts)
    if len(encoders) != len(decoders):
        raise BadRequest(
            f"{len(encoders)} encoder prompts need as many decoder prompts, got {len(decoders)}", param="dec_prompts"
        )
    return [
        ExplicitEncoderDecoderPrompt(encoder_prompt=encoder, decoder_prompt=decoder)
        for encoder, decoder in zip(encoders, decoders, strict=True)
    ]


class PromptReader:
    """Reads prompts for one model. What prepares media is loaded with the first prompt that has any."""

    def __init__(self, tokenizer: Tokenizer, config: EngineConfig, catalog: Catalog, options: MediaOptions) -> None:
        self._tokenizer = tokenizer
        self._config, self._catalog, self._options = config, catalog, options

    def read(self, prompt: PromptInput | Prompt) -> Prompt:
        """Tokenise a prompt and put its media in place, unless that has been done. Raises ``BadRequest``."""
        if isinstance(prompt, Prompt):
            return prompt
        if isinstance(prompt, Mapping) and "encoder_prompt" in prompt:
            if self._config.encoded is not None:
                return self._read_both(self._config.encoded, prompt["encoder_prompt"], prompt.get("decoder_prompt"))
            prompt = _join(prompt["encoder_prompt"], prompt.get("decoder_prompt"))
        data = prompt.get("multi_modal_data") if isinstance(prompt, Mapping) else None
        if not data or not isinstance(prompt, Mapping):
            text, ids = self._read(prompt, framed=True)
            return Prompt(ids=ids, text=text)
        if not isinstance(data, Mapping):
            raise BadRequest("multi_modal_data must be a mapping from kinds of media", param="multi_modal_data")
        text, ids = self._read(prompt, framed=self._media.framed, shown=True)
        placed = self._media.place(ids, data, prompt.get("mm_processor_kwargs") or {})
        return msgspec.structs.replace(placed, text=text)

    def _read_both(self, encoded: EncodedText, encoder: Any, decoder: Any) -> Prompt:
        """A text to encode, framed as its tokenizer does, and what the answer begins with, as it is."""
        for prompt in (encoder, decoder):
            if isinstance(prompt, Mapping) and prompt.get("multi_modal_data"):
                raise BadRequest("this model encodes text and does not support media", param="multi_modal_data")
        text, ids = self._read(encoder, framed=True)
        if decoder is None:
            return encoded.place(ids, texts=(text, None))
        begun, begin = self._read(decoder, framed=False)
        return encoded.place(ids, begin, texts=(text, begun))

    @cached_property
    def _media(self) -> OfflineMedia:
        return open_offline(self._config, self._catalog, self._options)

    def read_conversation(
        self, messages: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Mapping[str, Any]], dict[str, list[Reference]]]:
        """Messages as chat templates know them, and their media by kind. Raises ``BadRequest``."""
        _check_messages(messages)
        read: list[Mapping[str, Any]] = []
        media: dict[str, list[Reference]] = {}
        for index in order_results([_turn(message) for message in messages]):
            message = messages[index]
            content, calls = message.get("content"), message.get("tool_calls")
            message = {**message, "role": template_role(str(message.get("role", "")))}
            for call in calls or ():
                _check_call(call, f"messages[{index}].tool_calls")
            if isinstance(content, list | tuple):
                parts = _read_parts(content, f"messages[{index}].content")
                references = [part for part in parts if isinstance(part, Reference)]
                for reference in references:
                    media.setdefault(reference.modality, []).append(reference)
                marks = self._media.marks if references else NO_MARKS
                message = {**message, "content": template_content(parts, marks)}
            read.append(message)
        return read, media

    def read_chats(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PromptInput]:
        """The prompts that ``chat`` answers, one for each conversation. Raises ``BadRequest``."""
        conversations = list_conversations(messages)
        check_chat_options(tools, chat_template, chat_template_kwargs, mm_processor_kwargs)
        tokenizer, prompts = self._tokenizer, list[PromptInput]()
        for conversation in conversations:
            read, media = self.read_conversation(conversation)
            text = tokenizer.render_chat(
                read,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                template=chat_template,
                kwargs=chat_template_kwargs,
            )
            text = self.spell(text) if media else text
            ids = tokenizer.encode(text, add_special_tokens=False)
            prompts.append(
                {
                    "prompt": text,
                    "prompt_token_ids": ids,
                    "multi_modal_data": media,
                    "mm_processor_kwargs": mm_processor_kwargs,
                }
            )
        return prompts

    def spell(self, text: str) -> str:
        """The text of a prompt with media as it is to be tokenised."""
        return self._media.spell(text)

    def _read(self, prompt: PromptInput, *, framed: bool, shown: bool = False) -> tuple[str | None, tuple[int, ...]]:
        """``framed`` adds the special tokens that the tokenizer puts around a text, which has media if ``shown``."""
        if isinstance(prompt, str):
            return prompt, tuple(self._tokenizer.encode(prompt, framed))
        if not isinstance(prompt, Mapping):
            return None, _read_ids(prompt, "prompt")
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if ids is not None:
            return text, _read_ids(ids, "prompt_token_ids")
        if isinstance(text, str):
            text = self.spell(text) if shown else text
            return text, tuple(self._tokenizer.encode(text, framed))
        raise BadRequest(
            "a prompt mapping must have prompt (a text) or prompt_token_ids (a list of integers), "
            f"got the keys {', '.join(map(str, prompt)) or 'none'}",
            param="prompt",
        )


def _read_ids(ids: Any, name: str) -> tuple[int, ...]:
    if not _is_listed(ids):
        raise BadRequest(f"{name} must be a string, a list of token ids or a mapping, got {ids!r:.100}", param=name)
    return tuple(ids)


def _join(encoder: Any, decoder: Any) -> PromptInput:
    """Two prompts as one: the media of the encoder's with the text of the decoder's."""
    media = {name: encoder.get(name) for name in _Media.__annotations__} if isinstance(encoder, Mapping) else {}
    text = encoder.get("prompt") or encoder.get("prompt_token_ids") if isinstance(encoder, Mapping) else encoder
    if text or not media.get("multi_modal_data"):
        raise BadRequest("encoder_prompt takes media and no text: this model encodes none", param="encoder_prompt")
    own = decoder if isinstance(decoder, Mapping) else {"prompt": decoder or ""}
    return {**own, **media}


def _read_parts(content: Sequence[Any], where: str) -> list[str | Reference]:
    places = [f"{where}[{number}]" for number in range(len(content))]
    return [read_part(convert_part(part, place), place) for part, place in zip(content, places, strict=True)]


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list | tuple):
        raise BadRequest(f"messages must be a list of messages, got {messages!r:.100}", param="messages")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise BadRequest(
                f'messages[{index}] must be a mapping like {{"role": "user", "content": "Hello"}}, '
                f"got {message!r:.100}",
                param="messages",
            )
        calls = message.get("tool_calls")
        if not isinstance(calls, list | tuple | None):
            raise BadRequest(f"messages[{index}].tool_calls must be a list, got {calls!r:.100}", param="messages")


def _turn(message: Mapping[str, Any]) -> Turn:
    calls = [call.get("id") if isinstance(call, Mapping) else None for call in message.get("tool_calls") or ()]
    answered = message.get("tool_call_id")
    names = [id if isinstance(id, str) else "" for id in (*calls, answered)]
    return Turn(names[:-1], names[-1] if message.get("role") == "tool" else None)


def _check_call(call: Any, where: str) -> None:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        raise BadRequest(f"{where} must have a function with a name and arguments", param=where)


def list_prompts(
    prompts: PromptInput | Sequence[PromptInput] | None,
    prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None,
) -> list[PromptInput]:
    """One entry a prompt, from everything that is accepted as prompts. Raises ``BadRequest``."""
    given: Any = prompts
    if given is None:
        if prompt_token_ids is None:
            raise BadRequest("give prompts or prompt_token_ids", param="prompts")
        given = prompt_token_ids
    elif prompt_token_ids is not None:
        raise BadRequest("give either prompts or prompt_token_ids, not both", param="prompts")
    if isinstance(given, str | Mapping):
        return [given]
    if not _is_listed(given):
        name = "prompts" if prompts is not None else "prompt_token_ids"
        raise BadRequest(
            f"{name} must be a string, a list of token ids, a mapping, or a list of these, got {given!r:.100}",
            param=name,
        )
    listed = list(given)
    return [listed] if listed and _is_id(listed[0]) else listed


def _is_listed(value: object) -> bool:
    """Whether a value is a sequence: a list, tuple, array or iterator, but not a string or bytes."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | Set)


def _is_id(value: object) -> bool:
    return isinstance(value, Integral)
