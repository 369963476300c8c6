// Conversations in this browser: a record each, so that windows side by side write over none but their own.
window.lsvStore = (() => {
  const PREFIX = 'lsv.chat.', OPEN = 'lsv.open', KEPT = 50;

  const parse = text => {
    try {
      const record = JSON.parse(text);
      return typeof record?.id === 'string' && typeof record.at === 'number' ? record : null;
    } catch {
      return null;
    }
  };
  const find = id => parse(localStorage.getItem(PREFIX + id));
  const forget = record => localStorage.removeItem(PREFIX + record.id);
  const records = () => Object.keys(localStorage)
    .filter(key => key.startsWith(PREFIX))
    .map(key => parse(localStorage.getItem(key)))
    .filter(Boolean)
    .sort((one, other) => other.at - one.at);

  // Where the browser gives no more room, the oldest go first.
  const put = record => {
    for (let oldest; ; forget(oldest)) {
      try {
        return localStorage.setItem(PREFIX + record.id, JSON.stringify(record));
      } catch {
        oldest = records().filter(({ id }) => id !== record.id).pop();
        if (!oldest) return;
      }
    }
  };

  return {
    // Keep a record unless a newer one is there; one without messages is forgotten.
    write(text) {
      const record = parse(text);
      if (!record || find(record.id)?.at > record.at) return;
      record.messages.length ? put(record) : forget(record);
      records().slice(KEPT).forEach(forget);
    },
    // Name and title of each, newest first.
    index: () => JSON.stringify(records().map(({ id, title }) => [id, title])),
    read: id => localStorage.getItem(PREFIX + id) ?? '',
    // What this window shows, over a reload.
    show: id => id ? sessionStorage.setItem(OPEN, id) : sessionStorage.removeItem(OPEN),
    shown: () => JSON.stringify(find(sessionStorage.getItem(OPEN))),
    // What a window shows when it opens: what it showed before, or the newest.
    first: () => JSON.stringify(find(sessionStorage.getItem(OPEN)) ?? records()[0] ?? null),
  };
})();

// Another window has changed a conversation: look again, a moment later, for answers change them often.
let lsvChanged;
addEventListener('storage', event => {
  if (!event.key?.startsWith('lsv.chat.')) return;
  clearTimeout(lsvChanged);
  lsvChanged = setTimeout(() => document.getElementById('lsv-changed')?.click(), 300);
});
