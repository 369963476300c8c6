// Blocks of code show the language that they were marked with.
new MutationObserver(changes => {
  for (const { addedNodes } of changes) {
    for (const node of addedNodes) {
      if (!(node instanceof Element)) continue;
      for (const code of node.querySelectorAll('.code_wrap > pre > code[class*="language-"]')) {
        const language = [...code.classList].find(name => name.startsWith('language-'));
        code.closest('.code_wrap').dataset.language = language.slice('language-'.length);
      }
    }
  }
}).observe(document.documentElement, { childList: true, subtree: true });
