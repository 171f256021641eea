// Charts: drawn where they fit, labels that do not touch, a zoom and a hover that all of them share, a click that opens a step.
(function () {
  "use strict";
  const CHART = { displayModeBar: false, doubleClick: false, scrollZoom: false, showTips: false }; // a double click ends the zoom of all charts
  const DOUBLE_CLICK = 320;
  const LINE_PIXELS = 14;
  const NEAR_PIXELS = 12;
  const isentrope = window.isentrope, { values, run, show } = isentrope;
  const adjust = {}; // id of a chart -> what the browser adds to its figure

  const chartIn = (place) => place.querySelector(":scope > .js-plotly-plot");
  const zooming = () => [...document.querySelectorAll(".zooms .js-plotly-plot")];
  function fits(place) {
    const layout = chartIn(place)?.layout;
    return layout?.width === place.clientWidth && layout.height === place.clientHeight;
  }
  const resized = new ResizeObserver((places) => places.forEach(({ target }) => {
    if (values.has(target.id) && !fits(target)) values.get(target.id).place = null;
  }));
  // The middles of labels of these heights: as near to their places as they can be without touching; pixels, from below.
  function apart(places, heights, top) {
    const order = places.map((_, at) => at).sort((a, b) => places[a] - places[b]), middles = [...places];
    let end = -Infinity;
    order.forEach((at) => {
      middles[at] = Math.max(places[at], end + heights[at] / 2);
      end = middles[at] + heights[at] / 2;
    });
    order.reverse().forEach((at) => {
      middles[at] = Math.min(middles[at], top - heights[at] / 2);
      top = middles[at] - heights[at] / 2;
    });
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
    const figure = labelled(adjust[id] ? adjust[id](one.value) : one.value, place);
    one.place = place;
    const layout = { ...figure.layout, width: place.clientWidth, height: place.clientHeight };
    const drawn = window.Plotly.react(plot, figure.data, layout, { ...CHART, staticPlot: Boolean(place.dataset.static) });
    drawn?.catch?.((error) => one.place === place && isentrope.refuse(place, error));
    if (old) return;
    resized.observe(place);
    if (plot.closest(".zooms")) bind(plot);
  }
  function bind(plot) {
    const others = () => zooming().filter((other) => other !== plot && other._fullLayout);
    plot.on("plotly_relayout", (moved) => {
      const ends = [moved["xaxis.range[0]"], moved["xaxis.range[1]"]];
      if (ends.every((end) => typeof end === "number")) show({ zoom: ends.map((end) => Number(end.toPrecision(7))).join("~") }, true);
    });
    let click = 0, doubled = 0; // a double click is no choice of a step; its second click is reported after it
    plot.on("plotly_doubleclick", () => {
      clearTimeout(click);
      doubled = Date.now();
      show({ zoom: null });
    });
    plot.on("plotly_click", (event) => {
      if (!run()) return hideLine(plot, event);
      const point = event.points.find((other) => !other.xaxis || other.xaxis._id === "x");
      clearTimeout(click);
      if (point && Date.now() - doubled > DOUBLE_CLICK) click = setTimeout(() => openStep(stepAt(plot, point.x)), DOUBLE_CLICK);
    });
    plot.on("plotly_hover", ({ points: [{ x, xaxis }] }) => {
      if (xaxis?._id === "x") others().forEach((other) => window.Plotly.Fx.hover(other, { xval: x }, "xy"));
    });
    plot.on("plotly_unhover", () => others().forEach((other) => window.Plotly.Fx.unhover(other)));
  }
  // Among several runs a click on a line, or near to it, hides it; the legend shows it again.
  function hideLine(plot, { event, points }) {
    const y = event.clientY - plot.getBoundingClientRect().top;
    const near = points.map(({ yaxis, y: value, data }) => [Math.abs(yaxis._offset + yaxis.d2p(value) - y), data.meta]);
    const [far, line] = near.filter(([, name]) => name).sort(([a], [b]) => a - b)[0] || [Infinity];
    if (far < NEAR_PIXELS) [...document.querySelectorAll("[data-line]")].find((button) => button.dataset.line === line)?.click();
  }
  function stepAt(plot, place) {
    const { x, step } = plot.layout.meta;
    return Math.round(x ? step[Math.max(0, x.findLastIndex((value) => value <= place + 1e-9))] : place);
  }
  // A step is looked at where one step is shown: on the tab that is open, or else among its tokens.
  function openStep(step) {
    const tab = document.querySelector(".step-bar") ? new URLSearchParams(location.search).get("tab") : "tokens";
    show({ step, tab }, true);
  }
  Object.assign(isentrope, { adjust, chartIn, drawChart });
})();
