// Ctrl or ⌘ and K: to any run, or to any metric of the run that is open.
(function () {
  "use strict";
  const MOST = 8;
  const PAUSE_MILLISECONDS = 120;
  const { make, rootPath, run } = window.isentrope;
  const address = (path) => rootPath + path;
  const read = async (path) => (await (await fetch(address("/api/v1/" + path))).json()).items || [];
  let dialog, input, list, metrics = [], timer = 0, asked = 0;

  function build() {
    dialog = make("dialog", { className: "palette" });
    input = make("input", { type: "text", placeholder: "Go to a run or a metric" });
    list = make("div", { className: "found" });
    input.setAttribute("aria-label", input.placeholder);
    dialog.setAttribute("aria-label", input.placeholder);
    dialog.append(input, list);
    document.body.append(dialog);
    input.addEventListener("input", () => (clearTimeout(timer), (timer = setTimeout(find, PAUSE_MILLISECONDS))));
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.addEventListener("keydown", (event) => {
      const links = [...list.children], at = links.indexOf(document.activeElement);
      const to = { ArrowDown: links[at + 1], ArrowUp: links[at - 1] || input }[event.key];
      if (to) event.preventDefault(), to.focus();
      if (event.key === "Enter" && at < 0 && links.length) event.preventDefault(), links[0].click();
    });
  }
  function link(href, words, about) {
    const place = make("a", { href });
    place.append(words, make("span", { className: "dim", textContent: about }));
    return place;
  }
  async function find() {
    const words = input.value.trim(), mine = ++asked, query = new URLSearchParams({ limit: MOST, ...(words && { q: words }) });
    const runs = await read("runs?" + query).catch(() => []);
    if (mine !== asked) return; // another answer is on its way
    const tab = new URLSearchParams(location.search).get("tab"), behind = run() && tab ? "?tab=" + encodeURIComponent(tab) : "";
    const named = words ? metrics.filter(({ name }) => name.toLowerCase().includes(words.toLowerCase())).slice(0, MOST) : [];
    list.replaceChildren(
      ...named.map(({ name }) => link(address("/runs/" + run() + "?" + new URLSearchParams({ tab: "metrics", q: name })), name, "metric")),
      ...runs.map(({ id, name, project }) => link(address("/runs/" + encodeURIComponent(id) + behind), name, id + " · " + project)),
    );
    if (!list.children.length) list.replaceChildren(make("p", { className: "dim", textContent: "Nothing found" }));
  }
  document.addEventListener("keydown", async (event) => {
    if (event.key.toLowerCase() !== "k" || !(event.metaKey || event.ctrlKey) || event.shiftKey || event.altKey) return;
    event.preventDefault();
    if (!dialog) build();
    if (dialog.open) return dialog.close();
    input.value = "";
    metrics = [];
    dialog.showModal();
    find();
    if (run()) metrics = await read("runs/" + run() + "/metrics").catch(() => []);
  });
})();
