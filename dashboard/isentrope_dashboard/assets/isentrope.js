// What the browser does without asking the server: colour scheme, charts, freshness, grid cells.
(function () {
  "use strict";
  const noUpdate = () => window.dash_clientside.no_update;
  const MISSING = "–";

  // ---- grids -------------------------------------------------------------------------------------------------
  const functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
  functions.isentropeGridTheme = {
    fontFamily: "Inter, sans-serif", fontSize: 12.5, headerFontSize: 11.5, headerFontWeight: 500,
    wrapperBorder: false, wrapperBorderRadius: 0, backgroundColor: "transparent",
    foregroundColor: "var(--mantine-color-text)", headerBackgroundColor: "transparent",
    headerTextColor: "var(--mantine-color-dimmed)", borderColor: "var(--line)", rowBorder: { color: "var(--line)" },
    rowHoverColor: "var(--hover)", accentColor: "var(--mantine-primary-color-filled)",
    headerColumnResizeHandleColor: "transparent", cellHorizontalPadding: 10, spacing: 6, columnBorder: false,
    tooltipBackgroundColor: "var(--card)", tooltipTextColor: "var(--mantine-color-text)",
  };
  const missing = (value) => value === null || value === undefined;
  functions.isentropeCount = (value) => (missing(value) ? MISSING : Number(value).toLocaleString("en-US"));
  functions.isentropeNumber = (value) => {
    if (missing(value)) return MISSING;
    const size = Math.abs(value);
    const text = size && (size < 1e-4 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(5)));
    return text.replace("-", "\u2212");
  };
  functions.isentropeSeconds = (value) => (missing(value) ? MISSING : value.toFixed(value < 10 ? 1 : 0) + " s");
  functions.isentropeTime = (value) =>
    missing(value) ? MISSING : new Date(1000 * value).toLocaleTimeString("en-GB");
  functions.isentropeDate = (value) =>
    missing(value) ? MISSING : new Date(1000 * value).toLocaleString("sv-SE");
  // A spreadsheet runs cells that start like a formula; an apostrophe makes them text.
  functions.isentropeCsvCell = (params) => {
    let value = params.value;
    if (params.column.getColId() === "time" && !missing(value)) {
      return new Date(1000 * value).toISOString();
    }
    value = missing(value) ? "" : String(value);
    return typeof params.value === "string" && /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
  };
  const renderers = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});
  renderers.IsentropeState = (params) => {
    const name = String(params.value || "").toLowerCase();
    const known = /^[a-z]+$/.test(name) ? name : "unknown";
    return window.React.createElement("span", { className: "state state-" + known }, name);
  };
  renderers.IsentropeRunLink = (params) =>
    window.React.createElement("a", { href: params.data.href, className: "run-link" }, params.value);

  // ---- look --------------------------------------------------------------------------------------------------
  // The document knows the scheme that is shown; the switch knows only the one that was chosen, perhaps "auto".
  const shownScheme = () => document.documentElement.getAttribute("data-mantine-color-scheme") || "light";

  const inColours = (trace, way) => {
    const meta = trace.meta || {};
    if (!missing(meta.slot)) return Object.assign({}, trace, { line: Object.assign({}, trace.line, { color: way[meta.slot] }) });
    if (meta.slots) {
      const color = meta.slots.map((slot) => way[slot]);
      const bars = trace.error_y ? { error_y: Object.assign({}, trace.error_y, { color: color[0] }) } : {};
      return Object.assign({}, trace, { marker: Object.assign({}, trace.marker, { color: color }) }, bars);
    }
    return trace;
  };
  const LABELS_NEED_PIXELS = 560;
  const keepZoom = (layout, before) => {
    if (!before || before.uirevision !== layout.uirevision) return;
    Object.keys(before).filter((key) => /^[xy]axis\d*$/.test(key) && before[key].autorange === false).forEach((key) => {
      if (layout[key] && layout[key].range) return; // the chart fixes this range itself
      layout[key] = Object.assign({}, layout[key], { range: before[key].range, autorange: false });
    });
  };

  const MOST_COMPARED = 6;
  const comparisonOf = (ids) => "/compare?" + ids.map((id) => "run=" + encodeURIComponent(id)).join("&");

  // ---- freshness ---------------------------------------------------------------------------------------------
  const CONTACT_TIMEOUT_MILLISECONDS = 8000; // some questions for news without an answer
  const clock = { ahead: 0, contact: Date.now() };
  const triggered = () => window.dash_clientside.callback_context.triggered_id;
  const age = (seconds) => {
    if (seconds < 10) return seconds.toFixed(1) + " s";
    if (seconds < 120) return Math.round(seconds) + " s";
    if (seconds < 7200) return Math.round(seconds / 60) + " min";
    if (seconds < 172800) return Math.round(seconds / 3600) + " h";
    return Math.round(seconds / 86400) + " days";
  };

  // ---- news --------------------------------------------------------------------------------------------------
  const ANSWER_MILLISECONDS = 10000; // after that an answer is lost, and the question is asked again
  const SLOW_MILLISECONDS = 3000; // between two readings of what is read less often
  const LAW_MILLISECONDS = 15000;
  const HEAL_MILLISECONDS = 15000; // until what failed to load is read again without a new step
  const asked = { news: 0, slow: 0, slowShown: Date.now(), law: Date.now(), window: undefined };
  const isWaiting = (since) => Date.now() - since < ANSWER_MILLISECONDS;
  const setAll = (props) =>
    Object.entries(props).forEach(([id, values]) => window.dash_clientside.set_props(id, values));

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    isentrope: {
      // Asks what is new, one question at a time. Points appended to a chart that is about to be drawn would be lost.
      askNews(_ticks, view, shown, _slow, drawing, drawn) {
        if (!shown || isWaiting(asked.news) || (drawing && drawing.number !== drawn)) return noUpdate();
        asked.news = Date.now();
        return { view: view, shown: shown, at: asked.news };
      },
      showNews(news, shown) {
        if (!news) return noUpdate();
        asked.news = 0;
        if (news.failed || news.after !== shown.number) return noUpdate(); // or an answer to an earlier question
        clock.contact = Date.now();
        setAll(news.props);
        return news.shown;
      },
      askSlowNews(_ticks, view, shown, slow) {
        const now = Date.now();
        if (!shown || !slow || isWaiting(asked.slow)) return noUpdate();
        const moved = view && asked.window !== undefined && view.window !== asked.window;
        const wait = slow.failed && slow.step === shown.step ? HEAL_MILLISECONDS : SLOW_MILLISECONDS;
        if (!moved && (now - asked.slowShown < wait || (slow.step === shown.step && !slow.failed))) return noUpdate();
        const law = slow.failed || now - asked.law >= LAW_MILLISECONDS;
        if (law) asked.law = now;
        Object.assign(asked, { slow: now, window: view && view.window });
        return { view: view, law: law, at: now };
      },
      showSlowNews(news) {
        if (!news || !news.number) return noUpdate();
        Object.assign(asked, { slow: 0, slowShown: Date.now() });
        setAll(news.props);
        return noUpdate();
      },
      // Draws a chart, or only its colours. A zoom of the reader's is kept as long as the chart shows the
      // same thing: Dash writes the zoomed range into the figure, where plotly's own `uirevision` can't see it as one.
      draw(drawing, _scheme, templates, shown, graphId) {
        if (!drawing) return [noUpdate(), noUpdate()];
        const plot = document.querySelector("#" + graphId + " .js-plotly-plot");
        const onlyColours = triggered() === "color-scheme" && shown && plot && plot.data;
        const figure = onlyColours ? { data: plot.data, layout: shown.layout } : drawing.figure;
        const template = templates[shownScheme()] || templates.light;
        const layout = Object.assign({}, figure.layout, { template: template });
        const graph = document.getElementById(graphId);
        if (layout.annotations && graph && graph.clientWidth < LABELS_NEED_PIXELS) {
          // Of the controls' labels the newest one; all keep their lines.
          const kept = layout.annotations.filter((label) => label.name === "kept");
          layout.annotations = [...kept, ...layout.annotations.filter((label) => label.name !== "kept").slice(-1)];
        }
        if (!onlyColours) keepZoom(layout, shown && shown.layout);
        return [{ data: figure.data.map((trace) => inColours(trace, template.layout.colorway)), layout: layout }, drawing.number];
      },
      view(steps, split) {
        return { window: steps, split: split };
      },
      title(text) {
        if (text) document.title = text;
        return noUpdate();
      },
      openRun(runId, shown) {
        return runId && runId !== shown ? "/runs/" + encodeURIComponent(runId) : noUpdate();
      },
      reportAge(_ticks, last) {
        if (!last) return "";
        if (triggered() === "last-report") clock.ahead = last.server_time - Date.now() / 1000;
        if (missing(last.reported_at)) return "no report yet";
        const seconds = Math.max(0, Date.now() / 1000 + clock.ahead - last.reported_at);
        return (last.status === "running" ? "updated " : "last report ") + age(seconds) + " ago";
      },
      connection() {
        if (triggered() !== "tick") clock.contact = Date.now();
        return Date.now() - clock.contact < CONTACT_TIMEOUT_MILLISECONDS ? "connection" : "connection lost";
      },
      compareChoice(rows) {
        const chosen = (rows || []).length;
        if (chosen > MOST_COMPARED) return ["Choose at most " + MOST_COMPARED, true];
        return [chosen < 2 ? "Choose runs to compare" : "Compare " + chosen + " runs", chosen < 2];
      },
      openComparison(clicks, rows) {
        return clicks && rows ? comparisonOf(rows.map((row) => row.id)) : noUpdate();
      },
      // The address names what is compared, so that it can be kept and passed on.
      nameComparison(ids) {
        if (location.pathname.startsWith("/compare") && ids) history.replaceState(history.state, "", comparisonOf(ids));
        return noUpdate();
      },
      filterMetrics(text, options) {
        return Object.assign({}, options, { quickFilterText: text || "" });
      },
      exportCsv(clicks) {
        return clicks ? true : noUpdate();
      },
    },
  });
})();
