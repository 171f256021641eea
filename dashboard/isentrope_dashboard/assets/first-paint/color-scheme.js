// Runs before the first paint: the scheme that the address names, else the one chosen last, else the system's; and a page that
// begins with a grid loads its script along with the others.
(function () {
  var root = document.documentElement;
  var chosen = new URLSearchParams(location.search).get("theme");
  try {
    if (chosen === "dark" || chosen === "light") window.localStorage.setItem("mantine-color-scheme-value", chosen);
    else chosen = window.localStorage.getItem("mantine-color-scheme-value");
  } catch (error) {
    // Storage may be forbidden.
  }
  var dark = chosen === "dark" || (chosen !== "light" && window.matchMedia("(prefers-color-scheme: dark)").matches);
  root.setAttribute("data-mantine-color-scheme", dark ? "dark" : "light");
  var rootPath = document.querySelector("meta[name=root-path]").content;
  if (location.pathname.replace(/\/$/, "") === rootPath || /[?&]tab=(tokens|audit)/.test(location.search)) {
    var link = document.createElement("link");
    link.rel = "preload";
    link.as = "script";
    link.href = document.querySelector("meta[name=grid-script]").content;
    document.head.appendChild(link);
  }
})();
