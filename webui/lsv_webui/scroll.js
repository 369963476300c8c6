// The chat follows an answer to its end until the visitor scrolls up, and again once they are back at the end.
(() => {
  const NEAR = 24, KEYS = ['PageUp', 'Home', 'ArrowUp'];
  let following = true, top = 0, height = 0, questions = 0, watched = [];

  const box = () => document.querySelector('#lsv-chat .bubble-wrap');
  const atEnd = element => element.scrollHeight - element.clientHeight - element.scrollTop <= NEAR;

  const follow = () => {
    const element = box();
    if (!element?.clientHeight) return;  // another tab is shown
    if (following) element.scrollTop = element.scrollHeight;
    [top, height] = [element.scrollTop, element.scrollHeight];
  };
  const letGo = () => { if (box()?.scrollTop) following = false; };

  // Content that shrinks also moves the box up, which is not the visitor's doing.
  const onScroll = ({ target }) => {
    if (target.scrollTop < top - 1 && target.scrollHeight >= height) following = false;
    else if (target.scrollTop >= top && atEnd(target)) following = true;
    [top, height] = [target.scrollTop, target.scrollHeight];
  };

  // It is called between layout and painting, so that nothing flickers.
  const sizes = new ResizeObserver(follow);
  const watch = () => {
    const element = box(), found = element ? [element, ...element.children] : [];
    if (found.length != watched.length || found.some((one, index) => one != watched[index])) {
      sizes.disconnect();
      found.forEach(one => sizes.observe(one));
      watched = found;
    }
    const asked = document.querySelectorAll('#lsv-chat .user-row').length;
    if (asked > questions) following = true;
    questions = asked;
  };

  let touched = 0;
  const inChat = event => event.target.closest?.('#lsv-chat .bubble-wrap');
  const listen = (name, act) => addEventListener(name, act, { capture: true, passive: true });
  listen('scroll', event => { if (event.target == box()) onScroll(event); });
  listen('wheel', event => { if (event.deltaY < 0 && inChat(event)) letGo(); });
  listen('touchstart', event => { touched = event.touches[0].clientY; });
  listen('touchmove', event => { if (event.touches[0].clientY > touched && inChat(event)) letGo(); });
  listen('keydown', event => { if (KEYS.includes(event.key) && inChat(event)) letGo(); });

  new MutationObserver(watch).observe(document.documentElement, { childList: true, subtree: true });
  // Another conversation is shown from its end.
  window.lsvScroll = { toEnd() { following = true; follow(); } };
})();
