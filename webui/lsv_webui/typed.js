// Questions are drawn by blocks of escaped text (chat/typed.py), formulas by marked dollars (chat/maths.py). What is
// edited, copied and read aloud is the text itself.
(() => {
  const BEGIN = '<div class="lsv-typed">', END = '</div>';

  const shown = text => BEGIN + text.replace(/[!-/:-@[-`{-~\t\n]/g, mark => `&#${mark.charCodeAt(0)};`) + END;
  const read = text => {
    if (!text.startsWith(BEGIN)) return text.replace(/\$\u2063|\u2063\$/g, '$');
    const place = document.createElement('template');
    place.innerHTML = text;
    return place.content.textContent;
  };
  const write = (area, text) => {
    area.value = text;
    area.dispatchEvent(new Event('input', { bubbles: true }));
  };

  const onAdded = element => {
    if (element.matches('#lsv-chat .edit-textarea')) write(element, read(element.value));
    const question = element.matches('.lsv-typed') && element.closest('#lsv-chat [data-testid="user"]');
    if (question) question.setAttribute('aria-label', `You: ${element.textContent}`);
  };
  new MutationObserver(changes => {
    for (const { addedNodes } of changes) {
      for (const node of addedNodes) {
        if (node instanceof Element) [node, ...node.querySelectorAll('.edit-textarea, .lsv-typed')].forEach(onAdded);
      }
    }
  }).observe(document.documentElement, { childList: true, subtree: true });

  // The chat draws an edited question before the server has seen it.
  addEventListener('click', ({ target }) => {
    const row = target.closest?.('#lsv-chat .message-buttons')?.previousElementSibling;
    const area = target.closest?.('button') && row?.querySelector('.edit-textarea');
    if (area) write(area, shown(area.value));
  }, true);

  // Browsers have no clipboard on pages without TLS; Gradio then copies from a text area.
  const clipboard = navigator.clipboard;
  if (clipboard) clipboard.writeText = text => Clipboard.prototype.writeText.call(clipboard, read(text));
  addEventListener('copy', event => {
    const { value } = event.target;
    if (!value || read(value) == value) return;
    event.clipboardData.setData('text/plain', read(value));
    event.preventDefault();
  }, true);
})();
