// A window whose page has been replaced, or was out of reach for a while, loads it again; until then it says so.
(() => {
  const POLL = 3000, LOST = 'The web page does not answer. Is lsv running?';
  let known = null, lost = false;

  const identify = async () => {
    const response = await fetch('gradio_api/app_id', { cache: 'no-store' });
    if (!response.ok) throw new Error(response.status);
    return (await response.json()).app_id;
  };
  const showLost = () => {
    const pill = document.querySelector('#lsv-status .lsv-pill');
    if (!pill || pill.textContent == LOST) return;
    pill.className = 'lsv-pill down';
    pill.querySelector('span').textContent = LOST;
  };
  const look = async () => {
    try {
      const found = await identify();
      if (lost || (known ?? found) != found) return location.reload();
      known = found;
    } catch {
      lost = known != null;
      if (lost) showLost();
    }
    setTimeout(look, POLL);
  };
  look();
})();
