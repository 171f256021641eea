// When the server is asked for news, and what is said where no answer comes.
(function () {
  "use strict";
  const TICK_MILLISECONDS = [50, 250]; // between two looks at what is to be done: while values wait for their places, and else
  const ASK_MILLISECONDS = [120, 400]; // from and to, by how fast the run's steps follow each other
  const CALM_MILLISECONDS = 1000; // between two questions, until the next step is due
  const EARLY = 0.9; // of a run's pace: from then on the next step is waited for
  const ASK_ABOUT_FORM_MILLISECONDS = 150; // from one question about the control card's form to the next
  const ASK_OF_ENDED_MILLISECONDS = 1000;
  const ASK_HIDDEN_MILLISECONDS = 30000; // a run's tab in the background shows the level in its title
  const LEAST_BETWEEN_UPDATES = 900; // a page that is drawn more often takes more of the reader's processor than it is worth
  const ASK_LOST_MILLISECONDS = 2000; // a server that does not answer
  const ELSEWHERE_MILLISECONDS = 4000; // on a page without a run: whether the session and the server are still there
  const SLOW_ANSWER = 8000;
  const SLOW_NEWS_MILLISECONDS = 3000;
  const isentrope = window.isentrope, { make, rootPath, run, view, values } = isentrope;
  const live = { question: null, tried: null, asking: null, asked: 0, next: 0, form: null, answered: Date.now(), updated: 0, news: 0, slow: 0, pace: 0, due: 0, owed: false, state: null, run: null, seen: null, mounted: "" };

  function showConnection(name) {
    document.body.setAttribute("data-connection", name);
  }
  // A proxy says 502 or 504 for a server that does not answer; with any other number the server itself has answered.
  function stateOf({ ok, status }) {
    document.querySelectorAll(".connection .status").forEach((place) => (place.textContent = status));
    if (ok) return "good";
    if (status === 401) return "revoked";
    return status === 502 || status === 504 ? "lost" : "failed";
  }
  const isOpen = () => Boolean(document.getElementById("run-state"));
  const asks = () => (!document.hidden || isOpen()) && !/revoked|deleted/.test(document.body.dataset.connection) && (!run() || isOpen() || !document.querySelector(".page:not(.waiting)"));
  document.addEventListener("visibilitychange", () => {
    live.answered = Date.now();
    ask();
  });
  function pause(now, isLost) {
    if (document.hidden) return ASK_HIDDEN_MILLISECONDS;
    if (isLost) return ASK_LOST_MILLISECONDS;
    if (!run()) return ELSEWHERE_MILLISECONDS;
    if (live.run?.status !== "running") return ASK_OF_ENDED_MILLISECONDS;
    const [least, most] = ASK_MILLISECONDS;
    return Math.min(most, Math.max(least, live.pace / 8, (now - live.updated) / 8));
  }
  // What has to be read now, and from when on.
  function plan(now, isNew, form) {
    const isLost = /lost|failed/.test(document.body.dataset.connection), differs = form !== live.form;
    if (differs && !isLost && !document.hidden) return { parts: isNew ? "all" : "fast", differs, next: live.asked + ASK_ABOUT_FORM_MILLISECONDS };
    // What need not follow each step is read in a question of its own, once what follows it is drawn.
    if (!isNew && !document.hidden && live.owed && now - live.slow > SLOW_NEWS_MILLISECONDS) return { parts: "slow", differs, next: live.asked + ASK_MILLISECONDS[0] };
    const calm = Math.min(live.due, live.asked + CALM_MILLISECONDS);
    const next = Math.max(live.asked + pause(now, isLost), live.updated + LEAST_BETWEEN_UPDATES, calm);
    return { parts: isNew || document.hidden ? "all" : "fast", differs, next };
  }
  async function ask() {
    const now = Date.now(), question = JSON.stringify(view()), isNew = question !== live.question;
    if (!asks() || (live.asking === question && now - live.asked < SLOW_ANSWER)) return;
    const form = (document.getElementById("control-form") && isentrope.form) || null, { parts, differs, next } = plan(now, isNew, form);
    live.next = next;
    if (question === live.tried && now < next) return;
    Object.assign(live, { asking: question, tried: question, asked: now, form });
    const mounted = location.pathname + new URLSearchParams(location.search).get("tab");
    if (mounted !== live.mounted) values.clear();
    live.mounted = mounted;
    const shown = Object.fromEntries([...values].map(([id, { digest }]) => [id, digest]));
    const state = isNew || differs || parts === "slow" ? null : live.state;
    const body = JSON.stringify({ ...JSON.parse(question), form: JSON.parse(form), state, parts, shown });
    try {
      const answer = await fetch(rootPath + "/news", { method: "POST", cache: "no-store", headers: { "Content-Type": "application/json" }, body });
      if (live.asking !== question) return; // the reader has gone on
      live.answered = Date.now();
      if (!answer.ok) live.form = undefined; // it is asked about again
      if (!answer.ok || isRefused) showRefusal(answer);
      showConnection(stateOf(answer));
      if (answer.status === 200) take(await answer.json(), { now, question, form, parts });
    } catch (error) {
      if (live.asking !== question) return;
      showConnection("lost");
      showRefusal(null);
      live.form = undefined;
    } finally {
      if (live.asking === question) live.asking = null;
    }
  }
  function take(news, { now, question, form, parts }) {
    const before = live.run;
    if (run() && !news.run && isOpen()) return showConnection("deleted");
    if (parts !== "slow") isentrope.answered = form;
    Object.entries(news.values).forEach(([id, [digest, property, value]]) => values.set(id, { digest, property, value, place: null }));
    if (parts !== "slow") Object.assign(live, { question, state: news.state, run: news.run, updated: Date.now() });
    live.owed = parts === "fast"; // what is slow is read later, even if no other step comes
    if (!live.owed) live.slow = now;
    isentrope.showLevel(news.run?.level);
    draw();
    isentrope.markOlder?.(); // an answer to another form may be the same
    if (parts === "slow") return window.dash_clientside.set_props("news", { data: (live.news += 1) });
    if (!news.run || !before) return;
    if (news.run.at !== before.at) live.seen = now;
    if (news.run.step > before.step) {
      live.pace = (1000 * (news.run.at - before.at)) / (news.run.step - before.step);
      live.due = now + EARLY * live.pace;
    }
    const hasTurned = JSON.stringify([news.run.status, news.run.control]) !== JSON.stringify([before.status, before.control]);
    if (hasTurned) Object.assign(live, { slow: 0, tried: null });
  }
  // What was shown is asked for again, as if nothing was known of it.
  function forget() {
    Object.assign(live, { state: null, tried: null });
  }

  // Of a page that did not come, the server's reason is shown where the page would be.
  let isRefused = false;
  async function showRefusal(answer) {
    isRefused = !answer?.ok && Boolean(document.querySelector(".page.waiting"));
    const place = document.getElementById("not-shown") || document.body.insertBefore(make("div", { id: "not-shown", role: "alert" }), document.body.firstChild);
    place.className = isRefused ? "page refusal" : "";
    if (!isRefused) place.textContent = "";
    else if (!answer) place.textContent = "The server does not answer.";
    else {
      const { error } = await answer.json().catch(() => ({}));
      place.textContent = error?.message || "The server answered " + answer.status + " " + answer.statusText + ". Reload the page.";
    }
  }

  function draw() {
    isentrope.draw();
    isentrope.showRun(live);
  }
  function tick() {
    ask();
    draw();
    const [least, most] = TICK_MILLISECONDS, waits = [...values.values()].some(({ place }) => !place);
    let next = Math.min(most, Math.max(least, live.next - Date.now()));
    if (waits) next = least;
    else if (live.asking) next = most;
    setTimeout(tick, next);
  }
  document.addEventListener("DOMContentLoaded", tick); // the other files are there
  setInterval(() => {
    isentrope.showAges(live);
    if (!document.hidden && asks() && Date.now() - live.answered > SLOW_ANSWER) showConnection("lost");
  }, 500);
  Object.assign(isentrope, { ask, forget });
})();
