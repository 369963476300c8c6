"""A visitor's settings: model, system prompt, sampling, key; stored in the browser."""

from __future__ import annotations

from typing import Any

import gradio as gr

from lsv_webui.api import Abilities
from lsv_webui.chat.request_fields import NUMBERS, Number
from lsv_webui.chat.tools import TOOLS
from lsv_webui.chat.view import QUIET

_DEFAULTS: tuple[Any, ...] = ("", "", "", [], False, *[""] * len(NUMBERS))
_REMEMBER = "(...values) => [values.map(value => value ?? '')]"


class Controls:
    """The components of the settings; handlers take ``inputs`` and pass them to ``RequestFields.of``."""

    model: gr.Dropdown
    key: gr.Textbox
    system: gr.Textbox
    calling: gr.Accordion
    tools: gr.CheckboxGroup
    thinks: gr.Checkbox
    structured: gr.Accordion
    schema: gr.Textbox
    numbers: tuple[gr.Textbox, ...]

    def render(self) -> None:
        self._kept = gr.BrowserState([], storage_key="lsv.settings", secret="lsv")
        gr.Markdown("### Settings")
        self.system = gr.Textbox(
            label="System prompt", placeholder="How the model should answer", lines=3, max_lines=10
        )
        with gr.Row(elem_id="lsv-sampling"):
            self.numbers = tuple(map(_number, NUMBERS))
        self.thinks = gr.Checkbox(
            label="Think first", info="If the model can: its thoughts are folded above the answer.", visible=False
        )
        with gr.Accordion("Tools", open=False, visible=False, elem_id="lsv-tools") as self.calling:
            self.tools = gr.CheckboxGroup(
                [(tool.label, tool.name) for tool in TOOLS],
                label="Offered to the model",
                info="The page runs the calls and sends their results back.",
            )
        with gr.Accordion("Structured output", open=False, visible=False) as self.structured:
            self.schema = gr.Textbox(
                label="JSON schema",
                info="Answers follow this schema. {} allows any JSON; leave empty for prose.",
                lines=6,
                placeholder='{"type": "object", …}',
            )
        self.key = gr.Textbox(
            label="API key", type="password", placeholder="only if the server asks for one", elem_id="lsv-key"
        )
        reset = gr.Button("Reset to defaults", size="sm")
        for component in self._remembered:
            # In the browser alone, so that the last value entered is also the last one stored.
            component.change(None, self._remembered, self._kept, js=_REMEMBER, **QUIET)
        reset.click(lambda: list(_DEFAULTS), None, self._remembered, **QUIET)

    def render_model(self) -> None:
        self.model = gr.Dropdown(
            [],
            show_label=False,
            label="Model",
            container=False,
            interactive=True,
            elem_id="lsv-model",
            filterable=False,
            visible="hidden",  # until the models are known
        )
        # Apart from the others: a choice is only restored once the server's models are known.
        self.chosen = gr.BrowserState("", storage_key="lsv.model", secret="lsv")
        self.model.input(None, self.model, self.chosen, js="name => [name ?? '']", **QUIET)

    @property
    def inputs(self) -> list[Any]:
        return [self.model, *self._remembered]

    @property
    def _remembered(self) -> list[Any]:
        return [self.key, self.system, self.schema, self.tools, self.thinks, *self.numbers]

    def restore(self, page: gr.Blocks) -> Any:
        """Fill in the stored settings when the page opens; returns the event, so that others can follow it."""
        return page.load(_restore, self._kept, self._remembered, **QUIET)

    @property
    def panels(self) -> list[Any]:
        """The components that depend on the server."""
        return [self.thinks, self.calling, self.structured]

    def show_abilities(self, abilities: Abilities) -> tuple[Any, ...]:
        """Show the panels for thinking, tools and structured output if the server supports them."""
        return tuple(gr.update(visible=can) for can in (abilities.thinks, abilities.calls, abilities.structures))


def _number(number: Number) -> gr.Textbox:
    return gr.Textbox(label=number.label, placeholder="default", max_lines=1, min_width=120)


def _restore(kept: Any) -> list[Any]:
    fits = isinstance(kept, list) and [type(value) for value in kept] == [type(value) for value in _DEFAULTS]
    return list(kept) if fits else [gr.skip()] * len(_DEFAULTS)
