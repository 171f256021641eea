// What the browser does without asking the server: colour scheme, form, freshness, grid cells.
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

  // ---- form --------------------------------------------------------------------------------------------------
  const DEFAULT_THRESHOLD = 1;
  const THRESHOLD_METHODS = ["clip_b", "clip_v"];
  const number = (value) =>
    missing(value) || String(value).trim() === "" || !Number.isFinite(Number(value)) ? null : Number(value);
  const asForm = (control) => [
    control.method, control.scope,
    !missing(control.mu_low), missing(control.mu_low) ? null : control.mu_low,
    !missing(control.mu_high), missing(control.mu_high) ? null : control.mu_high,
  ];
  // The fields of all methods' parameters: whose each is (ids), what it takes (forms), what stands in it (values).
  const parameterFields = (forms, ids, values) =>
    ids.map((id, index) => ({ method: id.method, name: id.name, form: forms[id.method][id.name], value: values[index] }));
  const textOf = (field) => (missing(field.value) ? "" : String(field.value).trim());
  const off = (field) => textOf(field) === "" && field.form.default === null;
  const entered = (field) => (field.form.kind === "choice" ? textOf(field) : number(textOf(field)));
  const parameterError = (field) => {
    const { kind, minimum, maximum, minimumExcluded, range } = field.form;
    if (kind === "choice" || off(field)) return "";
    const value = entered(field);
    const fits = value !== null && (kind !== "whole" || Number.isInteger(value))
      && (minimum === null || value > minimum || (value === minimum && !minimumExcluded))
      && (maximum === null || value <= maximum);
    return fits ? "" : "Enter " + range + ".";
  };
  const asControl = (method, scope, lowOn, low, highOn, high, fields = []) => {
    const clips = THRESHOLD_METHODS.includes(method);
    const own = fields.filter((field) => field.method === method);
    return {
      method: method, scope: scope,
      mu_low: clips && lowOn ? number(low) : null, mu_high: clips && highOn ? number(high) : null,
      parameters: Object.fromEntries(own.map((field) => [field.name, entered(field)])),
    };
  };
  // What a control that leaves some out says of all the parameters there are fields for.
  const allParameters = (control, fields) => {
    const given = control.parameters || {};
    const own = fields.filter((field) => field.method === control.method);
    return Object.fromEntries(own.map(({ name, form }) => [name, name in given ? given[name] : form.default]));
  };
  const parameterChanges = (form, reference, fields) => {
    const known = allParameters(form.method === reference.method ? reference : { method: form.method }, fields);
    return Object.keys(form.parameters).filter((name) => form.parameters[name] !== known[name]).length;
  };
  // What is wrong with a threshold's field; nothing is, while its side does not clip.
  const thresholdError = (method, on, value) => {
    if (!THRESHOLD_METHODS.includes(method) || !on) return "";
    if (number(value) === null) return "Enter a number, or switch the threshold off.";
    return number(value) < 0 ? "A threshold counts standard deviations and can't be negative." : "";
  };
  const sameNumber = (a, b) => (missing(a) || missing(b) ? missing(a) && missing(b) : Math.abs(a - b) < 1e-9);
  const changes = (form, b, fields) =>
    (form.method !== b.method) + (form.scope !== b.scope) + !sameNumber(form.mu_low, b.mu_low)
    + !sameNumber(form.mu_high, b.mu_high) + parameterChanges(form, b, fields);

  // What the form would clip, asked once its fields have been still for a moment.
  const WHAT_IF_STILL_MILLISECONDS = 120;
  let whatIfTimer = 0;

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

  // ---- freshness ---------------------------------------------------------------------------------------------
  const LIVE_TIMEOUT_MILLISECONDS = 20000;
  const CONTACT_TIMEOUT_MILLISECONDS = 8000; // longer than a poll takes to come round
  const clock = { ahead: 0, beat: Date.now(), contact: Date.now() };
  const triggered = () => window.dash_clientside.callback_context.triggered_id;
  const age = (seconds) => {
    if (seconds < 10) return seconds.toFixed(1) + " s";
    if (seconds < 120) return Math.round(seconds) + " s";
    if (seconds < 7200) return Math.round(seconds / 60) + " min";
    if (seconds < 172800) return Math.round(seconds / 3600) + " h";
    return Math.round(seconds / 86400) + " days";
  };

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    isentrope: {
      // Draws a chart anew, or only in other colours. A zoom of the reader's is kept as long as the chart shows the
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
          layout.annotations = layout.annotations.slice(-1); // the newest control's label; all keep their lines
        }
        if (!onlyColours) keepZoom(layout, shown && shown.layout);
        return [{ data: figure.data.map((trace) => inColours(trace, template.layout.colorway)), layout: layout }, drawing.number];
      },
      view(steps) {
        return { window: steps };
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
      somethingIsLive(_ticks, _beat) {
        if (triggered() === "live-beat") clock.beat = Date.now();
        return typeof SharedWorker !== "undefined" && Date.now() - clock.beat < LIVE_TIMEOUT_MILLISECONDS;
      },
      connection(_ticks, _liveBeat, _pollBeat, _page) {
        if (triggered() !== "tick") clock.contact = Date.now();
        return Date.now() - clock.contact < CONTACT_TIMEOUT_MILLISECONDS ? "connection" : "connection lost";
      },
      joinSliderAndNumber(slider, value, maximum) {
        const entered = number(value);
        if (String(triggered()).endsWith("-slider")) {
          const shown = entered === null ? null : Math.min(entered, maximum);
          return [noUpdate(), sameNumber(shown, slider) ? noUpdate() : slider];
        }
        // The slider would answer with 0, and what was entered would be gone before its error is read.
        if (entered === null || entered < 0) return [noUpdate(), noUpdate()];
        const shown = Math.min(entered, maximum);
        return [sameNumber(shown, slider) ? noUpdate() : shown, noUpdate()];
      },
      followControl(control, _reset, base, method, scope, lowOn, low, highOn, high, forms, ids, values) {
        const keep = [...Array(6).fill(noUpdate()), ids.map(noUpdate)];
        if (!control) return [...keep, noUpdate()];
        const reference = control.reference;
        const fields = parameterFields(forms, ids, values);
        const form = asControl(method, scope, lowOn, low, highOn, high, fields);
        const unfinished = thresholdError(method, lowOn, low) || thresholdError(method, highOn, high)
          || fields.some((field) => field.method === method && parameterError(field));
        const edited = base && (unfinished || (changes(form, base, fields) > 0 && changes(form, reference, fields) > 0));
        if (triggered() !== "control-reset" && edited) return [...keep, reference];
        const wanted = asForm(reference);
        // A side that does not clip keeps its last number, so that switching it on again is one click.
        if (wanted[3] === null) wanted[3] = number(low) === null ? DEFAULT_THRESHOLD : noUpdate();
        if (wanted[5] === null) wanted[5] = number(high) === null ? DEFAULT_THRESHOLD : noUpdate();
        const running = allParameters(reference, fields);
        const texts = fields.map((field) => {
          const value = field.method === reference.method ? running[field.name] : field.form.default;
          return missing(value) ? "" : String(value);
        });
        return [...wanted, texts, reference];
      },
      formState(method, scope, lowOn, low, highOn, high, control, values, methods, forms, ids, groups) {
        const clips = THRESHOLD_METHODS.includes(method);
        const sides = [!clips, !clips || !lowOn, !clips || !lowOn, !clips, !clips || !highOn, !clips || !highOn];
        const errors = [thresholdError(method, lowOn, low), thresholdError(method, highOn, high)];
        const fields = parameterFields(forms, ids, values);
        const parameterErrors = fields.map((field) => (field.method === method ? parameterError(field) : ""));
        const shown = groups.map((group) => (group.method === method ? {} : { display: "none" }));
        const rest = [...errors.map(Boolean), ...sides, parameterErrors, shown];
        const unfit = parameterErrors.some(Boolean) ? "Check the fields marked in red." : "";
        if (!control) return ["no control", "gray", true, true, "This run takes no control.", ...rest];
        const form = asControl(method, scope, lowOn, low, highOn, high, fields);
        const count = changes(form, control.reference, fields);
        const able = (methods || []).some((choice) => choice.value === method);
        const hint = !able
          ? "This run's probe can't carry out this method."
          : clips && !lowOn && !highOn
            ? "Switch on a threshold: without one, nothing is clipped."
            : errors[0] || errors[1] || unfit;
        if (!count && !errors[0] && !errors[1] && !unfit) {
          const pending = control.pending;
          return [pending ? "pending" : "in sync", pending ? "iris" : "gray", true, true, hint, ...rest];
        }
        const edits = count ? count + (count > 1 ? " changes" : " change") : "unfinished";
        return [edits, "orange", Boolean(hint), false, hint, ...rest];
      },
      askWhatIf(method, scope, lowOn, low, highOn, high) {
        if (missing(method) || missing(scope)) return noUpdate();
        const error = thresholdError(method, lowOn, low) || thresholdError(method, highOn, high);
        const question = Object.assign(asControl(method, scope, lowOn, low, highOn, high), { error: error });
        clearTimeout(whatIfTimer);
        whatIfTimer = setTimeout(
          () => window.dash_clientside.set_props("what-if-question", { data: question }), WHAT_IF_STILL_MILLISECONDS);
        return noUpdate();
      },
      exportCsv(clicks) {
        return clicks ? true : noUpdate();
      },
    },
  });
})();
