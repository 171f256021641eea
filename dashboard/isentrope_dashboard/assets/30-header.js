// What the head of every page says of a run by itself: its step, its level in the tab's picture, how old a report is.
(function () {
  "use strict";
  const isentrope = window.isentrope;
  const LEVEL_COLOURS = { act: "#f0925a", watch: "#d9b44a", holding: "#3cc7b0", healthy: "#3cc7b0" };
  let openTab = null, icon = null, level = null;

  function showRun({ run }) {
    // The step of the overview's answer, which may be newer than that of the question whether there is a new one.
    const answered = document.querySelector(".health")?.dataset.step, step = answered ? Number(answered) : run?.step;
    const number = document.getElementById("run-step"), bar = document.getElementById("run-progress");
    const words = (step ?? null) === null ? "" : step.toLocaleString("en-US");
    if (number && words && number.textContent !== words) number.textContent = words;
    if (bar && run?.planned) bar.firstChild.style.width = Math.min(100, (100 * step) / run.planned) + "%";
    const tab = document.querySelector(".tabs [role=tab][data-active]");
    if (!tab || tab === openTab) return;
    openTab = tab;
    tab.scrollIntoView({ block: "nearest", inline: "nearest" }); // of more than fit
  }
  // The tab's picture has a disc in the colour of the run's level.
  async function showLevel(newest) {
    if (newest === level) return;
    level = newest;
    icon ||= fetch(isentrope.rootPath + "/assets/icon.svg").then((answer) => answer.text());
    const color = LEVEL_COLOURS[level], disc = color ? '<circle cx="23" cy="9" r="8.5" fill="' + color + '" stroke="#fff" stroke-width="1.5"/>' : "";
    const drawing = (await icon).replace("</svg>", disc + "</svg>");
    document.querySelector("link[rel=icon]").href = "data:image/svg+xml," + encodeURIComponent(drawing);
  }
  function inWords(seconds) {
    if (seconds < 2) return "now";
    if (seconds < 120) return Math.round(seconds) + " s ago";
    if (seconds < 7200) return Math.round(seconds / 60) + " min ago";
    if (seconds < 172800) return Math.round(seconds / 3600) + " h ago";
    return Math.round(seconds / 86400) + " days ago";
  }
  function showAges({ run, seen }) {
    document.querySelectorAll("[data-since]").forEach((place) => {
      // A report that came while this page was open is as old as that: the server's clock may differ.
      const since = place.id === "report-age" ? seen / 1000 || run?.at : Number(place.dataset.since);
      const words = place.dataset.before + inWords(Math.max(0, Date.now() / 1000 - since));
      if (since && place.textContent !== words) place.textContent = words;
    });
  }
  Object.assign(isentrope, { showRun, showLevel, showAges });
})();
