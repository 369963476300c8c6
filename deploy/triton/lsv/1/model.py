"""What Triton's Python backend runs: an engine, given all the requests that Triton hands over at once."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from lsv import LLM, RequestOutput, SamplingParams
from lsv_base.errors import LsvError


class TritonPythonModel:
    """Named, and its methods too, as the backend wants it."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self._llm = LLM(**json.loads(parameters["engine"]["string_value"]))
        self._numbers = itertools.count()

    def execute(self, requests: list[Any]) -> list[Any]:
        """A response for each request, which has a prompt a row. One that is wrong fails alone."""
        added = [self._add(request) for request in requests]
        engine, found = self._llm.llm_engine, {}
        while engine.has_unfinished_requests():
            found.update({output.request_id: output for output in engine.step(finished_only=True)})
        return [
            _fail(names) if isinstance(names, LsvError) else _respond([found[name] for name in names])
            for names in added
        ]

    def finalize(self) -> None:
        self._llm.close()

    def _add(self, request: Any) -> list[str] | LsvError:
        """The names under which its prompts are answered, or what is wrong with it."""
        prompts, names = _texts(request, "text_input"), []
        engine = self._llm.llm_engine
        try:
            given = [SamplingParams(**json.loads(text)) for text in _texts(request, "sampling_parameters")]
            for prompt, params in zip(prompts, given or [SamplingParams()] * len(prompts), strict=True):
                name = f"triton-{next(self._numbers)}"
                engine.add_request(name, prompt, params)
                names.append(name)
        except (LsvError, ValueError, TypeError) as cause:
            engine.abort_request(names)
            return cause if isinstance(cause, LsvError) else LsvError(f"sampling_parameters: {cause}")
        return names


def _texts(request: Any, name: str) -> list[str]:
    tensor = triton.get_input_tensor_by_name(request, name)
    return [] if tensor is None else [text.decode() for text in tensor.as_numpy().reshape(-1)]


def _respond(answers: list[RequestOutput]) -> Any:
    try:
        texts = np.array([[answer.checked().outputs[0].text.encode()] for answer in answers], dtype=np.object_)
    except LsvError as error:
        return _fail(error)
    return triton.InferenceResponse([triton.Tensor("text_output", texts)])


def _fail(error: object) -> Any:
    return triton.InferenceResponse(error=triton.TritonError(str(error)))
