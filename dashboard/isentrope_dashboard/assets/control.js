// The control card without the server: handles, the numbers under the plot, the forecast in the entropy chart, a push that fails.
(function () {
  "use strict";
  const SETTLED = 250; // milliseconds without a change, after which the server is asked
  const ANSWER_WITHIN = 6000;
  const WAITING = "Waiting for the server’s answer.";
  const NO_ANSWER = "No answer from the server: nothing is known of this push. If it arrived, it stands under Latest control when the connection is back.";
  const NEXT_STEPS = 50;
  const SIDES = ["low", "high"];
  const IDS = { low: "control-mu-low", high: "control-mu-high" };
  const setProps = (id, props) => window.dash_clientside.set_props(id, props);
  const now = { preview: null, low: null, high: null, timer: null, pushing: null, tried: false, lines: {} };

  // ---- numbers ---------------------------------------------------------------------------------------------
  const mu = (value) => (value === "" || value === null || value === undefined || !isFinite(value) || value < 0 ? null : Number(value));
  const fixed = (value, digits) => (/[1-9]/.test(value.toFixed(digits)) ? value.toFixed(digits) : Math.abs(value).toFixed(digits)).replace("-", "−");
  const percent = (share) => fixed(100 * share, 1) + "\u00a0%";
  const small = (value) => fixed(value, value ? Math.min(8, Math.max(4, 1 - Math.floor(Math.log10(Math.abs(value))))) : 4);
  const signed = (value) => (/[1-9]/.test(small(value)) && value > 0 ? "+" : "") + small(value);
  const shown = (value) => value.toFixed((10 * value) % 1 ? 2 : 1);
  const named = (low, high) => (low === high && low !== null ? "µ " + shown(low)
    : [["µ₋ ", low], ["µ₊ ", high]].filter(([, value]) => value !== null).map(([name, value]) => name + shown(value)).join(" "));
  const known = (value) => typeof value === "number" && isFinite(value);
  // A column at a threshold: edges rise, and between two of them it is a straight line.
  function at(column, edges, x) {
    let right = edges.findIndex((edge) => edge >= x);
    if (right < 0) return column[column.length - 1];
    if (right === 0) return column[0];
    const part = (x - edges[right - 1]) / (edges[right] - edges[right - 1]);
    return column[right - 1] + part * (column[right] - column[right - 1]);
  }
  // What both sides do together: each curve has the other side off, so the shares add up, and so do the changes removed.
  function together(preview, low, high) {
    const exact = preview.exact;
    if (exact.low === low && exact.high === high) return exact;
    const total = { clipped: 0, variance: 0, change: preview.unclipped };
    SIDES.forEach((side) => {
      const threshold = side === "low" ? low : high, curve = preview.sides[side];
      if (threshold === null) return;
      total.clipped += at(curve.clipped, preview.mu, threshold);
      total.change += at(curve.change, preview.mu, threshold) - preview.unclipped;
      if (curve.clippedStd) total.variance += at(curve.clippedStd, preview.mu, threshold) ** 2;
    });
    return { clipped: total.clipped, clippedStd: Math.sqrt(total.variance), change: total.change };
  }

  // ---- the plot --------------------------------------------------------------------------------------------
  function place() {
    const handles = document.querySelector(".what-if .handles");
    if (!handles) return;
    handles.hidden = !now.preview;
    if (!now.preview) return;
    const { end, reach, panels, sides } = now.preview;
    const part = (name, side) => handles.querySelector("." + name + "." + side);
    const height = (panel, value) => {
      const [low, high] = panel.range, [from, to] = panel.domain;
      return 100 * (1 - from - (to - from) * Math.min(1, Math.max(0, (value - low) / (high - low))));
    };
    SIDES.forEach((side) => {
      const sign = side === "low" ? -1 : 1, threshold = now[side], off = threshold === null;
      const x = 50 + (50 * sign * (off ? end : Math.min(threshold, end))) / end;
      handles.style.setProperty("--" + side, x + "%");
      const handle = part("handle", side);
      handle.querySelector(".pill").textContent = "‹ µ" + (side === "low" ? "₋ " : "₊ ") + (off ? "off" : shown(threshold)) + " ›";
      handle.classList.toggle("off", off);
      const inside = !off && threshold <= reach;
      ["clipped", "change"].forEach((panel) => {
        const dot = part("dot." + panel, side);
        dot.hidden = !inside;
        if (inside) dot.style.top = height(panels[panel], at(sides[side][panel], now.preview.mu, threshold)) + "%";
      });
      const share = part("share", side);
      share.hidden = !inside;
      if (inside) {
        const clipped = at(sides[side].clipped, now.preview.mu, threshold);
        share.textContent = percent(clipped);
        share.style.top = height(panels.clipped, clipped) + "%";
      }
    });
  }
  // At the observed slope, and what the thresholds change of the predicted one.
  const pace = (preview, sum) => (known(preview.slope) ? preview.slope + sum.change - preview.now : sum.change);
  const ahead = (preview, sum) => Math.max(0, preview.entropy + NEXT_STEPS * pace(preview, sum));
  // The line "with" of the next 50 steps in each chart: its two ends, and what is written at the second.
  const LINES = {
    "chart-entropy": (preview, sum) => [preview.entropy, ahead(preview, sum), fixed(ahead(preview, sum), 3)],
    "chart-change": (preview, sum) => [pace(preview, sum), pace(preview, sum), signed(pace(preview, sum))],
    "chart-clip": (preview, sum) => [sum.clipped, sum.clipped, percent(sum.clipped)],
  };
  // Null where the form changes nothing.
  function forecast(chart) {
    const preview = now.preview;
    const isNew = preview && preview.calibrated && known(preview.entropy) && preview.ahead && (preview.changed || preview.exact.low !== now.low || preview.exact.high !== now.high);
    if (!isNew) return null;
    const [from, to, words] = LINES[chart](preview, together(preview, now.low, now.high));
    const color = getComputedStyle(document.documentElement).getPropertyValue("--hold").trim();
    const x = preview.ahead, falls = to < from, text = "<b>with " + preview.label + " " + named(now.low, now.high) + "</b>  " + words;
    const label = { x: x[1], y: to, text, xanchor: "right", yanchor: falls ? "top" : "bottom", yshift: falls ? -4 : 2, showarrow: false, font: { color, size: 11 } };
    return { label, trace: { type: "scatter", mode: "lines", meta: "with", x, y: [from, to], line: { color, width: 2, dash: "5px,4px" }, hoverinfo: "skip", cliponaxis: false } };
  }
  // It takes the place of the suggested one; the axis reaches as far as it does.
  Object.keys(LINES).forEach((chart) => {
    (window.isentrope ||= { adjust: {} }).adjust[chart] = (figure) => {
      const line = forecast(chart), others = (list) => (list || []).filter((one) => one.meta !== "suggested" && one.name !== "suggested");
      const axis = figure.layout.yaxis, range = axis && axis.range;
      if (!line || !range) return figure;
      const { trace, label } = line, highest = Math.max(...trace.y);
      // Above a line that is higher than all others, room for its label.
      const reach = [Math.min(range[0], ...trace.y), highest > range[1] ? highest + 0.15 * (highest - range[0]) : range[1]];
      return { data: [...others(figure.data), trace], layout: { ...figure.layout, yaxis: { ...axis, range: reach }, annotations: [...others(figure.layout.annotations), label] } };
    };
  });
  function follow() {
    Object.keys(LINES).forEach((chart) => {
      const line = JSON.stringify(forecast(chart));
      if (line !== now.lines[chart]) window.isentrope.redraw(chart), (now.lines[chart] = line);
    });
  }

  // ---- dragging: native shapes can be moved up and down, too, and report only where they were let go -------------------
  function threshold(event, handles, side) {
    const box = handles.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width - 0.5) * 2 * now.preview.end * (side === "low" ? -1 : 1);
    return x > now.preview.reach + 0.02 ? "" : Math.max(0, Math.round(20 * x) / 20);
  }
  document.addEventListener("pointerdown", (event) => {
    const handle = event.target.closest && event.target.closest(".what-if .handle");
    if (!handle || !now.preview) return;
    event.preventDefault();
    const side = handle.dataset.side, handles = handle.parentElement;
    let frame = null, last = event;
    const move = (moved) => {
      last = moved;
      frame = frame || requestAnimationFrame(() => {
        frame = null;
        setProps(IDS[side], { value: threshold(last, handles, side) });
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

  // ---- time ------------------------------------------------------------------------------------------------
  setInterval(() => {
    document.querySelectorAll("[data-expires]").forEach((place) => {
      const left = Math.round(Number(place.dataset.expires) - Date.now() / 1000);
      const words = left > 0 ? "expires in " + Math.floor(left / 60) + ":" + String(left % 60).padStart(2, "0") : "expired";
      if (place.textContent !== words) place.textContent = words;
    });
  }, 1000);
  // Dash tells nobody that the request of a callback failed.
  function awaitAnswer() {
    const outcome = (words, look) => setProps("control-outcome", { children: words, className: "outcome" + look });
    clearTimeout(now.pushing);
    outcome(WAITING, "");
    now.pushing = setTimeout(() => {
      if (document.getElementById("control-outcome")?.textContent === WAITING) outcome(NO_ANSWER, " failed");
    }, ANSWER_WITHIN);
  }
  document.addEventListener("click", ({ target }) => {
    const fill = target.closest("[data-fill]"), revert = target.closest("[data-revert]");
    if (fill) (now.tried = true), setProps("control-fill", { data: { ...JSON.parse(fill.dataset.fill), at: Date.now() } });
    if (revert) setProps("control-revert", { data: { version: revert.dataset.revert, at: Date.now() } });
    if (revert || target.closest("#control-push, #push-mine")) awaitAnswer();
  });

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    control: {
      draw(preview, method, low, high, scope, hold, target, parameters, base, view, asked) {
        const fields = JSON.stringify([method, low, high, scope, hold, target, parameters, base && base.version, view]);
        clearTimeout(now.timer);
        if (fields !== asked) now.timer = setTimeout(() => document.getElementById("control-form") && setProps("control-asked", { data: fields }), asked ? SETTLED : 0);
        Object.assign(now, { preview: preview && preview.sides ? preview : null, low: mu(low), high: mu(high) });
        if (preview && preview.figure) window.isentrope.chart("control-what-if", preview.figure);
        place();
        follow();
        if (now.tried && now.preview) {
          now.tried = false; // the form has its height now
          document.getElementById("control").scrollIntoView({ block: "nearest" });
        }
        const entropy = preview && known(preview.entropy) ? String(Number(preview.entropy.toPrecision(3))) : "";
        if (entropy && hold && !target) setProps("control-hold-target", { value: entropy });
        const input = document.getElementById("control-hold-target");
        if (input && entropy) input.placeholder = entropy;
        if (!now.preview) return ["–", "", "–", "ΔH per step", "–"];
        const sum = together(now.preview, now.low, now.high);
        const after = now.preview.calibrated && entropy ? fixed(ahead(now.preview, sum), 3) : "–";
        return [percent(sum.clipped), sum.clippedStd ? " ± " + fixed(100 * sum.clippedStd, 1) : "", known(sum.change) ? signed(sum.change) : "–",
          now.preview.calibrated ? "ΔH per step" : "ΔH per unit gain", after];
      },
    },
  });
})();
