// Gradio's lists open again at the very Tab that leaves them, and stay open: keep that key from them.
addEventListener('keydown', event => {
  if (event.key === 'Tab' && event.target.ariaAutoComplete) event.stopPropagation();
}, true);
