// Runs before the first paint: the scheme chosen last time, or the system's, so that nothing flashes.
(function () {
  var root = document.documentElement;
  var chosen = null;
  try {
    chosen = window.localStorage.getItem("mantine-color-scheme-value");
  } catch (error) {
    chosen = null; // storage may be forbidden; the system's scheme is right then
  }
  var dark = chosen === "dark" || (chosen !== "light" && window.matchMedia("(prefers-color-scheme: dark)").matches);
  root.setAttribute("data-mantine-color-scheme", dark ? "dark" : "light");
})();
