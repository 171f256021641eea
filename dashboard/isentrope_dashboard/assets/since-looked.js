// What became of the runs of the list since somebody last looked at it: a line above it, a number in the tab's title.
(function () {
  "use strict";
  const EVERY_MILLISECONDS = 30000;
  const LOOK_MILLISECONDS = 3000; // whoever is gone again before has not looked
  const MOST = 100; // runs, those that need attention first
  const WORDS = { act: "Act", failed: "failed", silent: "silent", watch: "Watch", finished: "ended", ended: "ended", started: "started" };
  const { make, rootPath } = window.isentrope, key = "isentrope-looked" + rootPath;
  const place = () => document.getElementById("since-looked");
  let looked = read(), newest = null, began = Date.now(), asked = 0;

  function read() {
    try {
      return JSON.parse(localStorage.getItem(key));
    } catch (error) {
      return null; // what another page of this address left there
    }
  }
  const flagOf = ({ status, digest }) => (status === "running" ? digest?.level ?? "" : status);
  // The runs that changed, by the word for what they became. A run that the list did not reach is none of them.
  function changes(runs) {
    const became = {};
    runs.forEach((run) => {
      const flag = flagOf(run), before = looked.flags[run.id], isNew = before === undefined;
      if (flag === before || (isNew && run.created_at <= looked.newest)) return;
      const word = WORDS[flag] || (isNew && WORDS.started);
      if (word) (became[word] ||= []).push(run);
    });
    return [...new Set(Object.values(WORDS))].filter((word) => became[word]).map((word) => [word, became[word]]);
  }
  function timeOf(milliseconds) {
    const at = new Date(milliseconds), isToday = at.toDateString() === new Date().toDateString();
    const day = isToday ? {} : { day: "numeric", month: "short" };
    return at.toLocaleString("en-GB", { ...day, hour: "2-digit", minute: "2-digit" });
  }
  function link([word, runs]) {
    const about = { title: runs.map(({ name }) => name).join(", "), textContent: runs.length + " " + word };
    if (runs.length > 1) return make("span", about);
    return make("a", { ...about, href: rootPath + "/runs/" + encodeURIComponent(runs[0].id) });
  }
  function show(found) {
    const words = found.flatMap((change) => [", ", link(change)]).slice(1);
    place().replaceChildren(...(words.length ? ["Since " + timeOf(looked.at) + ": ", ...words] : []));
    const count = found.reduce((sum, [, runs]) => sum + runs.length, 0);
    document.title = (document.hidden && count ? "(" + count + ") " : "") + document.title.replace(/^\(\d+\) /, "");
  }
  async function look() {
    asked = Date.now();
    const answer = await fetch(rootPath + "/api/v1/runs?order=attention&limit=" + MOST).catch(() => null);
    if (!answer?.ok || !place()) return; // the page says so elsewhere
    const { items } = await answer.json();
    newest = { at: Date.now(), newest: Math.max(0, ...items.map((run) => run.created_at)), flags: Object.fromEntries(items.map((run) => [run.id, flagOf(run)])) };
    if (looked) show(changes(items));
  }
  function leave() {
    if (!newest || Date.now() - began < LOOK_MILLISECONDS) return;
    localStorage.setItem(key, JSON.stringify(newest));
    looked = newest;
  }
  setInterval(() => {
    if (place() && Date.now() - asked > EVERY_MILLISECONDS) look();
  }, 1000);
  addEventListener("pagehide", leave);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return leave();
    began = Date.now();
    if (place()) look();
  });
})();
