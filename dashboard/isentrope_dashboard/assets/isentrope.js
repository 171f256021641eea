// What the browser does by itself: it keeps the address, asks for news, binds the charts, saves them, draws grid cells.
(function () {
  "use strict";
  const TICK_MILLISECONDS = [50, 250]; // between two looks at what is to be done: while values wait for their places, and else
  const ASK_MILLISECONDS = [120, 400]; // from and to, by how fast the run's steps follow each other
  const CALM_MILLISECONDS = 1000; // between two questions, until the next step is due
  const EARLY = 0.9; // of a run's pace: from then on the next step is waited for
  const ASK_ABOUT_FORM_MILLISECONDS = 150; // from one question about the control card's form to the next
  const ASK_OF_ENDED_MILLISECONDS = 1000;
  const ASK_HIDDEN_MILLISECONDS = 30000; // a run's tab in the background shows the level in its title
  const LEAST_BETWEEN_UPDATES = 450; // a page that is drawn more often takes more of the reader's processor than it is worth
  const ASK_LOST_MILLISECONDS = 2000; // a server that does not answer
  const ELSEWHERE_MILLISECONDS = 4000; // on a page without a run: whether the session and the server are still there
  const SLOW_ANSWER = 8000;
  const SLOW_NEWS_MILLISECONDS = 3000;
  const ANSWERED_FOR = 1000; // the server keeps an answer so long for other tabs
  const DOUBLE_CLICK = 320;
  const no_update = () => window.dash_clientside.no_update;
  const setProps = (id, props) => window.dash_clientside.set_props(id, props);

  // What a proxy has in front of every path of this server; empty without one.
  const rootPath = document.querySelector("meta[name=root-path]").content;
  const pathOf = () => (location.pathname.startsWith(rootPath) ? location.pathname.slice(rootPath.length) : location.pathname) || "/";

  // ---- the address is the view -------------------------------------------------------------------------------
  const known = (scheme) => (scheme === "dark" || scheme === "light" ? scheme : null);
  const theme = () => known(new URLSearchParams(location.search).get("theme")) || known(localStorage.getItem("mantine-color-scheme-value"))
    || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const zoomed = () => document.body.toggleAttribute("data-zoomed", new URLSearchParams(location.search).has("zoom"));
  const view = () => (zoomed(), { path: pathOf(), query: [...new URLSearchParams(location.search)], theme: theme(), origin: location.origin + rootPath });
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
  const turn = () => (setProps("view", { data: (live.view = view()) }), ask());
  const show = (params, isStep) => change(params, isStep) && turn();
  window.addEventListener("popstate", turn);

  // ---- news --------------------------------------------------------------------------------------------------
  const live = { question: null, tried: null, asking: null, asked: 0, next: 0, form: null, answered: Date.now(), updated: 0, news: 0, slow: 0, pace: 0, due: 0, owed: false, state: null, run: null, seen: null, mounted: "", view: null, defaults: {} };
  const shown = new Map(); // id -> digest, property and value, and the element in which it is drawn
  const run = () => (/^\/runs\/([^/]+)\/?$/.exec(pathOf()) || [])[1];
  const connection = (name) => document.body.setAttribute("data-connection", name);
  // A proxy says 502 or 504 for a server that does not answer; with any other number the server itself has answered.
  function stateOf({ ok, status }) {
    document.querySelectorAll(".connection .status").forEach((place) => (place.textContent = status));
    if (ok) return "good";
    if (status === 401) return "revoked";
    return status === 502 || status === 504 ? "lost" : "failed";
  }
  const isOpen = () => Boolean(document.getElementById("run-state"));
  const asks = () => (!document.hidden || isOpen()) && !/revoked|deleted/.test(document.body.dataset.connection) && (!run() || isOpen() || !document.querySelector(".page:not(.waiting)"));
  document.addEventListener("visibilitychange", () => ((live.answered = Date.now()), ask()));
  async function ask() {
    const now = Date.now(), question = JSON.stringify(view()), isNew = question !== live.question;
    if (!asks() || (live.asking === question && now - live.asked < SLOW_ANSWER)) return;
    const [least, most] = ASK_MILLISECONDS, often = Math.min(most, Math.max(least, live.pace / 8, (now - live.updated) / 8));
    const isLost = /lost|failed/.test(document.body.dataset.connection);
    const pause = document.hidden ? ASK_HIDDEN_MILLISECONDS : isLost ? ASK_LOST_MILLISECONDS : !run() ? ELSEWHERE_MILLISECONDS : live.run?.status === "running" ? often : ASK_OF_ENDED_MILLISECONDS;
    // What need not follow each step is read in a question of its own, once what follows it is drawn.
    const form = (document.getElementById("control-form") && shared.form) || null, differs = form !== live.form, isTyped = differs && !isLost && !document.hidden;
    const slow = !isNew && !isTyped && !document.hidden && live.owed && now - live.slow > SLOW_NEWS_MILLISECONDS, parts = isNew || document.hidden ? "all" : slow ? "slow" : "fast";
    const calm = Math.min(live.due, live.asked + CALM_MILLISECONDS);
    const next = isTyped ? live.asked + ASK_ABOUT_FORM_MILLISECONDS : slow ? live.asked + least : Math.max(live.asked + pause, live.updated + LEAST_BETWEEN_UPDATES, calm);
    live.next = next;
    if (question === live.tried && now < next) return;
    Object.assign(live, { asking: question, tried: question, asked: now, form });
    const mounted = location.pathname + new URLSearchParams(location.search).get("tab");
    if (mounted !== live.mounted) shown.clear(), (live.mounted = mounted);
    try {
      const body = { ...JSON.parse(question), form: JSON.parse(form), state: isNew || differs || slow ? null : live.state, parts, shown: Object.fromEntries([...shown].map(([id, one]) => [id, one.digest])) };
      const answer = await fetch(rootPath + "/news", { method: "POST", cache: "no-store", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
      if (live.asking !== question) return; // the reader has gone on
      live.answered = Date.now();
      if (!answer.ok) live.form = undefined; // it is asked about again
      if (!answer.ok || isRefused) showRefusal(answer);
      connection(stateOf(answer));
      if (answer.status !== 200) return;
      const news = await answer.json(), before = live.run;
      if (run() && !news.run && isOpen()) return connection("deleted");
      if (parts !== "slow") shared.answered = form;
      Object.entries(news.values).forEach(([id, [digest, property, value]]) => shown.set(id, { digest, property, value, place: null }));
      if (!slow) Object.assign(live, { question, state: news.state, run: news.run, updated: Date.now() });
      live.owed = parts === "fast"; // what is slow is read later, even if no other step comes
      if (!live.owed) live.slow = now;
      showLevel(news.run?.level);
      draw();
      if (slow) return setProps("news", { data: (live.news += 1) });
      if (!news.run || !before) return;
      if (news.run.at !== before.at) live.seen = now;
      if (news.run.step > before.step) {
        live.pace = (1000 * (news.run.at - before.at)) / (news.run.step - before.step);
        live.due = now + EARLY * live.pace;
      }
      const turned = JSON.stringify([news.run.status, news.run.control]) !== JSON.stringify([before.status, before.control]);
      if (turned) Object.assign(live, { slow: 0, tried: null });
    } catch (error) {
      if (live.asking === question) connection("lost"), showRefusal(null), (live.form = undefined);
    } finally {
      if (live.asking === question) live.asking = null;
    }
  }

  // Of a page that did not come, the server's reason is shown where the page would be.
  let isRefused = false;
  async function showRefusal(answer) {
    isRefused = !answer?.ok && Boolean(document.querySelector(".page.waiting"));
    const place = document.getElementById("not-shown") || document.body.insertBefore(Object.assign(document.createElement("div"), { id: "not-shown", role: "alert" }), document.body.firstChild);
    place.className = isRefused ? "page refusal" : "";
    const error = isRefused && answer ? (await answer.json().catch(() => ({}))).error : null;
    place.textContent = !isRefused ? "" : !answer ? "The server does not answer." : error?.message || "The server answered " + answer.status + " " + answer.statusText + ". Reload the page.";
  }

  // ---- what the answers show, drawn past Dash ----------------------------------------------------------------
  // Components as Dash sends them. What runs reported are strings in them, which React shows as text.
  const roots = new WeakMap();
  const element = (node, key) => {
    if (Array.isArray(node)) return node.map(element);
    if (!node || !node.props) return node;
    const { children, ...props } = node.props;
    return window.React.createElement(node.type.toLowerCase(), { key, ...props }, element(children));
  };
  const shared = (window.isentrope ||= { adjust: {}, calls: {} }); // adjust: id of a chart -> what the browser adds to its figure; calls: id of a value -> what it is given to; form: what the control card has
  Object.assign(shared, { rootPath, run, ask, element, show, chart: (id, figure) => shown.get(id)?.value !== figure && (shown.set(id, { value: figure }), draw()), redraw: (id) => shown.has(id) && ((shown.get(id).place = null), draw()) });
  function drawComponents(place, value) {
    if (!roots.has(place)) roots.set(place, window.ReactDOM.createRoot(place));
    window.ReactDOM.flushSync(() => roots.get(place).render(element(value)));
    // What people hold or type in stays theirs.
    place.querySelectorAll("[data-value]").forEach((input) => input.matches(input.type === "range" ? ":active" : ":focus") || (input.value = input.dataset.value));
  }
  function isMounted(id) {
    try {
      return Boolean(window.dash_component_api.getLayout(id));
    } catch (error) {
      return false; // Dash looks into a path that it does not have
    }
  }
  function setDash(id, { property, value }) {
    if (property === "title") return (document.title = value), true;
    if (property !== "rowData") return isMounted(id) && (setProps(id, { [property]: value }), true);
    const grid = document.getElementById(id) && window.dash_ag_grid.getApi(id);
    return grid && (grid.setGridOption("rowData", value), true);
  }
  function drawValue(place, id, one) {
    if (one.property === "call" && !one.place) return (one.place = true), shared.calls[id](one.value); // it may draw
    if (one.property && (one.place || !setDash(id, one))) return;
    if (!one.property) {
      if (!place) return;
      if (one.value === true || one.value === false) place.hidden = one.value;
      else if (one.value?.layout) return drawChart(place, id, one);
      else drawComponents(place, one.value);
    }
    one.place = place || true;
  }
  // Instead of what the browser can't draw: why. The other values go on.
  function refuse(place, error) {
    console.error(error);
    if (!place) return;
    const plot = chartIn(place), words = document.createElement("div");
    if (plot) window.Plotly.purge(plot);
    roots.get(place)?.unmount();
    roots.delete(place);
    words.className = "refusal";
    words.role = "alert";
    words.textContent = "The browser can't draw this: " + (error?.message || error);
    place.replaceChildren(words);
  }
  const chartIn = (place) => place.querySelector(":scope > .js-plotly-plot");
  function draw() {
    const { planned } = live.run || {}, number = document.getElementById("run-step"), bar = document.getElementById("run-progress");
    shown.forEach((one, id) => {
      const place = document.getElementById(id);
      if (one.place && one.place === place) return;
      try {
        drawValue(place, id, one);
      } catch (error) {
        one.place = place || true; // it is tried again when its value changes
        refuse(place, error);
      }
    });
    // The step of the overview's answer, which may be newer than that of the question whether there is a new one.
    const answered = document.querySelector(".health")?.dataset.step, step = answered ? Number(answered) : live.run?.step;
    const words = step === undefined || step === null ? "" : step.toLocaleString("en-US");
    const tab = document.querySelector(".tabs [role=tab][data-active]");
    if (tab && tab !== live.tab) (live.tab = tab).scrollIntoView({ block: "nearest", inline: "nearest" }); // of more than fit
    if (number && words && number.textContent !== words) number.textContent = words;
    if (bar && planned) bar.firstChild.style.width = Math.min(100, (100 * step) / planned) + "%";
  }
  // The tab's picture has a disc in the colour of the run's level.
  const LEVEL_COLOURS = { act: "#f0925a", watch: "#d9b44a", holding: "#3cc7b0", healthy: "#3cc7b0" };
  let icon = null, level = null;
  async function showLevel(newest) {
    if (newest === level) return;
    level = newest;
    icon ||= fetch(rootPath + "/assets/icon.svg").then((answer) => answer.text());
    const color = LEVEL_COLOURS[level], disc = color ? '<circle cx="23" cy="9" r="8.5" fill="' + color + '" stroke="#fff" stroke-width="1.5"/>' : "";
    const drawing = (await icon).replace("</svg>", disc + "</svg>");
    document.querySelector("link[rel=icon]").href = "data:image/svg+xml," + encodeURIComponent(drawing);
  }
  const inWords = (seconds) =>
    seconds < 2 ? "now" : seconds < 120 ? Math.round(seconds) + " s ago" : seconds < 7200 ? Math.round(seconds / 60) + " min ago"
      : seconds < 172800 ? Math.round(seconds / 3600) + " h ago" : Math.round(seconds / 86400) + " days ago";
  function showAge() {
    document.querySelectorAll("[data-since]").forEach((place) => {
      // A report that came while this page was open is as old as that: the server's clock may differ.
      const since = place.id === "report-age" ? live.seen / 1000 || live.run?.at : Number(place.dataset.since);
      const words = place.dataset.before + inWords(Math.max(0, Date.now() / 1000 - since));
      if (since && place.textContent !== words) place.textContent = words;
    });
    if (!document.hidden && asks() && Date.now() - live.answered > SLOW_ANSWER) connection("lost");
  }

  // ---- charts ------------------------------------------------------------------------------------------------
  const CHART = { displayModeBar: false, doubleClick: false, scrollZoom: false, showTips: false }; // a double click ends the zoom of all charts
  const zooming = () => [...document.querySelectorAll(".zooms .js-plotly-plot")];
  function fits(place) {
    const layout = chartIn(place)?.layout;
    return layout?.width === place.clientWidth && layout.height === place.clientHeight;
  }
  const resized = new ResizeObserver((places) => places.forEach(({ target }) => shown.has(target.id) && !fits(target) && (shown.get(target.id).place = null)));
  // The middles of labels of these heights: as near to their places as they can be without touching; pixels, from below.
  const LINE_PIXELS = 14;
  function apart(places, heights, top) {
    const order = places.map((_, at) => at).sort((a, b) => places[a] - places[b]), middles = [...places];
    let end = -Infinity;
    order.forEach((at) => (end = (middles[at] = Math.max(places[at], end + heights[at] / 2)) + heights[at] / 2));
    order.reverse().forEach((at) => (top = (middles[at] = Math.min(middles[at], top - heights[at] / 2)) - heights[at] / 2));
    return middles;
  }
  // What a chart's `meta` names: labels in the gutter right of the plot, and pills on its axis, of which the newer ones go first.
  function labelled({ data, layout }, place) {
    const { ends = [], pills = [] } = layout.meta || {}, { margin, xaxis, yaxis } = layout;
    if (!ends.length && !pills.length) return { data, layout };
    const [from, to] = xaxis.domain || [0, 1], width = (to - from) * (place.clientWidth - margin.l - margin.r), height = place.clientHeight - margin.t - margin.b;
    const share = (value, { type, range: [low, high] }) => ((type === "log" ? Math.log10(value) : value) - low) / (high - low);
    const last = xaxis.range[1] + 0.02 * (xaxis.range[1] - xaxis.range[0]); // a suggestion may be a step newer than the axis
    const isSeen = ({ x = null, at }) => at > -0.01 && at < 1.01 && (x === null || (x >= xaxis.range[0] && x <= last));
    const seen = ends.map((end) => ({ ...end, at: share(end.y, yaxis) })).filter(isSeen);
    const middles = apart(seen.map(({ at }) => at * height), seen.map(({ text }) => LINE_PIXELS * text.split("<br>").length), height);
    const annotations = [...(layout.annotations || []), ...seen.map(({ text, color }, at) => ({
      text, x: 1, xref: "paper", xanchor: "left", xshift: 5, y: 0, yref: "paper", yanchor: "middle", yshift: middles[at], align: "left",
      borderpad: 0, showarrow: false, font: { size: 11, color },
    }))];
    const free = [Infinity, Infinity, Infinity]; // rows, and up to where each is
    [...pills].reverse().forEach(({ x, text, color, says }) => {
      const at = share(x, xaxis), half = 5 + 3.4 * text.length, row = free.findIndex((end) => at * width + half <= end);
      if (at < 0 || at > 1 || row < 0) return;
      free[row] = at * width - half;
      annotations.push({ text, hovertext: says, x: from + (to - from) * at, xref: "paper", xanchor: "center", y: 0, yref: "paper", yanchor: "bottom", yshift: 18 * row, showarrow: false,
        font: { size: 10, color }, bgcolor: getComputedStyle(document.documentElement).getPropertyValue("--card"), bordercolor: color, borderpad: 1 });
    });
    return { data, layout: { ...layout, annotations } };
  }
  function drawChart(place, id, one) {
    const old = chartIn(place), { top, bottom } = place.getBoundingClientRect();
    if (!window.Plotly || !place.offsetParent || old?._dragging || (old && fits(place) && (bottom < 0 || top > innerHeight))) return;
    const plot = old || document.createElement("div");
    if (!old) place.replaceChildren(plot);
    const figure = labelled(shared.adjust[id] ? shared.adjust[id](one.value) : one.value, place);
    one.place = place;
    const layout = { ...figure.layout, width: place.clientWidth, height: place.clientHeight };
    const drawn = window.Plotly.react(plot, figure.data, layout, place.dataset.static ? { ...CHART, staticPlot: true } : CHART);
    drawn?.catch?.((error) => one.place === place && refuse(place, error));
    if (!old) bind(plot), resized.observe(place);
  }
  function bind(plot) {
    if (!plot.closest(".zooms")) return;
    plot.on("plotly_relayout", (moved) => {
      const ends = [moved["xaxis.range[0]"], moved["xaxis.range[1]"]];
      if (ends.every((end) => typeof end === "number")) show({ zoom: ends.map((end) => Number(end.toPrecision(7))).join("~") }, true);
    });
    let click = 0, doubled = 0; // a double click is no choice of a step; its second click is reported after it
    plot.on("plotly_doubleclick", () => (clearTimeout(click), (doubled = Date.now()), show({ zoom: null })));
    plot.on("plotly_click", (event) => {
      if (!run()) return hideLine(plot, event);
      const point = event.points.find((other) => !other.xaxis || other.xaxis._id === "x");
      clearTimeout(click);
      if (point && run() && Date.now() - doubled > DOUBLE_CLICK) click = setTimeout(() => openStep(stepAt(plot, point.x)), DOUBLE_CLICK);
    });
    plot.on("plotly_hover", ({ points: [{ x, xaxis }] }) => {
      if (xaxis?._id === "x") zooming().filter((other) => other !== plot && other._fullLayout).forEach((other) => window.Plotly.Fx.hover(other, { xval: x }, "xy"));
    });
    plot.on("plotly_unhover", () => zooming().filter((other) => other !== plot).forEach((other) => window.Plotly.Fx.unhover(other)));
  }
  // Among several runs a click on a line, or near to it, hides it; the legend shows it again.
  function hideLine(plot, { event, points }) {
    const y = event.clientY - plot.getBoundingClientRect().top;
    const near = points.map(({ yaxis, y: value, data }) => [Math.abs(yaxis._offset + yaxis.d2p(value) - y), data.meta]);
    const [far, line] = near.filter(([, name]) => name).sort(([one], [other]) => one - other)[0] || [Infinity];
    if (far < 12) [...document.querySelectorAll("[data-line]")].find((button) => button.dataset.line === line)?.click();
  }
  function stepAt(plot, place) {
    const known = plot.layout.meta;
    return Math.round(known.x ? known.step[Math.max(0, known.x.findLastIndex((x) => x <= place + 1e-9))] : place);
  }
  // A step is looked at where one step is shown: on the tab that is open, or else among its tokens.
  const openStep = (step) => show({ step, tab: document.querySelector(".step-bar") ? new URLSearchParams(location.search).get("tab") : "tokens" }, true);
  const withoutMarkup = (words) => new DOMParser().parseFromString(words, "text/html").body.textContent;
  // A trace's rows for a file. Where an axis can't show what was logged, `customdata` has it; bars have their lengths there.
  function logged({ name, type, x, y, customdata }) {
    const [places, values] = type === "bar" ? [y, customdata] : [x, customdata ?? y];
    return places.map((place, at) => [withoutMarkup(name), place, values[at]]).filter(([, , value]) => value !== null);
  }
  function save(kind, card) {
    const plot = card.querySelector(".js-plotly-plot");
    const [run, chart, unit] = [document.querySelector("h1")?.textContent || "", card.dataset.name, card.querySelector(".unit")?.textContent || ""];
    const name = [run, chart].map((words) => words.replace(/[^\w.-]+/g, "-")).join("-");
    const plain = (words) => words.replace(/&/g, "&amp;").replace(/</g, "&lt;");
    if (kind !== "csv") {
      // What the page has around the chart: title, unit, run, and the names of its lines.
      const { template, ...layout } = plot.layout, head = 64, named = new Set();
      const data = plot.data.map((trace) => ({ ...trace, showlegend: Boolean(trace.name) && trace.hoverinfo !== "skip" && !named.has(trace.name) && Boolean(named.add(trace.name)) }));
      const title = { text: "<b>" + plain(chart) + "</b>" + (unit && "  " + plain(unit)) + "<br><span style='font-size:11px'>" + plain(run) + "</span>", x: 0, xanchor: "left", xref: "paper", yref: "container", y: 1, yanchor: "top", pad: { t: 18 }, font: { size: 13 } };
      const look = { ...layout, template, title, paper_bgcolor: getComputedStyle(card).backgroundColor, margin: { ...plot._fullLayout.margin, t: head }, showlegend: true, legend: { orientation: "h", x: 1, xanchor: "right", y: 1, yanchor: "bottom", font: { size: 11 } } };
      return window.Plotly.downloadImage({ data, layout: look }, { format: kind, scale: 2, filename: name, width: plot.clientWidth, height: plot.clientHeight + head - plot._fullLayout.margin.t });
    }
    const cell = (value) => (typeof value === "string" ? '"' + value.replace(/"/g, '""').replace(/^(?!-Infinity$)[=+\-@\t\r]/, "'$&") + '"' : value ?? "");
    const rows = plot.data.filter((trace) => trace.name && trace.x).flatMap(logged);
    const lines = ["line,x,y", ...rows.map((row) => row.map(cell).join(","))];
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
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
    if (event.target.closest("#sign-out")) fetch(rootPath + "/logout", { method: "POST" }).then(() => (location.href = rootPath + "/"));
    // Mantine has switched the document by then.
    if (event.target.closest("#scheme")) setTimeout(() => show({ theme: document.documentElement.getAttribute("data-mantine-color-scheme") }), 50);
    const copying = event.target.closest("#copy-link");
    if (copying) copy(location.href).then(() => say(copying, "Link copied"), () => say(copying, "Not copied: take it from the address bar"));
    const sharing = event.target.closest("#share-run");
    if (sharing) (sharing.closest("details").open = false), share(document.getElementById("copy-link"));
    const seen = event.target.closest("[data-acknowledge]");
    if (seen) acknowledge(seen);
  });
  // Others see this view, of this run alone.
  async function share(place) {
    const made = await fetch(rootPath + "/api/v1/runs/" + run() + "/link", { method: "POST" });
    if (!made.ok) return say(place, "No link: " + (await made.json()).error.message);
    const link = location.origin + rootPath + "/?token=" + encodeURIComponent((await made.json()).token) + location.search.replace("?", "&");
    copy(link).then(() => say(place, "Link copied: it shows this run alone, until you revoke it on the page Access"), () => window.prompt("The link", link));
  }
  async function acknowledge(button) {
    const answer = await fetch(rootPath + "/api/v1/runs/" + run() + "/alerts/" + button.dataset.acknowledge + "/acknowledgement", { method: "PUT" });
    if (!answer.ok) return say(button, (await answer.json()).error.message);
    setTimeout(() => Object.assign(live, { state: null, tried: null }), ANSWERED_FOR);
  }
  // Without TLS, browsers give pages of other machines no clipboard.
  async function copy(words) {
    if (navigator.clipboard) return navigator.clipboard.writeText(words);
    const field = document.body.appendChild(Object.assign(document.createElement("textarea"), { value: words }));
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (!done) throw new Error("refused");
  }
  function say(place, words) {
    const bubble = Object.assign(document.createElement("span"), { className: "said", textContent: words, role: "status" });
    place.parentElement.append(bubble);
    setTimeout(() => bubble.remove(), 2000);
  }
  document.addEventListener("change", ({ target }) => target.dataset.param && target.value && show({ [target.dataset.param]: target.value }));
  // ---- keys --------------------------------------------------------------------------------------------------
  const KEYS = [["1 – 6", "Open a tab of a run"], ["/", "Search"], ["Ctrl K", "Go to a run or a metric"], ["j, k", "Next and previous run of the list"], ["?", "Show the keys"], ["Esc", "Close what is open"]];
  function showKeys() {
    const dialog = document.body.appendChild(document.createElement("dialog")), list = dialog.appendChild(document.createElement("dl"));
    dialog.className = "keys-dialog";
    dialog.ariaLabel = "Keys";
    KEYS.forEach(([key, words]) => list.append(...[["dt", key], ["dd", words]].map(([tag, textContent]) => Object.assign(document.createElement(tag), { textContent }))));
    dialog.addEventListener("close", () => dialog.remove());
    dialog.addEventListener("click", () => dialog.close());
    dialog.showModal();
  }
  const isTyped = (target) => target.matches("textarea, select, [contenteditable], input:not([type=radio], [type=checkbox], [type=range], [type=button])");
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") delete document.body.dataset.sheet;
    if (isTyped(event.target) || event.metaKey || event.ctrlKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "?") event.preventDefault(), showKeys();
    if (event.key === "/") {
      const search = document.querySelector("input[type=search], .search input");
      if (search) event.preventDefault(), search.focus();
    }
    const tab = /^[1-9]$/.test(event.key) && document.querySelectorAll(".tabs [role=tab]")[event.key - 1];
    if (tab && document.body.dataset.connection === "good") tab.click();
  });
  function tick() {
    ask();
    draw();
    if (described && !described.isConnected) describe(null);
    const [least, most] = TICK_MILLISECONDS, waits = [...shown.values()].some(({ place }) => !place);
    setTimeout(tick, waits ? least : live.asking ? most : Math.min(most, Math.max(least, live.next - Date.now())));
  }
  setInterval(showAge, 500);

  // ---- tokens in their text: one Tab stop, arrows go from token to token, a card shows the numbers of one ------------------
  let described = null;
  tick();
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
  // AG Grid is a quarter of all scripts, so it is loaded where a page first shows a grid. Dash knows this stand-in alone, and mounts
  // no grid twice.
  let loading = null, RealGrid = null;
  const loadGrids = () => (loading ||= new Promise((loaded, failed) => {
    const src = document.querySelector("meta[name=grid-script]").content;
    document.head.append(Object.assign(document.createElement("script"), { src, onload: loaded, onerror: failed }));
  }).then(() => {
    const { AgGrid: real, ...functions } = window.dash_ag_grid;
    RealGrid = real;
    window.dash_ag_grid = { ...functions, AgGrid };
  }).catch(() => (loading = null)));
  function AgGrid(props) {
    const { createElement, useEffect, useState } = window.React, [isLoaded, setLoaded] = useState(Boolean(RealGrid));
    useEffect(() => void (isLoaded || loadGrids().then(() => setLoaded(Boolean(RealGrid)))), []);
    return isLoaded ? createElement(RealGrid, props) : null;
  }
  AgGrid.dashRenderType = true;
  window.dash_ag_grid = { AgGrid, getApi: () => null };
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
        ask();
        return JSON.stringify(live.view) === before ? no_update() : live.view;
      },
      path: (shown, before) => (shown && shown.path !== before ? shown.path : no_update()),
      tab(shown, before) {
        const tab = (shown && shown.query.find(([name]) => name === "tab") || [])[1] || "overview";
        return tab !== before ? tab : no_update();
      },
      // Also called where "back" has opened it: that is no step.
      openTab(name) {
        if (name !== (new URLSearchParams(location.search).get("tab") || "overview")) show({ tab: name }, true);
        return no_update();
      },
      openRun: (id) => (id && run() !== encodeURIComponent(id) && (location.href = rootPath + "/runs/" + encodeURIComponent(id)), no_update()),
      title: (words) => (words && (document.title = words), no_update()),
    },
  });
})();
