// Keys that every page has.
(function () {
  "use strict";
  const KEYS = [["1 – 6", "Open a tab of a run"], ["/", "Search"], ["Ctrl K", "Go to a run or a metric"], ["j, k", "Next and previous run of the list"], ["?", "Show the keys"], ["Esc", "Close what is open"]];

  const { make } = window.isentrope;
  function showKeys() {
    const dialog = document.body.appendChild(make("dialog", { className: "keys-dialog", ariaLabel: "Keys" })), list = dialog.appendChild(make("dl"));
    const add = (tag, textContent) => list.append(make(tag, { textContent }));
    KEYS.forEach(([key, words]) => {
      add("dt", key);
      add("dd", words);
    });
    dialog.addEventListener("close", () => dialog.remove());
    dialog.addEventListener("click", () => dialog.close());
    dialog.showModal();
  }
  const isTyped = (target) => target.matches("textarea, select, [contenteditable], input:not([type=radio], [type=checkbox], [type=range], [type=button])");
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") delete document.body.dataset.sheet;
    if (isTyped(event.target) || event.metaKey || event.ctrlKey || event.altKey || document.querySelector("dialog[open]")) return;
    const search = document.querySelector("input[type=search], .search input");
    if (event.key === "?" || (event.key === "/" && search)) event.preventDefault();
    if (event.key === "?") showKeys();
    if (event.key === "/") search?.focus();
    const tab = /^[1-9]$/.test(event.key) && document.querySelectorAll(".tabs [role=tab]")[event.key - 1];
    if (tab && document.body.dataset.connection === "good") tab.click();
  });
})();
