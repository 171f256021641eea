// What the browser does by itself: it keeps the address, asks for news, binds the charts, saves them, draws grid cells.
(function () {
  "use strict";
  const ASK_MILLISECONDS = 250;
  const LEAST_BETWEEN_UPDATES = 450; // a page that is drawn more often takes more of the reader's processor than it is worth
  const ELSEWHERE_MILLISECONDS = 4000; // on a page without a run: whether the session and the server are still there
  const SLOW_ANSWER = 8000;
  const SLOW_NEWS_MILLISECONDS = 3000;
  const DOUBLE_CLICK = 320;
  const no_update = () => window.dash_clientside.no_update;
  const setProps = (id, props) => window.dash_clientside.set_props(id, props);

  // ---- the address is the view -------------------------------------------------------------------------------
  const known = (scheme) => (scheme === "dark" || scheme === "light" ? scheme : null);
  const theme = () => known(new URLSearchParams(location.search).get("theme")) || known(localStorage.getItem("mantine-color-scheme-value"))
    || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const view = () => ({ path: location.pathname, query: [...new URLSearchParams(location.search)], theme: theme(), origin: location.origin });
  // Writes parameters into the address; null removes one. Opening a tab is a step that "back" undoes.
  function change(params, isStep) {
    const query = new URLSearchParams(location.search);
    Object.entries(params).forEach(([name, value]) => {
      if (value === null || Array.isArray(value)) query.delete(name), (value || []).forEach((one) => query.append(name, one));
      else query.set(name, value);
    });
    const search = query.toString() ? "?" + query : "";
    if (search === location.search) return false;
    history[isStep ? "pushState" : "replaceState"](null, "", location.pathname + search + location.hash);
    return true;
  }
  const show = (params, isStep) => change(params, isStep) && setProps("view", { data: (live.view = view()) });
  window.addEventListener("popstate", () => setProps("view", { data: (live.view = view()) }));

  // ---- news --------------------------------------------------------------------------------------------------
  const live = { answer: null, asked: 0, answered: Date.now(), updated: 0, count: 0, report: null, view: null, defaults: {}, state: null, slow: 0 };
  const run = () => (/^\/runs\/([^/]+)\/?$/.exec(location.pathname) || [])[1];
  const connection = (name) => document.body.setAttribute("data-connection", name);
  const asks = () => !document.hidden && !/revoked|deleted/.test(document.body.dataset.connection) && (!run() || document.getElementById("run-state"));
  document.addEventListener("visibilitychange", () => (live.answered = Date.now()));
  async function ask() {
    const id = run();
    if (!asks() || (id ? Date.now() - live.updated < LEAST_BETWEEN_UPDATES : Date.now() - live.answered < ELSEWHERE_MILLISECONDS)) return;
    if (live.asked && Date.now() - live.asked < SLOW_ANSWER) return;
    live.asked = Date.now();
    try {
      const answer = await fetch(id ? "/api/v1/runs/" + id : "/api/v1/me", { cache: "no-store" });
      live.answered = Date.now();
      connection(answer.ok ? "good" : answer.status === 401 ? "revoked" : answer.status === 404 ? "deleted" : "lost");
      // A page of several runs is read again for as long as one of them is live.
      if (answer.ok && !id && document.querySelector("[data-live]")) setProps("news", { data: (live.count += 1) });
      if (!answer.ok || !id) return;
      const body = await answer.text();
      if (body === live.answer) return;
      const first = live.answer === null;
      const report = JSON.parse(body);
      live.answer = body;
      live.report = { at: report.last_report_at, seen: first ? null : Date.now() };
      if (first) return;
      showStep(report);
      Object.assign(live, { updated: Date.now(), count: live.count + 1 });
      setProps("news", { data: live.count });
      const control = [report.control.version, report.control.state, (report.control.active || {}).version];
      const state = JSON.stringify([report.status, ...control]);
      if (state === live.state && Date.now() - live.slow < SLOW_NEWS_MILLISECONDS) return;
      Object.assign(live, { state: state, slow: Date.now() });
      setProps("slow-news", { data: live.count });
    } catch (error) {
      connection("lost");
    } finally {
      live.asked = 0;
    }
  }
  function showStep(report) {
    const step = document.getElementById("run-step"), bar = document.querySelector("#run-progress [role=progressbar]");
    if (step && report.step !== null) step.textContent = report.step.toLocaleString("en-US");
    if (bar && report.planned_steps) bar.style.setProperty("--progress-section-width", Math.min(100, (100 * report.step) / report.planned_steps) + "%");
  }
  const inWords = (seconds) =>
    seconds < 2 ? "now" : seconds < 120 ? Math.round(seconds) + " s ago" : seconds < 7200 ? Math.round(seconds / 60) + " min ago"
      : seconds < 172800 ? Math.round(seconds / 3600) + " h ago" : Math.round(seconds / 86400) + " days ago";
  function showAge() {
    document.querySelectorAll("[data-since]").forEach((place) => {
      // A report that came while this page was open is as old as that: the server's clock may differ.
      const report = place.id === "report-age" ? live.report : null;
      const since = report ? report.seen / 1000 || report.at : Number(place.dataset.since);
      const words = place.dataset.before + inWords(Math.max(0, Date.now() / 1000 - since));
      if (since && place.textContent !== words) place.textContent = words;
    });
    if (asks() && Date.now() - live.answered > SLOW_ANSWER) connection("lost");
  }

  // ---- charts ------------------------------------------------------------------------------------------------
  const zooming = () => [...document.querySelectorAll(".zooms .js-plotly-plot")];
  function bind(plot) {
    plot.dataset.bound = "yes";
    if (!plot.closest(".zooms")) return;
    plot.on("plotly_relayout", (moved) => {
      const ends = [moved["xaxis.range[0]"], moved["xaxis.range[1]"]];
      if (ends.every((end) => typeof end === "number")) show({ zoom: ends.map((end) => Number(end.toPrecision(7))).join("~") });
    });
    let click = 0, doubled = 0; // a double click is no choice of a step; its second click is reported after it
    plot.on("plotly_doubleclick", () => (clearTimeout(click), (doubled = Date.now()), show({ zoom: null })));
    plot.on("plotly_click", (event) => {
      const point = event.points.find((other) => !other.xaxis || other.xaxis._id === "x");
      clearTimeout(click);
      if (point && run() && Date.now() - doubled > DOUBLE_CLICK) click = setTimeout(() => openStep(stepAt(plot, point.x)), DOUBLE_CLICK);
    });
    plot.on("plotly_hover", (event) => {
      zooming().filter((other) => other !== plot && other._fullLayout).forEach((other) => {
        window.Plotly.Fx.hover(other, [{ xval: event.points[0].x, curveNumber: other.data.findIndex((t) => t.hovertemplate) }].filter((p) => p.curveNumber >= 0));
      });
    });
    plot.on("plotly_unhover", () => zooming().filter((other) => other !== plot).forEach((other) => window.Plotly.Fx.unhover(other)));
  }
  function stepAt(plot, place) {
    const known = plot.layout.meta;
    return Math.round(known ? known.step[Math.max(0, known.x.findLastIndex((x) => x <= place + 1e-9))] : place);
  }
  // A step is looked at where one step is shown: on the tab that is open, or else among its tokens.
  const openStep = (step) => show({ step, tab: document.querySelector(".step-bar") ? new URLSearchParams(location.search).get("tab") : "tokens" }, true);
  function save(kind, card) {
    const plot = card.querySelector(".js-plotly-plot");
    const name = document.title.split(" · ")[0].replace(/[^\w.-]+/g, "-") + "-" + card.dataset.name.toLowerCase().replace(/[^\w]+/g, "-");
    if (kind !== "csv") {
      const paper = getComputedStyle(card).backgroundColor;
      const picture = { data: plot.data, layout: Object.assign({}, plot.layout, { paper_bgcolor: paper }) };
      return window.Plotly.downloadImage(picture, { format: kind, scale: 2, filename: name, width: plot.clientWidth, height: plot.clientHeight });
    }
    const cell = (value) => (typeof value === "string" ? '"' + value.replace(/"/g, '""').replace(/^[=+\-@\t\r]/, "'$&") + '"' : value ?? "");
    const rows = plot.data.filter((trace) => trace.name && trace.x).flatMap((trace) => [...trace.x].map((x, at) => [cell(trace.name), cell(x), cell(trace.y[at])]));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([["line,x,y", ...rows].join("\n") + "\n"], { type: "text/csv" }));
    link.download = name + ".csv";
    link.click();
    URL.revokeObjectURL(link.href);
  }

  // ---- the document ------------------------------------------------------------------------------------------
  document.addEventListener("click", (event) => {
    const saving = event.target.closest("[data-save]");
    if (saving) {
      save(saving.dataset.save, saving.closest(".chart"));
      saving.closest("details").open = false;
    } else document.querySelectorAll("details.menu[open]").forEach((menu) => menu.contains(event.target) || (menu.open = false));
    const showing = event.target.closest("[data-show]");
    if (showing) show(JSON.parse(showing.dataset.show));
    const going = event.target.closest("[data-tab]");
    if (going) event.preventDefault(), show({ tab: going.dataset.tab }, true);
    if (event.target.closest("#sign-out")) fetch("/logout", { method: "POST" }).then(() => (location.href = "/"));
    // Mantine has switched the document by then.
    if (event.target.closest("#scheme")) setTimeout(() => show({ theme: document.documentElement.getAttribute("data-mantine-color-scheme") }), 50);
    if (event.target.closest("#copy-link")) navigator.clipboard?.writeText(location.href);
  });
  document.addEventListener("keydown", (event) => {
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || event.metaKey || event.ctrlKey || event.altKey) return;
    if (event.key === "/") {
      const search = document.querySelector("input[type=search], .search input");
      if (search) event.preventDefault(), search.focus();
    }
    const tabs = document.querySelectorAll(".tabs [role=tab]");
    if (/^[1-9]$/.test(event.key) && tabs[event.key - 1]) tabs[event.key - 1].click();
  });
  setInterval(() => {
    ask();
    showAge();
    if (described && !described.isConnected) describe(null);
    document.querySelectorAll(".js-plotly-plot:not([data-bound])").forEach((plot) => plot.on && bind(plot));
  }, ASK_MILLISECONDS);

  // ---- tokens in their text: one Tab stop, arrows go from token to token, a card shows the numbers of one ------------------
  let described = null;
  function describe(token) {
    const card = document.getElementById("token-card");
    described = token;
    if (!card) return;
    card.hidden = !token;
    if (!token) return;
    card.replaceChildren(...token.dataset.facts.split("\n").map((line) => {
      const fact = document.createElement("div");
      fact.append(...line.split("\t").map((words) => Object.assign(document.createElement("span"), { textContent: words })));
      return fact;
    }));
    const within = card.parentElement.getBoundingClientRect(), place = token.getClientRects()[0];
    card.style.left = Math.max(8, Math.min(place.left - within.left, within.width - card.offsetWidth - 8)) + "px";
    card.style.top = place.bottom - within.top + 8 + "px";
  }
  document.addEventListener("focusin", (event) => {
    const token = event.target.closest("[data-facts]");
    if (token) document.querySelectorAll("[data-facts]").forEach((other) => (other.tabIndex = other === token ? 0 : -1));
    describe(token);
  });
  document.addEventListener("keydown", (event) => {
    if (!described || event.target !== described) return;
    const all = [...document.querySelectorAll("[data-facts]")], at = all.indexOf(described);
    const to = { ArrowRight: all[at + 1], ArrowLeft: all[at - 1], Home: all[0], End: all.at(-1) }[event.key];
    if (to) event.preventDefault(), to.focus();
    if (event.key === "Escape") describe(null);
  });

  // ---- grids -------------------------------------------------------------------------------------------------
  const functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
  functions.isentropeTheme = {
    fontFamily: "Inter, sans-serif", fontSize: 12, headerFontSize: 11, headerFontWeight: 500, wrapperBorder: false,
    wrapperBorderRadius: 0, backgroundColor: "transparent", foregroundColor: "var(--text)", headerBackgroundColor: "transparent",
    headerTextColor: "var(--dim)", borderColor: "var(--line)", rowBorder: { color: "var(--line)" }, rowHoverColor: "var(--hover)",
    selectedRowBackgroundColor: "color-mix(in srgb, var(--iris) 9%, transparent)", accentColor: "var(--iris)",
    headerColumnResizeHandleColor: "transparent", cellHorizontalPadding: 8, spacing: 6, columnBorder: false,
    checkboxBorderRadius: 4, iconSize: 14, tooltipBackgroundColor: "var(--card)", tooltipTextColor: "var(--text)",
  };

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    isentrope: {
      view: () => (live.view = view()),
      // A choice on the page: written into the address, from which the server draws. A control that was just mounted shows
      // what the address says, or its default, which then needs no place there.
      choose() {
        const query = new URLSearchParams(location.search);
        window.dash_clientside.callback_context.inputs_list[0].forEach(({ id: { param }, value }) => {
          const chosen = JSON.stringify([value ?? ""].flat());
          const written = query.has(param) ? JSON.stringify(query.getAll(param)) : null;
          if (!(param in live.defaults)) live.defaults[param] = written === null ? chosen : "";
          if (chosen === (written ?? live.defaults[param])) return;
          change({ [param]: chosen === live.defaults[param] || !value ? null : value, ...(param === "x" || param === "window" ? { zoom: null } : {}) });
        });
        const before = JSON.stringify(live.view);
        live.view = view();
        return JSON.stringify(live.view) === before ? no_update() : live.view;
      },
      path: (shown, before) => (shown && shown.path !== before ? shown.path : no_update()),
      tab(shown, before) {
        const tab = (shown && shown.query.find(([name]) => name === "tab") || [])[1] || "overview";
        return tab !== before ? tab : no_update();
      },
      // What people hold or type in stays theirs.
      stepFacts(facts) {
        const free = (id) => !document.activeElement || document.activeElement.id !== id;
        const held = document.querySelector("#step-slider:active, #step-slider :active");
        return [facts.last, facts.marks, held ? no_update() : facts.step, facts.last, free("step-number") ? facts.step : no_update(),
          facts.follows, facts.previous === null, facts.next === null];
      },
      chooseStep(slider, number, follow, _previous, _next, facts) {
        const id = window.dash_clientside.callback_context.triggered_id;
        const step = { "step-slider": slider, "step-number": number, "step-previous": facts.previous, "step-next": facts.next }[id];
        if (id === "step-follow") follow !== facts.follows && show({ step: follow ? null : facts.step });
        else if (typeof step === "number" && step !== facts.step) show({ step });
        return no_update();
      },
      openTab: (name) => (show({ tab: name }, true), no_update()),
      openRun: (id) => (id && run() !== encodeURIComponent(id) && (location.href = "/runs/" + encodeURIComponent(id)), no_update()),
      write: (words) => void Object.entries(words || {}).forEach(([id, text]) => {
        const place = document.getElementById(id);
        if (place && place.textContent !== text) place.textContent = text;
      }),
      title: (words) => (words && (document.title = words), no_update()),
    },
  });
})();
