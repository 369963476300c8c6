// A message that names the settings opens them, at the key if it is about that.
addEventListener('click', event => {
  const link = event.target.closest?.('a[href="#lsv-settings"]');
  if (!link) return;
  event.preventDefault();
  document.querySelector('#lsv-settings:not(.open) .toggle-button')?.click();
  const about = link.parentElement.textContent.includes('API key') ? '#lsv-key input' : '#lsv-settings textarea';
  // What is still hidden takes no focus.
  const focus = frames => {
    const box = document.querySelector(about);
    box?.focus();
    if (frames && box != document.activeElement) requestAnimationFrame(() => focus(frames - 1));
  };
  focus(60);
}, true);
