// The control card: handles, when the server is asked, its answer in the charts, a push that fails. All numbers are the server's.
(function () {
  "use strict";
  const ANSWER_WITHIN = 6000;
  const LONG = 100; // steps
  const WAITING = "Waiting for the server’s answer.";
  const NO_ANSWER = "No answer from the server: nothing is known of this push. If it arrived, it stands under Latest control when the connection is back.";
  const LINES = { low: "lower side, ", high: "upper side, " }; // of the plot, before "clipped" and "pace"
  const IDS = { low: "control-mu-low", high: "control-mu-high" };
  const isentrope = window.isentrope;
  const setProps = (id, props) => window.dash_clientside.set_props(id, props);
  const now = { preview: null, low: null, high: null, offered: null, caught: null, form: null, pushing: null, tried: false, lines: {} };

  // ---- numbers ---------------------------------------------------------------------------------------------
  const mu = (value) => ((value ?? "") === "" || !(value >= 0 && isFinite(value)) ? null : Number(value));
  const fixed = (value, digits) => (/[1-9]/.test(value.toFixed(digits)) ? value.toFixed(digits) : Math.abs(value).toFixed(digits)).replace("-", "−");
  const percent = (share) => fixed(100 * share, 1) + "\u00a0%";
  const shown = (value) => value.toFixed((10 * value) % 1 ? 2 : 1);
  // A column at a threshold: edges rise, and between two of them it is a straight line.
  function at(column, edges, x) {
    let right = edges.findIndex((edge) => edge >= x);
    if (right < 0) return column[column.length - 1];
    if (right === 0) return column[0];
    const part = (x - edges[right - 1]) / (edges[right] - edges[right - 1]);
    return column[right - 1] + part * (column[right] - column[right - 1]);
  }

  // ---- the plot --------------------------------------------------------------------------------------------
  const plot = () => now.preview?.figure;
  const fill = (control) => setProps("control-fill", { data: { ...control, at: Date.now() } });
  // While nothing is chosen the handles are those of the control that the server offers.
  function offer() {
    const form = document.getElementById("control-form"), offered = (now.isNone && plot() && now.preview.offered) || null;
    form?.toggleAttribute("data-offered", Boolean(offered));
    if (offered && !now.caught) now.low = mu(offered.document.mu_low), now.high = mu(offered.document.mu_high);
    now.offered = offered;
  }
  function place() {
    const handles = document.querySelector(".what-if .handles");
    if (!handles) return;
    handles.hidden = !plot();
    if (handles.hidden) return;
    const { data, layout } = plot(), end = layout.xaxis.range[1], panels = { clipped: layout.yaxis, pace: layout.yaxis2 };
    const part = (name, side) => handles.querySelector("." + name + "." + side);
    const height = (panel, value) => {
      const [low, high] = panel.range, [from, to] = panel.domain;
      return 100 * (1 - from - (to - from) * Math.min(1, Math.max(0, (value - low) / (high - low))));
    };
    document.querySelector(".what-if .unchanged").textContent = layout.meta.unchanged;
    document.querySelector(".panel-title.lower").textContent = layout.meta.pace;
    Object.keys(LINES).forEach((side) => {
      const sign = side === "low" ? -1 : 1, threshold = now[side], off = threshold === null, out = off ? end : Math.min(threshold, end);
      const line = (panel) => data.find(({ name }) => name === LINES[side] + panel);
      handles.style.setProperty("--" + side, 50 + (50 * sign * out) / end + "%");
      const handle = part("handle", side), share = part("share", side);
      handle.querySelector(".pill").textContent = "‹ µ" + (side === "low" ? "₋ " : "₊ ") + (off ? "off" : shown(threshold)) + " ›";
      handle.classList.toggle("off", off);
      // Words are at the outer side of a handle, and at the inner one where that is nearer to the edge.
      [handle, share].forEach((place) => place.classList.toggle("far", out > 0.55 * end));
      handle.hidden = part("beyond", side).hidden = !line("clipped");
      const inside = !off && threshold <= layout.meta.reach && !handle.hidden;
      share.hidden = !inside;
      ["clipped", "pace"].forEach((panel) => {
        const dot = part("dot." + panel, side), { x = [], y = [] } = line(panel) || {};
        dot.hidden = !inside || !y.length;
        if (dot.hidden) return;
        const value = at(y, x.map(Math.abs), threshold);
        dot.style.top = height(panels[panel], value) + "%";
        if (panel === "clipped") (share.textContent = percent(value)), (share.style.top = "max(" + dot.style.top + ", 17px)");
      });
    });
  }
  // The answer's line of the next steps takes the place of the suggested one; the axis reaches as far as it does.
  const CHARTS = ["chart-entropy", "chart-change", "chart-clip"];
  const lineOf = (chart) => now.preview?.lines?.[chart] || null;
  CHARTS.forEach((chart) => {
    isentrope.adjust[chart] = (figure) => {
      const line = lineOf(chart), { layout } = figure, range = layout.yaxis?.range;
      if (!line || !range) return figure;
      const others = (list) => list.filter((one) => one.meta !== "suggested" && one.name !== "suggested");
      const color = getComputedStyle(document.documentElement).getPropertyValue("--hold").trim(), { x, y, words } = line;
      const trace = { type: "scatter", mode: "lines", meta: "with", x, y, line: { color, width: 2, dash: "5px,4px" }, hoverinfo: "skip", cliponaxis: false };
      const ends = [...others(layout.meta.ends), { text: "<b>" + line.label + "</b><br>" + words, x: x[x.length - 1], y: y[y.length - 1], color }];
      const reach = [Math.min(range[0], ...y), Math.max(range[1], ...y)];
      const [first, last] = layout.xaxis.range, xaxis = { ...layout.xaxis, range: [first, document.body.hasAttribute("data-zoomed") ? last : Math.max(last, x[x.length - 1])] };
      return { data: [...others(figure.data), trace], layout: { ...layout, xaxis, yaxis: { ...layout.yaxis, range: reach }, meta: { ...layout.meta, ends } } };
    };
  });
  function follow() {
    CHARTS.forEach((chart) => {
      const line = JSON.stringify(lineOf(chart));
      if (line !== now.lines[chart]) isentrope.redraw(chart), (now.lines[chart] = line);
    });
  }

  // ---- dragging: native shapes can be moved up and down, too, and report only where they were let go -------------------
  function threshold(clientX, handles, side) {
    const box = handles.getBoundingClientRect();
    const x = ((clientX - box.left) / box.width - 0.5) * 2 * plot().layout.xaxis.range[1] * (side === "low" ? -1 : 1);
    return x > plot().layout.meta.reach + 0.02 ? "" : Math.max(0, Math.round(20 * x) / 20);
  }
  document.addEventListener("pointerdown", (event) => {
    const handle = event.target.closest?.(".what-if .handle");
    if (!handle || !plot()) return;
    event.preventDefault();
    if (now.offered) fill(now.offered);
    const side = handle.dataset.side, handles = handle.parentElement;
    const grip = event.clientX - handle.getBoundingClientRect().left; // its words are beside the line
    let frame = null, last = event;
    const move = (moved) => {
      last = moved;
      frame = frame || requestAnimationFrame(() => {
        frame = null;
        const value = threshold(last.clientX - grip, handles, side);
        if (!now.offered) return setProps(IDS[side], { value });
        now.caught = { side, value }; // the form takes it when it has the method
        now[side] = mu(value);
        place();
      });
    };
    const end = () => {
      removeEventListener("pointermove", move);
      handle.classList.remove("moving");
    };
    handle.classList.add("moving");
    addEventListener("pointermove", move);
    addEventListener("pointerup", end, { once: true });
    addEventListener("pointercancel", end, { once: true });
  });

  // ---- the answer: it comes with the charts', of one step; one to an earlier form is grey until the next one is there ----------
  isentrope.markOlder = () => document.getElementById("control-form")?.toggleAttribute("data-older", isentrope.answered !== now.form);
  const show = () => {
    offer();
    if (plot()) isentrope.chart("control-what-if", plot());
    place();
    follow();
    isentrope.markOlder();
    if (!now.tried || !now.preview) return;
    now.tried = false; // the form has its height now
    const card = document.getElementById("control");
    if (getComputedStyle(card).position === "fixed") card.querySelector(".sheet-close").focus();
    else card.scrollIntoView({ block: "nearest" });
  };
  function offerTarget(entropy) {
    const input = document.getElementById("control-hold-target"), hold = document.getElementById("control-hold");
    if (!input || !entropy) return;
    if (hold?.checked && !input.value) setProps("control-hold-target", { value: entropy });
    input.placeholder = entropy;
  }
  isentrope.calls["control-preview"] = (preview) => {
    now.preview = preview;
    show();
    offerTarget(preview?.entropy);
  };

  // ---- time ------------------------------------------------------------------------------------------------
  setInterval(() => {
    document.querySelectorAll("[data-expires]").forEach((place) => {
      const left = Math.round(Number(place.dataset.expires) - Date.now() / 1000);
      const words = left > 0 ? "expires in " + Math.floor(left / 60) + ":" + String(left % 60).padStart(2, "0") : "expired";
      if (place.textContent !== words) place.textContent = words;
    });
  }, 1000);
  // Dash does not report that the request of a callback failed.
  function awaitAnswer() {
    const outcome = (words, look) => setProps("control-outcome", { children: words, className: "outcome" + look });
    clearTimeout(now.pushing);
    outcome(WAITING, "");
    now.pushing = setTimeout(() => {
      if (document.getElementById("control-outcome")?.textContent === WAITING) outcome(NO_ANSWER, " failed");
    }, ANSWER_WITHIN);
  }
  // ---- folded: once a control was pushed, the form is there when it is asked for
  const formCard = () => document.getElementById("control");
  function unfold() {
    if (formCard()) formCard().dataset.open = "";
    // Latest control says what became of what was pushed here.
    if (document.querySelector("#control-outcome.done")) setProps("control-outcome", { className: "gone" });
  }
  function fold() {
    delete formCard().dataset.open;
    if (!now.pushes) return;
    now.pushes = false;
    delete document.body.dataset.sheet;
    document.getElementById("open-control")?.focus({ preventScroll: true });
    document.getElementById("latest-control").scrollIntoView({ block: "nearest" });
  }
  // What somebody is typing in stays open when another's push arrives.
  document.addEventListener("focusin", ({ target }) => {
    if (target.closest(".control-form") && target.id !== "open-control") unfold();
  });
  document.addEventListener("input", ({ target }) => {
    if (target.id === "control-hold-target" && target.value) setProps("control-hold", { checked: true });
  });
  document.addEventListener("click", ({ target }) => {
    if (target.id === "open-control") {
      unfold();
      document.getElementById("control-method").focus();
    }
    const wanted = target.closest("[data-fill]"), revert = target.closest("[data-revert]");
    // What would come is a sliver of a long run: the last fifty steps stand beside the next ones.
    if (wanted && Number(document.getElementById("run-step")?.textContent.replace(/\D/g, "")) > LONG) setProps({ param: "window" }, { value: "50" });
    if (wanted) unfold(), (now.tried = true), (document.body.dataset.sheet = "control"), fill(JSON.parse(wanted.dataset.fill));
    if (revert) setProps("control-revert", { data: { version: revert.dataset.revert, at: Date.now() } });
    if (revert || target.closest("#control-push, #push-mine")) (now.pushes = !revert), awaitAnswer();
    // What is behind the sheet belongs to the body.
    if (target.closest(".sheet-close") || target === document.body) delete document.body.dataset.sheet;
  });

  window.dashMantineFunctions = Object.assign({}, window.dashMantineFunctions, {
    describeOption({ option }, plain) {
      const part = (className, words) => window.React.createElement("div", { className }, words);
      return window.React.createElement("div", null, part("", option.label), part("dim small", plain[option.value]));
    },
  });
  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    control: {
      draw(method, low, high, scope, hold, target, parameters, base, newest, methods) {
        const rare = window.dash_clientside.callback_context.inputs_list.find(Array.isArray) || [];
        const fields = { method: method || "none", mu_low: low, mu_high: high, scope: scope || "all", hold: Boolean(hold), hold_target: target,
          parameters: Object.fromEntries(rare.map(({ id, value }) => [id.parameter, value])) };
        formCard()?.toggleAttribute("data-pushed", base?.version > 0 || newest?.version > 0);
        if (base?.version > now.base) fold();
        Object.assign(now, { base: base?.version, low: mu(low), high: mu(high), isNone: fields.method === "none" && !hold, form: JSON.stringify({ fields, base }) });
        isentrope.form = now.form;
        isentrope.ask();
        if (now.caught && !now.isNone) setProps(IDS[now.caught.side], { value: now.caught.value }), (now.caught = null);
        show();
        offerTarget(now.preview?.entropy);
        // A hold without a method of its own is what the form does, not nothing.
        const none = methods?.flatMap(({ items }) => items).find(({ value }) => value === "none");
        if (none && !now.none) now.none = none.label;
        const label = hold ? "Hold" : now.none;
        const named = none && none.label !== label ? methods.map((group) => ({ ...group, items: group.items.map((one) => (one === none ? { ...one, label } : one)) })) : window.dash_clientside.no_update;
        return [fields, named];
      },
    },
  });
})();
