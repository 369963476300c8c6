"""The page's looks: a quiet theme, the visitor's system fonts, one style sheet."""

from __future__ import annotations

from importlib.resources import files

import gradio as gr

_STYLE, *_SCRIPTS = (
    files("lsv_webui").joinpath(name).read_text(encoding="utf-8")
    for name in ("style.css", "store.js", "keys.js", "scroll.js", "typed.js", "settings.js", "code.js", "reconnect.js")
)

_POLICY = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; object-src 'none'; base-uri 'self'"
"""A model's answer may link images anywhere; this makes the browser load nothing from elsewhere."""

HEAD = f"""<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<style>{_STYLE}</style>
<script>{"".join(_SCRIPTS)}</script>"""
"""The style sheet is inlined as it is: Gradio rewrites a ``css`` argument so that its media queries lose."""

OPENED = """() => {
  const mode = localStorage.getItem('lsv.mode');
  if (mode) document.body.classList.toggle('dark', mode === 'dark');
  const label = (what, name) => document.querySelector(what)?.setAttribute('aria-label', name);
  label('#lsv-side .toggle-button', 'Conversations');
  label('#lsv-settings .toggle-button', 'Settings');
  label('#lsv-box textarea', 'Message');
  const box = document.querySelector('#lsv-box textarea'), draft = sessionStorage.getItem('lsv.draft');
  if (box && draft && !box.value) {
    box.value = draft;
    box.dispatchEvent(new Event('input', { bubbles: true }));
  }
  addEventListener('pagehide', () => sessionStorage.setItem('lsv.draft', box?.value ?? ''));
  const side = document.querySelector('#lsv-side.open');
  if (innerWidth > 768) document.querySelector('#lsv-box textarea')?.focus();
  else if (side) side.querySelector('.toggle-button').click();
}"""
"""Runs when the page opens: the visitor's choice of mode overrides the system's; unlabelled elements get labels; the
message box gets the focus, except on a phone, where a keyboard would cover half of the chat.
Text that was not sent is still in the box after a reload."""

TUCK = """() => {
  const side = document.querySelector('#lsv-side.open');
  if (side && innerWidth <= 768) side.querySelector('.toggle-button').click();
}"""
"""Runs when a conversation is chosen: on a phone, closes the list."""

TOGGLE_MODE = """() => {
  const dark = document.body.classList.toggle('dark');
  localStorage.setItem('lsv.mode', dark ? 'dark' : 'light');
}"""

_SANS = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "Liberation Mono", "monospace")

_PAPER, _INK = "#faf9f6", "#17181a"


def theme() -> gr.themes.Base:
    """Warm paper by day, near black by night, one accent."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.stone,
        radius_size=gr.themes.sizes.radius_lg,
        font=_SANS,
        font_mono=_MONO,
    ).set(
        body_background_fill=_PAPER,
        body_background_fill_dark=_INK,
        background_fill_primary="#ffffff",
        background_fill_primary_dark="#1f2123",
        background_fill_secondary="#f3f1ec",
        background_fill_secondary_dark="#1b1c1e",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_shadow="none",
        block_label_background_fill="transparent",
        block_label_background_fill_dark="transparent",
        border_color_primary="#e4e1da",
        border_color_primary_dark="#303336",
        input_background_fill="#ffffff",
        input_background_fill_dark="#1f2123",
        input_border_width="1px",
        input_placeholder_color="#767268",
        input_placeholder_color_dark="#8f8c84",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_600",
        button_primary_text_color="#ffffff",
        button_primary_border_color="transparent",
        button_primary_border_color_dark="transparent",
        button_secondary_background_fill="transparent",
        button_secondary_background_fill_dark="transparent",
        button_secondary_border_color="#d9d5cc",
        button_secondary_border_color_dark="#3a3d40",
    )
