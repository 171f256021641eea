// A chart as a file: a picture with the words that the page has around it, or its values.
(function () {
  "use strict";
  const HEAD_PIXELS = 64;
  const withoutMarkup = (words) => new DOMParser().parseFromString(words, "text/html").body.textContent;
  const escaped = (words) => words.replace(/&/g, "&amp;").replace(/</g, "&lt;");

  // A trace's rows for a file. Where an axis can't show what was logged, `customdata` has it; bars have their lengths there.
  function rowsOf({ name, type, x, y, customdata }) {
    const [places, values] = type === "bar" ? [y, customdata] : [x, customdata ?? y];
    return places.map((place, at) => [withoutMarkup(name), place, values[at]]).filter(([, , value]) => value !== null);
  }
  function cell(value) {
    if (typeof value !== "string") return value ?? "";
    return '"' + value.replace(/"/g, '""').replace(/^(?!-Infinity$)[=+\-@\t\r]/, "'$&") + '"'; // no formula
  }
  function savePicture(plot, kind, { run, chart, unit, card, filename }) {
    const { template, ...layout } = plot.layout, margin = plot._fullLayout.margin, named = new Set();
    const data = plot.data.map((trace) => {
      const showlegend = Boolean(trace.name) && trace.hoverinfo !== "skip" && !named.has(trace.name);
      if (showlegend) named.add(trace.name);
      return { ...trace, showlegend };
    });
    const text = "<b>" + escaped(chart) + "</b>" + (unit && "  " + escaped(unit)) + "<br><span style='font-size:11px'>" + escaped(run) + "</span>";
    const title = { text, x: 0, xanchor: "left", xref: "paper", yref: "container", y: 1, yanchor: "top", pad: { t: 18 }, font: { size: 13 } };
    const legend = { orientation: "h", x: 1, xanchor: "right", y: 1, yanchor: "bottom", font: { size: 11 } };
    const look = { ...layout, template, title, paper_bgcolor: getComputedStyle(card).backgroundColor, margin: { ...margin, t: HEAD_PIXELS }, showlegend: true, legend };
    window.Plotly.downloadImage({ data, layout: look }, { format: kind, scale: 2, filename, width: plot.clientWidth, height: plot.clientHeight + HEAD_PIXELS - margin.t });
  }
  function saveValues(plot, filename, measured) {
    const { xaxis, yaxis, meta } = plot.layout, axis = meta?.x && new URLSearchParams(location.search).get("x");
    const head = ["line", xaxis.title?.text || { time: "seconds", tokens: "tokens" }[axis] || "step", yaxis.title?.text || measured];
    const rows = plot.data.filter((trace) => trace.name && trace.x).flatMap(rowsOf);
    const lines = [head, ...rows].map((row) => row.map(cell).join(","));
    const href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
    const link = window.isentrope.make("a", { href, download: filename + ".csv" });
    link.click();
    URL.revokeObjectURL(href);
  }
  document.addEventListener("click", (event) => {
    const saving = event.target.closest("[data-save]");
    if (!saving) return;
    const card = saving.closest(".chart"), plot = card.querySelector(".js-plotly-plot"), kind = saving.dataset.save;
    const run = document.querySelector("h1")?.textContent || "", chart = card.dataset.name, unit = card.querySelector(".unit")?.textContent || "";
    const filename = [run, chart].map((words) => words.replace(/[^\w.-]+/g, "-")).join("-");
    saving.closest("details").open = false;
    if (kind === "csv") saveValues(plot, filename, [chart, unit].filter(Boolean).join(", "));
    else savePicture(plot, kind, { run, chart, unit, card, filename });
  });
})();
